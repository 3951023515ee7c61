"""The third answer of a check: do the losses approach the limit that the table claims? This module knows no torch.

A wrong variance of an initialization may leave all slopes as they should be at the widths of a check. It moves the
limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from hpxfer.host import aligned, json_ready
from hpxfer.limit import ALPHA, MOST_UNSEEN, POWER, Deviations, Mean, mean_of, with_error

LimitVerdict = Literal["ok", "miss", "unclear", "not compared"]
# Of the scale. An offset that is not surely larger is no miss, as no law of powers of 1/N is exact at finite widths.
LEAST_OFFSET = 0.01
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The losses of networks beside those of the limit, a number per pass: before training and after each update."""

    widths: Numbers
    seeds: int  # networks per width
    limit: Numbers
    limit_error: Numbers  # standard error
    means: tuple[Numbers, ...]  # per width, over seeds
    errors: tuple[Numbers, ...]  # their standard errors
    offsets: Numbers
    """The means extrapolated to an infinite width, less the limit."""
    offset_errors: Numbers
    scale: float
    """What offsets are compared with: the fall of the limit's loss, or its start where it does not fall."""
    p: float
    """The probability of an offset as sure as the surest one, if the true ones were LEAST_OFFSET of the scale."""
    worst: int
    """The pass of the surest offset."""
    seen: float
    """The offset, over the scale, that would be seen at half of the passes in 4 of 5 checks."""
    diverged: int
    """Networks whose loss was not finite. Then no mean is known, and nothing is extrapolated."""

    @property
    def z(self) -> float:
        """The surest offset in standard errors."""
        return self.offsets[self.worst] / self.offset_errors[self.worst]

    @property
    def verdict(self) -> LimitVerdict:
        if self.diverged or self.p < ALPHA:
            return "miss"
        return "ok" if self.seen <= MOST_UNSEEN else "unclear"


@dataclass(frozen=True, kw_only=True)
class LimitAnswer:
    """Whether losses approach the limit of the table `claim`, or why that is not asked."""

    sentence: str
    claim: str | None = None
    compared: Compared | None = None
    differences: tuple[str, ...] = ()
    """Where the table's own numbers or draws are not those of a path to the limit."""
    cautions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, found: Compared, *, claim: str, differences: tuple[str, ...] = (), cautions: tuple[str, ...] = ()
    ) -> LimitAnswer:
        """Return the answer that a comparison gives."""
        sentence = _sentence(found, claim, differences)
        return cls(sentence=sentence, claim=claim, compared=found, differences=differences, cautions=cautions)

    @property
    def verdict(self) -> LimitVerdict:
        return "not compared" if self.compared is None else self.compared.verdict

    @property
    def missed(self) -> bool:
        return self.verdict == "miss"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-ready data."""
        out: dict[str, Any] = {"verdict": self.verdict, "sentence": self.sentence, "claim": self.claim}
        out |= {"differences": list(self.differences), "cautions": list(self.cautions)}
        if self.compared is not None:
            known = vars(self.compared) | {"z": self.compared.z}
            out["compared"] = json_ready(known)
        return out

    def lines(self) -> list[str]:
        """Return the losses as text, one row per pass; nothing if they are not compared."""
        found = self.compared
        if found is None or found.diverged:
            return []
        head = ["updates", "limit", *(f"{width:g}" for width in found.widths), "offset at infinity", "z"]
        rows = [
            [
                str(at),
                with_error(found.limit[at], found.limit_error[at]),
                *(with_error(means[at], errors[at]) for means, errors in zip(found.means, found.errors, strict=True)),
                f"{found.offsets[at]:+.2g} +- {found.offset_errors[at]:.2g}",
                f"{found.offsets[at] / found.offset_errors[at]:+.1f}",
            ]
            for at in range(len(found.limit))
        ]
        return [
            f"losses at each width beside the limit of {self.claim} (means over {found.seeds} networks; in brackets: "
            "standard error of the last digits)",
            *aligned([head, *rows], right_from=0),
            *(f"caution: {each}" for each in self.cautions),
        ]


def not_compared(why: str) -> LimitAnswer:
    """Return the answer of a check that compares no losses with a limit."""
    return LimitAnswer(sentence=f"limit: {why}")


def _sentence(found: Compared, claim: str, differences: Sequence[str]) -> str:
    """Return the answer in words. A miss has what may be its cause."""
    asked = f"the losses approach the limit of {claim}:"
    if found.verdict == "ok":
        return f"{asked} yes (an offset of {found.seen:.1%} of the fall of the loss would have been seen)"
    if found.verdict == "unclear":
        return f"{asked} unclear (an offset of up to {found.seen:.0%} of the fall of the loss would not have been seen)"
    why = "; ".join(differences) or f"all numbers are those of {claim}, so the trainer may not do what they say"
    if found.diverged:
        return f"{asked} NO ({found.diverged} of {found.seeds} networks diverge): {why}"
    at = found.worst
    end = found.limit[at] + found.offsets[at]
    return (
        f"{asked} NO (after {at} update{'' if at == 1 else 's'} they go to {end:.3g} with the width, and the limit is "
        f"{found.limit[at]:.3g}, z = {found.z:+.0f}): {why}"
    )


def compared(
    widths: Sequence[float], losses: np.ndarray, limits: np.ndarray, error: np.ndarray, seeds: int
) -> Compared:
    """Return the comparison of losses [J, S, T] with the limits [S, T] of their seeds.

    `error` [T] is the standard error of the limits, and `seeds` are the draws it is estimated from (0: exact).
    """
    limit = limits.mean(axis=0)
    fall = float(limit[0] - limit.min())
    scale = fall if fall > LEAST_OFFSET * limit[0] else float(limit[0])
    bad = int((~np.isfinite(losses)).any(axis=(0, 2)).sum())
    none = np.full(len(limit), math.nan)
    shared: dict[str, Any] = {
        "widths": tuple(map(float, widths)),
        "seeds": losses.shape[1],
        "limit": tuple(limit.tolist()),
        "limit_error": tuple(error.tolist()),
        "scale": scale,
        "diverged": bad,
    }
    if bad:
        unknown = (tuple(none.tolist()),) * len(widths)
        return Compared(
            **shared,
            means=unknown,
            errors=unknown,
            offsets=unknown[0],
            offset_errors=unknown[0],
            p=0.0,
            worst=0,
            seen=0.0,
        )
    found = Deviations(
        sizes=shared["widths"],
        values=losses - limits,
        error=error,
        error_seeds=seeds,
        scale=scale,
        most=float(limit.max()),
    )
    end = extrapolated(found)
    p, worst = _surest(end, scale)
    level = stats.t.isf(ALPHA / len(limit), end.freedom) + stats.norm.ppf(POWER)
    errors = losses.std(axis=1, ddof=1) / math.sqrt(losses.shape[1])
    return Compared(
        **shared,
        means=tuple(tuple(row) for row in losses.mean(axis=1).tolist()),
        errors=tuple(tuple(row) for row in errors.tolist()),
        offsets=tuple(end.mean.tolist()),
        offset_errors=tuple(end.error.tolist()),
        p=p,
        worst=worst,
        seen=LEAST_OFFSET + float(np.median(level * end.error)) / scale,
    )


def extrapolated(found: Deviations) -> Mean:
    """Return the means over seeds, extrapolated to 1/N = 0, less the limit.

    They are the intercepts of least squares fits of a + b/N + c/N^2 with variances as 1/N, so that a bias of these
    orders is not seen, and an offset of all widths in full. Each seed gives one number per pass, a sum over widths with
    fixed weights. So correlations between widths and their unequal variances are in the spread over seeds.

    This is for the widths and LRs of the check's own model, where the law is known to hold. Networks of a sweep may be
    too far from their limit for it, and `hpxfer.limit.deviations.missed` allows a slower approach.
    """
    n = np.asarray(found.sizes, float)
    powers = (n[:, None] / n.min()) ** -np.arange(3)
    weighted = powers * n[:, None]
    weights = np.linalg.solve(weighted.T @ powers, weighted.T)[0]
    return mean_of(np.einsum("j,jst->st", weights, found.values), found)


def _surest(found: Mean, scale: float) -> tuple[float, int]:
    """Return the probability (Bonferroni) and the pass of the offset that is most surely beyond LEAST_OFFSET."""
    beyond = np.abs(found.mean) - LEAST_OFFSET * scale
    z = beyond / found.error
    p = np.asarray(stats.t.sf(z, found.freedom))
    worst = int(np.lexsort([-z, p])[0])  # probabilities may all be 0
    return min(1.0, len(p) * float(p[worst])), worst
