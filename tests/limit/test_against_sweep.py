"""A sweep is trained, and compared with its limit: it agrees, a planted fault does not, and what is missing is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Folders, Patch
from limit_sweeps import REGIME_I, REGIME_III, along, text_of

import hpxfer
from hpxfer.analysis.statistics.statistic import records
from hpxfer.data import open_data
from hpxfer.data.sources import open_samples
from hpxfer.errors import HpxferError
from hpxfer.figures import chart
from hpxfer.limit import save
from hpxfer.limit.against import against
from hpxfer.limit.comparison import COLUMNS, Comparisons
from hpxfer.limit.figures import QUANTITIES, against_blocks
from hpxfer.limit.of_trials import network_of
from hpxfer.limit.seen import given_of, seen_by
from hpxfer.model.draws import draw, untrained_bias
from hpxfer.model.flat import FlatLayout
from hpxfer.model.mlp.layout import parameters
from hpxfer.results import Results
from hpxfer.spec import parse_sweep
from hpxfer.trial import DataRef, Expansion, Trial

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
def results(tmp_path_factory: Folders) -> Results:
    folder = tmp_path_factory.mktemp("limit")
    path = folder / "sweep.yaml"
    path.write_text(text_of(REGIME_I, **SMALL), encoding="utf-8")
    hpxfer.run(path, results=folder / "results")
    return hpxfer.load_results(folder / "results" / "limit-i")


@pytest.fixture(scope="module")
def found(results: Results) -> Comparisons:
    return against(results)


def of(found: Comparisons, name: str) -> dict[str, Any]:
    """Return the columns of a frame."""
    return {column: values.tolist() for column, values in found.frames[name].items()}


def test_the_sweep_agrees_with_its_limit(found: Comparisons) -> None:
    (arm,) = records(found.frames["arms"])
    assert arm["p"] > 0.05
    assert (arm["exact"], arm["limits"], arm["updates"]) == (True, 40, 5)
    updates = found.frames["updates"]
    assert sorted(set(updates["update"])) == [0, 1, 2, 3, 4, 5]
    assert set(updates.loc[updates["held_out"], "update"]) == {5}
    assert of(found, "sizes")["size"] == [16, 64, 128, 256]
    one_network, _ = records(found.frames["exponents"])
    assert one_network["low"] < -0.4
    assert one_network["high"] > -0.9
    text = found.table()
    assert text.startswith("mup-i along width: ")
    assert "From its data the sweep's report says: nothing, as the sweep scans one value of lr" in text
    assert "one network" in text
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert all(
        read[name]["columns"] == list_of and list(frame) == list(list_of)
        for (name, list_of), frame in zip(COLUMNS.items(), found.frames.values(), strict=True)
    )
    (network,) = (row["network"] for row in read["arms"]["rows"])
    assert network["regime"] == "I"
    # The constants are those of the paper.
    assert all(value == pytest.approx(1.0) for value in (*network["init_mult"].values(), *network["lr_mult"].values()))


@pytest.mark.parametrize(
    "changed",
    [
        {"lr_mult": {"embedding": 0.25}},
        {"lr_mult": {"embedding": 0.0, "expert_out": 0.0}},
        {"init_mult": {"expert_out": 2.0}},
    ],
)
def test_another_network_than_trials_approach_is_accused(
    monkeypatch: Patch, results: Results, changed: dict[str, Any]
) -> None:
    monkeypatch.setattr("hpxfer.limit.against.network_of", lambda *given: replace(network_of(*given), **changed))
    found = against(results)
    (arm,) = records(found.frames["arms"])
    assert arm["verdict"] == "disagrees"
    assert "do NOT approach" in found.table()
    assert of(found, "sizes")["largest_z"][-1] > 8


def test_the_first_updates_alone_can_be_compared(results: Results) -> None:
    updates = against(results, steps=2).frames["updates"]
    assert sorted(set(updates["update"])) == [0, 1, 2]
    assert not updates["held_out"].any()


def test_seeds_that_lack_a_width_are_left_out_and_said(results: Results) -> None:
    lost, diverged, *_ = results.trials[results.trials["width"] == 256]["trial_id"]
    trials = results.trials[results.trials["trial_id"] != lost].copy()
    trials.loc[trials["trial_id"] == diverged, "status"] = "diverged"
    found = against(replace(results, trials=trials))
    (arm,) = records(found.frames["arms"])
    assert arm["seeds"] == 38
    assert set(arm["left_out"]) == {"1 missing at width 256", "1 diverged at width 256"}
    assert "left out: 1 missing at width 256" in found.table()
    first = results.trials["seed"] == 0
    with pytest.raises(HpxferError, match="at least 2 seeds must have finished at every size, got 1; 39 missing at"):
        against(replace(results, trials=results.trials[first]))


def test_updates_that_not_all_trials_have_are_left_out_and_said(results: Results, monkeypatch: Patch) -> None:
    curves = results.curves.copy()
    own = curves["metric"] == "train_loss_nats"
    trial = curves["trial_id"].iloc[0]
    curves.loc[own & (curves["trial_id"] == trial) & (curves["step"] == 3), "value"] = np.nan
    curves = curves[~(own & (curves["trial_id"] == trial) & (curves["step"] == 2))]
    monkeypatch.setitem(vars(results), "curves", curves)  # a cached property
    found = against(results)
    assert sorted(set(of(found, "updates")["update"])) == [0, 1, 4, 5]
    assert of(found, "arms")["left_out"] == [["2 passes, at which not all trials have logged a finite loss"]]
    assert "nan" not in found.table()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"axis": "depth"}, "axis: the sweep has no 'depth'"),
        ({"arm": "mup"}, "parameterization: the sweep has no 'mup'; did you mean 'mup-i'?"),
        ({"value": 0.3}, "lr: must be a value that the sweep scans, got 0.3; legal: 0.1"),
        ({"steps": 6}, "steps must be from 1 to the 5 of the sweep, got 6"),
        ({"seeds": 1}, "seeds: must be at least 2"),
        ({"tolerance": float("nan")}, "tolerance: must be a share between 0 and 1, got nan"),
        ({"sites": 100}, "sites: must be a power of two"),
    ],
)
def test_bad_input_is_named(results: Results, how: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError) as caught:
        against(results, **how)
    assert says in str(caught.value)


def test_a_sweep_that_costs_too_much_says_what_fits(results: Results, monkeypatch: Patch) -> None:
    monkeypatch.setattr("hpxfer.limit.against.MOST_EXPERT_SAMPLES", 30)
    with pytest.raises(HpxferError, match=r"5 updates of 4 samples.*compare the first 3 of them \(--steps 3\)"):
        against(results)


def test_the_figure_shows_what_was_found(found: Comparisons, tmp_path: Path) -> None:
    blocks = against_blocks(found)
    (left, right) = chart.draw(blocks["against-width-mup-i"]).axes
    *sizes, limit = (line.get_xydata() for line in left.lines)
    assert len(sizes) == 4
    assert np.allclose(limit[:, 0], [0, 1, 2, 3, 4])  # the loss on held-out samples is another one
    assert np.allclose(limit[:, 1], of(found, "updates")["limit"][:5])
    networks, means, *_ = (line.get_ydata() for line in right.lines)
    assert np.allclose(networks, of(found, "sizes")["one_network"])
    assert np.allclose(means, of(found, "sizes")["mean_minus_limit"])
    files = save(tmp_path, found.table(), found.to_dict(), blocks)
    pictures = {"against-width-mup-i.png", "against-width-mup-i.svg"}
    assert {file.name for file in files} == {"limit.txt", "limit.json", *pictures}
    assert all(file.stat().st_size for file in files)


# Where experts grow alone, the largest shape stands for the limit.


@pytest.fixture(scope="module")
def of_experts(tmp_path_factory: Folders) -> Results:
    folder = tmp_path_factory.mktemp("experts")
    shapes = ", ".join(f"{{num_experts: {count}, num_active: {count}}}" for count in (8, 16, 32))
    changed = {
        "options": ", residual: true, router_bias: fixed",
        "hps": "hps: {multipliers: {router.init_mult: 0, expert_in.lr_mult: 8, expert_out.lr_mult: 8}}",
        "axis": f"{{allow_kappa_change: true, shapes: [{shapes}]}}",
        "lr": 0.02,
        "seeds": 12,
        "base": "{width: 16, depth: 2, num_experts: 4, num_active: 4, expert_width: 8}",
        "tables": "mup-iii",
    }
    path = folder / "sweep.yaml"
    path.write_text(text_of(REGIME_III, **changed), encoding="utf-8")
    hpxfer.run(path, results=folder / "results")
    return hpxfer.load_results(folder / "results" / "limit-iii")


def test_experts_that_grow_alone_are_compared_with_the_largest_shape(of_experts: Results) -> None:
    found = against(of_experts)
    (arm,) = records(found.frames["arms"])
    assert (arm["size"], arm["verdict"], arm["network"]) == ("num_experts", "not judged", None)
    assert "compared with the largest shape, w16 d2 E32A32 h8, as the width stays 16" in arm["answer"]
    assert of(found, "sizes")["size"] == [4, 8, 16]
    networks = of(found, "sizes")["one_network"]
    assert networks[0] > networks[1] > networks[2]
    # Each seed is compared with itself: the deviation of the loss is the mean difference to its largest network.
    updates = found.frames["updates"]
    row = updates[(updates["quantity"] == "loss") & (updates["size"] == 4) & (updates["update"] == 2)].iloc[0]
    curves = of_experts.curves[(of_experts.curves["metric"] == "train_loss_nats") & (of_experts.curves["step"] == 2)]
    losses = curves.set_index(curves["trial_id"].astype(str))["value"]
    trials = of_experts.trials.set_index("trial_id")
    means = {count: losses[trials.index[trials["num_experts"] == count]].mean() for count in (4, 32)}
    assert row["deviation"] == pytest.approx(means[4] - means[32])
    assert row["error"] < row["spread"]
    # The variance of the router's logits is the mean over both blocks.
    spread = of_experts.curves[
        (of_experts.curves["metric"] == "router_logit_spread") & (of_experts.curves["step"] == 2)
    ]
    own = spread[spread["trial_id"].astype(str).isin(trials.index[trials["num_experts"] == 4])]["value"]
    assert len(own) == 24
    logits = updates[(updates["quantity"] == "logit_variance") & (updates["size"] == 4) & (updates["update"] == 2)]
    assert logits["mean"].iloc[0] == pytest.approx((own**2).mean())
    low, high = (updates[updates["quantity"] == name]["mean"] for name in ("logit_low", "logit_high"))
    assert (low.to_numpy() <= high.to_numpy()).all()
    assert (low.to_numpy() < high.to_numpy()).any()
    assert "How do distances go" not in found.table()
    *panels, distance = chart.draw(against_blocks(found)["against-width-mup-iii"]).axes
    assert [axes.get_title() for axes in panels] == [title for title, _ in QUANTITIES.values()]
    assert len(panels[2].lines) == 2 * len(panels[1].lines)
    assert distance.get_xlabel().startswith("num_experts")


# What seeds saw is what their trials are trained on: batches, LRs, targets and the biases of routers.


def trials_of(text: str, source: str, seeds: int = 2) -> list[Trial]:
    samples = open_samples(source)
    assert samples is not None
    facts = samples.facts
    sizes = {"vocab_size": facts.num_classes, "num_inputs": facts.num_inputs, "num_targets": facts.num_targets}
    data = DataRef(digest=samples.digest(), tokenizer="none", **sizes)
    expansion = Expansion(parse_sweep(text), data)
    return [along(expansion, expansion.choices[0], seed)[0] for seed in range(seeds)]


def of_few(seeds: int = 2, **changed: object) -> list[Trial]:
    return trials_of(text_of(REGIME_I, **changed), "builtin:teacher/few", seeds)


def test_full_batches_are_one_training_for_all_seeds_and_the_held_out_samples_come_last() -> None:
    schedule = ", schedule: {decay: linear, warmup: 2}"
    trials = of_few(3, training=schedule)
    (seen,) = seen_by(trials, 4, has_bias=True)
    *training, held_out = seen.given.batches
    assert seen.seeds == (0, 1, 2)
    assert len(training) == 4
    assert all(batch is training[0] for batch in training)
    assert seen.given.lrs == pytest.approx([0.005, 0.01, 0.005, 0.0])
    assert seen.given.router_bias is None
    (own,) = open_data(trials[0].setting).validation_batches()
    assert sorted(held_out.targets[:, 0].tolist()) == sorted(own[1][:, 0].astype(float).tolist())
    (cut,) = seen_by(trials, 3, has_bias=True)  # before the last update no held-out samples are read
    assert all(np.array_equal(batch.inputs, training[0].inputs) for batch in cut.given.batches)


def test_a_stream_is_a_training_for_each_seed() -> None:
    text = text_of(REGIME_I, source="builtin:teacher/polynomial")
    trials = trials_of(text, "builtin:teacher/polynomial")
    found = seen_by(trials, 3, has_bias=True)
    assert [seen.seeds for seen in found] == [(0,), (1,)]
    data = open_data(trials[0].setting)
    for seed, seen in enumerate(found):
        for step in range(4):
            inputs, targets = data.train_batch(seed, step)
            batch = seen.given.batches[step]
            read = {(*x.tolist(), *y.tolist()) for x, y in zip(inputs, targets, strict=True)}
            assert {(*x, *y) for x, y in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)} == read


@pytest.mark.parametrize(("only", "outputs"), [("[3, 5]", 1), ("[3, 5, 8]", 3)])
def test_classes_are_the_numbers_that_outputs_should_be(only: str, outputs: int) -> None:
    """Of two classes 1 and -1, of more a one in the place of the class, as the trainer has them."""
    text = text_of(REGIME_I, source="builtin:shapes").replace('shapes"}', f'shapes", only: {only}}}')
    trial = trials_of(text, "builtin:shapes", 1)[0]
    trial = replace(trial, setting=replace(trial.setting, vocab_size=outputs if outputs > 1 else 2))
    (seen,) = seen_by([trial], 3, has_bias=True)
    targets = np.concatenate([batch.targets for batch in seen.given.batches])
    assert targets.shape[1] == outputs
    if outputs == 1:
        assert set(targets[:, 0]) <= {1.0, -1.0}
    else:
        assert np.array_equal(targets.sum(axis=1), np.ones(len(targets)))


@pytest.mark.parametrize("bias", ["fixed", "schedule"])
def test_a_bias_of_the_router_is_the_draw_of_each_trial(bias: str) -> None:
    trial = of_few(1, options=f", router_bias: {bias}")[0]
    data = open_data(trial.setting)
    found = given_of(trial, data, 3, has_bias=True).router_bias
    assert found is not None
    assert found.shape == (4, 2)
    for step, row in enumerate(found):
        drawn = untrained_bias(trial, [0], step)
        assert drawn is not None
        assert np.array_equal(row, drawn[0].double().numpy())
    assert np.array_equal(found[0], found[1]) == (bias == "fixed")
    trials = of_few(3, options=f", router_bias: {bias}")
    assert [seen.seeds for seen in seen_by(trials, 3, has_bias=True)] == [(0,), (1,), (2,)]
    (joint,) = seen_by(trials, 3, has_bias=False)
    assert (joint.seeds, joint.given.router_bias) == ((0, 1, 2), None)


@pytest.mark.parametrize("method", ["generator", "counter"])
def test_a_learned_bias_starts_where_the_trainer_starts_it(method: str) -> None:
    trial = of_few(1, options=", router_bias: learned")[0]
    trial = replace(trial, setting=replace(trial.setting, init_draw=method))
    layout = FlatLayout(parameters=parameters(trial.shape, trial.setting), num_trials=1)
    stds = [{role: numbers.init_std for role, numbers in trial.resolved().items()}]
    whole: torch.Tensor = draw(layout, [trial.seed], stds, method=method)
    expected = layout.weights(whole)["router_logit_bias"][0][0]
    found = given_of(trial, open_data(trial.setting), 3, has_bias=True).router_bias
    assert found is not None
    assert np.array_equal(found, np.tile(expected.double().numpy(), (4, 1)))


def test_samples_that_are_no_longer_here_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    rng = np.random.default_rng(0)
    sizes: dict[str, Any] = {"x_train": (8, 4), "y_train": 8, "x_test": (4, 4), "y_test": 4}
    np.savez(path, **{name: rng.standard_normal(size) for name, size in sizes.items()})
    text = text_of(REGIME_I, source=f"npz:{path}").replace("data: {source", "data: {epochs: 9, source")
    trials = trials_of(text, f"npz:{path}")
    assert len(seen_by(trials, 3, has_bias=True)) == 2  # halves of the samples, in another order for each seed
    path.unlink()
    with pytest.raises(HpxferError, match="must be on every machine that trains"):
        seen_by(trials, 3, has_bias=True)
