"""Speed-up: after how many steps does an MoE have the loss that the dense model ends at?

The speed-up of convergence is defined as in papers: the steps of the dense model over those of the MoE to the same
training loss, on smoothed curves of the same seed, which see the same batches. That loss is the lowest one of the dense
model or, if the MoE does not reach it, the lowest one of the MoE; the ratio is then below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpxfer.analysis.statistics.curves import Curve
from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import TrainedShape, Transferred, transferred
from hpxfer.verdict.findings import Finding
from hpxfer.verdict.intervals import mean_interval
from hpxfer.verdict.loss_grid import Floats

SMOOTH_SHARE = 0.05  # of the run: losses are averaged over as many steps, as batches differ more than steps do


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """One MoE shape against the dense one of the same axis, at the same HP: steps to equal training loss."""

    axis: str
    parameterization: str
    hp: str
    value: float | None = None
    dense_shape: str = ""
    moe_shape: str = ""
    loss_nats: float | None = None  # which both reach: the higher of their lowest losses, mean over seeds
    dense_steps: float | None = None
    moe_steps: float | None = None
    speed_up: float | None = None  # dense_steps / moe_steps, geometric mean over seeds; below 1 the MoE is slower
    low: float | None = None  # 95%, over paired seeds; None with one
    high: float | None = None
    active_ratio: float | None = None  # active parameters, MoE over dense: at 1 a step costs about the same
    num_seeds: int = 0
    why_not: str | None = None


def speed_up(dense: Mapping[int, Curve], moe: Mapping[int, Curve], blank: SpeedUp) -> SpeedUp:
    """Return `blank` with the steps to equal loss. Curves are given by seed, and paired over common seeds."""
    seeds = sorted(set(dense) & set(moe))
    if not seeds:
        return replace(blank, why_not="no seed has a whole loss curve of both shapes")
    pairs = [(_falling(*dense[seed]), _falling(*moe[seed])) for seed in seeds]
    levels = [max(float(slower[1][-1]), float(faster[1][-1])) for slower, faster in pairs]
    steps = np.array(
        [[_reaches(*curve, level) for curve in pair] for pair, level in zip(pairs, levels, strict=True)], dtype=float
    )
    mean, low, high = mean_interval(np.log2(steps[:, 0] / steps[:, 1]))
    return replace(
        blank,
        loss_nats=float(np.mean(levels)),
        dense_steps=float(steps[:, 0].mean()),
        moe_steps=float(steps[:, 1].mean()),
        speed_up=2.0**mean,
        low=None if low is None else 2.0**low,
        high=None if high is None else 2.0**high,
        num_seeds=len(seeds),
    )


def _speed_ups(inputs: Inputs) -> list[SpeedUp]:
    known = inputs.once(transferred)
    return [answer for finding in known.findings for answer in _of_axis(known, finding, inputs.hp)]


def _of_axis(known: Transferred, finding: Finding, hp: str) -> list[SpeedUp]:
    """Return each MoE shape of an axis against the dense one: the base, or the smallest."""
    blank = SpeedUp(axis=finding.axis, parameterization=finding.parameterization, hp=hp, value=finding.base_value)
    if blank.value is None:
        return [replace(blank, why_not=NO_BASE_VALUE)]
    along = known.along[finding.key]
    dense = [trained for trained in along if not trained.shape.num_experts]
    moe = [trained for trained in along if trained.shape.num_experts]
    if not dense or not moe:
        return [replace(blank, why_not=f"no {'MoE' if dense else 'dense'} shape on this axis")]
    against = next((trained for trained in dense if trained.row.is_base), dense[0])
    return [
        speed_up(
            known.complete_curves(against),
            known.complete_curves(trained),
            replace(
                blank,
                dense_shape=against.row.shape,
                moe_shape=trained.row.shape,
                active_ratio=_active_ratio(known, against, trained),
            ),
        )
        for trained in moe
    ]


def _active_ratio(known: Transferred, dense: TrainedShape, moe: TrainedShape) -> float | None:
    if not dense.trials or not moe.trials:
        return None
    of_dense, of_moe = (known.params[trained.trials[0]]["active without embedding"] for trained in (dense, moe))
    return of_moe / of_dense if of_dense > 0 else None


def _falling(steps: NDArray[np.int64], losses: Floats) -> tuple[Floats, Floats]:
    """Return steps, from 1, and the lowest smoothed loss up to each. Losses are smoothed by a trailing mean."""
    width = max(1.0, SMOOTH_SHARE * float(steps[-1] + 1))
    start = np.searchsorted(steps, steps - width, side="right")
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    stop = np.arange(steps.size) + 1
    means = (sums[stop] - sums[start]) / (stop - start)
    whole = steps + 1 >= width
    return np.asarray(steps[whole] + 1.0), np.asarray(np.minimum.accumulate(means[whole]))


def _reaches(steps: Floats, lowest: Floats, level: float) -> float:
    """Return the step at which a falling curve first reaches `level`, interpolated between two logged steps."""
    at = int(np.argmax(lowest <= level))
    if at == 0:
        return float(steps[0])
    share = (lowest[at - 1] - level) / (lowest[at - 1] - lowest[at])
    return float(steps[at - 1] + share * (steps[at] - steps[at - 1]))


SPEED_UPS = Statistic(
    name="speed_ups",
    title="MoE against dense",
    note="Steps of the dense model over those of the MoE model to the same loss.",
    compute=_speed_ups,
)
