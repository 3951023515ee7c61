"""The follow-up: it loads, it holds every cell that was run under the same id, and it adds what was asked for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted_results import DIGEST, planted_results
from planted_store import PlantedStore
from sweep_text import edited
from there import there

from hpxfer.analysis import FollowUp, followup_sweep, transfer_report
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.yaml_file import parse_yaml
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict.findings import Addition, Finding, Verdict
from hpxfer.verdict.report import TransferReport

DATA = DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)
SPEC = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}")))


CONTROL_WANTED = Addition(text="the control sp on the same grid", parameterization="sp")


def found(verdict: Verdict, *additions: Addition, parameterization: str = "completep-moe") -> Finding:
    """Return a finding with this verdict that asks for these."""
    return Finding(
        axis="width",
        scale_name="width",
        parameterization=parameterization,
        base_value=None,
        shapes=(),
        drift=None,
        noise_nats=None,
        verdict=verdict,
        reasons=(),
        to_add=additions,
        is_control=parameterization == "sp",
    )


def reports(*findings: Finding, hp: str = "lr") -> list[TransferReport]:
    return [TransferReport(sweep="small", hp=hp, loss="validation", findings=findings)]


def asking(*additions: Addition, hp: str = "lr") -> list[TransferReport]:
    """Return a report that is undecided and asks for these."""
    return reports(found("undecided", *additions), hp=hp)


def ids(spec: SweepSpec) -> set[str]:
    return {trial.id for trial in Expansion(spec, DATA).trials()}


def loaded(followup: FollowUp) -> SweepSpec:
    return parse_sweep(there(followup.yaml))


def test_values_and_seeds_are_added_and_every_trial_kept() -> None:
    followup = followup_sweep(SPEC, asking(Addition(text="", values=(2.0**-11, 2.0**-10)), Addition(text="", seeds=5)))
    new = loaded(followup)
    assert new.name == SPEC.name  # so that it is run into the same folder
    assert new.grid["lr"].numbers() == tuple(2.0**x for x in range(-11, -3))
    assert new.seeds == (0, 1, 2, 3, 4)
    assert ids(SPEC) < ids(new)
    # 3 arms, as both tables are one model at the base: 2 values of 2 seeds there, then 3 seeds of 8 values.
    assert followup.added == (
        "lr: 2^-11, 2^-10 at every shape (12 new trials)",
        "3 more seeds, 5 in all (72 new trials)",
    )
    assert followup.num_new_trials == len(ids(new)) - len(ids(SPEC)) == 84


def test_values_are_added_beside_a_zero() -> None:
    spec = parse_sweep(edited(("lr: [0.01]", "weight_decay: [0, 0.1]"), ("hps:", "hps:\n  lr: 0.01")))
    followup = followup_sweep(spec, asking(Addition(text="", values=(0.2,)), hp="weight_decay"))
    assert loaded(followup).grid["weight_decay"].numbers() == (0, 0.1, 0.2)


def test_a_row_of_powers_stays_one_and_whole_numbers_have_no_point() -> None:
    followup = followup_sweep(
        SPEC, asking(Addition(text="", values=(2.0**-10,)), Addition(text="", new_scales=(128.0,)))
    )
    assert "log2: [-10, -4]" in there(followup.yaml)
    assert "values: [32, 64, 128]" in there(followup.yaml)
    between = followup_sweep(SPEC, asking(Addition(text="", values=(2.0**-5.5,))))
    assert loaded(between).grid["lr"].log2 is None


def test_a_shape_is_added_to_an_axis_of_values() -> None:
    followup = followup_sweep(SPEC, asking(Addition(text="", new_scales=(128.0, 256.0))))
    new = loaded(followup)
    assert new.axes["width"].values == (32.0, 64.0, 256.0)
    assert ids(SPEC) < ids(new)
    shapes = parse_sweep(edited(("width: [32, 64]", "width:\n    - {width: 64}"), ("lr: [0.01]", "lr: [0.01, 0.02]")))
    by_hand = followup_sweep(shapes, asking(Addition(text="", new_scales=(128.0,))))
    assert by_hand.yaml is None
    assert by_hand.not_added == ("width: a shape at width 128: write it into axes.width",)


def test_a_shape_that_no_model_can_have_is_refused_with_the_reason() -> None:
    followup = followup_sweep(SPEC, asking(Addition(text="", new_scales=(100.0,)), Addition(text="", seeds=3)))
    assert loaded(followup).axes["width"].values == (32.0, 64.0)
    (why,) = followup.not_added
    assert "head_dim" in why


def test_what_is_refused_is_named_by_its_key_and_its_line_in_the_stored_sweep() -> None:
    spec = parse_sweep(edited(("lr: [0.01]", "beta1: {log2: [-2, -1]}"), ("hps:", "hps:\n  lr: 0.01")))
    stored = parse_yaml(dump_sweep(spec), "results/small/sweep.yaml")
    asked = asking(Addition(text="", values=(1.125,)), Addition(text="", new_scales=(100.0,)), hp="beta1")
    by_value, by_shape = followup_sweep(spec, asked, stored).not_added
    line = dump_sweep(spec).splitlines().index("  beta1:") + 1
    assert by_value == (
        f"beta1: 1.125 at every shape: results/small/sweep.yaml:{line}: grid.beta1[2]: beta1 must be in [0, 1), "
        "got 1.125"
    )
    line = dump_sweep(spec).splitlines().index("  width:") + 2
    assert by_shape.startswith(f"width: 100: results/small/sweep.yaml:{line}: axes.width.values[2]: ")
    assert (
        followup_sweep(spec, asked).not_added[0].startswith("beta1: 1.125 at every shape: sweep small: grid.beta1[2]: ")
    )


def test_what_has_no_result_is_run_again_with_the_same_sweep() -> None:
    followup = followup_sweep(SPEC, asking(Addition(text="", values=(2.0**-9,), scales=(32.0,))))
    assert loaded(followup) == SPEC
    assert followup.added == ("lr: run again what has no result at 2^-9",)
    assert followup.num_new_trials == 0


@pytest.mark.parametrize("kind", ["refine", "grid"])
def test_a_budget_is_raised_to_buy_what_is_added(kind: str) -> None:
    spec = parse_sweep(
        edited(("lr: [0.01]", "lr: {log2: [-9, -4]}"), ("seeds: 2", f"seeds: 2\nsearch: {{kind: {kind}, budget: 20}}"))
    )
    followup = followup_sweep(spec, asking(Addition(text="", values=(2.0**-10, 2.0**-11)), Addition(text="", seeds=4)))
    new = loaded(followup)
    assert new.search.budget == (20 // 2 + 2) * 4  # the points of before and two more, at four seeds
    assert "with search.budget 24 instead of 20" in followup.added[0]
    assert "with search.budget 48 instead of 24" in followup.added[1]


def test_nothing_to_add_says_why() -> None:
    followup = followup_sweep(SPEC, asking())
    assert (followup.yaml, followup.is_needed) == (None, True)
    assert followup.why_not == "nothing that a sweep file can add"
    why = "more trials will hardly decide: every HP value has exactly the same loss"
    assert followup_sweep(SPEC, asking(Addition(text=why))).why_not == why


def test_decided_sweeps_need_none() -> None:
    assert followup_sweep(SPEC, []).why_not == "no HP could be judged"
    decided = [TransferReport(sweep="small", hp="lr", loss="validation", findings=())]
    followup = followup_sweep(SPEC, decided)
    assert (followup.is_needed, followup.why_not) == (False, "no verdict is undecided or lacks a control")


def test_a_missing_control_is_added_on_the_same_grid(tmp_path: Path) -> None:
    """Without one it transfers and says so first; the follow-up, run, has it, and every trial is kept."""
    alone = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}"), ("[completep-moe, sp]", "[completep-moe]")))
    plan = PlantedStore(drift={"sp": -1.0})
    first = planted_results(alone, tmp_path / "first", plan)
    (bare,) = transfer_report(first).findings
    assert (bare.verdict, bare.control) == ("transfers", None)
    followup = followup_sweep(alone, [transfer_report(first)])
    assert followup.added == ("parameterization sp on the same grid (12 new trials)",)
    assert loaded(followup).parameterizations == SPEC.parameterizations
    assert ids(alone) < ids(loaded(followup))
    second = planted_results(loaded(followup), tmp_path / "second", plan)
    ours, sp = transfer_report(second).findings
    assert (there(ours.control).verdict, there(ours.control).worst_shape) == (sp.verdict, sp.shapes[-1].shape)
    assert followup_sweep(second.spec, [transfer_report(second)]).yaml is None


def test_a_control_comes_after_the_verdicts_and_is_never_added_to() -> None:
    """It is not trained beside what is undecided or drifts, and its own verdict costs no trial."""
    seeds = Addition(text="", seeds=3)
    alone = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}"), ("[completep-moe, sp]", "[completep-moe]")))
    first = followup_sweep(alone, reports(found("undecided", seeds, CONTROL_WANTED)))
    assert first.added == ("1 more seeds, 3 in all (12 new trials)",)
    assert followup_sweep(alone, reports(found("drifts"))).yaml is None
    assert followup_sweep(alone, reports(found("transfers", CONTROL_WANTED))).added == (
        "parameterization sp on the same grid (12 new trials)",
    )
    control = found("undecided", seeds, parameterization="sp")
    assert followup_sweep(SPEC, reports(found("transfers"), control)).yaml is None
    assert followup_sweep(SPEC, reports(control)).yaml is not None  # here it is what the sweep is about


def test_a_control_that_no_legal_sweep_has_is_refused_with_the_reason() -> None:
    followup = followup_sweep(SPEC, reports(found("transfers", CONTROL_WANTED)))
    assert followup.yaml is None
    (why,) = followup.not_added
    assert "sp stands twice" in why


def test_a_base_on_the_edge_gets_the_grid_that_decides(tmp_path: Path) -> None:
    """The follow-up, run, decides: that is what it is for."""
    plan = PlantedStore(middle=-9.7)
    first = planted_results(SPEC, tmp_path / "first", plan)
    report = transfer_report(first)
    assert {finding.verdict for finding in report.findings} == {"undecided"}
    followup = followup_sweep(first.spec, [report])
    second = planted_results(loaded(followup), tmp_path / "second", plan)
    assert "undecided" not in {finding.verdict for finding in transfer_report(second).findings}
    assert set(first.trials["trial_id"]) < set(second.trials["trial_id"])


def test_values_between_others_are_kept_to_the_last_bit() -> None:
    spec = parse_sweep(edited(("lr: [0.01]", "lr: [0.001, 0.003, 0.01]")))
    new = loaded(followup_sweep(spec, asking(Addition(text="", values=(math.sqrt(0.001 * 0.003), 0.003 * (1 + 1e-9))))))
    assert len(new.grid["lr"].numbers()) == 4
    assert ids(spec) < ids(new)
