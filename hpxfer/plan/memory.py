"""Cautions about memory: where the stacks of a sweep will not fit, or fit only if an unmeasured estimate is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hpxfer.plan.packing import WORKER_BYTES, Device
from hpxfer.scaling.shape import Shape
from hpxfer.spec.sweep import ResourcesSpec

UNMEASURED = "by a model of memory that was never measured on a GPU"


class Sized(Protocol):
    """The stacks of one shape, as a plan has them."""

    @property
    def shape(self) -> Shape: ...
    @property
    def num_stacks(self) -> int: ...
    @property
    def stack_size(self) -> int: ...
    @property
    def stack_bytes(self) -> int: ...


def memory_cautions(
    shapes: Sequence[Sized], device: Device, resources: ResourcesSpec, workers: int, label: Callable[[Shape], str]
) -> tuple[str, ...]:
    """Return what the user should know about memory before a run: per kind of caution, the shape that is worst off."""
    left = [one for one in shapes if one.num_stacks]
    if not left:
        return ()
    return (
        *_too_large(left, device, resources, workers, label),
        *_clamped(left, device, resources, workers, label),
        *_crowded(left, device, workers),
    )


def _too_large(
    left: Sequence[Sized], device: Device, resources: ResourcesSpec, workers: int, label: Callable[[Shape], str]
) -> Iterator[str]:
    """Yield the shapes of which a single trial is too large."""
    room = _room(device, resources, workers)
    over = [one for one in left if one.stack_size == 1 and one.stack_bytes > room]
    if not over:
        return
    worst = max(over, key=lambda one: one.stack_bytes)
    where = "a stack's share of the GPU" if device.cuda else f"each of {workers} workers"
    fix = "a larger GPU or share of it" if device.cuda else "fewer resources.workers"
    more = f" and {len(over) - 1} other shapes" if len(over) > 1 else ""
    yield (
        f"memory: one trial of {label(worst.shape)}{more} needs {spell_bytes(worst.stack_bytes)}, {where} has "
        f"{spell_bytes(room)}{', ' + UNMEASURED if device.cuda else ''}: expect it to fail; give {fix}, fewer "
        "batch_tokens, or leave the shape out"
    )


def _clamped(
    left: Sequence[Sized], device: Device, resources: ResourcesSpec, workers: int, label: Callable[[Shape], str]
) -> Iterator[str]:
    """Yield the shapes of which fewer trials are stacked than asked for, unless a round of a search simply has no
    more.
    """
    asked = resources.stack_size
    if asked is None:
        return
    room = _room(device, resources, workers)
    over = [one for one in left if asked * one.stack_bytes > room * one.stack_size]
    smaller = [one for one in over if one.num_stacks > -(-_trials(one) // asked)]
    if smaller:
        least = min(smaller, key=lambda one: one.stack_size)
        yield (
            f"resources.stack_size: {asked} trials of {label(least.shape)} do not fit into memory, stacks of "
            f"{least.stack_size} are made"
        )


def _room(device: Device, resources: ResourcesSpec, workers: int) -> float:
    """Return the bytes that a stack may need, whatever size was asked for."""
    return device.room(resources.gpus_per_stack or 1.0) if device.cuda else device.most(workers)


def _trials(one: Sized) -> int:
    return one.num_stacks * one.stack_size


def _crowded(left: Sequence[Sized], device: Device, workers: int) -> Iterator[str]:
    """Yield the shapes at which the workers of a machine together need more memory than it has."""
    if device.cuda or device.host_bytes is None:
        return
    busy = min(workers, sum(one.num_stacks for one in left))
    need = busy * (WORKER_BYTES + max(one.stack_bytes for one in left))
    if need > device.host_bytes:
        yield (
            f"memory: {busy} workers need up to {spell_bytes(need)}, there are {spell_bytes(device.host_bytes)}; give "
            "fewer resources.workers"
        )


def spell_bytes(count: float) -> str:
    """Return a size as text, e.g. `300 MiB` or `1.5 GiB`."""
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.3g} GiB"
