"""Precision: `precision: auto` as a value. It is decided once, before any trial has an id, as it is part of the ids."""

from __future__ import annotations

from hpxfer.spec.sweep import SweepSpec

AUTO = "auto"


def precision_on(*, cuda: bool) -> str:
    """Return the precision that `auto` stands for on a device: bfloat16 on CUDA, where it is faster, else float32."""
    return "bfloat16" if cuda else "float32"


def decided(spec: SweepSpec, *, cuda: bool) -> SweepSpec:
    """Return the sweep with the precision of a device in place of `auto`. A sweep that names one keeps it."""
    return with_precision(spec, precision_on(cuda=cuda)) if spec.precision == AUTO else spec


def with_precision(spec: SweepSpec, precision: str) -> SweepSpec:
    """Return the sweep with this precision."""
    return spec.model_copy(update={"precision": precision})
