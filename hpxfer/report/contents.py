"""The contents of a report, decided as data before anything is written: first the verdicts, then the rest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import hpxfer
from hpxfer.analysis import Finding, TransferReport
from hpxfer.errors import spelled
from hpxfer.host import NOTHING, Table, hp_text, json_ready, text_table
from hpxfer.report.next_step import asks_for_points, gains_question, next_step, points_headline, points_question
from hpxfer.report.provenance import (
    Progress,
    failures,
    limits,
    progress_table,
    provenance_table,
    threshold_table,
    trainer_checks,
)
from hpxfer.report.tables import analysis_tables, openings, unknown
from hpxfer.report.trials import TrialData, trial_data
from hpxfer.results import Results
from hpxfer.search import arm_points, best_of_arms
from hpxfer.spec import SweepSpec, dump_sweep
from hpxfer.verdict import compared, conclusion, facts, headline, shape_table, verdict_line, verdict_text

if TYPE_CHECKING:
    from hpxfer.analysis import Analysis
    from hpxfer.figures import DrawnFigure

JSON_VERSION = 1
DRIFT = "drift of the optimum"
CARDS_AT_A_GLANCE = 4  # with more verdicts, the report starts with a table of them


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """One results folder with its analysis and its figures. `not_drawn` says why other figures are missing.

    `is_running` is for a folder that a driver is writing: what is missing is still to come.
    """

    results: Results
    analysis: Analysis
    figures: Sequence[DrawnFigure] = ()
    not_drawn: Sequence[str] = ()
    is_running: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """The verdict on one HP, parameterization and axis, with its facts and the shapes that it was found from."""

    hp: str
    finding: Finding
    facts: tuple[tuple[str, str], ...]
    shapes: Table
    is_running: bool = False

    @property
    def line(self) -> str:
        """The parameterization, its verdict and the conclusion."""
        return verdict_line(self.finding)

    @property
    def verdict_text(self) -> str:
        """The verdict. It says too if a control is missing, and that a run goes on that may decide it."""
        return "under way" if self.is_running and self.finding.verdict == "undecided" else verdict_text(self.finding)

    @property
    def conclusion(self) -> str:
        """What the verdict rests on, in a few words; empty if nothing is known."""
        return conclusion(self.finding) or ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        finding = self.finding
        return {
            "hp": self.hp,
            "axis": finding.axis,
            "parameterization": finding.parameterization,
            "verdict": finding.verdict,
            "conclusion": self.conclusion,
            "is_control": finding.is_control,
            "control": None if finding.control is None else json_ready(asdict(finding.control)),
            "reasons": list(finding.reasons),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """The part of the report about one results folder, or about one table of runs that were trained elsewhere."""

    name: str
    headline: str  # on the judged HP
    no_verdict: str  # why there is no verdict on it, empty if there is one
    question: str
    next_step: str
    cards: tuple[Card, ...]  # of the judged HP
    other_cards: tuple[Card, ...]  # of the other HPs scanned
    tables: tuple[Table, ...]
    unknown: tuple[str, ...]  # what cannot be said, and why
    progress: str
    progress_table: Table
    failures: tuple[str, ...]
    provenance: Table
    thresholds: Table
    limits: tuple[str, ...]
    sweep_yaml: str  # empty for a table
    analysis: Analysis
    trials: Callable[[int], TrialData]  # every trial in at most so many characters
    figures: Sequence[DrawnFigure] = ()
    not_drawn: Sequence[str] = ()  # why other figures are missing
    problems: Sequence[str] = ()  # files that could not be read
    checks: Sequence[str] = ()  # of a user's own trainer: what they found in one line, then what failed


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The whole report. It has a `comparison` if there are several results folders or many verdicts."""

    title: str
    sections: tuple[Section, ...]
    comparison: Table | None = None
    made_from: str = "the Parquet files of the results folder"
    is_running: bool = False  # trials were being trained while it was made

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, with None for what is missing."""
        return {
            "hpxfer_report": JSON_VERSION,
            "hpxfer": hpxfer.__version__,
            "title": self.title,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "sweeps": [_section_dict(section) for section in self.sections],
        }


def make_report(sources: Sequence[Source]) -> Report:
    """Return the report on one or more results folders, in the order given."""
    names = _names([source.results for source in sources])
    found = report_of([_section(source, name) for source, name in zip(sources, names, strict=True)])
    return replace(found, is_running=any(source.is_running for source in sources))


def report_of(sections: Sequence[Section], *, made_from: str = Report.made_from) -> Report:
    """Return the report with these sections. `made_from` says what it was made from and nothing else."""
    title = f"Do hyperparameters transfer? {', '.join(section.name for section in sections)}"
    num_cards = sum(len(section.cards) + len(section.other_cards) for section in sections)
    many = len(sections) > 1 or num_cards > CARDS_AT_A_GLANCE
    return Report(
        title=title,
        sections=tuple(sections),
        comparison=_comparison(sections) if many else None,
        made_from=made_from,
    )


def _section(source: Source, name: str) -> Section:
    results, analysis = source.results, source.analysis
    rules = results.rules
    judged = [report for report in analysis.reports if report.hp == analysis.hp]
    others = [report for report in analysis.reports if report.hp != analysis.hp]
    return Section(
        name=name,
        headline=_headline(analysis, results, judged, is_running=source.is_running),
        no_verdict=_no_verdict(results, judged),
        question=_question(analysis, results.spec),
        next_step=next_step(
            results, judged[0] if judged else None, spelled(str(results.folder)), is_running=source.is_running
        ),
        cards=cards_of(judged, analysis, is_running=source.is_running),
        other_cards=cards_of(others, analysis, is_running=source.is_running),
        tables=analysis_tables(analysis),
        # While trials are still to come, what a statistic lacks is not worth a line.
        unknown=analysis.notes if source.is_running else (*analysis.notes, *unknown(analysis)),
        progress=Progress.of(results).text(is_running=source.is_running),
        progress_table=progress_table(results.cells),
        failures=failures(results),
        provenance=provenance_table(results),
        thresholds=threshold_table(rules),
        limits=limits(results, (*judged, *others)),
        sweep_yaml=dump_sweep(results.spec),
        analysis=analysis,
        trials=partial(trial_data, results),
        figures=source.figures,
        not_drawn=source.not_drawn,
        problems=results.problems,
        checks=tuple(trainer_checks(results)),
    )


def _headline(analysis: Analysis, results: Results, judged: Sequence[TransferReport], *, is_running: bool) -> str:
    """Return what the statistics say that the report opens with, then what was found on the judged HP."""
    of_hp = [] if results.spec.has_fixed_hps else [_of_hp(analysis, results, judged, is_running=is_running)]
    return " ".join([*openings(analysis), *of_hp])


def _of_hp(analysis: Analysis, results: Results, judged: Sequence[TransferReport], *, is_running: bool) -> str:
    """Return what was found on the judged HP, or at the base alone."""
    if asks_for_points(results.spec):
        return points_headline(best_of_arms(arm_points(results), results.spec), analysis.judged)
    findings = judged[0].findings if judged else ()
    is_open = all(each.verdict == "undecided" for each in findings)
    if is_running and is_open and (missing := Progress.of(results).num_missing):
        return f"No verdict yet, as {missing} trials are still to come.{_so_far(analysis.hp, findings)}"
    return headline(analysis.hp, findings, is_running=is_running)


def _so_far(hp: str, findings: Sequence[Finding]) -> str:
    """Return the lowest measured loss of each arm at each shape, as sentences; empty where nothing is measured."""
    out = ""
    for finding in compared(findings):
        lowest = [
            f"{finding.judged.level(shape.lowest_loss)} at {finding.name(shape)} ({hp} {hp_text(shape.lowest_value)})"
            for shape in finding.shapes
            if shape.lowest_loss is not None
        ]
        out += f" So far {finding.parameterization} is down to {', '.join(lowest)}." if lowest else ""
    return out


def _no_verdict(results: Results, judged: Sequence[TransferReport]) -> str:
    """Return why there is no verdict: the search scans no line, or nothing on the line can be judged."""
    if results.spec.has_fixed_hps or any(report.findings for report in judged):
        return ""
    if (why := results.why_no_line()) is not None:
        return f"There is no transfer verdict: {why}."
    return "There is no verdict yet: nothing can be judged. What is missing is listed below."


def _question(analysis: Analysis, spec: SweepSpec) -> str:
    if asks_for_points(spec):
        return points_question(analysis.judged)
    if spec.has_fixed_hps:
        return gains_question(spec, analysis.judged)
    return f"Does {analysis.hp} transfer? Judged by {analysis.judged.words}."


def cards_of(reports: Sequence[TransferReport], analysis: Analysis, *, is_running: bool = False) -> tuple[Card, ...]:
    """Return a card for each verdict of these reports."""
    bases = analysis.found("bases").frame
    keys = zip(bases["hp"], bases["axis"], bases["parameterization"], strict=True)
    advice_of = {key: advice for key, advice in zip(keys, bases["advice"], strict=True) if advice}
    return tuple(
        _card(report, finding, advice_of.get((report.hp, *finding.key)), is_running=is_running)
        for report in reports
        for finding in report.findings
    )


def _card(report: TransferReport, finding: Finding, base_advice: str | None, *, is_running: bool) -> Card:
    """Return the card of a verdict. While a run goes on, nothing is advised that its other trials may settle."""
    known = list(facts(finding, report.hp).items())
    if base_advice is not None and not is_running:
        known.append(("which base", base_advice))
    if is_running:
        asked = {f"to decide: {one.text}" for one in finding.to_add}
        reasons = tuple(why for why in finding.reasons if why not in asked)
        finding = replace(finding, reasons=reasons, to_add=())
    table = shape_table(finding)
    return Card(hp=report.hp, finding=finding, facts=tuple(known), shapes=table, is_running=is_running)


def _comparison(sections: Sequence[Section]) -> Table:
    """Return the verdicts of all folders in one table, with one row per HP, axis and parameterization."""
    found = {
        (card.hp, card.finding.axis, card.finding.parameterization, number): card
        for number, section in enumerate(sections)
        for card in (*section.cards, *section.other_cards)
    }
    keys = dict.fromkeys(key[:3] for key in found)
    rows = [(*key, *(_in_brief(found.get((*key, number))) for number in range(len(sections)))) for key in keys]
    names = ("HP", "axis", "parameterization", *(section.name for section in sections))
    return text_table("Side by side" if len(sections) > 1 else "At a glance", names, rows)


def _in_brief(card: Card | None) -> str:
    if card is None:
        return NOTHING
    return f"{card.line.partition(': ')[2]}; drift {dict(card.facts)[DRIFT]}"


def _names(results: Sequence[Results]) -> list[str]:
    """Return a name for each sweep: its own, with its folder's and a number where names would be the same."""
    names = [sweep.name for sweep in results]
    if len(set(names)) < len(names):
        names = [f"{sweep.name} ({sweep.folder.name})" for sweep in results]
    if len(set(names)) < len(names):
        names = [f"{name} #{number}" for number, name in enumerate(names, 1)]
    return names


def _section_dict(section: Section) -> dict[str, Any]:
    return {
        "sweep": section.name,
        "headline": section.headline,
        "no_verdict": section.no_verdict or None,
        "question": section.question,
        "next_step": section.next_step,
        "verdicts": [card.to_dict() for card in (*section.cards, *section.other_cards)],
        "analysis": section.analysis.to_dict(),
        "unsaid": list(section.unknown),
        "progress": {"text": section.progress, **section.progress_table.to_dict()},
        "failures": list(section.failures),
        "problems": list(section.problems),
        "trainer_checks": list(section.checks) or None,
        "provenance": section.provenance.to_dict(),
        "limits": list(section.limits),
        "figures": [
            {"name": figure.name, "title": figure.title, "caption": figure.caption} for figure in section.figures
        ],
        "not_drawn": list(section.not_drawn),
        "sweep_yaml": section.sweep_yaml,
    }
