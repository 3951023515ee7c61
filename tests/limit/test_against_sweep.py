"""A sweep is trained, and compared with its limit: it agrees, a planted fault does not, and what is missing is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limit_sweeps import REGIME_I, text_of

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.limit.against import Comparisons, against, compare, network_of
from hpxfer.limit.against.figure import against_figures, against_info
from hpxfer.limit.against.measured import LOSS_CURVE
from hpxfer.limit.network import Network
from hpxfer.limit.save import save
from hpxfer.results import Results

# The numbers of the paper's table at width 16, which are absolute; regime I is exact, so that nothing is sampled.
HPS = (
    "hps: {multipliers: {embedding.lr_mult: 16, router.lr_mult: 0.0625, readout.lr_mult: 0.0625, "
    "readout.init_mult: 0.25, router.init_mult: 0.25}}"
)
# Why Routers Freeze, with a bias that is fixed and drawn by each seed.
SMALL: dict[str, Any] = {
    "gate": "softmax",
    "options": ", expert_matrices: 1, router_bias: fixed",
    "hps": HPS,
    "lr": 0.1,
    "steps": 5,
    "seeds": 40,
    "axis": "{values: [64, 128, 256]}",
    "base": "{width: 16, depth: 1, num_experts: 2, num_active: 2, expert_ratio: 1}",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("limit")
    path = folder / "sweep.yaml"
    path.write_text(text_of(REGIME_I, **SMALL), encoding="utf-8")
    hpxfer.run(path, results=folder / "results")
    return hpxfer.load_results(folder / "results" / "limit-i")


@pytest.fixture(scope="module")
def found(results: Results) -> Comparisons:
    return against(results)


def test_the_sweep_agrees_with_its_limit(found: Comparisons) -> None:
    (arm,) = found.arms
    assert arm.p > 0.05
    assert arm.is_exact
    assert arm.num_limits == 40
    assert arm.updates == 5
    assert arm.loss.passes == (0, 1, 2, 3, 4, 5)
    assert arm.held_out
    assert [each.size for each in arm.distances] == [16, 64, 128, 256]
    assert arm.network_slope is not None
    assert arm.network_slope.low < -0.4
    assert arm.network_slope.high > -0.9


def test_the_constants_are_those_of_the_paper(found: Comparisons) -> None:
    network = found.arms[0].network
    assert network.regime == "I"
    assert all(value == pytest.approx(1.0) for value in (*network.init_mult.values(), *network.lr_mult.values()))


def planted(monkeypatch: pytest.MonkeyPatch, results: Results, **changed: Any) -> Comparisons:
    """Return the comparison with another network than the one that the trials approach."""

    def wrong(*args: Any) -> Network:
        return replace(network_of(*args), **changed)

    monkeypatch.setattr(compare, "network_of", wrong)
    return against(results)


@pytest.mark.parametrize(
    "changed",
    [
        {"lr_mult": {"embedding": 0.25}},
        {"lr_mult": {"embedding": 0.0, "expert_out": 0.0}},
        {"init_mult": {"expert_out": 2.0}},
    ],
)
def test_another_network_is_accused(monkeypatch: pytest.MonkeyPatch, results: Results, changed: dict[str, Any]) -> None:
    (arm,) = planted(monkeypatch, results, **changed).arms
    assert arm.verdict == "disagrees"
    assert "do NOT approach" in arm.sentence()
    assert max(abs(arm.loss.means.z[-1])) > 8


def test_the_text_says_first_what_follows(found: Comparisons) -> None:
    text = found.table()
    assert text.startswith("mup-i along width: ")
    assert "From its data the sweep's report says: nothing, as the sweep scans one value of lr" in text
    assert "one network: N^-0." in text


def test_the_json_is_strict(found: Comparisons) -> None:
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    (arm,) = read["arms"]
    assert arm["network"]["regime"] == "I"
    assert len(arm["quantities"]["loss"]["finite"]) == 4


def test_the_first_updates_alone_can_be_compared(results: Results) -> None:
    (arm,) = against(results, steps=2).arms
    assert arm.loss.passes == (0, 1, 2)
    assert not arm.held_out


def test_seeds_that_lack_a_width_are_left_out_and_said(results: Results) -> None:
    last = results.trials[results.trials["width"] == 256]
    lost = last["trial_id"].iloc[0]
    diverged = last["trial_id"].iloc[1]
    trials = results.trials[results.trials["trial_id"] != lost].copy()
    trials.loc[trials["trial_id"] == diverged, "status"] = "diverged"
    (arm,) = against(replace(results, trials=trials)).arms
    assert len(arm.seeds) == 38
    assert set(arm.left_out) == {"1 missing at width 256", "1 diverged at width 256"}
    assert "left out: 1 missing at width 256" in arm.table()


def test_updates_that_not_all_trials_have_are_left_out_and_said(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = results.curves.copy()
    own = curves["metric"] == LOSS_CURVE
    trial = curves["trial_id"].iloc[0]
    curves.loc[own & (curves["trial_id"] == trial) & (curves["step"] == 3), "value"] = np.nan
    curves = curves[~(own & (curves["trial_id"] == trial) & (curves["step"] == 2))]
    monkeypatch.setitem(vars(results), "curves", curves)  # a cached property
    (arm,) = against(results).arms
    assert arm.loss.passes == (0, 1, 4, 5)
    assert arm.left_out == ("2 passes, at which not all trials have logged a finite loss",)
    assert "nan" not in arm.table()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"axis": "depth"}, "axis: the sweep has no 'depth'"),
        ({"arm": "mup"}, "parameterization: the sweep has no 'mup'; did you mean 'mup-i'?"),
        ({"value": 0.3}, "lr: must be a value that the sweep scans, got 0.3; legal: 0.1"),
        ({"steps": 0}, "steps must be from 1 to the 5 of the sweep, got 0"),
        ({"steps": 6}, "steps must be from 1 to the 5 of the sweep, got 6"),
        ({"seeds": 1}, "seeds: must be at least 2"),
        ({"tolerance": 0.0}, "tolerance: must be a share between 0 and 1, got 0"),
        ({"tolerance": float("nan")}, "tolerance: must be a share between 0 and 1, got nan"),
        ({"sites": 100}, "sites: must be a power of two"),
    ],
)
def test_bad_input_is_named(results: Results, how: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError) as caught:
        against(results, **how)
    assert says in str(caught.value)


def test_a_sweep_that_costs_too_much_says_what_fits(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MOST_EXPERT_SAMPLES", 30)
    with pytest.raises(HpxferError, match=r"5 updates of 4 samples.*compare the first 3 of them \(--steps 3\)"):
        against(results)


def test_one_seed_is_too_few(results: Results) -> None:
    first = results.trials["seed"] == 0
    with pytest.raises(HpxferError, match="at least 2 seeds must have finished at every width, got 1; 39 missing at"):
        against(replace(results, trials=results.trials[first]))


def test_the_figure_shows_what_was_found(found: Comparisons, tmp_path: Path) -> None:
    (arm,) = found.arms
    info = against_info(arm)
    assert [curve.size for curve in info.curves] == [16, 64, 128, 256]
    assert info.limit.updates == (0, 1, 2, 3, 4)  # the loss on held-out samples is another one
    assert info.means.heights == tuple(each.mean for each in arm.distances)
    assert np.allclose(info.limit.mean, arm.loss.limit[:-1])
    files = save(tmp_path, found.table(), found.to_dict(), against_figures(found.arms))
    assert {file.name for file in files} == {
        "limit.txt",
        "limit.json",
        "against-width-mup-i.png",
        "against-width-mup-i.svg",
    }
    assert all(file.stat().st_size for file in files)
