"""Why a trial runs or does not: identities rebuilt from stored rows, and what tells a trial from its nearest."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from made_results import DATA, SPEC, made
from strategies import sweeps
from sweep_text import edited

from hpxfer.driver.why import Difference, Why, explain_trial, flat, identity_of, why_text
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec, load_sweep, parse_sweep
from hpxfer.spec.vocabulary import data_sizes
from hpxfer.store import Store
from hpxfer.store.proof import proven_identity
from hpxfer.store.rows import trials_table
from hpxfer.trial import DataRef, Expansion, Trial

ROOT = Path(__file__).resolve().parents[2]

LR = "lr: [0.005, 0.01, 0.02]"


def sweep(*edits: tuple[str, str]) -> SweepSpec:
    """Return SPEC with edits."""
    return parse_sweep(edited(("lr: [0.01]", LR), *edits))


def trials(spec: SweepSpec = SPEC) -> list[Trial]:
    return list(Expansion(spec, DATA).trials())


def rows(spec: SweepSpec = SPEC, **status: str) -> list[dict[str, Any]]:
    """Return the rows of a finished sweep; `status` gives that of trials, by `t` and their id, if it is another."""
    return trials_table(
        [made(trial, status.get(f"t{trial.id}", "finished")) for trial in trials(spec)]  # type: ignore[arg-type]
    ).to_pylist()


def why(prefix: str, spec: SweepSpec, stored: list[dict[str, Any]]) -> Why:
    return explain_trial(prefix, trials(spec), Expansion(spec, DATA), stored)


def keys(found: Why) -> dict[str, tuple[Any, Any]]:
    return {difference.key: (difference.of_trial, difference.of_nearest) for difference in found.differences}


@pytest.mark.parametrize(
    "edits",
    [
        (),
        (("parameterizations: [completep-moe, sp]", "parameterizations: [mssp-i, mup-moe]"),),
        (("hps:\n", "hps:\n  multipliers: {router.lr_mult: 0.25, attn_q.init_mult: 3}\n"),),
        (("width: [32, 64]", "duration: [400, 800]"),),
        (("betas: [0.9, 0.95]", "gradient_clip: 1"),),
    ],
)
def test_a_stored_row_gives_the_identity_that_its_id_is_the_hash_of(edits: tuple, tmp_path: Path) -> None:
    spec = sweep(*edits)
    store = Store.open(tmp_path, write=True)
    store.append([made(trial) for trial in trials(spec)])
    store.compact()
    expansion = Expansion(spec, DATA)
    by_id = {trial.id: trial for trial in trials(spec)}
    found = store.read_trials().to_pylist()
    assert len(found) == len(by_id) > 0
    for row in found:
        assert proven_identity(row) == identity_of(by_id[row["trial_id"]], expansion)


def test_a_stored_row_of_samples_gives_its_identity() -> None:
    """What JSON does not keep comes back: the tuple of chosen classes, and the options of the family mlp."""
    options = "model.mlp={inverse_temperature: 2.0}"
    spec = load_sweep(ROOT / "sweeps" / "mlp" / "first.yaml", overrides=("data.only=[6, 5, 4, 3, 2, 1]", options))
    expansion = Expansion(spec, DataRef(digest="0" * 32, **data_sizes(spec.data)))
    for trial in islice(expansion.trials(), 4):
        (row,) = trials_table([made(trial)]).to_pylist()
        found = identity_of(trial, expansion)
        assert proven_identity(row) == found
        assert found["setting"]["only_classes"] == (6, 5, 4, 3, 2, 1)
        assert found["setting"]["mlp"]["inverse_temperature"] == 2.0


@given(spec=sweeps())
def test_every_sweep_gives_rows_whose_identities_are_proven(spec: SweepSpec) -> None:
    expansion = Expansion(spec, DATA)
    some = list(islice(expansion.trials(), 6))
    for trial, row in zip(some, trials_table([made(trial) for trial in some]).to_pylist(), strict=True):
        assert proven_identity(row) == identity_of(trial, expansion)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lr", 0.5), ("seed", 7), ("width", 128), ("trainer_version", 2), ("data_digest", "other")),
        *(("conventions", '{"x": 1}'), ("base_shape", "{}"), ("parameterization", None), ("setting", "{}")),
    ],
)
def test_a_row_that_was_tampered_with_is_not_believed(name: str, value: Any) -> None:
    row = rows()[-1]
    assert proven_identity(row) is not None
    assert proven_identity({**row, name: value}) is None


def test_an_unknown_or_ambiguous_start_names_the_candidates() -> None:
    with pytest.raises(HpxferError, match=r"--why: no trial .* starts with 'xyz'; `hpxfer plan SWEEP --trials` lists"):
        why("xyz", SPEC, [])
    with pytest.raises(HpxferError, match="no trial"):
        why("", SPEC, [])
    ids = [trial.id for trial in trials()]
    first = next(trial_id for trial_id in ids if sum(other[0] == trial_id[0] for other in ids) > 1)
    with pytest.raises(HpxferError, match=f"'{first[0]}' must be the start of one trial's id, got") as error:
        why(first[0], SPEC, [])
    assert first in str(error.value)
    assert why(first[:20], SPEC, rows()).trial_id == first


def test_what_is_stored_or_failed_is_said_so() -> None:
    trial = trials()[0]
    assert why_text(why(trial.id, SPEC, rows())) == f"trial {trial.id}: stored (finished): no run trains it again"
    found = why(trial.id, SPEC, rows(**{f"t{trial.id}": "failed"}))
    assert (found.state, found.error) == ("failed", "killed")
    assert why_text(found) == f"trial {trial.id}: failed, and a run tries it again: killed"


def test_what_another_folder_has_is_copied() -> None:
    trial, other = trials()[:2]
    found = explain_trial(trial.id, trials(), Expansion(SPEC, DATA), [], {trial.id: "results/one"})
    assert (found.state, found.nearest) == ("reused", None)
    assert why_text(found) == f"trial {trial.id}: not stored here: a run copies it from results/one"
    assert explain_trial(other.id, trials(), Expansion(SPEC, DATA), [], {trial.id: "results/one"}).state == "missing"


def test_what_was_stopped_early_counts_where_the_sweep_stops_early() -> None:
    trial, asha = trials()[0], edited(("lr: [0.01]", LR)) + "early_stopping: {asha: {grace_steps: 20}}\n"
    stored = rows(**{f"t{trial.id}": "stopped"})
    assert why(trial.id, parse_sweep(asha), stored).state == "stored"
    text = why_text(why(trial.id, SPEC, stored))
    assert text == f"trial {trial.id}: stopped early, which this sweep does not ask for: a run trains it to its end"


def test_a_new_seed_differs_in_the_seed_alone() -> None:
    more = sweep(("seeds: 2", "seeds: 3"))
    trial = next(trial for trial in trials(more) if trial.seed == 2)
    found = why(trial.id, more, rows())
    assert keys(found) == {"seed": (2, found_seed(found))}
    assert found.nearest_status == "finished"


def found_seed(found: Why) -> int:
    return next(trial.seed for trial in trials() if trial.id == found.nearest)


def test_of_equally_many_differences_the_closest_hps_are_nearest() -> None:
    wider = parse_sweep(edited(("lr: [0.01]", "lr: [0.005, 0.01, 0.02, 0.08]")))
    trial = next(trial for trial in trials(wider) if trial.hps.lr == 0.08)
    assert keys(why(trial.id, wider, rows())) == {"hps.lr": (0.08, 0.02)}


def test_every_key_that_an_edit_moved_is_listed() -> None:
    longer = sweep(("steps: 200", "steps: 400"))
    trial = next(trial for trial in trials(longer) if trial.parameterization is not None)
    found = keys(why(trial.id, longer, rows()))
    assert found["setting.steps"] == (400, 200)
    assert found["shape.steps"] == (400, 200)
    assert found["parameterization.base.steps"] == (400, 200)
    assert set(found) == {
        *("setting.steps", "shape.steps", "parameterization.base.steps", "setting.final_window_steps"),
    }


def test_a_multiplier_that_only_one_has_is_none_at_the_other() -> None:
    spec = sweep(("hps:\n", "hps:\n  multipliers: {router.lr_mult: 0.25}\n"))
    trial = trials(spec)[0]
    assert keys(why(trial.id, spec, rows())) == {"hps.router.lr_mult": (0.25, None)}
    assert "  hps.router.lr_mult  0.25 here, none there" in why_text(why(trial.id, spec, rows()))


def test_a_stored_trial_that_the_sweep_has_no_more_is_held_against_the_sweep() -> None:
    fewer = parse_sweep(edited(("lr: [0.01]", "lr: [0.005, 0.01]")))
    gone = next(trial for trial in trials() if trial.hps.lr == 0.02)
    found = why(gone.id, fewer, rows())
    assert (found.state, found.status) == ("left", "finished")
    assert keys(found) == {"hps.lr": (0.02, 0.01)}
    assert "but no trial of this sweep" in why_text(found)


def test_nothing_to_compare_with_and_rows_that_prove_nothing_are_said() -> None:
    trial = trials()[0]
    assert "no trial is stored that it could be compared with" in why_text(why(trial.id, SPEC, []))
    broken = [{**row, "seed": row["seed"] + 7} for row in rows() if row["trial_id"] != trial.id]
    text = why_text(why(trial.id, SPEC, broken))
    assert f"{len(broken)} stored rows do not hash to their own id" in text
    assert "could be compared" in text


def test_paths_are_those_of_the_identity() -> None:
    found = flat(identity_of(trials()[-1], Expansion(SPEC, DATA)))
    assert found["setting.init.matrices"] == "fan_in"
    assert found["hps.lr"] == 0.02
    assert found["parameterization.name"] == "sp"
    assert not any(isinstance(value, dict) for value in found.values())
    assert Difference(key="a", of_trial=1, of_nearest=2) != Difference(key="a", of_trial=1, of_nearest=3)
