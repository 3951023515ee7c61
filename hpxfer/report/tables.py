"""What the statistics of a sweep found, as sentences and tables, and why the rest is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics import STATISTICS
from hpxfer.analysis.statistics.statistic import in_unit, records
from hpxfer.figures.text import listed
from hpxfer.host import Table, table_of

# A table in a terminal: the page and the JSON have those that are longer or wider.
MOST_ROWS = 6
MOST_CHARACTERS = 120


def analysis_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Return one table per statistic that has rows to show. Its title is the question and what was found."""
    return tuple(
        _table(analysis, statistic.name) for statistic in STATISTICS.rows() if _is_shown(analysis, statistic.name)
    )


def openings(analysis: Analysis) -> list[str]:
    """Return what the statistics say that the report opens with, or why that is not known, a sentence each."""
    return [_opening(analysis, name) for name in analysis.about]


def _opening(analysis: Analysis, name: str) -> str:
    found = analysis.found(name)
    if not found.frame.empty:
        return f"{_title(analysis, name)}."
    why = "; ".join(dict.fromkeys(why for _, why in found.unknown)) or "it found nothing"
    return f"{_title(analysis, name)} This is not known: {why}."


def findings_text(analysis: Analysis) -> str:
    """Return what every statistic found, a line each, with the tables that are short."""
    return "".join(f"{text}\n" for text in _texts(analysis))


def _texts(analysis: Analysis) -> Iterator[str]:
    for statistic in STATISTICS.rows():
        found = analysis.found(statistic.name)
        if found.frame.empty or not (found.title or statistic.is_table):
            continue
        table = _table(analysis, statistic.name)
        is_narrow = max(map(len, table.lines())) <= MOST_CHARACTERS
        is_short = statistic.is_table and len(table.rows) <= MOST_ROWS and is_narrow
        yield table.to_text().rstrip() if is_short else table.title


def _is_shown(analysis: Analysis, name: str) -> bool:
    return STATISTICS.get(name).is_table and len(analysis.found(name).frame) > 0


def _title(analysis: Analysis, name: str) -> str:
    return _in_unit(f"{STATISTICS.get(name).title} {analysis.found(name).title}".rstrip(), analysis)


def _table(analysis: Analysis, name: str) -> Table:
    statistic, frame = STATISTICS.get(name), analysis.found(name).frame
    kept = [column for column in frame.columns if column not in statistic.hidden and frame[column].notna().any()]
    table = table_of(_title(analysis, name), records(frame[kept]), _in_unit(statistic.note, analysis))
    columns = tuple(replace(column, name=_in_unit(column.name, analysis)) for column in table.columns)
    return replace(table, columns=columns)


def _in_unit(text: str, analysis: Analysis) -> str:
    """Return a text with the unit of the judged loss for nats."""
    return in_unit(text, analysis.judged.unit)


def unknown(analysis: Analysis) -> tuple[str, ...]:
    """Return what is not known and why, one line per reason: `Loss collapse (width sp): one shape`."""
    found: dict[tuple[str, str], list[str]] = {}
    for statistic in STATISTICS.rows():
        of_statistic = analysis.found(statistic.name)
        for of, why in of_statistic.unknown:
            found.setdefault((statistic.title, why), []).append(of)
        if of_statistic.frame.empty and not of_statistic.unknown and STATISTICS.module(statistic.name) is not None:
            found[statistic.title, "it found nothing"] = [statistic.name]
    return tuple(f"{title} ({listed(which)}): {why}" for (title, why), which in found.items())
