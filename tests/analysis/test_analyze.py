"""Everything at once, on stores with planted losses, and a statistic of the user's in every form of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from found_rows import rows
from planted_results import planted_results
from planted_store import PlantedStore
from sweep_text import edited
from there import there

from hpxfer.analysis import Analysis, Chart, Found, Inputs, Statistic, analyze, register_statistic
from hpxfer.analysis.statistics import RESERVED, STATISTICS
from hpxfer.analysis.statistics.statistic import frame_of, records
from hpxfer.errors import HpxferError
from hpxfer.figures import DrawnFigure, all_figures
from hpxfer.report import Source, make_report, to_html
from hpxfer.report.write import write_report
from hpxfer.results import Results
from hpxfer.spec import parse_sweep
from hpxfer.trial import Trial

GRID = ("lr: [0.01]", "lr: {log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}")
BASE = ("router_bias_lr: 0.01", "router_bias_lr: 0.01\n  lr: 0.015625")
AXES = ("width: [32, 64]", "width: [32, 64, 128]\n  depth: [2, 4, 8]\n  granularity: [1, 2, 4]")
SEEDS = ("seeds: 2", "seeds: 3")
PLAN = PlantedStore(drift={"sp": -1.0}, cliff=2.0)
SMALL = (GRID, BASE, AXES, SEEDS)


def made(folder: Path, *edits: tuple[str, str], plan: PlantedStore = PLAN) -> Analysis:
    found = analyze(planted_results(parse_sweep(edited(*edits)), folder, plan))
    json.dumps(found.to_dict(), allow_nan=False)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return made(tmp_path_factory.mktemp("whole"), *SMALL)


def test_the_verdicts_are_those_of_what_was_planted(whole: Analysis) -> None:
    assert (whole.hp, whole.loss, [report.hp for report in whole.reports]) == ("lr", "validation", ["lr", "init_scale"])
    verdicts = {finding.key: finding.verdict for finding in there(whole.report).findings}
    assert verdicts["width", "completep-moe"] == "transfers"
    assert verdicts["width", "sp"] == "drifts"


def test_the_joint_drift_names_the_dimension_that_moves_it(whole: Analysis) -> None:
    found = rows(whole.found("joint").frame, hp="lr")
    slopes = {(row.parameterization, row.dimension): row.octaves_per_doubling for row in found}
    assert slopes["sp", "width"] == pytest.approx(-1.0, abs=0.1)
    assert slopes["sp", "depth"] == pytest.approx(0.0, abs=0.1)
    assert slopes["completep-moe", "width"] == pytest.approx(0.0, abs=0.1)


def names_of(found: Found, *columns: str) -> set[tuple[str, ...]]:
    """Return of what a statistic has rows, by these columns, and of what it says that nothing is known."""
    known = set(found.frame[list(columns)].itertuples(index=False, name=None))
    return known | {tuple(of.split()[: len(columns)]) for of, _ in found.unknown}


def test_every_analysis_is_there_for_every_axis_and_parameterization(whole: Analysis) -> None:
    keys = {(axis, label) for axis in ("width", "depth", "granularity") for label in ("completep-moe", "sp")}
    for name in ("gains", "collapse", "balance", "steps_to_loss", "routers"):
        assert names_of(whole.found(name), "axis", "parameterization") == keys
    for name in ("stability", "bases"):
        assert names_of(whole.found(name), "axis", "parameterization", "hp") == {
            (*key, hp) for hp in ("lr", "init_scale") for key in keys
        }
    for name in ("loss_fits", "power_laws"):
        assert len(whole.found(name).frame) + len(whole.found(name).unknown) == 8


def test_every_frame_has_the_columns_that_its_statistic_documents(whole: Analysis) -> None:
    for statistic in STATISTICS.rows():
        frame = whole.found(statistic.name).frame
        assert list(frame.columns) == list(statistic.columns), statistic.name
        assert set(statistic.hidden) < set(statistic.columns), statistic.name
        assert all(statistic.columns.values()), statistic.name
    of_searches, of_products = {"search_best", "search_steps", "pair_optima"}, {"surfaces", "pair_cells"}
    empty = {name for name, of in whole.statistics.items() if of.frame.empty}
    assert empty == of_searches | of_products | {"errors"}  # which samples have, and not tokens


def test_every_finding_is_a_sentence_with_every_arm(whole: Analysis) -> None:
    for name in ("bases", "joint", "gains", "collapse", "balance", "stability", "power_laws", "steps_to_loss"):
        for label in set(whole.found(name).frame["parameterization"]):
            assert f"{label} " in whole.found(name).title, name


def test_numbers_are_those_that_were_planted(whole: Analysis) -> None:
    (law,) = rows(whole.found("power_laws").frame, parameterization="completep-moe", count="total")
    assert law.floor == pytest.approx(PLAN.floor, abs=0.05)
    assert law.floor_low <= PLAN.floor <= law.floor_high
    cells = rows(whole.found("stability").frame, hp="lr", axis="width", parameterization="sp")
    assert cells[0].edge_octaves_per_doubling == pytest.approx(-1.0, abs=0.5)
    gains = whole.found("gains").frame
    assert all(row.monotone is False for row in rows(gains, axis="width", parameterization="sp")) or any(
        row.gain_nats is None for row in rows(gains, axis="width", parameterization="sp")[1:]
    )
    assert {row.monotone for row in rows(gains, axis="depth", parameterization="completep-moe")} == {True}
    sizes = whole.found("experts_size")
    assert set(sizes.frame["parameterization"]) == {"completep-moe", "sp"}
    assert (set(sizes.frame["group"]), sizes.unknown) == ({0}, ())
    assert "product: true" in whole.found("surfaces").unknown[0][1]
    assert [note for note in whole.notes if "diverged" in note]


def test_the_floor_of_the_law_is_what_normalized_curves_are_over(whole: Analysis) -> None:
    where = {"axis": "width", "parameterization": "completep-moe"}
    (found,) = rows(whole.found("collapse").frame, **where)
    assert found.floor_nats == pytest.approx(PLAN.floor, abs=0.05)
    assert "power law" in found.floor_from
    for name in ("collapse_curves", "normalized_curves"):
        assert len({row.shape for row in rows(whole.found(name).frame, **where)}) == 3


def test_a_product_has_surfaces_and_its_base_once(tmp_path: Path) -> None:
    found = made(tmp_path, GRID, BASE, ("seeds: 2", "seeds: 2\nproduct: true"))
    surfaces = rows(found.found("surfaces").frame)
    assert len(surfaces) == 3
    assert {(row.first, row.second) for row in surfaces} == {("lr", "init_scale")}
    (base,) = rows(found.found("surfaces").frame, is_base=True)
    assert base.shape == "w32 d2 E4A1 h32"
    assert base.interaction == pytest.approx(0.0, abs=0.1)
    shapes = [(row.parameterization, row.shape) for row in surfaces]
    assert sorted(set(found.found("pair_cells").frame[["parameterization", "shape"]].itertuples(False, None))) == shapes
    for name in ("surfaces", "pair_cells"):
        assert list(found.found(name).frame.columns) == list(STATISTICS.get(name).columns)
    assert {report.hp for report in found.reports} == {"lr", "init_scale"}


PARTS: dict[str, Callable[[Trial], bool]] = {
    "one trial": lambda trial: trial.seed == 0 and trial.hps.lr == 2.0**-6 and trial.shape == trial.base,
    "base only": lambda trial: trial.shape == trial.base,
    "no base": lambda trial: trial.shape != trial.base,
    "one seed": lambda trial: trial.seed == 1,
    "two values": lambda trial: trial.hps.lr < 2.0**-7,
    "every third": lambda trial: int(trial.id, 16) % 3 == 0,
    "largest only": lambda trial: trial.shape.width == 128,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_partial_store_says_what_it_can_and_why_not_the_rest(name: str, tmp_path: Path) -> None:
    plan = PlantedStore(drift={"sp": -1.0}, kept=PARTS[name])
    found = made(tmp_path, *SMALL, plan=plan)
    assert any("have not been run" in note for note in found.notes)
    for statistic in ("joint", "gains", "power_laws", "collapse"):
        assert len(found.found(statistic).frame) or found.found(statistic).unknown
    if name in ("one trial", "base only", "no base"):
        for statistic in ("collapse", "gains"):
            assert found.found(statistic).frame.empty
            assert all(why for _, why in found.found(statistic).unknown)


def test_all_diverged_is_said_and_not_raised(tmp_path: Path) -> None:
    found = made(tmp_path, *SMALL, plan=PlantedStore(cliff=-10.0))
    assert found.found("stability").frame["all_diverge"].all()
    assert {answer.verdict for answer in there(found.report).findings} == {"undecided"}


COLUMNS = {
    "parameterization": "the arm",
    "shape": "the name of the shape",
    "scale": "of the shape",
    "value": "of the HP",
    "spread_nats": "from the best to the worst seed",
}


def seed_spreads(inputs: Inputs) -> Found:
    """Return how far apart the seeds of every shape are at every HP."""
    every = [
        {"parameterization": row.parameterization, "shape": row.shape, "scale": row.scale, "value": cell.value}
        | {"spread_nats": max(cell.finite) - min(cell.finite)}
        for estimates in (inputs.judged.estimates if inputs.judged else ())
        for row in estimates.grid.rows
        for cell in row.cells
    ]
    frame = pd.DataFrame(every, columns=list(COLUMNS))
    worst = frame["spread_nats"].max()
    return Found(frame=frame, title=f"up to {worst:.2g} nats", unknown=(("w128", "not run"),))


QUESTION = "How far apart are the seeds?"
SPREAD = Statistic(name="seed_spread", title=QUESTION, note="Of all seeds.", compute=seed_spreads, columns=COLUMNS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    grid = ("lr: [0.01]", "lr: {log2: [-9, -4]}")
    return planted_results(parse_sweep(edited(grid)), tmp_path_factory.mktemp("planted"), PlantedStore(noise=0.01))


@pytest.fixture
def analysis(results: Results) -> Iterator[Analysis]:
    register_statistic(SPREAD)
    try:
        yield analyze(results)
    finally:
        STATISTICS.remove("seed_spread")


def test_what_it_found_is_in_every_form_of_a_report(analysis: Analysis, results: Results, tmp_path: Path) -> None:
    found = analysis.found("seed_spread")
    spreads = rows(found.frame)
    assert len(spreads) == 24
    assert all(row.spread_nats > 0 for row in spreads)
    in_json = json.loads(json.dumps(analysis.to_dict()["seed_spread"]))
    of = {"title": found.title, "rows": [vars(row) for row in spreads], "unknown": [["w128", "not run"]]}
    assert in_json == {**of, "columns": dict(SPREAD.columns)}
    page = to_html(make_report([Source(results=results, analysis=analysis)]))
    text = write_report([results.folder], output=tmp_path, form="text", full=True).text()
    for form in (page, text):
        assert f"{QUESTION} {found.title}" in form
        assert f"{QUESTION} (w128): not run" in form
    assert "spread nats" in page
    assert "Of all seeds." in page
    assert "spread nats" not in text, "24 rows are too many"


def test_the_text_has_its_table_if_it_is_short(results: Results, tmp_path: Path) -> None:
    def short(inputs: Inputs) -> Found:
        return replace(seed_spreads(inputs), frame=seed_spreads(inputs).frame.head(6))

    with STATISTICS.registered(replace(SPREAD, compute=short)):
        text = write_report([results.folder], output=tmp_path, form="text", full=True).text()
    (title,) = [line for line in text.splitlines() if line.startswith(f"{QUESTION} up to ")]
    assert f"{title}\n  Of all seeds.\n  parameterization  shape " in text


CHARTS = {
    "line": Chart(x="value", y="spread_nats", color="parameterization", panel="shape", log=("x", "y")),
    "line-by-scale": Chart(x="value", y="spread_nats", color="scale", panel="parameterization"),
    "one-line-with-a-band": Chart(x="value", y="spread_nats", low="spread_nats", high="spread_nats"),
    "cells": Chart(x="value", y="scale", color="spread_nats", panel="parameterization", kind="cells"),
    "cells-in-the-log": Chart(x="value", y="scale", color="spread_nats", kind="cells", log=("x",)),
    "contour": Chart(x="value", y="scale", color="spread_nats", panel="parameterization", kind="contour"),
}


NOTHING = Found(frame=pd.DataFrame(columns=["x", "y"], dtype=float), chart=Chart(x="x", y="y"))
APART = pd.DataFrame({"x": [1.0, math.nan], "y": [math.nan, 2.0]})
EMPTY = {
    "no-row": (NOTHING, "no row has both numbers of the chart"),
    "no-row-and-a-reason": (replace(NOTHING, unknown=(("w32", "one seed"), ("w64", "one seed"))), "one seed"),
    "no-whole-row": (replace(NOTHING, frame=APART), "no row has both numbers of the chart"),
}
RULE = "compute must return a Found with a pandas frame, got "
FRAME = pd.DataFrame({"x": [1.0, 2.0], "y": [3.0, 4.0], "arm": ["a", "b"]})


def charted(**chart: Any) -> Found:
    return Found(frame=FRAME, chart=Chart(**{"x": "x", "y": "y", **chart}))


BROKEN: list[tuple[Any, str]] = [
    (None, f"{RULE}None"),
    ("text", f"{RULE}'text'"),
    ([1], f"{RULE}[1]"),
    (FRAME, f"{RULE}     x "),
    (Found, f"{RULE}<class "),
    (Found(frame=[{"x": 1}]), f"{RULE}[{{'x': 1}}]"),  # type: ignore[arg-type]
    (Found(frame=pd.DataFrame([[1, 2]])), "the columns of a frame must be different texts, got [0, 1]"),
    (
        Found(frame=pd.DataFrame([[1, 2]], columns=["x", "x"])),
        "the columns of a frame must be different texts, got ['x', 'x']",
    ),
    (
        Found(frame=FRAME.set_index("arm")),
        "the keys of a frame must be columns, got the index ['arm']; add reset_index()",
    ),
    (charted(low="x"), "a band must have low and high, got 'x' alone"),
    (charted(log=("arm",)), "log must be axes, such as (\"x\",), got ('arm',)"),
    (charted(kind="bars"), "the kind of a chart must be line, cells, contour, got 'bars'"),
    (charted(kind="cells"), "a chart of cells must name the column that colors it, got no color"),
    (charted(kind="contour"), "a chart of contour must name the column that colors it, got no color"),
    *(
        (charted(**{name: "arms"}), "a chart must draw columns of the frame, got 'arms'; did you mean 'arm'?")
        for name in ("x", "y", "color", "panel", "low", "high")
    ),
    *((charted(**{name: "arm"}), "a chart must draw numbers, got str in 'arm'") for name in ("x", "y", "low", "high")),
    (charted(kind="cells", color="arm"), "a chart must draw numbers, got str in 'arm'"),
    (
        Found(frame=pd.DataFrame({"x": [{1}]})),
        "a frame must hold numbers, texts and None, got {1} in 'x'",
    ),
    (Found(frame=FRAME, title=None), "the title of a Found must be a text, got None"),  # type: ignore[arg-type]
    (Found(frame=FRAME, chart="line"), "the chart of a Found must be a Chart or None, got 'line'"),  # type: ignore[arg-type]
    (Found(frame=FRAME, unknown=("why",)), "unknown must hold pairs of texts, of what and why"),  # type: ignore[arg-type]
]


def returning(found: Any) -> Callable[[Inputs], Found]:
    def returns(inputs: Inputs) -> Found:
        return found  # type: ignore[no-any-return]

    return returns


def drawing(chart: Chart) -> Callable[[Inputs], Found]:
    return lambda inputs: replace(seed_spreads(inputs), chart=chart)


@dataclass(frozen=True)
class Shown:
    """A report with all of these statistics."""

    analysis: Analysis
    figures: dict[str, DrawnFigure]
    missing: list[str]
    page: str


@pytest.fixture(scope="module")
def shown(results: Results) -> Shown:
    every = [replace(SPREAD, name=name, compute=drawing(chart)) for name, chart in CHARTS.items()]
    found = {name: of for name, (of, _) in EMPTY.items()} | {f"broken-{i}": of for i, (of, _) in enumerate(BROKEN)}
    every += [Statistic(name=name, title="", compute=returning(of), columns={"x": ""}) for name, of in found.items()]
    with ExitStack() as stack:
        for statistic in every:
            stack.enter_context(STATISTICS.registered(statistic))
        analysis = analyze(results)
        figures, missing = all_figures(results, analysis)
        page = to_html(make_report([Source(results=results, analysis=analysis)]))
    return Shown(analysis, {figure.name: figure for figure in figures}, missing, page)


@pytest.mark.parametrize("kind", CHARTS)
def test_its_chart_is_a_figure_with_its_frame(kind: str, shown: Shown) -> None:
    found, drawn, chart = shown.analysis.found(kind), shown.figures[kind], CHARTS[kind]
    drawn.figure.draw_without_rendering()  # a warning is an error
    assert drawn.title == f"{QUESTION} {found.title}"
    assert drawn.caption.startswith("Of all seeds. parameterization: the arm.")
    assert drawn.csv == found.frame.to_csv(index=False, lineterminator="\n")
    panels = [axes for axes in drawn.figure.axes if axes.get_xlabel().removeprefix("log2 ").startswith("value")]
    assert len(panels) == (1 if chart.panel is None else 2)
    assert {axes.get_ylabel().removesuffix(" (log scale)") for axes in panels} == {chart.y.replace("_", " ")}
    assert {axes.get_yscale() for axes in panels} == {"log" if "y" in chart.log else "linear"}
    assert {axes.get_xlabel() == "value" for axes in panels} == {"x" not in chart.log}, "a log axis says that it is one"


@pytest.mark.parametrize("name", EMPTY)
def test_a_chart_without_rows_says_why_it_is_missing(name: str, shown: Shown) -> None:
    assert f"{name}: {EMPTY[name][1]}" in shown.missing
    assert name not in shown.figures


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_statistic_that_no_report_can_show_is_a_note(number: int, shown: Shown) -> None:
    name, line = f"broken-{number}", returning(None).__code__.co_firstlineno
    (note,) = [note for note in shown.analysis.notes if note.startswith(f"{name}: ")]
    assert note.startswith(f"{name}: TypeError: {BROKEN[number][1]}")
    assert note.endswith(f" ({__file__}:{line})")
    assert shown.analysis.found(name).frame.empty
    assert list(shown.analysis.found(name).frame.columns) == ["x"]
    assert f"{name}: TypeError: " in shown.page


def raises(inputs: Inputs) -> Found:
    return Found(frame=pd.DataFrame({"x": [1 // len(())]}))


RAISES_AT = f"{raises.__code__.co_filename}:{raises.__code__.co_firstlineno + 1}"


def test_any_exception_of_a_users_statistic_is_a_note_with_its_line(results: Results, tmp_path: Path) -> None:
    with STATISTICS.registered(Statistic(name="broken", title="Broken", compute=raises)):
        made = make_report([Source(results=results, analysis=analyze(results))])
        text = write_report([results.folder], output=tmp_path, form="text", full=True).text()
    (note,) = [why for why in made.sections[0].unknown if why.startswith("broken: ")]
    assert note.startswith("broken: ZeroDivisionError: ")
    assert note.endswith(f" ({RAISES_AT})")
    assert f"- {note}\n" in text
    assert note in json.dumps(made.to_dict())
    assert "ZeroDivisionError" in to_html(made)


def test_names_are_unique_and_unknown_ones_get_the_nearest(analysis: Analysis) -> None:
    with pytest.raises(HpxferError, match="'seed_spread' is registered already"):
        register_statistic(SPREAD)
    for name, why in {"collapse": "is registered already", **dict.fromkeys(RESERVED, "is a key of the report")}.items():
        with pytest.raises(HpxferError, match=f"'{name}'.* {why}"):
            register_statistic(replace(SPREAD, name=name))
    with pytest.raises(HpxferError, match="did you mean 'collapse'"):
        analysis.found("colapse")


def test_a_statistic_that_fails_is_a_note_and_not_the_end_of_the_report(results: Results) -> None:
    def fails(inputs: Inputs) -> Found:
        raise HpxferError("the sweep has no such axis")

    with STATISTICS.registered(Statistic(name="fails", title="Fails", compute=fails)):
        found = analyze(results)
    assert found.found("fails").frame.empty
    assert "fails: the sweep has no such axis" in found.notes


def test_a_column_without_values_holds_nan_so_that_it_compares_as_a_number() -> None:
    frame = frame_of([{"name": "a", "se": None}, {"name": "b", "se": None}], {"name": "", "se": ""})
    assert not (frame["se"] > 0).any()
    assert records(frame)[0] == {"name": "a", "se": None}
