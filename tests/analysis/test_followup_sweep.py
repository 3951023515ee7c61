"""The follow-up: it loads, it holds every cell that was run under the same id, and it adds what was asked for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted_results import DIGEST, planted_results
from sweep_text import edited

from hpxfer.analysis import FollowUp, followup_sweep, transfer_report
from hpxfer.bench.planted_store import PlantedStore
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict.findings import Addition, Finding
from hpxfer.verdict.report import TransferReport

DATA = DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)
SPEC = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}")))


def asking(*additions: Addition, hp: str = "lr") -> list[TransferReport]:
    """Return a report that is undecided and asks for these."""
    finding = Finding(
        axis="width",
        scale_name="width",
        parameterization="sp",
        base_value=None,
        shapes=(),
        drift=None,
        noise_nats=None,
        verdict="undecided",
        reasons=(),
        to_add=additions,
    )
    return [TransferReport(sweep="small", hp=hp, loss="validation", findings=(finding,))]


def ids(spec: SweepSpec) -> set[str]:
    return {trial.id for trial in Expansion(spec, DATA).trials()}


def loaded(found: FollowUp) -> SweepSpec:
    assert found.yaml is not None
    return parse_sweep(found.yaml)


def test_values_and_seeds_are_added_and_every_trial_kept() -> None:
    found = followup_sweep(
        SPEC, asking(Addition(text="", values=(2.0**-11, 2.0**-10, 2.0**-9)), Addition(text="", seeds=5))
    )
    new = loaded(found)
    assert new.name == SPEC.name  # so that it is run into the same folder
    assert new.grid["lr"].numbers() == tuple(2.0**x for x in range(-11, -3))
    assert new.seeds == (0, 1, 2, 3, 4)
    assert ids(SPEC) < ids(new)
    assert found.added == ("lr: 2^-11, 2^-10 at every shape", "3 more seeds, 5 in all")
    old, more = (len(list(Expansion(spec, DATA).cells())) for spec in (SPEC, new))
    assert found.num_new_cells == more - old


def test_values_between_others_are_kept_to_the_last_bit() -> None:
    spec = parse_sweep(edited(("lr: [0.01]", "lr: [0.001, 0.003, 0.01]")))
    new = loaded(followup_sweep(spec, asking(Addition(text="", values=(math.sqrt(0.001 * 0.003), 0.003 * (1 + 1e-9))))))
    assert len(new.grid["lr"].numbers()) == 4
    assert ids(spec) < ids(new)


def test_a_shape_is_added_to_an_axis_of_values() -> None:
    found = followup_sweep(SPEC, asking(Addition(text="", new_scales=(128.0, 256.0))))
    new = loaded(found)
    assert new.axes["width"].values == (32.0, 64.0, 256.0)
    assert ids(SPEC) < ids(new)
    shapes = parse_sweep(edited(("width: [32, 64]", "width:\n    - {width: 64}"), ("lr: [0.01]", "lr: [0.01, 0.02]")))
    by_hand = followup_sweep(shapes, asking(Addition(text="", new_scales=(128.0,))))
    assert by_hand.yaml is None
    assert by_hand.not_added == ("width: a shape at width 128: write it into axes.width",)


def test_a_shape_that_no_model_can_have_is_refused_with_the_reason() -> None:
    found = followup_sweep(SPEC, asking(Addition(text="", new_scales=(100.0,)), Addition(text="", seeds=3)))
    assert loaded(found).axes["width"].values == (32.0, 64.0)
    (why,) = found.not_added
    assert "head_dim" in why


@pytest.mark.parametrize(
    ("additions", "why"),
    [
        (
            (Addition(text="", values=(2.0**-9,), scales=(32.0,)),),
            "everything needed is in this sweep: run it again",
        ),
        ((), "nothing that a sweep file can add"),
    ],
)
def test_nothing_to_add_says_why(additions: tuple[Addition, ...], why: str) -> None:
    found = followup_sweep(SPEC, asking(*additions))
    assert (found.yaml, found.why_not) == (None, why)


def test_decided_sweeps_need_none() -> None:
    assert followup_sweep(SPEC, []).why_not == "no HP could be judged"
    decided = [TransferReport(sweep="small", hp="lr", loss="validation", findings=())]
    assert followup_sweep(SPEC, decided).why_not == "no verdict is undecided or lacks a control"


def test_a_missing_control_is_added_on_the_same_grid(tmp_path: Path) -> None:
    """Without one it transfers and says so first; the follow-up, run, has it, and every trial is kept."""
    alone = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}"), ("[completep-moe, sp]", "[completep-moe]")))
    plan = PlantedStore(drift={"sp": -1.0})
    first = planted_results(alone, tmp_path / "first", plan)
    (bare,) = transfer_report(first).findings
    assert (bare.verdict, bare.control) == ("transfers", None)
    found = followup_sweep(alone, [transfer_report(first)])
    assert found.added == ("parameterization sp on the same grid",)
    assert loaded(found).parameterizations == SPEC.parameterizations
    assert ids(alone) < ids(loaded(found))
    second = planted_results(loaded(found), tmp_path / "second", plan)
    ours, sp = transfer_report(second).findings
    assert ours.control is not None
    assert (ours.control.verdict, ours.control.worst_shape) == (sp.verdict, sp.shapes[-1].shape)
    assert followup_sweep(second.spec, [transfer_report(second)]).yaml is None


def test_a_control_that_no_legal_sweep_has_leaves_the_rest() -> None:
    found = followup_sweep(SPEC, asking(Addition(text="", parameterization="sp"), Addition(text="", seeds=3)))
    assert loaded(found).parameterizations == SPEC.parameterizations
    (why,) = found.not_added
    assert "sp stands twice" in why


def test_a_base_on_the_edge_gets_the_grid_that_decides(tmp_path: Path) -> None:
    """The follow-up, run, decides: that is what it is for."""
    plan = PlantedStore(middle=-9.7)
    first = planted_results(SPEC, tmp_path / "first", plan)
    report = transfer_report(first)
    assert {finding.verdict for finding in report.findings} == {"undecided"}
    found = followup_sweep(first.spec, [report])
    second = planted_results(loaded(found), tmp_path / "second", plan)
    assert "undecided" not in {finding.verdict for finding in transfer_report(second).findings}
    assert set(first.trials["trial_id"]) < set(second.trials["trial_id"])
