"""Plan: what a sweep will run and what it will cost, before anything runs. It only counts, without torch and ray."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpxfer.host.machine import num_cpus
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan.cautions import cautions
from hpxfer.plan.hardware import BENCH, Hardware, Rate, device_of, hardware_of, rate_of
from hpxfer.plan.memory import memory_cautions
from hpxfer.plan.packing import CPU, Device, Measured, share_of, stack_sizes, trial_bytes
from hpxfer.plan.rounds import packed_at_once, packed_in_rounds
from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape
from hpxfer.search import Progress
from hpxfer.spec.budget import budget_text
from hpxfer.spec.sweep import ResourcesSpec
from hpxfer.trial import Expansion


@dataclass(frozen=True, kw_only=True)
class ShapePlan:
    """The trials of one shape."""

    shape: Shape
    num_trials: int
    num_done: int
    num_stacks: int  # of the missing trials
    stack_size: int  # trials of the largest of these stacks; of a full stack if no trial is missing
    stack_bytes: int  # the memory that this stack needs, as estimated or as measured
    gpu_share: float  # the share of a GPU that this stack has; 0 on a CPU
    params_total: int
    params_active: int
    tokens: int  # of the missing trials, as are the next two fields
    flops: float
    worker_s: float
    trial_s: float  # worker seconds of one trial
    is_measured: bool  # whether they were measured on stored trials


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep will run. Tokens, FLOPs, seconds, hours and price are those of the missing trials."""

    sweep: str
    shapes: tuple[ShapePlan, ...]
    workers: int
    rate_from: str  # where the rate of the time estimate comes from
    device: Device = CPU
    fills_gpus: bool = False  # whether each GPU holds as many stacks as fit; each of `workers` then stands for a GPU
    hardware: str = "cpu"
    ratio: float | None = None  # median over shapes of measured time / estimated time
    at_most: bool = False  # an adaptive search may end with fewer trials
    search: str = "grid"
    budget: str = ""  # what every arm may have, in words
    price_per_hour: float | None = None  # of one GPU, or of one CPU worker
    cautions: tuple[str, ...] = ()  # what makes a result mean less than it seems, one line each

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
        """Seconds until the last trial ends. Workers share the stacks, but no stack is split."""
        longest = max((one.worker_s / one.num_stacks for one in self.shapes if one.num_stacks), default=0.0)
        busy = sum(one.worker_s * (one.gpu_share if self.fills_gpus else 1.0) for one in self.shapes)
        return max(longest, busy / self.workers)

    @property
    def worker_hours(self) -> float:
        return sum(one.worker_s for one in self.shapes) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of whole GPUs: a stack with half of one counts half. 0 on a CPU."""
        return sum(one.worker_s * one.gpu_share for one in self.shapes) / 3600

    @property
    def price(self) -> float | None:
        """GPU-hours (on a CPU worker hours) times the price of one. None without a price."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * (self.gpu_hours if self.device.cuda else self.worker_hours)

    @property
    def stack_bytes(self) -> int:
        """Memory of the largest stack."""
        return max((one.stack_bytes for one in self.shapes if one.num_stacks), default=0)

    def label(self, shape: Shape) -> str:
        """Return a shape's name, with its batch and steps if the shapes differ in them."""
        return shape.label(schedule=len({(one.shape.batch_tokens, one.shape.steps) for one in self.shapes}) > 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data. Units end the names."""
        return {
            "sweep": self.sweep,
            "search": self.search,
            "budget": self.budget,
            "at_most": self.at_most,
            "num_trials": self.num_trials,
            "num_done": self.num_done,
            "num_left": self.num_left,
            "num_stacks": sum(one.num_stacks for one in self.shapes),
            "tokens": sum(one.tokens for one in self.shapes),
            "flops": sum(one.flops for one in self.shapes),
            "stack_bytes": self.stack_bytes,
            "wall_s": self.wall_s,
            "workers": self.workers,
            "worker_hours": self.worker_hours,
            "gpu_hours": self.gpu_hours,
            "price_per_hour": self.price_per_hour,
            "price": self.price,
            "hardware": self.hardware,
            "device": asdict(self.device),
            "rate_from": self.rate_from,
            "measured_over_rate": self.ratio,
            "cautions": list(self.cautions),
            "shapes": [{**asdict(one), "shape": one.shape.dims()} for one in self.shapes],
        }


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Trials per shape: all that a sweep may have, and those that are done."""

    total: Mapping[Shape, int]
    done: Mapping[Shape, int]
    at_most: bool = False
    now: Mapping[Shape, int] = field(default_factory=dict)  # the trials that an adaptive search asks for first


def grid_counts(expansion: Expansion, done: Collection[str]) -> Counts:
    """Return the counts of a grid, whose trials are all known."""
    total: Counter[Shape] = Counter()
    stored: Counter[Shape] = Counter()
    # Trials of one shape follow each other, and hashing a shape is slow.
    for shape, trials in itertools.groupby(expansion.trials(), key=lambda trial: trial.shape):
        known = [trial.id in done for trial in trials]
        total[shape] += len(known)
        stored[shape] += sum(known)
    return Counts(total=total, done=stored)


def search_counts(progress: Mapping[Shape, Progress], *, now: Mapping[Shape, int]) -> Counts:
    """Return the counts of an adaptive search, which asks for `now` first. They are upper bounds.

    A search that asks for nothing is over.
    """
    done = {shape: one.num_done for shape, one in progress.items()}
    total = {shape: one.num_done + one.most_left for shape, one in progress.items()} if now else done
    return Counts(total=total, done=done, at_most=bool(now), now=now)


def make_plan(
    expansion: Expansion,
    done: Collection[str],
    device: Device = CPU,
    *,
    measured: Mapping[Shape, Measured] | None = None,
    warnings: tuple[str, ...] = (),
    counts: Counts | None = None,
    hardware: Hardware | None = None,
    price_per_hour: float | None = None,
    bench: Path = BENCH,
) -> Plan:
    """Return the plan of a sweep, given the ids of the trials that are done.

    `measured` is the time and memory of stored shapes. The estimates for other shapes are scaled by the ratio of
    measured to estimated time. `counts` default to those of a grid. `hardware` replaces the device; measurements of the
    device then count for nothing. `warnings` go before the sweep's own cautions.
    """
    spec = expansion.spec
    if hardware is not None and hardware != hardware_of(device):
        device, measured = device_of(hardware, device), None
    chosen = hardware or hardware_of(device)
    counts = counts or grid_counts(expansion, done)
    rate = rate_of(chosen, spec.precision, bench)
    workers = workers_of(spec.resources, device)
    shapes = _shape_plans(expansion, counts, device, rate, measured or {}, workers)
    known = [one for one in shapes if one.is_measured]
    ratios = sorted(_fared(one, expansion, rate, (measured or {})[one.shape]) for one in known)
    ratio = ratios[len(ratios) // 2] if ratios else None
    if ratio is not None:
        shapes = tuple(one if one.is_measured else _slower(one, ratio) for one in shapes)
    plan = Plan(
        sweep=spec.name,
        search=spec.search.kind,
        budget=budget_text(spec),
        shapes=shapes,
        workers=workers,
        fills_gpus=device.cuda and _fills_gpus(spec.resources),
        device=device,
        hardware=chosen.name,
        ratio=ratio,
        rate_from=_rate_from(len(known), len(shapes), ratio, rate),
        at_most=counts.at_most,
        price_per_hour=price_per_hour,
    )
    told = memory_cautions(plan.shapes, device, spec.resources, workers, plan.label)
    return replace(plan, cautions=(*warnings, *told, *cautions(expansion)))


def num_workers(
    asked: int | None, *, cuda: bool, device: Device = CPU, cpus_per_stack: float = 1.0, share: float | None = None
) -> int:
    """Return how many stacks run at once: as many as asked for, or as the GPUs or the CPUs allow.

    If the planner chooses the stacks' shares of a GPU, one per GPU counts.
    """
    if asked is not None:
        return asked
    if cuda:
        return max(1, int((device.num_gpus or 1) / (share or 1.0) + 1e-9))
    return max(1, int((device.num_cpus or num_cpus()) / cpus_per_stack + 1e-9))


def _fills_gpus(resources: ResourcesSpec) -> bool:
    """Return whether the executor gives a GPU as many stacks as fit: the sweep fixes neither their number nor share."""
    shares = registry("executor").get(resources.executor, "resources.executor").shares_gpus
    return shares and resources.gpus_per_stack is None and resources.workers is None


def workers_of(resources: ResourcesSpec, device: Device) -> int:
    """Return how many stacks of these resources run at once on a device."""
    return num_workers(
        resources.workers,
        cuda=device.cuda,
        device=device,
        cpus_per_stack=resources.cpus_per_stack,
        share=resources.gpus_per_stack,
    )


def _shape_plans(
    expansion: Expansion,
    counts: Counts,
    device: Device,
    rate: Rate,
    measured: Mapping[Shape, Measured],
    workers: int,
) -> tuple[ShapePlan, ...]:
    resources = expansion.spec.resources
    left = {shape: most - counts.done.get(shape, 0) for shape, most in counts.total.items()}

    def sizes(together: Mapping[Shape, int]) -> dict[Shape, int]:
        found = stack_sizes(
            {(shape, expansion.setting_at(shape)): count for shape, count in together.items()},
            device,
            asked=expansion.spec.stack_size,
            measured=measured,
            workers=workers,
            share=resources.gpus_per_stack,
        )
        return {shape: most for (shape, _), most in found.items()}

    packed = packed_in_rounds(expansion, left, counts.now, sizes) if counts.at_most else packed_at_once(left, sizes)
    out = []
    for shape, (num_stacks, size) in packed.items():
        setting = expansion.setting_at(shape)
        known = measured.get(shape, Measured())
        needed = share_of(shape, setting, size, device, measured=known)
        share = (resources.gpus_per_stack or needed) if device.cuda else 0.0
        params = count_params(shape, setting)
        one = ShapePlan(
            shape=shape,
            num_trials=counts.total[shape],
            num_done=counts.done.get(shape, 0),
            num_stacks=num_stacks,
            stack_size=size,
            stack_bytes=int(size * (known.trial_bytes or trial_bytes(shape, setting))),
            gpu_share=share,
            params_total=params.total,
            params_active=params.active,
            tokens=left[shape] * setting.steps * setting.batch_tokens,
            flops=left[shape] * train_flops(shape, setting),
            worker_s=0.0,
            trial_s=0.0,
            is_measured=known.trial_s is not None,
        )
        trial_s = _trial_s(one, expansion, rate, known)
        out.append(replace(one, trial_s=trial_s, worker_s=trial_s * left[shape]))
    return tuple(out)


def _trial_s(one: ShapePlan, expansion: Expansion, rate: Rate, known: Measured) -> float:
    """Return the worker seconds of a trial: as measured, else as estimated.

    Stacks smaller than the measured ones take longer per trial, by the ratio of the two estimates.
    """
    each = (one.num_trials - one.num_done) / one.num_stacks if one.num_stacks else one.stack_size
    rated = _rated_s(one, expansion, rate, each)
    if known.trial_s is None:
        return rated
    return known.trial_s * max(1.0, rated / _rated_s(one, expansion, rate, known.stack_size or each))


def _fared(one: ShapePlan, expansion: Expansion, rate: Rate, known: Measured) -> float:
    """Return measured time / estimated time of the trials of a measured shape."""
    assert known.trial_s is not None, "it was measured"
    return known.trial_s / _rated_s(one, expansion, rate, known.stack_size or one.stack_size)


def _rated_s(one: ShapePlan, expansion: Expansion, rate: Rate, stack_size: float) -> float:
    """Return the estimated worker seconds of a trial. A stack with half of a GPU takes twice as long."""
    return rate.trial_s(one.shape, expansion.setting_at(one.shape), stack_size) / (one.gpu_share or 1.0)


def _slower(one: ShapePlan, ratio: float) -> ShapePlan:
    return replace(one, trial_s=one.trial_s * ratio, worker_s=one.worker_s * ratio)


def _rate_from(num_known: int, num_shapes: int, ratio: float | None, rate: Rate) -> str:
    """Return where the seconds come from, and how good the estimate was where trials are stored."""
    if ratio is None:
        return rate.source
    fared = f"they took {ratio:.2g}x of what the rate says ({rate.source})"
    return f"measured: {num_known} of {num_shapes} shapes, from the store; {fared}"
