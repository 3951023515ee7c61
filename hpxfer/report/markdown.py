"""The report as Markdown, for a paper's appendix or a pull request. Figures are links to the files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpxfer.report.contents import Card, Report, Section
from hpxfer.report.tables import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")
_FENCE = "```"
ROWS_SHOWN = 200


def to_markdown(report: Report, links: Mapping[tuple[str, str], str]) -> str:
    """Return the report as GitHub-flavored Markdown. `links` maps (section, figure) to the file of its picture."""
    lines = [f"# {_text(report.title)}", ""]
    if report.comparison is not None:
        lines += [*_table(report.comparison, level=2), ""]
    for section in report.sections:
        lines += [*_section(section, links), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, links: Mapping[tuple[str, str], str]) -> Iterator[str]:
    yield from (f"## {_text(section.name)}", "", f"{_text(section.question)} {_text(section.progress)}", "")
    yield from (f"**{_text(section.headline)}**", "", _text(section.next_step), "")
    if section.no_verdict:
        yield from (_text(section.no_verdict), "")
    yield from _figures(section, links, under_verdict=True)
    for card in (*section.cards, *section.other_cards):
        yield from _card(card)
    yield from _listing("Checks of the trainer", section.checks)
    yield from _listing("What is not known, and why", section.unknown)
    yield from _listing("Failed trials", section.failures)
    yield from _listing("Files that could not be read", section.problems)
    yield from _figures(section, links, under_verdict=False)
    yield from _listing("Figures that could not be drawn", section.not_drawn)
    for table in (section.progress_table, *section.tables, section.provenance, section.thresholds):
        yield from (*_table(table, level=3), "")
    yield from _listing("Limits", section.limits)
    fence = _FENCE
    while fence in section.sweep_yaml:
        fence += "`"
    yield from ("### Sweep", "", f"{fence}yaml", section.sweep_yaml.rstrip("\n"), fence)


def _figures(section: Section, links: Mapping[tuple[str, str], str], *, under_verdict: bool) -> Iterator[str]:
    """Yield the figures that stand under the verdict, or those that follow it."""
    for figure in section.figures:
        if figure.under_verdict != under_verdict:
            continue
        yield from (f"### {_text(figure.title)}", "")
        if path := links.get((section.name, figure.name)):
            yield from (f"![{_text(figure.title)}](<{path}>)", "")
        yield from (_text(figure.caption), "")


def _card(card: Card) -> Iterator[str]:
    yield from (f"### {_text(f'{card.hp} along {card.finding.axis} | {card.line}')}", "")
    yield from (f"- {_text(name)}: {_text(value)}" for name, value in card.facts)
    yield from (f"- {_text(reason)}" for reason in card.finding.reasons)
    yield from ("", *_rows(card.shapes), "")


def _listing(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from (f"### {title}", "", *(f"- {_text(line)}" for line in lines), "")


def _table(table: Table, *, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {_text(table.title)}", "")
    if table.note:
        yield from (_text(table.note), "")
    yield from _rows(table)
    if len(table.rows) > ROWS_SHOWN:
        yield from ("", f"{ROWS_SHOWN} of {len(table.rows)} rows; report.json holds them all.")


def _rows(table: Table) -> Iterator[str]:
    yield _line([column.name for column in table.columns])
    yield "|" + "|".join("---:" if table.numeric(i) else "---" for i in range(len(table.columns))) + "|"
    for row in table.rows[:ROWS_SHOWN]:
        yield _line([column.text(cell) for column, cell in zip(table.columns, row, strict=True)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
