"""What a report says, decided as data before anything is written: verdicts first, then all that supports them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import hpxfer
from hpxfer.analysis.findings import Finding, ShapeFinding, TransferReport, json_ready
from hpxfer.analysis.text import drift_text, headline, interval_text, loss_name, optimum_text, verdict_text
from hpxfer.analysis.verdict import move, move_text
from hpxfer.report.analyses import analysis_tables, unsaid
from hpxfer.report.provenance import (
    failures,
    limits,
    progress_table,
    progress_text,
    provenance_table,
    threshold_table,
)
from hpxfer.report.tables import NOTHING, Cell, Column, Table
from hpxfer.results import Results
from hpxfer.spec import dump_sweep

if TYPE_CHECKING:
    from hpxfer.analysis.everything import Analysis

JSON_VERSION = 1
CARDS_AT_A_GLANCE = 4  # from so many verdicts on, a table of them comes first


class Picture(Protocol):
    """What a report needs of a drawn figure: see `hpxfer.figures`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def caption(self) -> str: ...
    @property
    def csv(self) -> str: ...
    @property
    def svg(self) -> str: ...
    @property
    def png(self) -> bytes: ...
    @property
    def aside(self) -> bool: ...  # of an HP that is not judged


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """One results folder, what was found in it, its figures, and why others could not be drawn."""

    results: Results
    analysis: Analysis
    pictures: Sequence[Picture] = ()
    not_drawn: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Card:
    """The verdict on one HP, parameterization and axis: what was found, why, and the shapes that it rests on."""

    hp: str
    axis: str
    parameterization: str
    is_control: bool
    verdict: str
    said: str  # the verdict in words, with whether it lacks a control
    headline: str
    conclusion: str  # the headline without name and verdict
    control: dict[str, Any] | None  # how the control did; None without one, and on its own card
    facts: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    shapes: Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """What is said of one results folder."""

    name: str
    question: str
    cards: tuple[Card, ...]  # of the judged HP
    other_cards: tuple[Card, ...]  # of the other HPs scanned
    tables: tuple[Table, ...]
    unsaid: tuple[str, ...]
    progress: str
    progress_table: Table
    failures: tuple[str, ...]
    problems: tuple[str, ...]  # files passed over
    provenance: Table
    thresholds: Table
    limits: tuple[str, ...]
    not_drawn: tuple[str, ...]
    sweep_yaml: str
    source: Source


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The whole report; `comparison` is there with more than one results folder, or with many verdicts."""

    title: str
    sections: tuple[Section, ...]
    comparison: Table | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; null stands for what is missing."""
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
    sections = tuple(_section(source, name) for source, name in zip(sources, names, strict=True))
    title = f"Do hyperparameters transfer? {', '.join(names)}"
    many = len(sections) > 1 or sum(len(one.cards) + len(one.other_cards) for one in sections) > CARDS_AT_A_GLANCE
    return Report(title=title, sections=sections, comparison=_comparison(sections) if many else None)


def _section(source: Source, name: str) -> Section:
    results, analysis = source.results, source.analysis
    judged = [one for one in analysis.reports if one.hp == analysis.hp]
    others = [one for one in analysis.reports if one.hp != analysis.hp]
    return Section(
        name=name,
        question=f"Does {analysis.hp} transfer? Judged by {loss_name(analysis.loss)}.",
        cards=_cards(judged),
        other_cards=_cards(others),
        tables=analysis_tables(analysis),
        unsaid=(*analysis.notes, *unsaid(analysis)),
        progress=progress_text(results),
        progress_table=progress_table(results),
        failures=failures(results),
        problems=results.problems,
        provenance=provenance_table(results),
        thresholds=threshold_table(),
        limits=limits(results, (*judged, *others)),
        not_drawn=tuple(source.not_drawn),
        sweep_yaml=dump_sweep(results.spec),
        source=source,
    )


def _cards(reports: Sequence[TransferReport]) -> tuple[Card, ...]:
    return tuple(_card(report, finding) for report in reports for finding in report.findings)


def _card(report: TransferReport, finding: Finding) -> Card:
    moved = move(finding)
    base = "none" if finding.base_value is None else f"{finding.base_value:.4g} (2^{math.log2(finding.base_value):.4g})"
    noise = "unknown" if finding.noise_nats is None else f"{finding.noise_nats:.2g} nats"
    facts = [
        ("drift of the optimum", drift_text(finding.drift, finding.scale_name)),
        (f"transferred {report.hp}", base),
        ("noise of a seed", noise),
    ]
    if moved is not None:
        facts.insert(1, ("move", move_text(finding, moved)))
    said = headline(finding)
    return Card(
        hp=report.hp,
        axis=finding.axis,
        parameterization=finding.parameterization,
        is_control=finding.is_control,
        verdict=finding.verdict,
        said=verdict_text(finding),
        headline=said,
        conclusion=said.removeprefix(f"{finding.parameterization}: {verdict_text(finding)}").strip(" ()"),
        control=None if finding.control is None else json_ready(asdict(finding.control)),
        facts=tuple(facts),
        reasons=finding.reasons,
        shapes=_shapes(finding),
    )


_SHAPE_COLUMNS = (
    Column(name="shape"),
    Column(name="scale", form="{:.9g}"),
    Column(name="optimum"),
    Column(name="95%"),
    Column(name="best loss, nats", form="{:.4f}"),
    Column(name="regret, nats", form="{:.2g}"),
    Column(name="+-", form="{:.2g}"),
    Column(name="of loss, %", form="{:.2f}"),
    Column(name="in noise", form="{:.1f}"),
    Column(name="to edge, octaves", form="{:.1f}"),
    Column(name="seeds"),
    Column(name="diverged"),
    Column(name="missing"),
)


def _shapes(finding: Finding) -> Table:
    title = f"{finding.axis}, {finding.parameterization}: shape by shape"
    return Table(title=title, columns=_SHAPE_COLUMNS, rows=tuple(_shape(shape) for shape in finding.shapes)).told()


def _shape(shape: ShapeFinding) -> tuple[Cell, ...]:
    return (
        shape.shape + (" (base)" if shape.is_base else ""),
        shape.scale,
        optimum_text(shape.optimum),
        interval_text(shape.optimum),
        shape.best_loss,
        "diverges" if shape.regret_nats == math.inf else shape.regret_nats,
        shape.regret_se_nats,
        shape.regret_percent,
        shape.regret_noise_units,
        shape.edge_octaves,
        shape.num_seeds,
        shape.num_diverged,
        shape.num_missing,
    )


def _comparison(sections: Sequence[Section]) -> Table:
    """Return the verdicts of all folders in one table, a row for each HP, axis and parameterization of any."""
    found = {
        (card.hp, card.axis, card.parameterization, place): card
        for place, section in enumerate(sections)
        for card in (*section.cards, *section.other_cards)
    }
    keys = dict.fromkeys(key[:3] for key in found)
    rows = tuple((*key, *(_in_brief(found.get((*key, i))) for i in range(len(sections)))) for key in keys)
    names = ("HP", "axis", "parameterization", *(section.name for section in sections))
    title = "Side by side" if len(sections) > 1 else "At a glance"
    return Table(title=title, columns=tuple(Column(name=name) for name in names), rows=rows)


def _in_brief(card: Card | None) -> str:
    if card is None:
        return NOTHING
    drift = dict(card.facts)["drift of the optimum"]
    return f"{card.headline.partition(': ')[2]}; drift {drift}"


def _names(results: Sequence[Results]) -> list[str]:
    """Return the sweeps' names; where two are the same, their folders' too, and a number where those are as well."""
    names = [one.spec.name for one in results]
    if len(set(names)) < len(names):
        names = [f"{one.spec.name} ({one.folder.name})" for one in results]
    if len(set(names)) < len(names):
        names = [f"{name} #{place}" for place, name in enumerate(names, 1)]
    return names


def _section_dict(section: Section) -> dict[str, Any]:
    return {
        "sweep": section.name,
        "question": section.question,
        "verdicts": [
            {
                "hp": card.hp,
                "axis": card.axis,
                "parameterization": card.parameterization,
                "verdict": card.verdict,
                "headline": card.headline,
                "is_control": card.is_control,
                "control": card.control,
                "reasons": list(card.reasons),
            }
            for card in (*section.cards, *section.other_cards)
        ],
        "analysis": section.source.analysis.to_dict(),
        "unsaid": list(section.unsaid),
        "progress": {"text": section.progress, **section.progress_table.to_dict()},
        "failures": list(section.failures),
        "problems": list(section.problems),
        "provenance": section.provenance.to_dict(),
        "limits": list(section.limits),
        "figures": [{"name": one.name, "title": one.title, "caption": one.caption} for one in section.source.pictures],
        "not_drawn": list(section.not_drawn),
        "sweep_yaml": section.sweep_yaml,
    }
