"""Make the plan of a sweep: trials per shape, stacks and their order, rounds, time and memory. It needs no torch."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hpxfer.host.machine import num_cpus
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan.cautions import active_lines, cautions, memory_cautions, unfit
from hpxfer.plan.footprint import Way, footprint
from hpxfer.plan.hardware import BENCH, Hardware, Rate, device_of, hardware_of, rate_of
from hpxfer.plan.packing import (
    CPU,
    Device,
    How,
    Measured,
    as_computed,
    memory_of,
    share_of,
    stack_flops,
    stack_sizes,
    way_on,
)
from hpxfer.plan.plan import Batch, Plan, ShapePlan, data_lines
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.search import Progress
from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import arms_of
from hpxfer.spec.base_values import base_values
from hpxfer.spec.budget import budget_text
from hpxfer.spec.presets import preset_lines
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.spec.schedule import schedule_lines
from hpxfer.spec.sweep import SweepSpec
from hpxfer.trial import Expansion, Setting
from hpxfer.trial.stack import Stack

# Rounds: the most stacks that a search in rounds may need. It only counts.
#
# A round waits for the one before it, so its trials share stacks only with the same round of their arm. The number of
# rounds and their sizes are not known in advance. This is an upper bound, and `--max-gpu-hours` checks it.

# Maps the trials of each shape that run together to the most of them in one stack.
Sizes = Callable[[Mapping[Shape, int]], Mapping[Shape, int]]


def packed_at_once(left: Mapping[Shape, int], sizes: Sizes) -> dict[Shape, tuple[int, int]]:
    """Return shape -> the number of stacks if all its trials run together, and the trials of the largest stack."""
    out = {}
    for shape, most in sizes(left).items():
        number = math.ceil(left[shape] / most)
        out[shape] = (number, math.ceil(left[shape] / number) if number else most)
    return out


def packed_in_rounds(
    expansion: Expansion, left: Mapping[Shape, int], now: Mapping[Shape, int], sizes: Sizes
) -> dict[Shape, tuple[int, int]]:
    """Return shape -> the most stacks that the trials of a search may need, and the trials of the largest stack.

    `left` are upper bounds. `now` are the trials among them that are asked for first.
    """
    spec, arms = expansion.spec, Counter(arm.shape for arm in arms_of(expansion))
    kind = kind_of(spec)
    seeds = 1 if kind.splits_seeds else len(spec.seeds)
    rounds = {points * seeds: number for points, number in kind.rounds(spec).items()}
    # Arms of one shape may ask at the same moment.
    together = {shape: min(count, max(now.get(shape, 0), arms[shape] * max(rounds))) for shape, count in left.items()}
    first, out = sizes(now), {}
    for shape, most in sizes(together).items():

        @cache
        def stacks(trials: int, shape: Shape = shape) -> int:
            return math.ceil(trials / sizes({shape: trials})[shape])

        at_once = now.get(shape, 0)
        num_first = math.ceil(at_once / first[shape]) if at_once else 0
        of_all = {trials: number * arms[shape] for trials, number in rounds.items()}
        num_later = most_stacks(left[shape] - at_once, of_all, stacks)
        out[shape] = (min(left[shape], num_first + num_later), min(most, together[shape] or most))
    return out


def most_stacks(later: int, rounds: Mapping[int, int], stacks: Callable[[int], int]) -> int:
    """Return the most stacks that this many trials need in some of the `rounds`, which map trials -> rounds of that
    size.

    `stacks` returns how many stacks a round of so many trials makes. The bound fills the rounds that need the most
    stacks per trial first, until no trial is left.
    """
    total = 0
    for trials in sorted(rounds, key=lambda trials: stacks(trials) / trials, reverse=True):
        number = min(rounds[trials], math.ceil(max(0, later) / trials))
        total += number * stacks(trials)
        later -= number * trials
    return total + max(0, later)


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
    done = {shape: of_shape.num_done for shape, of_shape in progress.items()}
    most = {shape: of_shape.num_done + of_shape.most_left for shape, of_shape in progress.items()}
    total = most if now else done
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
    known = [row for row in shapes if row.is_measured]
    is_own = spec.trainer is not None
    rated = [] if is_own else known  # no rate says how long a user's own trainer takes
    ratios = sorted(_measured_over_rated(row, expansion, rate, (measured or {})[row.shape]) for row in rated)
    ratio = ratios[len(ratios) // 2] if ratios else None
    if ratio is not None:
        shapes = tuple(row if row.is_measured else replace(row, trial_s=row.trial_s * ratio) for row in shapes)
    num_known = len(known), len(shapes)
    rate_from = _own_rate(spec, *num_known) if is_own else _rate_from(*num_known, ratio, rate)
    plan = Plan(
        sweep=spec.name,
        reads=_reads(spec),
        search=spec.search.kind,
        budget=budget_text(spec),
        shapes=shapes,
        workers=workers,
        fills_gpus=device.cuda and _fills_gpus(spec.resources),
        device=device,
        hardware=chosen.name,
        ratio=ratio,
        rate_from=rate_from,
        at_most=counts.at_most,
        price_per_hour=price_per_hour,
        precision=spec.precision,
    )
    return replace(
        plan,
        cautions=(*warnings, *memory_cautions(plan, spec.resources), *cautions(expansion)),
        preset=preset_lines(spec.model.like, spec.model),
        recipe=() if spec.hps.recipe is None else spec.hps.recipe.lines(),
        balance=tuple(_balance_lines(expansion)),
        active=active_lines(expansion),
        schedules=schedule_lines(spec),
        data=data_lines(spec),
        unfit=unfit(plan, spec.resources),
    )


def _balance_lines(expansion: Expansion) -> Iterator[str]:
    """Yield what balances the experts: of the sweep, or of its arms if they differ in it.

    What a user's own trainer does about it is not known.
    """
    if expansion.spec.trainer is not None or not any(shape.num_experts for shape in expansion.shapes):
        return
    found = {label: _balance_line(part.spec) for label, (part, _) in expansion.arms.items()}
    if len(set(found.values())) == 1:
        yield f"experts: {found.popitem()[1]}"
    else:
        yield from (f"experts of {label}: {line}" for label, line in found.items())


def _balance_line(spec: SweepSpec) -> str:
    values = base_values(spec)
    line = spec.model.balance.setting().text(lambda hp: "scanned" if hp in spec.grid else f"{values[hp]:.4g}")
    z_weight = "scanned" if "z_weight" in spec.grid else f"{values['z_weight']:.4g}"
    return line if z_weight == "0" else f"{line}; z_weight {z_weight}"


def _fills_gpus(resources: ResourcesSpec) -> bool:
    """Return whether the executor gives a GPU as many stacks as fit: the sweep fixes neither their number nor share."""
    shares = rows_of("executor").get(resources.executor, "resources.executor").shares_gpus
    return shares and resources.gpus_per_stack is None and resources.workers is None


def workers_of(resources: ResourcesSpec, device: Device) -> int:
    """Return how many stacks run at once: as many as the sweep asks for, or as the GPUs or the CPUs allow.

    If the planner chooses the stacks' shares of a GPU, one per GPU counts.
    """
    if resources.workers is not None:
        return resources.workers
    if asked := resources.gpus_per_trial:
        return max(1, int((device.num_gpus or 1) / asked + 1e-9))
    if device.cuda:
        return max(1, int((device.num_gpus or 1) / (resources.gpus_per_stack or 1.0) + 1e-9))
    return max(1, int((device.num_cpus or num_cpus()) / (resources.cpus_per_stack * resources.ranks) + 1e-9))


def _shape_plans(
    expansion: Expansion,
    counts: Counts,
    device: Device,
    rate: Rate,
    measured: Mapping[Shape, Measured],
    workers: int,
) -> tuple[ShapePlan, ...]:
    resources = expansion.spec.resources
    how, processes = How.of(resources), workers * resources.ranks
    left = {shape: most - counts.done.get(shape, 0) for shape, most in counts.total.items()}

    def sizes(together: Mapping[Shape, int]) -> dict[Shape, int]:
        found = stack_sizes(
            {(shape, expansion.setting_at(shape)): count for shape, count in together.items()},
            device,
            asked=expansion.spec.stack_size,
            measured=measured,
            workers=processes,
            share=resources.gpu_share,
            how=how,
        )
        return {shape: most for (shape, _), most in found.items()}

    packed = packed_in_rounds(expansion, left, counts.now, sizes) if counts.at_most else packed_at_once(left, sizes)
    out = []
    for shape, (num_stacks, size) in packed.items():
        setting = expansion.setting_at(shape)
        given = measured.get(shape, Measured())
        known = as_computed(given, shape, setting, device, how, share=resources.gpu_share, workers=processes) or given
        way = way_on(shape, setting, size, device, how, measured=known, share=resources.gpu_share, workers=processes)
        needed = share_of(shape, setting, size, device, measured=known, way=way)
        share = (resources.gpus_per_stack or needed) if device.cuda else 0.0
        if expansion.spec.trainer is not None:
            share = resources.gpus_per_trial or 0.0
        params = count_params(shape, setting)
        row = ShapePlan(
            shape=shape,
            num_trials=counts.total[shape],
            num_done=counts.done.get(shape, 0),
            num_stacks=num_stacks,
            stack_size=size,
            stack_bytes=memory_of(shape, setting, device, known).of(way, size),
            gpu_share=share,
            params_total=params.total,
            params_active=params.active,
            tokens=left[shape] * setting.steps * setting.batch_tokens,
            flops=left[shape] * train_flops(shape, setting),
            trial_s=0.0,
            trial_kept_bytes=4 * params.total * (resources.keep == "last"),
            is_measured=known.trial_s is not None,
            memory_parts=_parts(shape, setting, size, device, way, known),
            batch=Batch(
                tokens=setting.batch_tokens,
                piece_tokens=setting.piece_tokens,
                lanes=setting.accumulation_lanes,
                micro_batch_tokens=way.pieces * setting.piece_tokens,
                recompute=way.recompute,
                ranks=way.ranks,
                counts_first=setting.num_pieces > 1 and setting.balance.is_of_batch,
            ),
        )
        out.append(replace(row, trial_s=_trial_s(row, expansion, rate, known)))
    return tuple(out)


def _parts(shape: Shape, setting: Setting, size: int, device: Device, way: Way, known: Measured) -> Mapping[str, int]:
    """Return the parts of a stack's memory by the model, or nothing if stored trials have measured it."""
    if known.trial_bytes is not None and known.way == way:
        return {}
    return footprint(shape, setting, size, cuda=device.cuda, way=way).parts


def _trial_s(row: ShapePlan, expansion: Expansion, rate: Rate, known: Measured) -> float:
    """Return the worker seconds of a trial: as measured, else as estimated.

    Stacks smaller than the measured ones take longer per trial, by the ratio of the two estimates.
    """
    if (trainer := expansion.spec.trainer) is not None:
        asked = trainer.seconds_of(row.shape) if known.trial_s is None else known.trial_s
        return math.nan if asked is None else asked
    each = (row.num_trials - row.num_done) / row.num_stacks if row.num_stacks else row.stack_size
    rated = _rated_s(row, expansion, rate, each)
    if known.trial_s is None:
        return rated
    return known.trial_s * max(1.0, rated / _rated_s(row, expansion, rate, known.stack_size or each))


def _measured_over_rated(row: ShapePlan, expansion: Expansion, rate: Rate, known: Measured) -> float:
    """Return measured time / estimated time of the trials of a measured shape."""
    assert known.trial_s is not None, "it was measured"
    return known.trial_s / _rated_s(row, expansion, rate, known.stack_size or row.stack_size)


def _rated_s(row: ShapePlan, expansion: Expansion, rate: Rate, stack_size: float) -> float:
    """Return the estimated worker seconds of a trial. A stack with half of a GPU takes twice as long."""
    setting = expansion.setting_at(row.shape)
    return row.batch.work * rate.trial_s(row.shape, setting, stack_size) / (row.gpu_share or row.batch.ranks)


def _reads(spec: SweepSpec) -> str:
    """Return what a run counts: what the family reads or, of a user's own trainer, what the batch is given in."""
    if spec.trainer is None:
        return str(rows_of("family").get(spec.model.family).data)
    training = spec.training
    return "tokens" if training.batch_tokens else "samples" if training.batch_samples else "steps"


def _own_rate(spec: SweepSpec, num_known: int, num_shapes: int) -> str:
    """Return where the seconds of a user's own trainer come from."""
    measured = f"measured: {num_known} of {num_shapes} shapes, from the store"
    given = spec.trainer is not None and spec.trainer.cost is not None
    if num_known == num_shapes:
        return measured
    rest = "by trainer.cost" if given else "unknown until a trial of each shape is stored; trainer.cost may say it"
    return f"{measured}; the rest {rest}" if num_known else rest


def _rate_from(num_known: int, num_shapes: int, ratio: float | None, rate: Rate) -> str:
    """Return where the seconds come from, and how good the estimate was where trials are stored."""
    if ratio is None:
        return rate.source
    fared = f"they took {ratio:.2g}x of what the rate says ({rate.source})"
    return f"measured: {num_known} of {num_shapes} shapes, from the store; {fared}"


# How much longer a run may take than with its costliest stacks first, which end most evenly. Without a limit, a run of
# the sweeps in `sweeps/` on 2 to 16 workers takes up to 45% longer.
LONGER = 1.1


def nearest_first(stacks: Sequence[Stack], distances: Mapping[Shape, int], workers: int) -> list[Stack]:
    """Return the stacks by the distance of their shape from the base, of equal distances the costliest first.

    `distances` is shape -> distance, 0 of the base. The farthest stacks are mostly the costliest, and some workers
    would be idle while others end them. So a few cheaper stacks are kept back to fill these gaps: as few as needed, the
    farthest of them, and none of the base.
    """
    cost = {stack.id: stack_flops(stack) for stack in stacks}
    near = sorted(stacks, key=lambda stack: (distances.get(stack.shape, 0), -cost[stack.id]))
    longest_first = sorted(cost.values(), reverse=True)
    limit = LONGER * _time(longest_first, workers)
    fillers = [stack for stack in reversed(near) if distances.get(stack.shape, 0) and cost[stack.id] < longest_first[0]]
    num_kept = 0
    while True:
        kept = fillers[:num_kept]
        out = _without(near, kept) + sorted(kept, key=lambda stack: -cost[stack.id])
        if num_kept >= len(fillers) or _time([cost[stack.id] for stack in out], workers) <= limit:
            return out
        num_kept += 1 + num_kept // 8


def _without(stacks: Iterable[Stack], left_out: Iterable[Stack]) -> list[Stack]:
    ids = {stack.id for stack in left_out}
    return [stack for stack in stacks if stack.id not in ids]


def _time(costs: Iterable[float], workers: int) -> float:
    """Return when the last stack ends, if each goes to the first worker that is idle."""
    busy = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(busy, busy[0] + cost)
    return max(busy)
