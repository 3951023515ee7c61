"""Steps to the same loss: after how many steps, tokens and FLOPs does an arm have the loss that a reference ends at?

The convergence speed-up of papers (2605.23893, Fig. 8; 2601.20205, Fig. 1): the steps of the reference over those of
the arm to the same training loss. Seeds are paired, as those of one batch size see the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.reaching import reaches, smoothed
from hpxfer.analysis.statistics.transferred import Curve
from hpxfer.intervals import Floats

EQUAL_ACTIVE = 1.1  # up to this ratio, active parameters count as equal: routers alone differ by a few percent
CURVE_POINTS = 96  # of a curve in an answer, evenly spaced over the log of the steps


# One arm against one reference. Numbers are medians over paired seeds, None where the arm has not the loss.
REACHED = {
    "arm": "the shape that is compared",
    "reference": "that it is compared with",
    "in_brief": "the answer in words",
    "other_data": "what the arm trains on, if the reference trains on other data: nothing is compared",
    "arm_value": "of the HP, transferred from the base",
    "reference_value": "of the HP, its best one; None of a curve from elsewhere",
    "active_ratio": "active parameters without embeddings, arm over reference",
    "loss_nats": "that the reference ends at, mean over seeds",
    "arm_end_nats": "that the arm ends at, mean over the seeds that did not diverge",
    "reference_steps": "of its whole run",
    "steps": "of the arm to that loss",
    "speed_up": "reference over arm, in steps; in tokens where the reference counts no steps",
    "low": "the range of the speed-up over seeds; None where a seed does not reach the loss",
    "high": "its upper end",
    "reference_tokens": "of its whole run",
    "tokens": "of the arm to that loss",
    "fewer_tokens": "the factor in tokens",
    "reference_flops": "of its whole run",
    "flops": "of the arm to that loss",
    "fewer_flops": "the factor in FLOPs",
    "num_seeds": "paired",
    "num_reached": "of them",
    "num_diverged": "of them: they count as not reaching it",
    "num_missing": "seeds of the arm that are not paired",
    "elsewhere": "whether the reference was trained elsewhere",
}
CURVE = {
    "curve": "the name of the run",
    "kind": "arm | reference | elsewhere",
    "steps": "done; None if only tokens are known",
    "tokens": "seen; None if only steps are known",
    "mean_nats": "mean over seeds of the smoothed training loss",
    "min_nats": "the lowest seed",
    "max_nats": "the highest seed",
}
Row = dict[str, Any]


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


def against_arm(reference: ArmRun, arm: ArmRun) -> Row:
    """Return when `arm` has the loss that `reference` ends at, over the seeds that both have.

    Training losses on different data are not compared.
    """
    blank = _blank(arm, reference.name)
    if arm.data_digest != reference.data_digest:
        brief = "not compared: they train on different data, so that their training losses are not comparable"
        return {**blank, "in_brief": brief, "other_data": arm.data, "reference_value": reference.value}
    seeds = sorted(set(reference.curves) & (set(arm.curves) | arm.diverged))
    ends = {}
    for seed in seeds:
        steps = reference.positions(seed)
        ends[seed] = float(steps[-1]), float(smoothed(steps, reference.curves[seed][1])[-1])
    if not seeds:
        return {**blank, "in_brief": "no seed has a whole loss curve of both", "num_missing": len(arm.planned)}
    total = float(np.median([steps for steps, _ in ends.values()]))
    blank |= {
        "reference_value": reference.value,
        "active_ratio": arm.active / reference.active if arm.active and reference.active else None,
        "reference_steps": total,
        "reference_tokens": total * reference.batch_tokens,
        "reference_flops": _times(total * reference.batch_tokens, reference.flops_per_token),
    }
    return _against(blank, arm, ends, "steps")


def against_curve(reference: ReferenceCurve, arm: ArmRun) -> Row:
    """Return when each seed of `arm` has the loss that a curve from elsewhere ends at."""
    unit = "steps" if reference.steps else "tokens"
    end = (reference.steps or reference.tokens)[-1]
    level = float(smoothed(np.array(reference.steps or reference.tokens), np.array(reference.losses))[-1])
    blank = _blank(arm, reference.name) | {
        "elsewhere": True,
        "reference_steps": reference.steps[-1] if reference.steps else None,
        "reference_tokens": reference.tokens[-1] if reference.tokens else None,
    }
    ends = dict.fromkeys(sorted(set(arm.curves) | arm.diverged), (end, level))
    if not ends:
        return {**blank, "in_brief": "no seed has a whole loss curve", "num_missing": len(arm.planned)}
    return _against(blank, arm, ends, unit)


def _blank(arm: ArmRun, reference: str) -> Row:
    counts = dict.fromkeys((name for name in REACHED if name.startswith("num_")), 0)
    of = {"arm": arm.name, "reference": reference, "arm_value": arm.value, "elsewhere": False}
    return {**dict.fromkeys(REACHED), **counts, **of}


def _against(blank: Row, arm: ArmRun, ends: Mapping[int, tuple[float, float]], unit: str) -> Row:
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
    found = blank | {
        "loss_nats": float(np.mean([level for _, level in ends.values()])),
        "arm_end_nats": float(np.mean([curve[-1] for curve in own.values()])) if own else None,
        "num_seeds": len(ends),
        "num_reached": int(np.isfinite(steps_S).sum()),
        "num_diverged": len(arm.diverged & set(ends)),
        "num_missing": len(arm.planned - set(ends)),
    }
    steps = float(np.median(steps_S))
    if math.isfinite(steps):
        faster = float(np.median(1 / steps_S)) / arm.batch_tokens  # per token of the reference
        found |= {
            "steps": steps,
            "tokens": steps * arm.batch_tokens,
            "flops": _times(steps * arm.batch_tokens, arm.flops_per_token),
            "speed_up": float(np.median(factor_S)),
            "low": float(factor_S.min()) if found["num_reached"] == len(ends) else None,
            "high": float(factor_S.max()),
            "fewer_tokens": _times(faster, blank["reference_tokens"]),
            "fewer_flops": _over(_times(faster, blank["reference_flops"]), arm.flops_per_token),
        }
    run = max((arm.positions(seed)[-1] for seed in own), default=0)
    return {**found, "in_brief": _in_brief(found, unit, run)}


def _in_brief(found: Row, unit: str, run: float) -> str:
    """Return the answer in words. `run` is the number of steps of the arm's whole run."""
    missed = found["num_seeds"] - found["num_reached"]
    seeds = f"{found['num_seeds']} seed{'s' if found['num_seeds'] > 1 else ''}"
    diverged = f", {found['num_diverged']} diverged" if found["num_diverged"] else ""
    if found["speed_up"] is None or found["high"] is None:
        by = f"by {missed} of " if found["num_reached"] else "by any of "
        within = f" in {run:.0f} steps" if run else ""
        return f"not reached{within} {by}{seeds}{diverged}{_larger(found)}"
    few, low = found["speed_up"] >= 1, found["low"]
    middle, *ends = ((of if few else 1 / of) for of in (found["speed_up"], low or math.nan, found["high"]))
    spread = f" ({min(ends):.3g} to {max(ends):.3g})" if low and found["num_seeds"] > 1 else ""
    some = f", not reached by {missed} of {seeds}{diverged}" if missed else f", {seeds}"
    return f"{middle:.3g}x {'fewer' if few else 'more'} {unit}{spread}{some}{_larger(found)}"


def _larger(found: Row) -> str:
    """Return a warning where the active parameters are not about equal; nothing where they are."""
    ratio = found["active_ratio"]
    if ratio is None or abs(math.log(ratio)) <= math.log(EQUAL_ACTIVE):
        return ""
    return f"; it has {ratio:.3g} times the active parameters"


def _times(count: float, each: float | None) -> float | None:
    return None if each is None else count * each


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def curve_of(run: ArmRun, kind: str) -> list[Row]:
    """Return the smoothed curve of the seeds that did not diverge, a row per step that all of them have."""
    common = sorted(set.intersection(*({*steps.tolist()} for steps, _ in run.curves.values()))) if run.curves else []
    if not common:
        return []
    rows = [
        smoothed(run.positions(seed), losses)[np.isin(steps, common)] for seed, (steps, losses) in run.curves.items()
    ]
    kept = _spaced(np.array(common) + 1.0)
    step_N, loss_SN = (np.array(common) + 1.0)[kept], np.stack(rows)[:, kept]
    parts = (step_N, step_N * run.batch_tokens, loss_SN.mean(0), loss_SN.min(0), loss_SN.max(0))
    return _curve(run.name, kind, parts)


def curve_from(reference: ReferenceCurve) -> list[Row]:
    """Return a curve from elsewhere as it is drawn."""
    losses = smoothed(np.array(reference.steps or reference.tokens), np.array(reference.losses))
    kept = _spaced(np.array(reference.steps or reference.tokens))
    nothing = [None] * len(kept)
    at = (np.array(each)[kept] if each else nothing for each in (reference.steps, reference.tokens))
    return _curve(reference.name, "elsewhere", (*at, *[losses[kept]] * 3))


def _curve(name: str, kind: str, parts: Sequence[Any]) -> list[Row]:
    return [dict(zip(CURVE, (name, kind, *point), strict=True)) for point in zip(*parts, strict=True)]


def _spaced(at_N: Floats) -> Sequence[int]:
    """Return the indices of at most CURVE_POINTS points, evenly spaced over the log position, with both ends."""
    wanted = np.geomspace(at_N[0], at_N[-1], CURVE_POINTS)
    kept: list[int] = np.unique(np.clip(np.searchsorted(at_N, wanted), 0, at_N.size - 1)).tolist()
    return sorted({0, *kept, at_N.size - 1})
