"""What a statistic found. A mistake in a statistic of the user's becomes a message that says where it is."""

from __future__ import annotations

import inspect
import json
import reprlib
import traceback
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Chart, Found, Kind, Statistic, records
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import json_ready


def answer_of(statistic: Statistic, inputs: Inputs, module: str | None) -> Found:
    """Return what a statistic found that `module` registered; None is hpxfer itself.

    Raises HpxferError if it has no answer, or if a statistic of the user's fails or returns what no report can show.
    """
    if module is None:
        return inputs.once(statistic.compute)
    try:
        found = inputs.once(statistic.compute)
    except HpxferError:
        raise
    except Exception as error:
        raise HpxferError(f"{type(error).__name__}: {error} ({_raised_at(error, statistic, module)})") from error
    if (why := _refused(statistic, found)) is not None:
        raise HpxferError(f"TypeError: {why} ({_defined_at(statistic, module)})")
    return found


def _refused(statistic: Statistic, found: Any) -> str | None:
    """Return why no report can show what a statistic returned; None if every report can."""
    if not isinstance(found, Found) or not isinstance(found.frame, pd.DataFrame):
        got = found.frame if isinstance(found, Found) else found
        return f"compute must return a Found with a pandas frame, got {reprlib.repr(got)}"
    if not isinstance(found.title, str):
        return f"the title of a Found must be a text, got {reprlib.repr(found.title)}"
    if not isinstance(found.unknown, Sequence) or not all(map(_is_pair, found.unknown)):
        return f"unknown must hold pairs of texts, of what and why, got {reprlib.repr(found.unknown)}"
    return _refused_frame(statistic, found.frame) or _refused_chart(found.chart, found.frame)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)


def _refused_frame(statistic: Statistic, frame: pd.DataFrame) -> str | None:
    columns = list(frame.columns)
    if not all(isinstance(name, str) for name in columns) or len(set(columns)) < len(columns):
        return f"the columns of a frame must be different texts, got {reprlib.repr(columns)}"
    if any(name is not None for name in frame.index.names):
        return f"the keys of a frame must be columns, got the index {list(frame.index.names)}; add reset_index()"
    for name in (*statistic.columns, *statistic.hidden):
        if columns and name not in columns:
            return f"columns and hidden must name columns of the frame, got {shown(name)}; {nearest(name, columns)}"
    for name in columns:
        for value in frame[name].dropna() if frame[name].dtype == object else ():
            if not isinstance(value, str | int | float | np.generic):
                return f"a frame must hold numbers, texts and None, got {reprlib.repr(value)} in {shown(name)}"
    try:
        json.dumps(json_ready(records(frame)), allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"a frame must hold what JSON can hold, got {error}"
    return None


def _refused_chart(chart: Any, frame: pd.DataFrame) -> str | None:
    if not isinstance(chart, Chart | None):
        return f"the chart of a Found must be a Chart or None, got {reprlib.repr(chart)}"
    if chart is None:
        return None
    columns = list(frame.columns)
    if chart.kind not in get_args(Kind):
        return f"the kind of a chart must be {', '.join(get_args(Kind))}, got {shown(chart.kind)}"
    if not isinstance(chart.log, tuple) or not set(chart.log) <= {"x", "y"}:
        return f'log must be axes, such as ("x",), got {reprlib.repr(chart.log)}'
    if chart.kind != "line" and chart.color is None:
        return f"a chart of {chart.kind} must name the column that colors it, got no color"
    for name in (chart.x, chart.y, chart.color, chart.panel, chart.low, chart.high):
        if name is not None and name not in columns:
            return f"a chart must draw columns of the frame, got {shown(name)}; {nearest(str(name), columns)}"
    for name in (chart.x, chart.y, chart.low, chart.high, chart.color if chart.kind != "line" else None):
        if name is not None and not _is_number(frame[name]):
            return f"a chart must draw numbers, got {frame[name].dtype} in {shown(name)}"
    if (chart.low is None) != (chart.high is None):
        return f"a band must have low and high, got {shown(chart.low or chart.high)} alone"
    return None


def _is_number(values: pd.Series) -> bool:
    return all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values.dropna())


def _raised_at(error: Exception, statistic: Statistic, module: str) -> str:
    """Return the file and line of the user's module that an error passed last."""
    own = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if f"{frame.f_globals.get('__name__')}.".startswith(f"{module}.")
    ]
    return own[-1] if own else _defined_at(statistic, module)


def _defined_at(statistic: Statistic, module: str) -> str:
    """Return the file and line of a statistic's function; the module of one that has none."""
    code = getattr(inspect.unwrap(statistic.compute), "__code__", None)
    return module if code is None else f"{code.co_filename}:{code.co_firstlineno}"
