"""Steps to the same loss: after how many steps, tokens and FLOPs does an arm have the loss that a reference ends at?

The convergence speed-up of papers (2605.23893, Fig. 8; 2601.20205, Fig. 1): the steps of the reference over those of
the arm to the same training loss. Seeds are paired, as those of one batch size see the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.reaching import reaches, smoothed
from hpxfer.analysis.statistics.transferred import Curve
from hpxfer.verdict import Floats

EQUAL_ACTIVE = 1.1  # up to this ratio, active parameters count as equal: routers alone differ by a few percent
CURVE_POINTS = 96  # of a curve in an answer, evenly spaced over the log of the steps


@dataclass(frozen=True, kw_only=True)
class Reached:
    """One arm against one reference. Numbers are medians over paired seeds, None where the arm has not the loss."""

    arm: str
    reference: str
    in_brief: str
    other_data: str | None = None  # what the arm trains on, if the reference trains on other data: nothing is compared
    arm_value: float | None = None  # of the HP
    reference_value: float | None = None  # None of a curve from elsewhere
    active_ratio: float | None = None  # active parameters without embeddings, arm over reference
    loss_nats: float | None = None  # that the reference ends at, mean over seeds
    arm_end_nats: float | None = None  # that the arm ends at, mean over the seeds that did not diverge
    reference_steps: float | None = None  # of its whole run
    steps: float | None = None  # of the arm to that loss
    speed_up: float | None = None  # reference over arm, in steps; in tokens where the reference counts no steps
    low: float | None = None  # the range of the speed-up over seeds; None where a seed does not reach the loss
    high: float | None = None
    reference_tokens: float | None = None
    tokens: float | None = None
    fewer_tokens: float | None = None  # the factor in tokens
    reference_flops: float | None = None
    flops: float | None = None
    fewer_flops: float | None = None
    num_seeds: int = 0  # paired
    num_reached: int = 0
    num_diverged: int = 0  # of them: they count as not reaching it
    num_missing: int = 0  # seeds of the arm that are not paired


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """A smoothed curve, for a figure: mean and range over seeds in nats."""

    name: str
    kind: str  # arm | reference | elsewhere
    steps: tuple[float, ...]  # empty if only tokens are known
    tokens: tuple[float, ...]  # empty if only steps are known
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmRun:
    """One shape of one parameterization at one HP value, with the whole loss curves of its seeds."""

    name: str
    value: float | None = None
    curves: Mapping[int, Curve] = field(default_factory=dict)  # by seed; not of seeds that diverged
    diverged: frozenset[int] = frozenset()  # seeds
    planned: frozenset[int] = frozenset()  # seeds
    batch_tokens: int = 1
    data: str = ""  # that it trains on
    data_digest: str | None = None
    flops_per_token: float | None = None
    active: int | None = None  # parameters without embeddings

    def positions(self, seed: int) -> Floats:
        """Return the steps done at the points of a curve: from 1 to those of the whole run."""
        return np.asarray(self.curves[seed][0] + 1.0)


def against_arm(reference: ArmRun, arm: ArmRun) -> Reached:
    """Return when `arm` has the loss that `reference` ends at, over the seeds that both have.

    Training losses on different data are not compared.
    """
    if arm.data_digest != reference.data_digest:
        return replace(
            _blank(arm, reference.name),
            in_brief="not compared: they train on different data, so that their training losses are not comparable",
            other_data=arm.data,
            reference_value=reference.value,
        )
    seeds = sorted(set(reference.curves) & (set(arm.curves) | arm.diverged))
    ends = {}
    for seed in seeds:
        steps = reference.positions(seed)
        ends[seed] = float(steps[-1]), float(smoothed(steps, reference.curves[seed][1])[-1])
    blank = _blank(arm, reference.name)
    if not seeds:
        return replace(blank, in_brief="no seed has a whole loss curve of both", num_missing=len(arm.planned))
    total = float(np.median([steps for steps, _ in ends.values()]))
    blank = replace(
        blank,
        reference_value=reference.value,
        active_ratio=arm.active / reference.active if arm.active and reference.active else None,
        reference_steps=total,
        reference_tokens=total * reference.batch_tokens,
        reference_flops=_times(total * reference.batch_tokens, reference.flops_per_token),
    )
    return _against(blank, arm, ends, "steps")


def against_curve(reference: ReferenceCurve, arm: ArmRun) -> Reached:
    """Return when each seed of `arm` has the loss that a curve from elsewhere ends at."""
    unit = "steps" if reference.steps else "tokens"
    end = (reference.steps or reference.tokens)[-1]
    level = float(smoothed(np.array(reference.steps or reference.tokens), np.array(reference.losses))[-1])
    blank = replace(
        _blank(arm, reference.name),
        reference_steps=reference.steps[-1] if reference.steps else None,
        reference_tokens=reference.tokens[-1] if reference.tokens else None,
    )
    ends = dict.fromkeys(sorted(set(arm.curves) | arm.diverged), (end, level))
    if not ends:
        return replace(blank, in_brief="no seed has a whole loss curve", num_missing=len(arm.planned))
    return _against(blank, arm, ends, unit)


def _blank(arm: ArmRun, reference: str) -> Reached:
    return Reached(arm=arm.name, reference=reference, in_brief="", arm_value=arm.value)


def _against(blank: Reached, arm: ArmRun, ends: Mapping[int, tuple[float, float]], unit: str) -> Reached:
    """Return `blank` with what the arm needs. `ends` holds by seed where the reference ends, and its loss there."""
    own = {seed: smoothed(arm.positions(seed), arm.curves[seed][1]) for seed in ends if seed in arm.curves}
    steps_S = np.array(
        [
            math.inf if seed not in own else reaches(arm.positions(seed), own[seed], level) or math.inf
            for seed, (_, level) in ends.items()
        ]
    )
    end_S = np.array([end for end, _ in ends.values()])
    factor_S = end_S / (steps_S * (arm.batch_tokens if unit == "tokens" else 1))
    found = replace(
        blank,
        loss_nats=float(np.mean([level for _, level in ends.values()])),
        arm_end_nats=float(np.mean([curve[-1] for curve in own.values()])) if own else None,
        num_seeds=len(ends),
        num_reached=int(np.isfinite(steps_S).sum()),
        num_diverged=len(arm.diverged & set(ends)),
        num_missing=len(arm.planned - set(ends)),
    )
    steps = float(np.median(steps_S))
    if math.isfinite(steps):
        faster = float(np.median(1 / steps_S)) / arm.batch_tokens  # per token of the reference
        found = replace(
            found,
            steps=steps,
            tokens=steps * arm.batch_tokens,
            flops=_times(steps * arm.batch_tokens, arm.flops_per_token),
            speed_up=float(np.median(factor_S)),
            low=float(factor_S.min()) if found.num_reached == len(ends) else None,
            high=float(factor_S.max()),
            fewer_tokens=_times(faster, blank.reference_tokens),
            fewer_flops=_over(_times(faster, blank.reference_flops), arm.flops_per_token),
        )
    return replace(found, in_brief=_in_brief(found, unit, max((arm.positions(seed)[-1] for seed in own), default=0)))


def _in_brief(found: Reached, unit: str, run: float) -> str:
    """Return the answer in words. `run` is the number of steps of the arm's whole run."""
    seeds = f"{found.num_seeds} seed{'s' if found.num_seeds > 1 else ''}"
    diverged = f", {found.num_diverged} diverged" if found.num_diverged else ""
    if found.speed_up is None or found.high is None:
        by = f"by {found.num_seeds - found.num_reached} of " if found.num_reached else "by any of "
        within = f" in {run:.0f} steps" if run else ""
        return f"not reached{within} {by}{seeds}{diverged}{_larger(found)}"
    few = found.speed_up >= 1
    middle, *ends = ((of if few else 1 / of) for of in (found.speed_up, found.low or math.nan, found.high))
    spread = f" ({min(ends):.3g} to {max(ends):.3g})" if found.low and found.num_seeds > 1 else ""
    missed = found.num_seeds - found.num_reached
    some = f", not reached by {missed} of {seeds}{diverged}" if missed else f", {seeds}"
    return f"{middle:.3g}x {'fewer' if few else 'more'} {unit}{spread}{some}{_larger(found)}"


def _larger(found: Reached) -> str:
    """Return a warning where the active parameters are not about equal; nothing where they are."""
    ratio = found.active_ratio
    if ratio is None or abs(math.log(ratio)) <= math.log(EQUAL_ACTIVE):
        return ""
    return f"; it has {ratio:.3g} times the active parameters"


def _times(count: float, each: float | None) -> float | None:
    return None if each is None else count * each


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def curve_of(run: ArmRun, kind: str) -> LossCurve | None:
    """Return the smoothed curve of the seeds that did not diverge, over the steps that all of them have."""
    if not run.curves:
        return None
    common = sorted(set.intersection(*({*steps.tolist()} for steps, _ in run.curves.values())))
    if not common:
        return None
    rows = []
    for seed, (steps, losses) in run.curves.items():
        rows.append(smoothed(run.positions(seed), losses)[np.isin(steps, common)])
    kept = _spaced(np.array(common) + 1.0)
    steps_N, loss_SN = (np.array(common) + 1.0)[kept], np.stack(rows)[:, kept]
    return LossCurve(
        name=run.name,
        kind=kind,
        steps=tuple(steps_N.tolist()),
        tokens=tuple((steps_N * run.batch_tokens).tolist()),
        mean=tuple(loss_SN.mean(0).tolist()),
        low=tuple(loss_SN.min(0).tolist()),
        high=tuple(loss_SN.max(0).tolist()),
    )


def curve_from(reference: ReferenceCurve) -> LossCurve:
    """Return a curve from elsewhere as it is drawn."""
    losses = smoothed(np.array(reference.steps or reference.tokens), np.array(reference.losses))
    kept = _spaced(np.array(reference.steps or reference.tokens))
    drawn = tuple(losses[kept].tolist())
    steps, tokens = (tuple(np.array(at)[kept].tolist()) if at else () for at in (reference.steps, reference.tokens))
    return LossCurve(
        name=reference.name, kind="elsewhere", steps=steps, tokens=tokens, mean=drawn, low=drawn, high=drawn
    )


def _spaced(at_N: Floats) -> Sequence[int]:
    """Return the indices of at most CURVE_POINTS points, evenly spaced over the log position, with both ends."""
    wanted = np.geomspace(at_N[0], at_N[-1], CURVE_POINTS)
    kept: list[int] = np.unique(np.clip(np.searchsorted(at_N, wanted), 0, at_N.size - 1)).tolist()
    return sorted({0, *kept, at_N.size - 1})
