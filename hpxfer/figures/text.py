"""Texts that figures share, and the order in which they name parameterizations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pandas as pd

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.statistic import listed as listed
from hpxfer.host import CONTROL, is_control, scale_text
from hpxfer.verdict import Finding, misfit_text


class AxisResult(Protocol):
    """A result of one parameterization along one axis."""

    @property
    def axis(self) -> str: ...

    @property
    def parameterization(self) -> str: ...


R = TypeVar("R", bound=AxisResult)


def control_last(parameterization: str, control: str | None = CONTROL) -> tuple[bool, str]:
    """Return the sort key that puts the control after all other parameterizations."""
    return (is_control(parameterization, control), parameterization)


def along(results: Iterable[R], axis: str, control: str | None = CONTROL) -> tuple[R, ...]:
    """Return the results along one axis, the control last."""
    found = [result for result in results if result.axis == axis]
    return tuple(sorted(found, key=lambda result: control_last(result.parameterization, control)))


def rows_of(found: Found, axis: str | None, control: str | None = CONTROL) -> pd.DataFrame:
    """Return the rows of one axis, or all of them, by parameterization, the control last."""
    frame = found.frame if axis is None else found.frame[found.frame["axis"] == axis]
    order = frame["parameterization"].map(lambda name: control_last(name, control))
    return frame.loc[order.sort_values(kind="stable").index]


def each(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows with their columns as fields. A number that is missing is NaN."""
    return frame.itertuples(index=False)


def why_no_rows(found: Found, axis: str | None, otherwise: str) -> str:
    """Return why a statistic has no rows of an axis, or at all: each reason once, or `otherwise` without any."""
    reasons = [why for of, why in found.unknown if axis is None or of == axis or of.startswith(f"{axis} ")]
    return "; ".join(dict.fromkeys(reasons)) or otherwise


def shape_name(scale: float, is_base: bool) -> str:
    """Return a shape's entry in a legend, e.g. `128` or `32 (base)`."""
    return scale_text(scale) + (" (base)" if is_base else "")


def octaves_of(hp: str) -> str:
    """Return the label of an axis over an HP, whose unit is the octave, e.g. `log2 lr (octaves)`."""
    return f"log2 {hp} (octaves)"


def misfits(findings: Iterable[Finding]) -> str:
    """Return by how much cells scatter about their fit more than seeds do, as a sentence; empty where none do."""
    found = [
        f"{finding.parameterization} at {finding.name(shape)} {text}"
        for finding in findings
        for shape in finding.shapes
        if (text := misfit_text(shape.optimum))
    ]
    return f"Cells scatter about the fit more than seeds do, which widens intervals: {listed(found)}." if found else ""


def without_optimum(findings: Iterable[Finding]) -> str:
    """Return where no optimum lies inside the grid, as a sentence; empty if every shape has one."""
    found = [
        f"{finding.parameterization} at {finding.name(shape)}"
        for finding in findings
        for shape in finding.shapes
        if not shape.optimum.inside
    ]
    return f"No optimum lies inside the grid with {listed(found)}." if found else ""


def notes_on(findings: Sequence[Finding]) -> list[str]:
    """Return what a reader of optima must know of these findings, a sentence each."""
    return [note for note in (misfits(findings), without_optimum(findings)) if note]


def staying(findings: Iterable[Finding]) -> str:
    """Return what optima at one place show: that the HP transfers, or less if something is lacking for that."""
    return "the optimum did not move" if any(finding.lacking for finding in findings) else "the HP transfers"


def with_interval(value: float, low: float | None, high: float | None, form: str = "+.2f") -> str:
    """Return a number with its 95% interval, e.g. `+0.20 [-0.01, +0.41]`. An end that nothing bounds is `open`."""
    low, high = (None if end is None or end != end else end for end in (low, high))  # a frame has NaN for None
    if low is None and high is None:
        return f"{value:{form}}"
    # No-break spaces keep the interval in one line of a title.
    ends = ",\u00a0".join("open" if end is None else f"{end:{form}}" for end in (low, high))
    return f"{value:{form}}\u00a0[{ends}]"
