"""How far one update of the router bias changes the active experts, simulated and in truth (CompleteP for MoE, App. B).

    q_i = sigmoid(logit_i) + b_i        the K = share * E experts with the largest q_i are active
    logit ~ 0.02 N(0, 1)        b ~ 0.05 U(0, 1)        b <- b + 0.01 U(0, 1)

The paper's claim: at a fixed share of active experts, a constant LR of the bias changes the same part of them for any
number of experts E. With infinitely many experts that part is an integral (`changed_limit`), which is the truth of the
simulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr

from hpxfer.errors import shown
from hpxfer.host import table_of
from hpxfer.limit.layers import largest
from hpxfer.limit.network import Floats
from hpxfer.limit.refused import refuse
from hpxfer.limit.solved import with_error

Row = dict[str, Any]
# Numbers that are drawn at once.
_AT_ONCE = 2**20
_MOST_DRAWS = 2**31
# With fewer active experts, their quantile is uncertain itself.
_FEW = 16


@dataclass(frozen=True, kw_only=True)
class BiasRateOptions:
    """What is simulated. The defaults are the paper's snippet."""

    num_experts: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    active_shares: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5)
    logit_scale: float = 0.02
    bias_scale: float = 0.05
    update_scale: float = 0.01
    rate_exponent: float = 0.0
    """The update grows as E to this power, with `update_scale` at the first of `num_experts`. The paper's rule is 0."""
    repeats: int = 1000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class BiasRate:
    """The simulation and its truth."""

    options: BiasRateOptions
    rows: tuple[Row, ...]
    """Of every number of experts at every share of active ones. `changed` is the part of the active experts that are
    others after the update, |A ^ B| / 2K, as a mean over repeats with its standard error `error`. `limit` is the same
    part with infinitely many experts and this update."""
    trends: tuple[Row, ...]
    """Of every share the slope of log2 of `changed` over log2 of the experts, by weighted least squares. Flat is 0."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a reader should know before the numbers."""
        few = any(row["num_active"] < _FEW for row in self.rows)
        return (f"with fewer than {_FEW} active experts the simulation is above its limit by about 1/K",) if few else ()

    def table(self) -> str:
        """Return what follows in a sentence, and the numbers as tables."""
        answer = "How many of the active experts does one update of the bias change?"
        if slopes := [each["slope"] for each in self.trends]:
            answer = (
                f"From {self.options.num_experts[0]} to {self.options.num_experts[-1]} experts, the part of the active "
                f"experts that one update of the bias changes goes as experts^{min(slopes):.2f} to "
                f"experts^{max(slopes):.2f}: 0 is the same part at every number."
            )
        numbers = [row | {"changed": with_error(row["changed"], row.pop("error"))} for row in map(dict, self.rows)]
        note = "changed: the part of the active experts. In brackets: standard error of the last digits."
        tables = [table_of(answer, numbers, note)]
        if slopes:
            tables.append(table_of("The part goes as the number of experts to the power of the slope.", self.trends))
        return "\n".join(table.to_text() for table in tables).rstrip()


def bias_rate(options: BiasRateOptions | None = None) -> BiasRate:
    """Return the simulation with its truth. Raise HpxferError for options that mean nothing or would take hours."""
    chosen = options or BiasRateOptions()
    refuse(_of_options(chosen))
    rows = tuple(
        _row(chosen, num_experts, share, index)
        for index, share in enumerate(chosen.active_shares)
        for num_experts in chosen.num_experts
    )
    trends = (_trend(share, [row for row in rows if row["active_share"] == share]) for share in chosen.active_shares)
    return BiasRate(options=chosen, rows=rows, trends=tuple(each for each in trends if each is not None))


def _row(options: BiasRateOptions, num_experts: int, share: float, index: int) -> Row:
    """Return the simulation of one number of experts at one share."""
    update = options.update_scale * (num_experts / options.num_experts[0]) ** options.rate_exponent
    count, most = round(share * num_experts), max(1, _AT_ONCE // num_experts)
    rng = np.random.default_rng([options.seed, index, num_experts])
    parts = []
    for done in range(0, options.repeats, most):
        size = min(most, options.repeats - done), num_experts
        before = expit(options.logit_scale * rng.standard_normal(size)) + options.bias_scale * rng.random(size)
        both = largest(before, count) & largest(before + update * rng.random(size), count)
        parts.append(both.sum(axis=1) / count)
    kept = np.concatenate(parts)
    scales = {"logit_scale": options.logit_scale, "bias_scale": options.bias_scale, "update_scale": update}
    return {
        "num_experts": num_experts,
        "active_share": share,
        "num_active": count,
        "update_scale": update,
        "changed": float(1.0 - kept.mean()),
        "error": float(kept.std(ddof=1) / math.sqrt(len(kept))),
        "limit": changed_limit(share, **scales),
    }


def _trend(share: float, rows: Sequence[Row]) -> Row | None:
    """Return the slope over the number of experts, or None where nothing changes or one number was simulated."""
    n, changed, error = (np.array([row[name] for row in rows]) for name in ("num_experts", "changed", "error"))
    if len(rows) < 2 or not (changed.all() and error.all()):
        return None
    x, y = np.log2(n), np.log2(changed)
    weights = (changed * math.log(2) / error) ** 2
    x = x - weights @ x / weights.sum()
    spread = float(weights @ x**2)
    return {"active_share": share, "slope": float((weights * x) @ y / spread), "error": 1 / math.sqrt(spread)}


def _of_options(options: BiasRateOptions) -> Iterator[str]:
    """Yield why options mean nothing, or would take hours."""
    for name in ("logit_scale", "bias_scale", "update_scale"):
        if not 0 <= (value := getattr(options, name)) < math.inf:
            yield f"{name}: must be a finite number of at least 0, got {shown(value)}"
    if not (options.logit_scale or options.bias_scale):
        yield "logit_scale, bias_scale: one must be above 0, got 0 and 0: all experts would be equal"
    if not math.isfinite(options.rate_exponent):
        yield f"rate_exponent: must be a finite number, got {shown(options.rate_exponent)}"
    for name in ("num_experts", "active_shares"):
        if not (values := getattr(options, name)) or len(set(values)) < len(values):
            yield f"{name}: must be different numbers, at least one, got {shown(values)}"
    for share, num_experts in itertools.product(options.active_shares, options.num_experts):
        count = share * num_experts
        if not 0 < share <= 1:
            yield f"active_shares: must be above 0 and at most 1, got {shown(share)}"
        if num_experts < 1 or round(count) < 1 or abs(count - round(count)) > 1e-9 * num_experts:
            yield (
                f"active_shares: share times experts must be a whole number of at least 1, got {share:g} of "
                f"{num_experts}; take other shares or numbers of experts"
            )
    if options.repeats < 2:
        yield f"repeats: must be at least 2, for an error of the mean, got {shown(options.repeats)}"
    if (draws := options.repeats * sum(options.num_experts) * len(options.active_shares)) > _MOST_DRAWS:
        yield f"repeats: experts of all repeats must be at most {_MOST_DRAWS}, got {draws}; take fewer repeats"
    if options.seed < 0:
        yield f"seed: must be at least 0, got {options.seed}"


# The truth of the bias-rate simulation: which part of the active experts changes where there are infinitely many.
#
# The K largest of infinitely many experts are those above a quantile. So the part is an integral over the distributions
# of logit, bias and update, and Gauss-Legendre quadrature has it to about 1e-12.

_TAIL = 9.0  # std at which a normal ends: beyond are 1e-19 of it
_BEYOND = 1e-6  # room around the thresholds
_TOLERANCE = 1e-13  # of a threshold
# Of Gauss-Legendre on (0, 1), in every panel.
_NODES, _WEIGHTS = (0.5 * each for each in np.polynomial.legendre.leggauss(48))
_NODES = _NODES + 0.5


def changed_limit(active_share: float, *, logit_scale: float, bias_scale: float, update_scale: float) -> float:
    """Return the changed part of the active experts with infinitely many of them.

    Let S(x) be the part of experts with q above x, and x_A, x_B the thresholds before and after. An expert with the
    update u stays active if q > x_A and q + u > x_B. So 1 - changed is the mean over u of S(max(x_A, x_B - u)) / share.
    """
    if not update_scale or active_share == 1.0:
        return 0.0

    def above(x: Floats) -> Floats:
        return _above(x, logit_scale, bias_scale)

    def shifted(x: float, least: float = -math.inf) -> float:
        """Return the mean over u of S(max(least, x - u))."""
        bends = np.array([x - least, x - 0.5, x - 0.5 - bias_scale]) / update_scale
        return float(_mean(lambda part: above(np.maximum(least, x - update_scale * part)), 0.0, 1.0, bends))

    low = float(expit(-_TAIL * logit_scale)) - _BEYOND
    high = float(expit(_TAIL * logit_scale)) + bias_scale + update_scale + _BEYOND
    before = brentq(lambda x: float(above(np.array(x))) - active_share, low, high, xtol=_TOLERANCE)
    after = brentq(lambda x: shifted(x) - active_share, low, high, xtol=_TOLERANCE)
    return 1.0 - shifted(after, before) / active_share


def _above(x: Floats, logit_scale: float, bias_scale: float) -> Floats:
    """Return the part of experts whose sigmoid(logit) + bias is above x."""
    least, most = (_crossing(x - bias, logit_scale) for bias in (bias_scale, 0.0))
    if not bias_scale:
        return np.asarray(ndtr(-most))

    def density(z: Floats) -> Floats:
        part = (expit(logit_scale * z) + bias_scale - x[..., None, None]) / bias_scale
        return np.clip(part, 0.0, 1.0) * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

    bends = np.stack([least, most, np.zeros_like(least)], axis=-1)
    return _mean(density, -_TAIL, _TAIL, bends) * (2 * _TAIL)


def _crossing(score: Floats, logit_scale: float) -> Floats:
    """Return the unit normal whose sigmoid is this score."""
    if not logit_scale:
        return np.where(score < 0.5, -_TAIL, _TAIL)
    with np.errstate(divide="ignore"):  # the logit of 0 and of 1 is infinite
        return np.asarray(np.clip(logit(np.clip(score, 0.0, 1.0)) / logit_scale, -_TAIL, _TAIL))


def _mean(function: Callable[[Floats], Floats], low: float, high: float, bends: Floats) -> Floats:
    """Return the mean over [low, high] of a function that bends at `bends` [..., n]: Gauss-Legendre between them."""
    edges = np.sort(np.clip(bends, low, high), axis=-1)
    ends = edges[..., :1] * 0
    edges = np.concatenate([ends + low, edges, ends + high], axis=-1)
    widths = np.diff(edges, axis=-1)
    inside = function(edges[..., :-1, None] + widths[..., None] * _NODES)
    return np.asarray(((inside @ _WEIGHTS) * widths).sum(axis=-1) / (high - low))
