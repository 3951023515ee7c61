"""What a check found: one row per quantity and role, judged over all steps, two answers, and what was not tested.

The first answer is whether the model follows what the table's own rows imply. The second is whether features and their
changes keep their size, whatever the rows say. A table passes by both. In the family mlp there is a third: whether
losses approach the limit that the table claims. A table that surely misses it does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hpxfer.coordinates.limit_answer import LimitAnswer
from hpxfer.coordinates.measure import ByScale, Fit, Verdict, as_data, as_text, sizes_as_data, without
from hpxfer.coordinates.optimizer_rules import DECAY, GRADIENT_OVER_EPS, NOT_TOO_LARGE
from hpxfer.coordinates.own.numbers import FIRST_STEP, WEIGHT
from hpxfer.coordinates.stability import NO_BLOW_UP, SLOW
from hpxfer.host import aligned, json_ready
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO
from hpxfer.scaling.muon import moves
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import Column, Row

# Factor -> its name, and the quantities that show it.
SHOWN_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "init_std": ("init", ("activation", "aggregate init", WEIGHT)),
    "lr": ("LR", ("effective", "aggregate effective", "weight change", FIRST_STEP)),
    "eps": ("eps", (GRADIENT_OVER_EPS,)),
    "weight_decay": ("weight decay", (DECAY,)),
    "forward": ("multiplier", ("activation", "aggregate init")),
}
# What a good table is held to is the branch, and not the map that ends it.
BRANCH = {"expert_out": "moe", "shared_out": "moe", "dense_out": "dense"}
INPUTS = ("embedding", "position", "patch_in", "time_in")
# What holds a slope on one side -> why the other side is open.
ONE_SIDED = {
    NOT_TOO_LARGE: "such an eps does little, and the gradient has two parts",
    NO_BLOW_UP: "a good table may start logits, gates and branches small",
    SLOW: "under SGD, or beside a large eps, a small first gradient alone makes learning start slowly",
}
SILENT = "nothing is predicted"
NOISY = "the slope is too noisy to tell; give more --seeds"
ABSENT = "the model of this check has no such tensor"
BALANCING = "the balancing rule moves it, and not the optimizer"
SCHEDULE = "betas, and the factors of batch and duration: no shape shows them"


def not_tested(
    choice: Parameterization, optimizer: Column, fits: Iterable[Fit], there: Iterable[str], gate_sums_over: str | None
) -> tuple[str, ...]:
    """Return one sentence per reason for which factors of the table are not tested.

    `fits` are the slopes of the answer that judges the table, and `there` are the roles that the model has.
    """
    found: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        if fit.layer is None:
            found.setdefault((fit.role, fit.quantity), []).append(fit)
    reasons: dict[str, list[str]] = {}
    present = set(there)
    for row in choice.rows(optimizer):
        if row.role == "router_bias":
            reasons.setdefault(BALANCING, []).append(row.role)
        elif row.role not in present:
            reasons.setdefault(ABSENT, []).append(row.role)
        else:
            for what, why in _of_row(row, optimizer, found):
                reasons.setdefault(why, []).append(f"{what} of {row.role}")
    out = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
    if choice.table.route_scale != ONE and gate_sums_over is None and "router" in present:
        out.append("route scale: the gate of this check does not sum to one")
    return (*out, SCHEDULE)


def _of_row(row: Row, optimizer: Column, found: Mapping[tuple[str, str], list[Fit]]) -> Iterator[tuple[str, str]]:
    """Yield (factor, reason) of the factors of a role that no slope shows."""
    for factor, (what, quantities) in SHOWN_BY.items():
        if factor == "lr" and row.role in INPUTS:
            quantities = ("change", FIRST_STEP)
        if _does_nothing(row, factor, optimizer):
            continue
        seen = [fit for quantity in quantities for fit in found.get((row.role, quantity), ())]
        if factor in ("init_std", "forward") and not seen:
            seen = found.get((BRANCH.get(row.role, ""), "activation"), [])
        judged = [fit for fit in seen if fit.verdict in ("ok", "miss") or (fit.verdict == "zero" and fit.source)]
        if judged:
            if all(fit.source in ONE_SIDED for fit in judged):
                yield f"too small {what}", ONE_SIDED[judged[0].source or ""]
        elif any(fit.verdict == "unclear" for fit in seen):
            yield what, NOISY
        else:
            yield what, next((fit.source for fit in seen if fit.source), SILENT)


def _does_nothing(row: Row, factor: str, optimizer: Column) -> bool:
    """Return whether a factor has no effect on a role in any model."""
    match factor:
        case "init_std":
            return ROLES[row.role] in ("ones", "zeros")
        case "eps":
            return optimizer == "sgd" or moves(optimizer, row.role)
        case "weight_decay":
            return row.weight_decay == ZERO
        case "forward":
            return row.forward == ONE
        case _:
            return False


# From bad to good: a quantity is as bad as its worst step.
WORST_FIRST: tuple[Verdict, ...] = ("miss", "unclear", "ok", "no prediction", "zero")
# The order in which a reader follows a token through the model.
ROLE_ORDER = (
    *(
        *("embedding", "patch_in", "position"),
        *("time_in", "label", "time_out", "modulation"),
        "norm",
        "hidden_bias",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_gate",
        "attn_out",
        "router",
        "router_logit_bias",
        "shared_router",
        "gates",
        "expert_in",
    ),
    *("expert_gate", "expert_out", "shared_in", "shared_gate", "shared_out", "moe", "dense_in", "dense_gate"),
    *("dense_out", "dense", "stream", "final_modulation", "final_bias", "final_norm", "readout"),
)
# Sizes are those at the smallest and at the largest scale.
HEAD: tuple[str, ...] = (
    *("role", "quantity", "step", "slope", "95% interval", "predicted", "verdict", "smallest", "largest"),
)
SHOWN_MISSES = 4  # features that the answer names, the farthest first; the JSON has them all
QUANTITY_ORDER = ("activation", "change", "effective", "propagating")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One quantity of one role over all layers and steps. `shown` is the last step at which something is predicted."""

    quantity: str
    role: str
    verdict: Verdict
    step: int  # the first step that has this verdict
    shown: Fit

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready data."""
        data: dict[str, Any] = json_ready(asdict(self))
        return data


@dataclass(frozen=True, kw_only=True)
class AxisReport:
    """The measured slopes along one axis."""

    axis: str
    scale_name: str
    scales: tuple[float, ...]
    shapes: tuple[str, ...]
    warnings: tuple[str, ...]  # what the table's source does not cover
    fits: tuple[Fit, ...]  # of every layer and step, compared with what is predicted
    stability: tuple[Fit, ...] = ()  # the same sizes, compared with those of a good table
    not_tested: tuple[str, ...] = ()  # what this axis is silent on, one sentence each
    measures: tuple[ByScale, ...] = ()  # numbers that are shown at every scale, and of which nothing is predicted
    limit: LimitAnswer | None = None  # whether losses approach the limit of the table, in the family mlp

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """The verdict on each quantity of each role: does it follow what is predicted?"""
        return _judge_all(self.fits)

    @cached_property
    def judged_stability(self) -> tuple[Judged, ...]:
        """The verdict on each feature and change: does it keep its size?"""
        return _judge_all(self.stability)

    @cached_property
    def shown(self) -> tuple[Fit, ...]:
        """The slopes as table and figures show them: beside what the rows imply, else beside what keeps its size."""
        good = {(fit.quantity, fit.role, fit.step): fit for fit in self.stability}
        silent = (fit.layer is None and fit.verdict == "no prediction" for fit in self.fits)
        return tuple(
            good.get((fit.quantity, fit.role, fit.step), fit) if is_silent else fit
            for fit, is_silent in zip(self.fits, silent, strict=True)
        )

    @cached_property
    def judged_shown(self) -> tuple[Judged, ...]:
        """The verdict on each quantity as the table shows it."""
        return _judge_all(self.shown)

    def count(self, verdict: Verdict) -> int:
        """Return how many quantities have this verdict on what is predicted."""
        return _count(self.judged, verdict)

    @property
    def follows(self) -> bool:
        """Whether nothing missed what is predicted, and something was shown to be as predicted."""
        return _passes(self.judged)

    @property
    def stable(self) -> bool:
        """Whether features and their changes keep their size."""
        return _passes(self.judged_stability)

    @property
    def passed(self) -> bool:
        """Whether the table passes along this axis."""
        misses_limit = self.limit is not None and self.limit.missed
        return self.follows and self.stable and not misses_limit

    @property
    def answer(self) -> str:
        """In a word whether the table passes. It has FAILED only if something missed."""
        if self.passed:
            return "passed"
        misses = self.count("miss") + _count(self.judged_stability, "miss")
        if misses or (self.limit is not None and self.limit.missed):
            return "FAILED"
        if not self.count("ok") and not self.count("unclear"):
            return "nothing is predicted, so nothing was checked"
        return "not shown, as too little is surely as predicted"

    def to_dict(self, *, lines: bool) -> dict[str, Any]:
        """Return the report of this axis as JSON-ready data."""
        names = ("axis", "scale_name", "scales", "shapes", "warnings", "passed", "follows", "stable", "not_tested")
        out: dict[str, Any] = {name: getattr(self, name) for name in names}
        out["judged"] = [judged.to_dict() for judged in self.judged]
        out["stability"] = [judged.to_dict() for judged in self.judged_stability]
        out["measures"] = as_data([found for found in self.measures if lines or found.layer is None])
        out["sizes"] = sizes_as_data(self.fits)
        out["limit"] = None if self.limit is None else self.limit.to_dict()
        return {**out, "lines": json_ready([asdict(fit) for fit in self.fits])} if lines else out


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
        return all(axis.passed for axis in self.axes)

    def to_dict(self, *, lines: bool = True) -> dict[str, Any]:
        """Return the report as JSON-ready data; with `lines`, the fit of every step and layer is in it."""
        names = ("parameterization", "source", "optimizer", "architecture", "steps", "seeds", "tolerance", "passed")
        return {
            **{name: getattr(self, name) for name in names},
            "axes": [axis.to_dict(lines=lines) for axis in self.axes],
        }

    def table(self) -> str:
        """Return the report as aligned text, one row per quantity and role, and the answers below."""
        head = (
            f"{self.parameterization} ({self.source}), {self.optimizer}, {self.architecture}: sizes after up to "
            f"{self.steps} updates, {self.seeds} seeds, tolerance {self.tolerance:g}"
        )
        answers = "\n".join(line for axis in self.axes for line in _answers(axis))
        return "\n\n".join([head, *(_axis_text(axis) for axis in self.axes), answers])


def _judge_all(fits: Iterable[Fit]) -> tuple[Judged, ...]:
    groups: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        if fit.layer is None:
            groups.setdefault((fit.role, fit.quantity), []).append(fit)
    return tuple(_judged(groups[key]) for key in sorted(groups, key=_order))


def _judged(fits: Sequence[Fit]) -> Judged:
    worst = min((fit.verdict for fit in fits), key=WORST_FIRST.index)
    first = next(fit for fit in fits if fit.verdict == worst)
    predicted = [fit for fit in fits if fit.verdict not in ("no prediction", "zero")]
    shown = predicted[-1] if predicted else fits[-1]
    return Judged(quantity=first.quantity, role=first.role, verdict=worst, step=first.step, shown=shown)


def _order(key: tuple[str, str]) -> tuple[int, int, str, str]:
    role, quantity = key
    return _index(ROLE_ORDER, role), _index(QUANTITY_ORDER, quantity), role, quantity


def _index(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _count(judged: Iterable[Judged], verdict: Verdict) -> int:
    return sum(found.verdict == verdict for found in judged)


def _passes(judged: Sequence[Judged]) -> bool:
    return not _count(judged, "miss") and _count(judged, "ok") > 0


def _axis_text(report: AxisReport) -> str:
    scales = ", ".join(f"{scale:g}" for scale in report.scales)
    out = [f"{report.axis}: {report.scale_name} {scales}  ({report.shapes[0]} to {report.shapes[-1]})"]
    out += [f"warning: {warning}" for warning in report.warnings]
    out += aligned([HEAD, *map(_row, report.judged_shown)])
    silent = (each for each in report.judged_shown if each.verdict == "no prediction")
    between = (each for each in report.judged_shown if each.shown.least is not None)
    for what, found in (("no prediction, because", silent), ("an interval is predicted, because", between)):
        if reasons := _reasons(found):
            out += [what, *(f"  {roles}: {why}" for why, roles in reasons)]
    if measures := as_text(report.measures, report.scale_name):
        out += ["", *measures, ""]
    if report.limit is not None and (losses := report.limit.lines()):
        out += [*losses, ""]
    out += [f"not tested: {what}" for what in report.not_tested]
    return "\n".join(out)


def _row(judged: Judged) -> tuple[str, ...]:
    fit = judged.shown
    if fit.slope is None or fit.low is None or fit.high is None:
        slope, interval = _no_slope(fit.magnitudes), ""
    else:
        slope, interval = f"{fit.slope:+.2f}{without(fit.dropped)}", f"{fit.low:+.2f} .. {fit.high:+.2f}"
    sign = {"equal": "", "at most": "<= ", "at least": ">= "}[fit.bound]
    predicted = "" if fit.predicted is None else sign + _predicted(fit)
    when = f" (step {judged.step})" if judged.verdict in ("miss", "unclear") and judged.step != fit.step else ""
    sizes = (f"{size:.2g}" for size in (fit.magnitudes[0], fit.magnitudes[-1]))
    return (judged.role, judged.quantity, str(fit.step), slope, interval, predicted, judged.verdict + when, *sizes)


def _predicted(fit: Fit) -> str:
    return f"{fit.predicted:+.2f}" if fit.least is None else f"{fit.least:+.2f} .. {fit.predicted:+.2f}"


def _no_slope(magnitudes: Iterable[float]) -> str:
    found = list(magnitudes)
    if not all(math.isfinite(size) for size in found):
        return "diverged"
    return "some 0" if any(found) else "0"


def _reasons(judged: Iterable[Judged]) -> list[tuple[str, str]]:
    """Return (reason, quantities) of the quantities of which nothing, or an interval, is predicted on purpose."""
    out: dict[str, list[str]] = {}
    for found in judged:
        if found.shown.source:
            out.setdefault(found.shown.source, []).append(f"{found.role} {found.quantity}")
    return [(why, ", ".join(names)) for why, names in out.items()]


def _answers(axis: AxisReport) -> list[str]:
    """Return one line per question along an axis, and the answer that they give together."""
    counts = ", ".join(f"{axis.count(verdict)} {verdict}" for verdict in WORST_FIRST if axis.count(verdict))
    follows = "yes" if axis.follows else "NO" if axis.count("miss") else "not shown"
    lines = [f"the model follows the table: {follows} ({counts})", f"features keep their size: {_stability(axis)}"]
    limit = [] if axis.limit is None else [axis.limit.sentence]
    return [f"{axis.axis}: {line}" for line in (*lines, *limit, axis.answer)]


def _stability(axis: AxisReport) -> str:
    judged = axis.judged_stability
    counts = ", ".join(
        f"{_count(judged, verdict)} {verdict}" for verdict in ("ok", "unclear") if _count(judged, verdict)
    )
    if axis.stable:
        return f"yes ({counts})"
    missed = sorted((_first_miss(axis, found) for found in judged if found.verdict == "miss"), key=_excess)
    if not missed:
        return f"not shown ({counts or 'nothing measured'})"
    rest = f"; and {len(missed) - SHOWN_MISSES} more" if len(missed) > SHOWN_MISSES else ""
    shown = "; ".join(_movement(axis, fit) for fit in missed[:SHOWN_MISSES])
    return f"NO ({len(missed)} miss{', ' if counts else ''}{counts}): {shown}{rest}"


def _first_miss(axis: AxisReport, judged: Judged) -> Fit:
    asked = (judged.role, judged.quantity, judged.step)
    return next(fit for fit in axis.stability if (fit.role, fit.quantity, fit.step) == asked)


def _excess(fit: Fit) -> float:
    """Return a key that sorts the farthest slope first."""
    if fit.slope is None or fit.predicted is None:
        return -math.inf
    least = fit.predicted if fit.least is None else fit.least
    return -max(fit.slope - fit.predicted, least - fit.slope)


def _movement(axis: AxisReport, fit: Fit) -> str:
    """Return how a quantity misses, e.g. `expert_in effective grows as width^+0.97`."""
    what = f"{fit.role} {fit.quantity}"
    if fit.slope is None or fit.predicted is None:
        return f"{what} is {_no_slope(fit.magnitudes)}"
    verb = "grows" if fit.slope > fit.predicted else "vanishes"
    if fit.predicted or fit.least:  # the sum over the blocks is what keeps its size
        return f"{what} scales as {axis.scale_name}^{fit.slope:+.2f}, not {_predicted(fit)}"
    return f"{what} {verb} as {axis.scale_name}^{fit.slope:+.2f}"
