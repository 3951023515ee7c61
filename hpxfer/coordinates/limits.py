"""How large a check may be. It trains on one core, so that more would end no sooner than tomorrow, or in no memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.coordinates.cases import Case
from hpxfer.errors import HpxferError
from hpxfer.host.machine import host_bytes
from hpxfer.plan.footprint import stack_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.spec.vocabulary import data_sizes
from hpxfer.trial import DataRef, setting_of

MAX_SEEDS = 1000  # trials of one shape, which train together
MAX_POINTS = 100
MAX_STEPS = 10**6
# Weights, gradient, two moments, the first weights, what training added to them, and the update.
_COPIES = 7


def require_size(steps: int, seeds: int, points: Sequence[float] | None) -> None:
    """Raise HpxferError if a check has too many seeds, steps or points."""
    for option, given, most in (("--steps", steps, MAX_STEPS), ("--seeds", seeds, MAX_SEEDS)):
        if not 1 <= given <= most:
            raise HpxferError(f"{option}: must be from 1 to {most}, got {given:.12g}")
    if points is not None and len(points) > MAX_POINTS:
        raise HpxferError(f"--points: must be at most {MAX_POINTS} values, got {len(points)}; leave some out")


def require_memory(case: Case, seeds: int) -> None:
    """Raise HpxferError if a shape of a case, trained with all seeds together, cannot fit into this machine."""
    data = DataRef(digest="", **data_sizes(case.spec.data))

    def needs() -> Iterator[tuple[Shape, int]]:
        for point in case.axis.points:
            yield point.shape, stack_bytes(point.shape, setting_of(case.spec, data, point.shape), seeds, cuda=False)

    _require(needs(), seeds)


def require_mlp_memory(path: Sequence[Shape], seeds: int) -> None:
    """Raise HpxferError if a shape of the own MLP mixture, trained with all seeds together, cannot fit into memory."""

    def needs() -> Iterator[tuple[Shape, int]]:
        for shape in path:
            yield shape, 4 * _COPIES * seeds * 2 * shape.num_experts * shape.expert_width * shape.width

    _require(needs(), seeds)


def _require(needs: Iterator[tuple[Shape, int]], seeds: int) -> None:
    room = host_bytes()
    for shape, needed in needs:
        if room is not None and needed > room:
            raise HpxferError(
                f"--points: {shape.label()} with {seeds} seeds needs about {needed / 2**30:.3g} GiB, got "
                f"{room / 2**30:.3g} GiB of memory; take smaller points, or fewer --seeds"
            )
