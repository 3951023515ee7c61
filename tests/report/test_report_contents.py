"""What a report says of full, half-finished and several stores."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_cases import bare_analysis, report_of, source, write_store
from there import there

from hpxfer.analysis import transfer_report
from hpxfer.analysis.analyze import all_diverged
from hpxfer.analysis.statistics import STATISTICS, Found
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.host import JudgedLoss
from hpxfer.report import make_report
from hpxfer.report.next_step import next_step
from hpxfer.report.tables import MOST_CHARACTERS, MOST_ROWS, analysis_tables, findings_text, unknown
from hpxfer.results import load_results
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.spec.sweep import PluginSpec
from hpxfer.verdict.findings import Addition


def test_the_verdict_has_its_interval_its_control_and_its_reasons(tmp_path: Path) -> None:
    cards = {card.finding.parameterization: card for card in report_of(write_store(tmp_path)).sections[0].cards}
    mine, control = cards["completep-moe"], cards["sp"]
    assert (mine.finding.verdict, mine.finding.is_control, control.finding.verdict, control.finding.is_control) == (
        "transfers",
        False,
        "drifts",
        True,
    )
    assert "[" in dict(mine.facts)["drift of the optimum"]
    assert any(reason.startswith("control sp drifts") for reason in mine.finding.reasons)
    assert mine.conclusion.startswith("at most 0.0")
    assert [row[0] for row in mine.shapes.rows] == ["w32 d2 E4A1 h32 (base)", "w64 d2 E4A1 h64"]


def test_a_finished_sweep_misses_nothing(tmp_path: Path) -> None:
    section = report_of(write_store(tmp_path)).sections[0]
    assert section.progress == "36 of 36 trials have a result, 6 of them diverged."
    assert section.failures == ()
    assert section.progress_table.rows == (
        ("width", "completep-moe", 24, 20, 4, 0, 0),
        ("width", "sp", 24, 20, 4, 0, 0),
    )


def test_a_half_finished_sweep_says_what_can_be_said_and_what_is_missing(tmp_path: Path) -> None:
    section = report_of(write_store(tmp_path, every=2, failing=(0, 2))).sections[0]
    assert section.progress.endswith(
        "18 were not run, 2 failed: running the sweep again trains these and nothing else."
    )
    assert section.failures[0].startswith("2 x Traceback: ")
    assert {card.finding.verdict for card in section.cards} == {"undecided"}
    assert all(row[6] == 12 for row in section.progress_table.rows)


def test_limits_name_the_range_and_a_missing_control(tmp_path: Path) -> None:
    folder = write_store(tmp_path, ("parameterizations: [completep-moe, sp]", "parameterizations: [completep-moe]"))
    limits = report_of(folder).sections[0].limits
    assert any("width 32 to 64" in limit for limit in limits)
    assert any(limit.startswith("There is no control (sp)") for limit in limits)
    assert not any("no control" in limit for limit in report_of(write_store(tmp_path / "b")).sections[0].limits)


def test_limits_say_what_the_control_holds_along_experts(tmp_path: Path) -> None:
    experts = ("width: [32, 64]", "experts: [4, 16]")
    said = "Along experts, sp keeps the base's divisor of the experts' sum: it divides the sum of 4 active experts by 1"
    limits = report_of(write_store(tmp_path / "a", experts)).sections[0].limits
    assert [limit.startswith(said) for limit in limits].count(True) == 1
    for name, edits in {"b": (), "c": (experts, ("[completep-moe, sp]", "[completep-moe]"))}.items():
        limits = report_of(write_store(tmp_path / name, *edits)).sections[0].limits
        assert not any("divisor" in limit for limit in limits)


def test_provenance_tells_versions_devices_dates_and_data(tmp_path: Path) -> None:
    table = report_of(write_store(tmp_path)).sections[0].provenance
    facts = {str(name): str(value) for name, value in table.rows}
    assert facts["torch"] == "2.13.0"
    assert facts["device"] == "cpu"
    assert facts["machines"] == "1"
    assert "a-machine" not in "".join(facts.values())
    assert facts["trained"] == "2026-01-01T00:00 to 2026-01-01T00:00 UTC"
    assert facts["training time"].startswith("1.2 min")
    assert "0123456789abcdef" in facts["data"]


def test_what_a_verdict_depends_on_follows_the_sweep_file(tmp_path: Path) -> None:
    def depends(folder: Path) -> dict[str, str]:
        return {str(name): str(value) for name, value in report_of(folder).sections[0].thresholds.rows}

    usual = depends(write_store(tmp_path / "a"))
    assert usual["largest loss given up that counts as none"] == "1% of the shape's best loss"
    assert usual["move of an optimum that counts as none"] == "less than 1 octave between any two shapes"
    judged = ("seeds: 2", "seeds: 2\njudge: {regret_limit: {octaves: 0.5}}")
    octaves = depends(write_store(tmp_path / "b", judged))
    assert octaves["largest loss given up that counts as none"].startswith("what 0.5 octaves from")


def test_several_folders_stand_side_by_side(tmp_path: Path) -> None:
    report = report_of(write_store(tmp_path / "a"), write_store(tmp_path / "b", ("name: small", "name: other")))
    assert [column.name for column in there(report.comparison).columns[3:]] == ["small", "other"]
    for row in there(report.comparison).rows:
        assert row[3] == row[4]
    assert report_of(tmp_path / "a").comparison is None


def test_a_verdict_that_only_one_folder_has_is_missing_in_the_other(tmp_path: Path) -> None:
    first = write_store(tmp_path / "a")
    two = write_store(tmp_path / "b", ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]"))
    table = there(report_of(first, two).comparison)
    (row,) = [row for row in table.rows if row[2] == "completep-moe"]
    assert row[4] == "-"


@pytest.mark.slow
def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / place / name) for place, name in (("x", "a"), ("x", "b"), ("y", "b"))]
    assert [section.name for section in report_of(*folders[:2]).sections] == ["small (a)", "small (b)"]
    assert [section.name for section in report_of(*folders).sections] == [
        "small (a) #1",
        "small (b) #2",
        "small (b) #3",
    ]


def test_an_analysis_that_says_something_becomes_a_table_and_another_a_reason(tmp_path: Path) -> None:
    step = {"axis": "width", "parameterization": "sp", "gain_nats": 0.1, "gain_low_nats": 0.05, "monotone": True}
    without = tuple((f"width {name} lr", "one shape alone") for name in "abcdef")
    analysis = bare_analysis(
        load_results(write_store(tmp_path)),
        gains=of_rows("gains", [step], title="width: sp yes"),
        collapse=of_rows("collapse", [], unknown=without),
    )
    (table,) = analysis_tables(analysis)
    assert table.title == "Does a larger model always win at the same HPs, and by how much? width: sp yes"
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert row == {"axis": "width", "parameterization": "sp", "gain nats": 0.1, "gain low nats": 0.05, "monotone": True}
    assert unknown(analysis) == (
        "From which step do the losses of shapes part? (width a lr, width b lr, width c lr, width d lr and 2 more): "
        "one shape alone",
    )


def of_rows(name: str, rows: Sequence[Mapping[str, Any]], **given: Any) -> Found:
    return Found(frame=frame_of(rows, STATISTICS.get(name).columns), **given)


def test_the_text_has_a_line_per_statistic_and_tables_that_are_short(tmp_path: Path) -> None:
    """At most 6 rows and 120 characters: longer and wider ones are in the page and in the JSON."""
    step = {"axis": "width", "parameterization": "sp", "monotone": True}
    drawn = {"axis": "width", "loss_nats": 3.0}

    def text(num: int) -> list[str]:
        analysis = bare_analysis(
            load_results(tmp_path),
            gains=of_rows("gains", [step] * num, title="sp yes"),
            loss_fits=of_rows("loss_fits", [{"parameterization": "x" * (MOST_CHARACTERS + 1)}], title="too wide"),
            stability=of_rows("stability", [drawn], title="far"),
            collapse_curves=of_rows("collapse_curves", [drawn]),
        )
        return findings_text(analysis).splitlines()

    write_store(tmp_path)
    assert MOST_ROWS == 6
    assert MOST_CHARACTERS == 120
    first, *table, last, fits = text(MOST_ROWS)
    ends = ["How many octaves is the optimum from divergence? far"]
    ends += ["How does the loss fall with the logarithm of the parameters? too wide"]
    assert first == "Does a larger model always win at the same HPs, and by how much? sp yes"
    assert [last, fits] == ends
    assert sum("sp" in line for line in table) == MOST_ROWS
    assert text(MOST_ROWS + 1) == [first, *ends]


def test_losses_that_are_no_nats_have_their_own_unit_in_tables(tmp_path: Path) -> None:
    found = of_rows("loss_fits", [{"slope": -0.1}], title="nats per doubling of active parameters: sp -0.100")
    step = of_rows("gains", [{"gain_nats": 0.1}])
    bare = bare_analysis(load_results(write_store(tmp_path)), gains=step, loss_fits=found)
    gains, fits = analysis_tables(replace(bare, judged=JudgedLoss(unit="squared error")))
    assert [column.name for column in gains.columns] == ["gain squared error"]
    assert fits.title.endswith("squared error per doubling of active parameters: sp -0.100")
    assert "nats" not in f"{gains.note}{fits.note}"


def steps(folder: Path) -> str:
    return report_of(folder).sections[0].next_step


def test_the_next_step_follows_from_the_verdict(tmp_path: Path) -> None:
    one_seed = ("seeds: 2", "seeds: 1")
    control_alone = ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]")
    assert steps(write_store(tmp_path / "a")) == (
        f"Next: use the tuned lr in your own model, with the recipe of: hpxfer recipe write {tmp_path / 'a'}"
    )
    assert steps(write_store(tmp_path / "b", every=2)).startswith(
        "Next: run the sweep again, which trains the 18 trials"
    )
    assert "--write-followup more.yaml" in steps(write_store(tmp_path / "c", one_seed))
    ours_alone = write_store(tmp_path / "e", ("[completep-moe, sp]", "[completep-moe]"))
    add = f"Next: add the control, without which staying may be no merit: hpxfer report {ours_alone} --write-followup"
    assert steps(ours_alone).startswith(add)
    assert f"hpxfer recipe write {tmp_path / 'd'}" in steps(write_store(tmp_path / "d", control_alone))


def test_what_a_run_has_not_trained_yet_is_still_to_come(tmp_path: Path) -> None:
    half = replace(source(write_store(tmp_path / "a", every=2, failing=(0,))), is_running=True)
    section = make_report([half]).sections[0]
    assert section.progress.startswith("17 of 36 trials have a result")
    assert section.progress.endswith(", 1 failed; 18 are still to come.")
    assert section.next_step == "Next: nothing yet. The run goes on, and 18 trials are still to come."
    assert section.headline.startswith(
        "No verdict yet, as 18 trials are still to come. So far completep-moe is down to "
    )
    assert {card.verdict_text for card in section.cards} == {"under way"}
    assert section.unknown == half.analysis.notes
    failed = replace(source(write_store(tmp_path / "b", failing=(0,))), is_running=True)
    assert (
        make_report([failed]).sections[0].next_step.startswith("Next: run the sweep again, which trains the 1 trials")
    )


def test_where_all_trials_diverged_the_next_step_names_the_lrs_and_what_a_plug_in_adds(tmp_path: Path) -> None:
    why = "all 36 trials diverged: look at the LRs, 0.001953 to 0.0625, as even the smallest may be too large"
    folder = write_store(tmp_path / "a", diverging=True)
    assert steps(folder) == f"Next: find out why {why}."
    results = load_results(folder)
    model = results.spec.model.model_copy(update={"gate": "nan"})
    plugin = PluginSpec(name="./gates.py", digest="ab", registers={"gate": ("nan", "other"), "statistic": ("mine",)})
    spec = results.spec.model_copy(update={"model": model, "plugins": (plugin,)})
    cells = results.cells  # with its own gate, which this process knows
    used = replace(results, spec=spec)
    used.__dict__["cells"] = cells
    assert all_diverged(used) == f"{why}, and at gate 'nan' of the plug-in ./gates.py"
    assert all_diverged(load_results(write_store(tmp_path / "b"))) is None
    missing = load_results(write_store(tmp_path / "c", diverging=True, every=2))
    assert all_diverged(missing) is None


def test_the_next_step_of_what_no_trial_decides_says_why(tmp_path: Path) -> None:
    """A control that is undecided asks for nothing beside another parameterization that drifts."""
    folder = write_store(tmp_path / "a")
    results = load_results(folder)
    report = transfer_report(results)
    ours, control = report.findings
    hopeless = Addition(text="more trials will hardly decide: every HP value has exactly the same loss")
    undecided = replace(ours, verdict="undecided", to_add=(hopeless,))
    assert next_step(results, replace(report, findings=(undecided, control)), "a") == f"Next: {hopeless.text}."
    drifts = (replace(ours, verdict="drifts"), replace(control, verdict="undecided"))
    assert next_step(results, replace(report, findings=drifts), "a").startswith("Next: tune lr again at the scale")


def test_the_commands_of_next_steps_go_on_with_the_sweep(tmp_path: Path) -> None:
    """They load the sweep, and write where its results are."""

    def named(step: str) -> tuple[SweepSpec, Path]:
        file, results, root, *more = shlex.split(step.partition("hpxfer run ")[2])
        assert (results, more[:1]) in (("--results", []), ("--results", ["--set"]))
        spec = load_sweep(file, overrides=more[1:])
        return spec, Path(root) / spec.name

    half = load_results(write_store(tmp_path / "a b" / "small", every=2))
    assert named(next_step(half, transfer_report(half), str(half.folder))) == (half.spec, half.folder)
    report = transfer_report(half)
    drifts = tuple(replace(finding, verdict="drifts") for finding in report.findings)
    whole = load_results(write_store(tmp_path / "c" / "small"))
    spec, folder = named(next_step(whole, replace(report, findings=drifts), str(whole.folder)))
    assert folder == whole.folder
    assert [arm.table for arm in spec.parameterizations] == ["mup", "sp"]
    assert spec.model_copy(update={"parameterizations": whole.spec.parameterizations}) == whole.spec
