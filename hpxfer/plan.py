"""Plan: what a sweep will run and what it will cost, said before anything runs. Pure counting; no torch, no ray."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpxfer.cautions import cautions
from hpxfer.machine import num_cpus
from hpxfer.model.cost import count_params, train_flops
from hpxfer.shape import Shape
from hpxfer.stack import CPU, Device, Measured, stack_sizes
from hpxfer.trial import Expansion, Setting

# One CPU core in float32, full stacks, `hpxfer bench trainer` on two AMD EPYC cores (2026-11, torch 2.13): what a
# token costs whatever the width, and the rate of the rest.
CPU_S_PER_TOKEN = 3e-6
CPU_FLOP_PER_S = 54e9
# A GPU, assumed and unmeasured: a tenth of an H200's bf16 matmul peak.
GPU_FLOP_PER_S = 80e12


@dataclass(frozen=True, kw_only=True)
class ShapePlan:
    """The trials of one shape."""

    shape: Shape
    num_trials: int
    num_done: int
    num_stacks: int  # of what is left
    params_total: int
    params_active: int
    tokens: int  # of what is left, as are the next two
    flops: float
    worker_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep will run. Tokens, FLOPs and seconds count what is left."""

    sweep: str
    shapes: tuple[ShapePlan, ...]
    workers: int
    rate_from: str  # where the estimate of time has its rate from
    cautions: tuple[str, ...] = ()  # what makes a result mean less than it seems, a line each

    @property
    def num_trials(self) -> int:
        return sum(one.num_trials for one in self.shapes)

    @property
    def num_done(self) -> int:
        return sum(one.num_done for one in self.shapes)

    @property
    def num_left(self) -> int:
        return self.num_trials - self.num_done

    @property
    def wall_s(self) -> float:
        """Seconds until the last trial ends: workers share the stacks, but no stack is cut."""
        longest = max((one.worker_s / one.num_stacks for one in self.shapes if one.num_stacks), default=0.0)
        return max(longest, sum(one.worker_s for one in self.shapes) / self.workers)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data; units end the names."""
        return {
            "sweep": self.sweep,
            "num_trials": self.num_trials,
            "num_done": self.num_done,
            "num_stacks": sum(one.num_stacks for one in self.shapes),
            "tokens": sum(one.tokens for one in self.shapes),
            "flops": sum(one.flops for one in self.shapes),
            "wall_s": self.wall_s,
            "workers": self.workers,
            "rate_from": self.rate_from,
            "cautions": list(self.cautions),
            "shapes": [{**asdict(one), "shape": one.shape.dims()} for one in self.shapes],
        }


def make_plan(
    expansion: Expansion,
    done: Collection[str],
    device: Device = CPU,
    *,
    measured: Mapping[Shape, Measured] | None = None,
    warnings: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of a sweep, given the ids that are done.

    `measured` is what the store says of shapes; the time of others is scaled by the same ratio to the assumed rate.
    `warnings` go before the sweep's own cautions.
    """
    spec = expansion.spec
    left: dict[Shape, int] = {}
    total: dict[Shape, int] = {}
    for trial in expansion.trials():
        total[trial.shape] = total.get(trial.shape, 0) + 1
        left[trial.shape] = left.get(trial.shape, 0) + (trial.id not in done)
    of_shape = measured or {}
    known = {shape: one.trial_s for shape, one in of_shape.items() if shape in total and one.trial_s is not None}
    assumed = {shape: assumed_trial_s(shape, expansion.setting_at(shape), cuda=device.cuda) for shape in total}
    ratios = sorted(s / assumed[shape] for shape, s in known.items())
    ratio = ratios[len(ratios) // 2] if ratios else 1.0
    workers = num_workers(spec.resources.workers, cuda=device.cuda)
    sizes = stack_sizes(
        {(shape, expansion.setting_at(shape)): count for shape, count in left.items()},
        device,
        asked=spec.resources.stack_size,
        measured=of_shape,
        workers=workers,
    )
    shapes = []
    for shape in total:
        trial_s = known.get(shape, ratio * assumed[shape])
        size = sizes[shape, expansion.setting_at(shape)]
        shapes.append(_shape_plan(expansion, shape, total[shape], left[shape], trial_s, size))
    machine = "a GPU, unmeasured" if device.cuda else "one core of a two-core AMD EPYC, measured 2026-11"
    return Plan(
        sweep=spec.name,
        shapes=tuple(shapes),
        workers=workers,
        rate_from=f"measured: {len(known)} of {len(total)} shapes, from the store" if known else f"assumed: {machine}",
        cautions=(*warnings, *cautions(expansion)),
    )


def num_workers(asked: int | None, *, cuda: bool) -> int:
    """Return how many stacks run at once on this machine."""
    return asked or (1 if cuda else num_cpus())


def assumed_trial_s(shape: Shape, setting: Setting, *, cuda: bool) -> float:
    """Return the seconds a worker is busy with one trial in a full stack, at the assumed rate."""
    flops = train_flops(shape, setting)
    if cuda:
        return flops / GPU_FLOP_PER_S
    return setting.steps * setting.batch_tokens * CPU_S_PER_TOKEN + flops / CPU_FLOP_PER_S


def _shape_plan(
    expansion: Expansion, shape: Shape, num_trials: int, num_left: int, trial_s: float, size: int
) -> ShapePlan:
    setting = expansion.setting_at(shape)
    params = count_params(shape, setting)
    return ShapePlan(
        shape=shape,
        num_trials=num_trials,
        num_done=num_trials - num_left,
        num_stacks=math.ceil(num_left / size),
        params_total=params.total,
        params_active=params.active,
        tokens=num_left * setting.steps * setting.batch_tokens,
        flops=num_left * train_flops(shape, setting),
        worker_s=num_left * trial_s,
    )
