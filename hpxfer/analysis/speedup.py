"""Speed-up: in how many fewer steps does a MoE reach the loss that a dense model ends at?

Convergence speed-up as the papers have it: steps of the dense model over those of the MoE to the same training loss, on
smoothed curves of the same seed, which see the same batches. The loss is the dense model's lowest or, if the MoE does
not get there, the MoE's lowest: then the ratio is below 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hpxfer.analysis.cube import Floats
from hpxfer.analysis.thresholds import CONFIDENCE

SMOOTH_SHARE = 0.05  # of the run: over so many steps losses are averaged, as a batch differs from the next by more

Curves = Mapping[int, tuple[NDArray[np.int64], Floats]]  # seed -> (steps, training losses)


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """One MoE shape against the dense one of the same axis, at the same HP: steps to equal training loss."""

    axis: str
    parameterization: str
    hp: str
    value: float | None = None
    dense_shape: str = ""
    moe_shape: str = ""
    loss_nats: float | None = None  # that both reach: the higher of their lowest, mean over seeds
    dense_steps: float | None = None
    moe_steps: float | None = None
    speed_up: float | None = None  # dense_steps / moe_steps, geometric mean over seeds; below 1 the MoE is slower
    low: float | None = None  # 95%, over paired seeds; None with one
    high: float | None = None
    active_ratio: float | None = None  # active parameters, MoE over dense: at 1 a step costs about the same
    num_seeds: int = 0
    why_not: str | None = None


def speed_up(dense: Curves, moe: Curves, bare: SpeedUp) -> SpeedUp:
    """Return `bare` with the steps to equal loss, paired over the seeds that both have."""
    seeds = sorted(set(dense) & set(moe))
    if not seeds:
        return replace(bare, why_not="no seed has a whole loss curve of both shapes")
    pairs = [(_falling(*dense[seed]), _falling(*moe[seed])) for seed in seeds]
    levels = [max(float(one[1][-1]), float(two[1][-1])) for one, two in pairs]
    steps = np.array(
        [[_reaches(*curve, level) for curve in pair] for pair, level in zip(pairs, levels, strict=True)], dtype=float
    )
    log2 = np.log2(steps[:, 0] / steps[:, 1])
    mean, half = float(log2.mean()), None
    if len(seeds) > 1:
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(seeds) - 1))
        half = t * float(log2.std(ddof=1)) / math.sqrt(len(seeds))
    return replace(
        bare,
        loss_nats=float(np.mean(levels)),
        dense_steps=float(steps[:, 0].mean()),
        moe_steps=float(steps[:, 1].mean()),
        speed_up=2.0**mean,
        low=None if half is None else 2.0 ** (mean - half),
        high=None if half is None else 2.0 ** (mean + half),
        num_seeds=len(seeds),
    )


def _falling(steps: NDArray[np.int64], losses: Floats) -> tuple[Floats, Floats]:
    """Return steps (from 1) and the lowest smoothed loss up to each, by trailing means over SMOOTH_SHARE of the run."""
    width = max(1.0, SMOOTH_SHARE * float(steps[-1] + 1))
    start = np.searchsorted(steps, steps - width, side="right")
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    stop = np.arange(steps.size) + 1
    means = (sums[stop] - sums[start]) / (stop - start)
    whole = steps + 1 >= width
    return np.asarray(steps[whole] + 1.0), np.asarray(np.minimum.accumulate(means[whole]))


def _reaches(steps: Floats, lowest: Floats, level: float) -> float:
    """Return the step at which a falling curve first is at `level`, between two logged ones by a straight line."""
    at = int(np.argmax(lowest <= level))
    if at == 0:
        return float(steps[0])
    share = (lowest[at - 1] - level) / (lowest[at - 1] - lowest[at])
    return float(steps[at - 1] + share * (steps[at] - steps[at - 1]))
