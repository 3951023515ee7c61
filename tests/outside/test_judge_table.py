"""The verdicts on a table: right on planted runs, the same as a report's on our own, and never more than is shown."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from foreign_runs import foreign_table, step_law_like
from results_table import table_of
from there import there

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.host import is_control
from hpxfer.outside.judging import JudgedTable
from hpxfer.report.html import to_html
from hpxfer.search.verdict_rules import rules_of

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"
COLUMNS = {"value": "lr", "scale": "width", "arm": "method"}
# Sweeps with several axes, variants, no control, and HPs other than the LR.
SWEEPS = (
    "transfer",
    "quickstart",
    "mixtral",
    "mixtral_half",
    "qwen3_moe",
    "regime-i",
    "regime-ii",
    "init_all_half",
    "routers-freeze-soft",
)


def judged(frame: pd.DataFrame | Path, **given: Any) -> JudgedTable:
    return hpxfer.judge(frame, **{"columns": COLUMNS, "control": "plain", "base": "width=256", **given})


def test_python_names_its_parameters_where_the_command_line_names_options() -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=2)
    found = hpxfer.judge(frame, columns=COLUMNS)
    assert "name it with base='width=256'" in str(found)
    assert "(control='ARM')" in found.next_step()
    assert "--" not in f"{found}"
    for table, message in (
        (frame.drop(columns="loss"), "columns={'loss': 'NAME'} names the column"),
        (pd.concat([frame, frame]), "keep the last with duplicates='last'"),
    ):
        with pytest.raises(HpxferError, match=re.escape(message)):
            hpxfer.judge(table, columns=COLUMNS)


def test_python_prints_the_verdict_and_the_next_step() -> None:
    found = judged(foreign_table({"good": 0.0, "plain": -1.0}, seed=2))
    assert f"{found}" == f"{found!r}" == f"{found.summary()}{found.next_step()}"


def verdicts(found: JudgedTable) -> dict[str, str]:
    return {finding.parameterization: finding.verdict for finding in found.report.findings}


@pytest.mark.parametrize("seed", range(8))
def test_planted_runs_are_not_misjudged(seed: int) -> None:
    found = verdicts(judged(foreign_table({"good": 0.0, "plain": -1.0, "up": 0.9}, seed=seed)))
    assert found["good"] != "drifts"
    assert {found["plain"], found["up"]} == {"drifts"}
    assert found["good"] == "transfers"


@pytest.mark.parametrize("seed", range(4))
def test_runs_without_control_or_base_never_transfer(seed: int) -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=seed)
    for given, lacking in (
        ({"control": None}, ("no control",)),
        ({"base": ()}, ("no base named",)),
        ({"control": None, "base": ()}, ("no control", "no base named")),
    ):
        found = judged(frame, **given)
        assert verdicts(found) == {"good": "stays", "plain": "drifts"}
        assert next(each for each in found.report.findings if each.verdict == "stays").lacking == lacking


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"control": None}, "no control"),
        ({"control": "good"}, "no arm beside the control"),
        ({"control": None, "base": ()}, "no control, no base named"),
    ],
)
def test_a_table_of_one_arm_says_nowhere_that_it_transfers(given: dict[str, Any], words: str) -> None:
    found = judged(foreign_table({"good": 0.0}, seed=2), **given)
    assert found.report.headline.startswith(f"With good along width the optimum did not move: {words} (drift ")
    assert re.search(r"drift [+-].* octaves per doubling of width .*at most 0\.\d+ nats lost", found.report.headline)
    page = re.sub(r"(?s)<(style|script).*?</\1>", "", to_html(found.page()))
    pictures = " ".join(figure.svg + figure.title + figure.caption for figure in found.page().sections[0].figures)
    data = json.dumps([found.to_dict(), found.page().to_dict()])
    for text in (found.summary(), found.to_text(), found.next_step(), page, pictures, data):
        assert "transfers" not in text.replace('"transfers_from"', "")  # the key of a number that is not given
    assert f"the optimum did not move: {words}" in page
    assert json.loads(data)[0]["findings"][0]["verdict"] == "stays"


def test_a_control_that_was_not_measured_is_none() -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=1)
    frame["status"] = frame["method"].map({"good": "finished", "plain": "failed"})
    found = judged(frame)
    assert verdicts(found)["good"] == "stays"
    assert "control not measured" in found.report.headline


def test_a_named_control_stands_beside_arms_of_any_name() -> None:
    """Brackets in the name of an arm are no variant of a sweep."""
    frame = foreign_table({"mup (decay x 2)": 0.0, "mup": 0.0, "plain": -1.0}, seed=4)
    found = judged(frame)
    assert verdicts(found) == {"mup (decay x 2)": "transfers", "mup": "transfers", "plain": "drifts"}
    assert all(
        one.control and one.control.parameterization == "plain" for one in found.report.findings if not one.is_control
    )


def test_an_unfinished_run_never_ranks() -> None:
    """At the largest width, runs of too large an LR are ahead until they have finished."""
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=3)
    frame["status"] = "finished"
    ahead = (frame["width"] == 1024) & (frame["lr"] == 2.0**-7) & (frame["method"] == "good")
    frame.loc[ahead, ["loss", "status"]] = [1.0, "running"]
    found = judged(frame)
    top = found.report.findings[0].shapes[-1]
    assert there(top.best_value) < 2.0**-7
    assert top.num_missing == 4


def test_a_grid_over_many_shapes_gives_axes_and_no_verdict_with_one_seed() -> None:
    frame = step_law_like()
    assert frame["lr"].nunique() > 20
    given: dict[str, Any] = {"columns": {"value": "lr", "steps": "ti"}, "shape": ["h", "numl", "D", "bs"]}
    found = hpxfer.judge(frame, **given)
    assert "are 14 values" in " ".join(found.notes)
    assert {(one.axis, one.verdict, one.lacking) for one in found.report.findings} == {
        ("D", "undecided", ("no control", "no base named")),
        ("bs", "undecided", ("no control", "no base named")),
    }
    only = hpxfer.judge(frame, **{**given, "columns": {**given["columns"], "scale": "D"}}, base=["bs=128", "h=1024"])
    (finding,) = only.report.findings
    assert [shape.shape for shape in finding.shapes if shape.is_base] == ["h=1024 numl=8 D=2000000000 bs=128"]
    assert there(finding.drift).octaves_per_doubling == pytest.approx(-0.3, abs=0.15)  # as planted, from points alone
    with pytest.raises(HpxferError, match=r"columns h: one must have two sizes"):
        hpxfer.judge(frame, **{**given, "columns": {**given["columns"], "scale": "h"}})


def lossless(cell: Any) -> pd.DataFrame:
    """Return a table in which three of four runs have no loss at the transferred LR, and above it."""
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=1).astype({"loss": object})
    lost = (frame["width"] == 1024) & (frame["lr"] > 2**-9.5) & (frame["seed"] > 0)
    frame.loc[lost & (frame["method"] == "good"), "loss"] = cell
    return frame


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_no_hp_transfers_while_its_runs_have_no_result(kind: str, tmp_path: Path) -> None:
    """The empty cells that pandas writes for NaN, Parquet's null, and NaN in a frame."""
    frame: pd.DataFrame = lossless(math.nan).astype({"loss": float})
    path = tmp_path / f"runs.{kind}"
    if kind != "frame":
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    table = frame if kind == "frame" else path
    with pytest.raises(HpxferError, match=r"column loss: .*empty='diverged'"):
        judged(table)
    missing, diverged = judged(table, empty="missing"), judged(table, empty="diverged")
    assert missing.report.findings[0].verdict == "undecided"
    assert "width 1024: 3 runs have no result at the transferred HP" in missing.summary()
    assert "12 of 192 runs have no result (12 missing): rows" in missing.summary()
    assert "probability" not in missing.summary().splitlines()[2]
    assert missing.report.findings[0].to_add[0].scales == (1024,)
    assert diverged.report.findings[0].verdict == "drifts"
    said = judged(lossless("nan")).summary()
    assert diverged.summary() == said.replace("Table table", f"Table {diverged.name}")


def test_one_lost_run_at_the_transferred_hp_is_enough() -> None:
    frame = lossless(math.nan)
    frame = frame[frame["loss"].notna() | (frame["seed"] == 1)].assign(
        status=lambda left: left["loss"].notna().map({True: "finished", False: "crashed"})
    )
    assert verdicts(judged(frame))["good"] == "undecided"
    assert verdicts(judged(frame[frame["status"] == "finished"]))["good"] == "transfers"


def test_the_last_row_counts_with_a_result_or_not() -> None:
    epochs = pd.concat([lossless(3.3).assign(epoch=1), lossless(math.nan).assign(epoch=2)], ignore_index=True)
    for empty, verdict in (("diverged", "drifts"), ("missing", "undecided")):
        assert verdicts(judged(epochs, duplicates="last", empty=empty))["good"] == verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_table_of_published_results_has_the_verdicts_of_their_report(name: str, tmp_path: Path) -> None:
    """Where a sweep has no control, the table says so, and nothing else differs."""
    results = hpxfer.load_results(PUBLISHED / name)
    rules = rules_of(results.spec)
    table_of(results).to_csv(tmp_path / "runs.csv", index=False)
    frame, has_control = tmp_path / "runs.csv", any(map(is_control, results.expansion.arms))
    limit = {"loss": rules.loss} if rules.loss is not None else {"octaves": rules.octaves}
    given: dict[str, Any] = {"hp": results.spec.judged_hp, "error": rules.error, "regret_limit": limit}
    found = hpxfer.judge(frame, control="sp" if has_control else None, **given)
    theirs = hpxfer.transfer_report(results)
    plain = {"reasons": (), "to_add": (), "lacking": (), "judged": theirs.judged}
    for ours, other in zip(found.report.findings, theirs.findings, strict=True):
        verdict = "stays" if other.verdict == "transfers" and not has_control else other.verdict
        assert replace(ours, **plain) == replace(other, verdict=verdict, **plain)
    assert "stays" in verdicts(found).values() or has_control or "transfers" not in verdicts(found).values()


@pytest.mark.slow
def test_the_page_has_every_figure_that_lines_can_feed(tmp_path: Path) -> None:
    found = judged(foreign_table({"good": 0.0, "plain": -1.0}, seed=5))
    files = found.write(tmp_path / "page")
    assert all(path.exists() for path in files)
    section = found.page().sections[0]
    assert [row[-1] for row in there(section.progress_table).rows] == [0, 0]
    fewer = judged(foreign_table({"good": 0.0, "plain": -1.0}, seed=5).iloc[3:]).page().sections[0]
    assert [row[-1] for row in there(fewer.progress_table).rows] == [3, 0]
    assert [figure.name for figure in section.figures] == [
        f"{kind}-lr-width" for kind in ("transfer", "optimum", "regret", "base-choice", "stability")
    ]
    assert section.not_drawn == []
    assert [table.title.partition("?")[0] for table in section.tables] == [
        "Which base is large enough",
        "Does a larger model always win at the same HPs, and by how much",
    ]
    assert section.trials(10**6).num_trials == 192
    page = (tmp_path / "page" / "report.html").read_text()
    assert "from the table of runs and nothing else" in page
    assert 'href="#sweep"' not in page


@pytest.mark.first
@pytest.mark.parametrize("unit", ["error", "top-5 error", "accuracy", "percent"])
def test_an_error_rate_is_not_judged_as_a_loss(unit: str) -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=6)
    columns = {**COLUMNS, "loss": "val_err"}
    named, squared = frame.rename(columns={"loss": "val_err"}), frame.rename(columns={"loss": "mean_squared_error"})
    for refused, given in (
        (frame, {"unit": unit}),
        (frame.assign(loss_name="validation error"), {}),
        (named, {"columns": columns}),
    ):
        with pytest.raises(HpxferError, match="column loss: must be a loss, got an error rate or an accuracy"):
            judged(refused, **given)
    for found in (
        judged(named, columns=columns, unit="nats"),
        judged(squared, columns={**COLUMNS, "loss": "mean_squared_error"}),
    ):
        assert verdicts(found) == verdicts(judged(frame))


@pytest.mark.parametrize(
    ("metric", "unit"), [("val_bpb", "bits per byte"), ("val_perplexity", "perplexity"), ("val_loss", "nats")]
)
def test_the_name_of_a_loss_may_say_its_unit_and_a_named_unit_wins(metric: str, unit: str) -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=6).rename(columns={"loss": metric})
    columns = {**COLUMNS, "loss": metric}
    assert f"no unit is named: losses count as {unit}" in " ".join(judged(frame, columns=columns).notes)
    assert "bits per token lost" in judged(frame, columns=columns, unit="bits per token").report.headline


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"error": 0.0}, "error: must be a chance"),
        ({"regret_limit": {"nats": 1.0}}, "regret_limit: must be loss=SHARE or octaves=NUMBER"),
        ({"regret_limit": {"loss": 2.0}}, "regret_limit: loss must be above 0 and at most 0.5"),
        ({"hp": "wd"}, "hp: must be an HP of the table, got 'wd'"),
        ({"tolerance": -1.0}, "tolerance: must be a number of octaves"),
        ({"unit": "\\1"}, "unit: must be a unit"),
        ({"control": "goo"}, r"control: must be an arm of the table, got 'goo'; did you mean 'good'\?"),
    ],
)
def test_a_choice_that_no_verdict_can_go_by_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        judged(foreign_table({"good": 0.0}, seed=1), **{"control": None, **given})


def test_after_a_decided_verdict_the_next_step_asks_for_no_control() -> None:
    """A drift is decided without a control, and an optimum that stays may be used."""
    frame = pd.DataFrame(
        {"lr": 2.0**x, "width": width, "seed": seed, "loss": 3 + 0.05 * (x + 6 + drift) ** 2 + 1e-4 * seed}
        for x in range(-10, -2)
        for width, drift in ((64, 0.0), (128, 1.5), (256, 3.0))
        for seed in range(3)
    )
    columns = {"value": "lr", "scale": "width"}
    drifting = hpxfer.judge(frame, columns=columns, base="width=64")
    assert verdicts(drifting) == {"all runs": "drifts"}
    assert drifting.next_step() == "Next: tune lr at the scale that you need."
    own = frame[frame["width"] == 64]
    stays = hpxfer.judge(pd.concat([own.assign(width=32), own]), columns=columns)
    assert verdicts(stays) == {"all runs": "stays"}
    assert stays.next_step().startswith("Next: use the lr tuned at the base up to the largest scale of the table")
    assert any("no unit is named" in note for note in stays.notes)
    assert not any("no unit is named" in note for note in hpxfer.judge(frame, columns=columns, unit="nats").notes)
