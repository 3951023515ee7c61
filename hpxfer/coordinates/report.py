"""What a check found: one line a quantity and role, judged over all steps, and whether that is what theory says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hpxfer.coordinates.measure import Line, Verdict

# From bad to good: a quantity is as bad as its worst step.
WORST_FIRST: tuple[Verdict, ...] = ("miss", "unclear", "ok", "no prediction", "zero")
# The order in which a reader follows a token through the model.
ROLE_ORDER = (
    *("embedding", "position", "norm", "attn_q", "attn_k", "attn_v", "attn_out", "router", "gates", "expert_in"),
    *("expert_gate", "expert_out", "shared_in", "shared_gate", "shared_out", "moe", "dense_in", "dense_gate"),
    *("dense_out", "dense", "stream", "final_norm", "hidden_bias", "readout"),
)
# Sizes are those at the smallest and at the largest scale.
HEAD: tuple[str, ...] = (
    *("role", "quantity", "step", "slope", "95% interval", "predicted", "verdict", "smallest", "largest"),
)
QUANTITY_ORDER = ("activation", "change", "effective", "propagating")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One quantity of one role over all layers and steps. `shown`: the last step of which something is predicted."""

    quantity: str
    role: str
    verdict: Verdict
    step: int  # the first one that has this verdict
    shown: Line

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shown": _finite(asdict(self.shown))}


@dataclass(frozen=True, kw_only=True)
class AxisReport:
    """The lines along one axis."""

    axis: str
    scale_name: str
    scales: tuple[float, ...]
    shapes: tuple[str, ...]
    warnings: tuple[str, ...]  # what the table's source does not cover
    lines: tuple[Line, ...]  # of every layer and step

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """One for each quantity of each role."""
        groups: dict[tuple[str, str], list[Line]] = {}
        for line in self.lines:
            if line.layer is None:
                groups.setdefault((line.role, line.quantity), []).append(line)
        return tuple(_judged(groups[key]) for key in sorted(groups, key=_place))

    def count(self, verdict: Verdict) -> int:
        """Return how many quantities have this verdict."""
        return sum(one.verdict == verdict for one in self.judged)

    @property
    def passed(self) -> bool:
        """Whether nothing missed, and something was shown to be as predicted."""
        return not self.count("miss") and self.count("ok") > 0

    def to_dict(self, *, lines: bool) -> dict[str, Any]:
        """Return the report of this axis as JSON-ready data."""
        names = ("axis", "scale_name", "scales", "shapes", "warnings", "passed")
        out = {name: getattr(self, name) for name in names}
        out["judged"] = [one.to_dict() for one in self.judged]
        return {**out, "lines": [_finite(asdict(one)) for one in self.lines]} if lines else out


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The coordinate check of one parameterization."""

    parameterization: str
    source: str
    optimizer: str
    architecture: str
    steps: int
    seeds: int
    tolerance: float
    axes: tuple[AxisReport, ...]

    @property
    def passed(self) -> bool:
        """Whether every axis passed. What is unclear or not predicted passes nothing, and fails nothing."""
        return all(one.passed for one in self.axes)

    def to_dict(self, *, lines: bool = True) -> dict[str, Any]:
        """Return the report as JSON-ready data; with `lines`, every one of every step and layer is in it."""
        names = ("parameterization", "source", "optimizer", "architecture", "steps", "seeds", "tolerance", "passed")
        return {
            **{name: getattr(self, name) for name in names},
            "axes": [one.to_dict(lines=lines) for one in self.axes],
        }

    def table(self) -> str:
        """Return the report as aligned text, a line a quantity and role."""
        head = (
            f"{self.parameterization} ({self.source}), {self.optimizer}, {self.architecture}: sizes after up to "
            f"{self.steps} updates, {self.seeds} seeds, tolerance {self.tolerance:g}"
        )
        return "\n\n".join([head, *(_axis_text(one) for one in self.axes), _conclusion(self.axes)])


def _judged(lines: Sequence[Line]) -> Judged:
    worst = min((line.verdict for line in lines), key=WORST_FIRST.index)
    first = next(line for line in lines if line.verdict == worst)
    said = [line for line in lines if line.verdict not in ("no prediction", "zero")]
    return Judged(
        quantity=first.quantity, role=first.role, verdict=worst, step=first.step, shown=said[-1] if said else lines[-1]
    )


def _place(key: tuple[str, str]) -> tuple[int, int, str, str]:
    role, quantity = key
    return _index(ROLE_ORDER, role), _index(QUANTITY_ORDER, quantity), role, quantity


def _index(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _axis_text(report: AxisReport) -> str:
    scales = ", ".join(f"{one:g}" for one in report.scales)
    out = [f"{report.axis}: {report.scale_name} {scales}  ({report.shapes[0]} to {report.shapes[-1]})"]
    out += [f"warning: {one}" for one in report.warnings]
    rows = [HEAD, *(_row(one) for one in report.judged)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    out += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    reasons = _reasons(report.judged)
    if reasons:
        out += ["no prediction, because", *(f"  {roles}: {why}" for why, roles in reasons)]
    return "\n".join(out)


def _row(one: Judged) -> tuple[str, ...]:
    line = one.shown
    if line.slope is None or line.low is None or line.high is None:
        slope, interval = _no_slope(line.magnitudes), ""
    else:
        slope, interval = f"{line.slope:+.2f}", f"{line.low:+.2f} .. {line.high:+.2f}"
    predicted = "" if line.predicted is None else f"{line.predicted:+.2f}"
    when = f" (step {one.step})" if one.verdict in ("miss", "unclear") and one.step != line.step else ""
    sizes = (f"{one:.2g}" for one in (line.magnitudes[0], line.magnitudes[-1]))
    return (one.role, one.quantity, str(line.step), slope, interval, predicted, one.verdict + when, *sizes)


def _no_slope(magnitudes: Iterable[float]) -> str:
    found = list(magnitudes)
    if not all(math.isfinite(one) for one in found):
        return "diverged"
    return "some 0" if any(found) else "0"


def _reasons(judged: Iterable[Judged]) -> list[tuple[str, str]]:
    """Return (reason, what it is the reason of) of the quantities of which nothing is claimed on purpose."""
    out: dict[str, list[str]] = {}
    for one in judged:
        if one.verdict == "no prediction" and one.shown.source:
            out.setdefault(one.shown.source, []).append(f"{one.role} {one.quantity}")
    return [(why, ", ".join(names)) for why, names in out.items()]


def _conclusion(axes: Sequence[AxisReport]) -> str:
    out = []
    for one in axes:
        counts = ", ".join(f"{one.count(verdict)} {verdict}" for verdict in WORST_FIRST if one.count(verdict))
        out.append(f"{one.axis}: {'passed' if one.passed else 'FAILED'} ({counts})")
    return "\n".join(out)


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with sizes that are no number as null, which JSON can hold."""
    sizes = [one if math.isfinite(one) else None for one in data["magnitudes"]]
    return {**data, "magnitudes": sizes}
