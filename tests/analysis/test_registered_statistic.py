"""A statistic of the user's, registered from outside of the package, is in every form of a report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted_results import planted_results
from planted_store import PlantedStore
from sweep_text import edited

from hpxfer.analysis import Analysis, Inputs, Statistic, analyze, register_statistic
from hpxfer.analysis.statistics import RESERVED, STATISTICS
from hpxfer.errors import HpxferError
from hpxfer.report import Source, make_report, to_html
from hpxfer.report.write import write_report
from hpxfer.results import Results
from hpxfer.spec import parse_sweep


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


def test_a_reason_stands_among_what_is_not_known(results: Results) -> None:
    one_seed = Statistic(
        name="never",
        title="Never known",
        compute=lambda inputs: [SeedSpread(parameterization="sp", shape="w32", why_not="it is never known")],
    )
    with STATISTICS.registered(one_seed):
        made = make_report([Source(results=results, analysis=analyze(results))])
    assert "Never known (sp w32): it is never known" in made.sections[0].unknown


def test_a_statistic_that_fails_is_a_note_and_not_the_end_of_the_report(results: Results) -> None:
    def fails(inputs: Inputs) -> Sequence[SeedSpread]:
        raise HpxferError("the sweep has no such axis")

    with STATISTICS.registered(Statistic(name="fails", title="Fails", compute=fails)):
        found = analyze(results)
    assert found.found("fails") == ()
    assert "fails: the sweep has no such axis" in found.notes


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
def test_a_users_statistic_that_returns_what_no_report_can_show_is_a_note(
    found: object, why: str, results: Results
) -> None:
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


def test_every_built_in_statistic_has_its_own_name_and_a_title() -> None:
    assert [statistic.name for statistic in STATISTICS.rows()] == list(STATISTICS.names())
    assert all(statistic.title for statistic in STATISTICS.rows())
