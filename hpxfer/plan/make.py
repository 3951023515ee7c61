"""Make the plan of a sweep: trials per shape, stacks, rounds, time and memory. It needs no torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hpxfer.host import num_cpus
from hpxfer.model.cost import count_params, flops_per_token, optimizer_flops, optimizer_share, train_flops
from hpxfer.plan.cautions import active_lines, cautions, memory_lines
from hpxfer.plan.footprint import footprint
from hpxfer.plan.hardware import BENCH, Hardware, Rate, device_of, hardware_of, rate_of, stated_by
from hpxfer.plan.packing import CPU, Device, Measured, Packer, share_of
from hpxfer.plan.plan import Batch, Plan, ShapePlan, data_lines
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.search import Progress, arms_of, kind_of
from hpxfer.spec import ResourcesSpec, SweepSpec, base_values, budget_text, preset_lines, schedule_lines
from hpxfer.trial import Expansion


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Trials per shape: all that a sweep may have, and those that are done."""

    total: Mapping[Shape, int]
    done: Mapping[Shape, int]
    at_most: bool = False
    now: Mapping[Shape, int] = field(default_factory=dict)  # the trials that an adaptive search asks for first

    @property
    def left(self) -> dict[Shape, int]:
        """Shape -> the trials that are not done."""
        return {shape: most - self.done.get(shape, 0) for shape, most in self.total.items()}


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
    return Counts(total=most if now else done, done=done, at_most=bool(now), now=now)


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
    spec, resources = expansion.spec, expansion.spec.resources
    if hardware is not None and hardware != hardware_of(device):
        device, measured = device_of(hardware, device), None
    chosen = hardware or hardware_of(device)
    counts = counts or grid_counts(expansion, done)
    rate = rate_of(chosen, spec.precision, bench) if spec.trainer is None else stated_by(spec.trainer, chosen)
    packer = Packer.of(spec, device, workers := workers_of(resources, device), measured or {})
    packed = (packed_in_rounds if counts.at_most else packed_at_once)(expansion, counts, packer)
    rows = [_shape_plan(expansion, counts, packer, shape, *found) for shape, found in packed.items()]
    shapes, ratio = _with_seconds(rows, expansion, rate, packer.measured)
    is_cuda_shared = device.cuda and rows_of("executor").get(resources.executor, "resources.executor").shares_gpus
    plan = Plan(
        sweep=spec.name,
        reads=_reads(spec),
        search=spec.search.kind,
        budget=budget_text(spec),
        shapes=shapes,
        workers=workers,
        # The sweep fixes neither the number of stacks on a GPU nor their share.
        fills_gpus=is_cuda_shared and resources.gpus_per_stack is None and resources.workers is None,
        device=device,
        hardware=chosen.name,
        measured_over_rate=ratio,
        rate_from=_rate_from(shapes, ratio, rate),
        at_most=counts.at_most,
        price_per_hour=price_per_hour,
        precision=spec.precision,
        notes={
            "recipe": () if spec.hps.recipe is None else spec.hps.recipe.lines(),
            "preset": preset_lines(spec.model.like, spec.model),
            "balance": tuple(_balance_lines(expansion)),
            "active": active_lines(expansion),
            "schedules": schedule_lines(spec),
            "data": data_lines(spec),
            "optimizer": optimizer_lines(expansion),
        },
    )
    of_memory, unfit = memory_lines(plan, resources)
    return replace(plan, cautions=(*warnings, *of_memory, *cautions(expansion)), unfit=unfit)


MOST_SHARE = 0.25  # of a step that an optimizer should take


def optimizer_lines(expansion: Expansion) -> tuple[str, ...]:
    """Return what an optimizer that multiplies matrices takes of a step, and the batch from which it takes little.

    Its cost does not depend on the batch, so that it takes most of a small one.
    """
    shares: dict[str, float] = {}
    batches: dict[str, str] = {}
    for shape in expansion.shapes:
        setting, label = expansion.setting_at(shape), shape.label()
        if shares.setdefault(label, optimizer_share(shape, setting)) > MOST_SHARE:
            few = optimizer_flops(shape, setting) / flops_per_token(shape, setting) * (1 / MOST_SHARE - 1)
            batches[label] = f"{label} from {math.ceil(few):,} tokens a step"
    if not any(shares.values()):
        return ()
    low, high = (pick(shares, key=lambda label: shares[label]) for pick in (min, max))
    spans = f"{shares[low]:.0%} ({low}) to {shares[high]:.0%} ({high})"
    fewer = f"; at most {MOST_SHARE:.0%} at {', '.join(batches.values())}" if batches else ""
    return (f"{expansion.setting.optimizer} takes {spans} of a step's FLOPs{fewer}",)


def _balance_lines(expansion: Expansion) -> Iterator[str]:
    """Yield what balances the experts: of the sweep, or of its arms if they differ in it.

    What a user's own trainer does about it is not known.
    """

    def line(spec: SweepSpec) -> str:
        values = base_values(spec)
        text = spec.model.balance.text(lambda hp: "scanned" if hp in spec.grid else f"{values[hp]:.4g}")
        z_weight = "scanned" if "z_weight" in spec.grid else f"{values['z_weight']:.4g}"
        return text if z_weight == "0" else f"{text}; z_weight {z_weight}"

    if not any(shape.num_experts and not shape.own for shape in expansion.shapes):
        return
    found = {label: line(part.spec) for label, (part, _) in expansion.arms.items()}
    if len(set(found.values())) == 1:
        yield f"experts: {found.popitem()[1]}"
    else:
        yield from (f"experts of {label}: {text}" for label, text in found.items())


def workers_of(resources: ResourcesSpec, device: Device) -> int:
    """Return how many stacks run at once: as many as the sweep asks for, or as the GPUs or the CPUs allow.

    If the planner chooses the stacks' shares of a GPU, one per GPU counts.
    """
    if resources.workers is not None:
        return resources.workers
    if device.cuda or resources.gpus_per_trial:
        each = resources.gpus_per_trial or resources.gpus_per_stack or 1.0
        return max(1, int((device.num_gpus or 1) / each + 1e-9))
    return max(1, int((device.num_cpus or num_cpus()) / (resources.cpus_per_stack * resources.ranks) + 1e-9))


def _shape_plan(
    expansion: Expansion, counts: Counts, packer: Packer, shape: Shape, num_stacks: int, size: int
) -> ShapePlan:
    """Return the plan of a shape, given its stacks and the trials of the largest one. Its time is still unknown."""
    resources, setting, device = expansion.spec.resources, expansion.setting_at(shape), packer.device
    memory, way = packer.memory(shape, setting), packer.way(shape, setting, size)
    known = memory.measured(way) is not None
    share = resources.gpus_per_trial or 0.0
    if device.cuda and not shape.own:
        share = resources.gpus_per_stack or share_of(memory, way, size, device)
    params, left = count_params(shape, setting), counts.left[shape]
    return ShapePlan(
        shape=shape,
        num_trials=counts.total[shape],
        num_done=counts.done.get(shape, 0),
        num_stacks=num_stacks,
        stack_size=size,
        stack_bytes=memory.of(way, size),
        gpu_share=share,
        params_total=params.total,
        params_active=params.active,
        tokens=left * setting.steps * setting.batch_tokens,
        flops=left * train_flops(shape, setting),
        trial_s=math.nan,
        trial_kept_bytes=4 * params.total * (resources.keep == "last"),
        is_measured=packer.measured.get(shape, Measured()).trial_s is not None,
        memory_parts={} if known else footprint(shape, setting, size, cuda=device.cuda, way=way).parts,
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


def _with_seconds(
    rows: Sequence[ShapePlan], expansion: Expansion, rate: Rate, measured: Mapping[Shape, Measured]
) -> tuple[tuple[ShapePlan, ...], float | None]:
    """Return the rows with the worker seconds of a trial, and the median over shapes of measured / estimated time.

    The seconds are those measured, else those estimated times that median. Stacks smaller than the measured ones take
    longer per trial, by the ratio of the two estimates. What the user says of an own trainer is not corrected.
    """
    known = {row.shape: measured.get(row.shape, Measured()) for row in rows}

    def rated(row: ShapePlan, stack_size: float) -> float:
        """Return the estimate for a trial. A stack with half of a GPU takes twice as long."""
        seconds = rate.trial_s(row.shape, expansion.setting_at(row.shape), stack_size)
        return seconds if rate.stated else row.batch.work * seconds / (row.gpu_share or row.batch.ranks)

    ratios = sorted(
        trial_s / rated(row, known[row.shape].stack_size or row.stack_size)
        for row in rows
        if (trial_s := known[row.shape].trial_s) is not None and not rate.stated
    )
    ratio = ratios[len(ratios) // 2] if ratios else None

    def seconds(row: ShapePlan) -> float:
        of = known[row.shape]
        each = (row.num_trials - row.num_done) / row.num_stacks if row.num_stacks else row.stack_size
        if of.trial_s is None:
            return rated(row, each) * (1.0 if ratio is None else ratio)
        return of.trial_s * max(1.0, rated(row, each) / rated(row, of.stack_size or each))

    return tuple(replace(row, trial_s=seconds(row)) for row in rows), ratio


def _reads(spec: SweepSpec) -> str:
    """Return what a run counts: what the family reads or, of a user's own trainer, what the batch is given in."""
    data = rows_of("family").get(spec.model.family).data
    if data != "user":
        return str(data)
    return "tokens" if spec.training.batch_tokens else "samples" if spec.training.batch_samples else "steps"


def _rate_from(shapes: Collection[ShapePlan], ratio: float | None, rate: Rate) -> str:
    """Return where the seconds come from, and how good the estimate was where trials are stored."""
    num_known = sum(row.is_measured for row in shapes)
    measured = f"measured: {num_known} of {len(shapes)} shapes, from the store"
    if not num_known:
        return rate.source
    if ratio is not None:
        return f"{measured}; they took {ratio:.2g}x of what the rate says ({rate.source})"
    return measured if num_known == len(shapes) else f"{measured}; the rest {rate.source}"


# Rounds: the most stacks that a search in rounds may need. It only counts.
#
# A round waits for the one before it, so its trials share stacks only with the same round of their arm. The number of
# rounds and their sizes are not known in advance. This is an upper bound, and `--max-gpu-hours` checks it.

Packed = dict[Shape, tuple[int, int]]  # shape -> the most stacks, and the trials of the largest stack


def _sizes(expansion: Expansion, packer: Packer, together: Mapping[Shape, int]) -> dict[Shape, int]:
    """Return shape -> most trials per stack, given how many trials of each shape run together."""
    groups = {(shape, expansion.setting_at(shape)): count for shape, count in together.items()}
    return {shape: most for (shape, _), most in packer.sizes(groups).items()}


def packed_at_once(expansion: Expansion, counts: Counts, packer: Packer) -> Packed:
    """Return the stacks of each shape if all its trials run together."""
    left, out = counts.left, {}
    for shape, most in _sizes(expansion, packer, left).items():
        number = math.ceil(left[shape] / most)
        out[shape] = (number, math.ceil(left[shape] / number) if number else most)
    return out


def packed_in_rounds(expansion: Expansion, counts: Counts, packer: Packer) -> Packed:
    """Return the most stacks that the trials of a search may need."""
    spec, kind, left, now = expansion.spec, kind_of(expansion.spec), counts.left, counts.now
    arms = Counter(arm.shape for arm in arms_of(expansion))
    seeds = 1 if kind.splits_seeds else len(spec.seeds)
    rounds = {points * seeds: number for points, number in kind.rounds(spec).items()}
    # Arms of one shape may ask at the same moment.
    together = {shape: min(count, max(now.get(shape, 0), arms[shape] * max(rounds))) for shape, count in left.items()}
    first, out = _sizes(expansion, packer, now), {}
    for shape, most in _sizes(expansion, packer, together).items():

        @cache
        def stacks(trials: int, shape: Shape = shape) -> int:
            return math.ceil(trials / _sizes(expansion, packer, {shape: trials})[shape])

        at_once = now.get(shape, 0)
        num_first = math.ceil(at_once / first[shape]) if at_once else 0
        of_all = {trials: number * arms[shape] for trials, number in rounds.items()}
        num_later = most_stacks(left[shape] - at_once, of_all, stacks)
        out[shape] = (min(left[shape], num_first + num_later), min(most, together[shape] or most))
    return out


def most_stacks(later: int, rounds: Mapping[int, int], stacks: Callable[[int], int]) -> int:
    """Return the most stacks that this many trials need in some of the `rounds`: trials -> rounds of that size.

    `stacks` returns how many stacks a round of so many trials makes. The bound fills the rounds that need the most
    stacks per trial first, until no trial is left.
    """
    total = 0
    for trials in sorted(rounds, key=lambda trials: stacks(trials) / trials, reverse=True):
        number = min(rounds[trials], math.ceil(max(0, later) / trials))
        total += number * stacks(trials)
        later -= number * trials
    return total + max(0, later)
