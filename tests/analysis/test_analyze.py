"""Everything at once, on stores with planted losses, and a statistic of the user's in every form of a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted_results import planted_results
from planted_store import PlantedStore
from sweep_text import edited
from there import there

from hpxfer.analysis import Analysis, Inputs, Statistic, analyze, register_statistic
from hpxfer.analysis.statistics import RESERVED, STATISTICS
from hpxfer.errors import HpxferError
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
    slopes = {
        (answer.parameterization, slope.dimension): slope.octaves_per_doubling
        for answer in whole.found("joint")
        if answer.hp == "lr"
        for slope in answer.slopes
    }
    assert slopes["sp", "width"] == pytest.approx(-1.0, abs=0.1)
    assert slopes["sp", "depth"] == pytest.approx(0.0, abs=0.1)
    assert slopes["completep-moe", "width"] == pytest.approx(0.0, abs=0.1)


def test_every_analysis_is_there_for_every_axis_and_parameterization(whole: Analysis) -> None:
    keys = {(axis, label) for axis in ("width", "depth", "granularity") for label in ("completep-moe", "sp")}
    for name in ("improvement", "collapse", "balance", "steps_to_loss"):
        assert {(answer.axis, answer.parameterization) for answer in whole.found(name)} == keys
    assert {(answer.hp, answer.axis, answer.parameterization) for answer in whole.found("stability")} == {
        (hp, *key) for hp in ("lr", "init_scale") for key in keys
    }
    assert len(whole.found("loss_fits")) == len(whole.found("power_laws")) == 8


def test_numbers_are_those_that_were_planted(whole: Analysis) -> None:
    law = next(
        answer
        for answer in whole.found("power_laws")
        if (answer.parameterization, answer.count) == ("completep-moe", "total")
    )
    assert law.floor == pytest.approx(PLAN.floor, abs=0.05)
    assert there(law.floor_low) <= PLAN.floor <= there(law.floor_high)
    stability = next(
        answer
        for answer in whole.found("stability")
        if (answer.hp, answer.axis, answer.parameterization) == ("lr", "width", "sp")
    )
    assert stability.edge_octaves_per_doubling == pytest.approx(-1.0, abs=0.5)
    improvement = next(
        answer for answer in whole.found("improvement") if (answer.axis, answer.parameterization) == ("width", "sp")
    )
    assert improvement.monotone is False or improvement.left_out
    assert next(answer for answer in whole.found("improvement") if answer.axis == "depth").monotone is True
    assert {len(answer.groups) for answer in whole.found("experts_size")} == {1}
    assert whole.found("surfaces")[0].why_not is not None
    assert [note for note in whole.notes if "diverged" in note]


def test_the_floor_of_the_law_is_what_normalized_curves_are_over(whole: Analysis) -> None:
    found = next(
        answer
        for answer in whole.found("collapse")
        if (answer.axis, answer.parameterization) == ("width", "completep-moe")
    )
    assert found.floor_nats == pytest.approx(PLAN.floor, abs=0.05)
    assert "power law" in found.floor_from
    assert len(found.curves) == 3


def test_a_product_has_surfaces_and_its_base_once(tmp_path: Path) -> None:
    found = made(tmp_path, GRID, BASE, ("seeds: 2", "seeds: 2\nproduct: true"))
    assert [(answer.shape, answer.is_base) for answer in found.found("surfaces")].count(("w32 d2 E4A1 h32", True)) == 1
    assert len(found.found("surfaces")) == 3
    assert {(answer.first, answer.second) for answer in found.found("surfaces")} == {("lr", "init_scale")}
    assert all(answer.why_not is None for answer in found.found("surfaces"))
    base = next(answer for answer in found.found("surfaces") if answer.is_base)
    assert base.interaction == pytest.approx(0.0, abs=0.1)
    assert {answer.hp for answer in found.reports} == {"lr", "init_scale"}


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
    for statistic in ("joint", "improvement", "power_laws", "collapse"):
        assert found.found(statistic)
    if name in ("one trial", "base only", "no base"):
        for statistic in ("collapse", "improvement"):
            assert all(answer.why_not for answer in found.found(statistic))


def test_all_diverged_is_said_and_not_raised(tmp_path: Path) -> None:
    found = made(tmp_path, *SMALL, plan=PlantedStore(cliff=-10.0))
    assert all(all(answer.all_diverge) for answer in found.found("stability"))
    assert {answer.verdict for answer in there(found.report).findings} == {"undecided"}


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """How far apart the seeds of one shape are at the HP that was transferred to it, in nats."""

    parameterization: str
    shape: str
    spread_nats: float | None = None
    why_not: str | None = None


def seed_spreads(inputs: Inputs) -> Sequence[SeedSpread]:
    out = []
    for estimates in inputs.judged.estimates if inputs.judged else ():
        for row in estimates.grid.rows:
            losses = row.cells[2].finite
            if len(losses) < 2:
                out.append(SeedSpread(parameterization=row.parameterization, shape=row.shape, why_not="one seed"))
            else:
                spread = max(losses) - min(losses)
                out.append(SeedSpread(parameterization=row.parameterization, shape=row.shape, spread_nats=spread))
    return out


SPREAD = Statistic(name="seed_spread", title="How far apart are the seeds?", note="In nats.", compute=seed_spreads)


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


def test_its_answers_are_in_the_analysis_and_in_the_json(analysis: Analysis) -> None:
    answers = analysis.found("seed_spread")
    assert len(answers) == 4
    assert all(answer.spread_nats > 0 for answer in answers)
    assert analysis.to_dict()["seed_spread"][0]["spread_nats"] == answers[0].spread_nats


def test_it_is_a_table_of_the_html_and_of_the_text(analysis: Analysis, results: Results) -> None:
    made = make_report([Source(results=results, analysis=analysis)])
    page = to_html(made)
    assert "How far apart are the seeds?" in page
    assert "spread nats" in page
    text = write_report([results.folder], output=results.folder, form="text", full=True).text()
    assert "How far apart are the seeds?\n  In nats.\n" in text
    assert "spread nats" in text


@dataclass(frozen=True, kw_only=True)
class Bag:
    value: object = None
    parts: object = ()
    why_not: object = None


@dataclass
class Thawed:
    value: int = 1


def raises(inputs: Inputs) -> Sequence[Bag]:
    return [Bag(value=1 // len(()))]


RAISES_AT = f"{raises.__code__.co_filename}:{raises.__code__.co_firstlineno + 1}"
RULE = "compute must return a sequence of frozen dataclasses, got "


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


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, f"{RULE}None"),
        (7, f"{RULE}7"),
        ("text", f"{RULE}'text'"),
        ([1], f"{RULE}1 in it"),
        ([Bag], f"{RULE}<class "),
        ([Thawed()], f"{RULE}Thawed"),
        ([SeedSpread(parameterization="sp", shape="w32")], "an answer must have the field 'parts' of its Statistic"),
        ([Bag(parts=[3])], "parts must be a sequence of frozen dataclasses, got [3]"),
        ([Bag(value={1})], "an answer must hold what JSON can hold, got Bag: Object of type set is not JSON"),
        ([Bag(why_not=["no"])], "why_not must be a string or None, got ['no']"),
    ],
)
def test_a_statistic_that_no_report_can_show_is_a_note(found: object, why: str, results: Results) -> None:
    def returns(inputs: Inputs) -> Sequence[Bag]:
        return found  # type: ignore[return-value]

    with STATISTICS.registered(Statistic(name="broken", title="Broken", compute=returns, parts="parts")):
        analysis = analyze(results)
        page = to_html(make_report([Source(results=results, analysis=analysis)]))
    (note,) = [note for note in analysis.notes if note.startswith("broken: ")]
    assert note.startswith(f"broken: TypeError: {why}")
    assert note.endswith(f" ({__file__}:{returns.__code__.co_firstlineno})")
    assert analysis.found("broken") == ()
    assert "TypeError" in page


def test_names_are_unique_and_unknown_ones_get_the_nearest(analysis: Analysis) -> None:
    with pytest.raises(HpxferError, match="'seed_spread' is registered already"):
        register_statistic(SPREAD)
    with pytest.raises(HpxferError, match="'collapse' is registered already"):
        register_statistic(Statistic(name="collapse", title="", compute=seed_spreads))
    for name in RESERVED:
        with pytest.raises(HpxferError, match="is a key of the report already"):
            register_statistic(Statistic(name=name, title="", compute=seed_spreads))
    with pytest.raises(HpxferError, match="did you mean 'collapse'"):
        analysis.found("colapse")


def test_a_statistic_that_fails_is_a_note_and_not_the_end_of_the_report(results: Results) -> None:
    def fails(inputs: Inputs) -> Sequence[SeedSpread]:
        raise HpxferError("the sweep has no such axis")

    with STATISTICS.registered(Statistic(name="fails", title="Fails", compute=fails)):
        found = analyze(results)
    assert found.found("fails") == ()
    assert "fails: the sweep has no such axis" in found.notes
