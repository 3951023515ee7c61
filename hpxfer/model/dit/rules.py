"""The rules of sweeps of the family `dit` beside those of every sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpxfer.model.dit.section import DiTModel, patch_features
from hpxfer.scaling.shape import Shape
from hpxfer.spec import BATCH_TOKENS_MULTIPLE, KeyPath, Problem, SweepSpec

AT: KeyPath = ("model", "dit")


def problems(spec: SweepSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield every broken rule. `shapes` are those of the sweep, none if they are broken themselves."""
    model, data = spec.model, spec.data
    assert isinstance(model, DiTModel)
    own, inputs = model.dit, data.inputs
    if own.frequencies % 2:
        yield (*AT, "frequencies"), f"must be even, one half cosines and one half sines, got {own.frequencies}"
    if data.targets:
        yield (
            ("data", "source"),
            f"must hold samples with a class: the target is the velocity, got {data.targets} real targets",
        )
    side = None if inputs is None else math.isqrt(inputs // own.channels)
    if inputs is not None and side is not None:
        if side * side * own.channels != inputs:
            rule = f"the {inputs} inputs of a sample must be a square of them"
            yield (*AT, "channels"), f"{rule}, got {own.channels}"
        elif side % own.patch:
            yield (*AT, "patch"), f"must divide the side of a sample, {side}, got {own.patch}"
        else:
            yield from _batches(shapes, inputs // patch_features(own))
    if spec.judge.loss == "final_window" and data.epochs > 1:
        yield ("judge", "loss"), f"final_window is held-out for one epoch alone, got data.epochs: {data.epochs}"


def _batches(shapes: Sequence[tuple[KeyPath, Shape]], num_tokens: int) -> Iterator[Problem]:
    """Yield the batches whose tokens a stacked trial would not compute with the bits of a trial alone."""
    seen = set()
    for at, shape in shapes:
        tokens = shape.batch_tokens * num_tokens
        if tokens % BATCH_TOKENS_MULTIPLE and shape.batch_tokens not in seen:
            seen.add(shape.batch_tokens)
            where = ("training", "batch_samples") if shape.batch_tokens == shapes[0][1].batch_tokens else at
            rule = (
                f"batch_samples times the {num_tokens} tokens of a sample must be a multiple of {BATCH_TOKENS_MULTIPLE}"
            )
            yield where, f"{rule}, got {shape.batch_tokens}"
