"""Paths of a check: the shapes along an axis, and the model, data and HPs that they are checked with.

The check's own models are small and soft: all experts are active, so that no token changes its experts, which would
hide small updates behind jumps. Where an axis needs experts that rest, some do. Branches start at 1/depth of the base,
as in the sources, so that the limit of great depth is near; step sizes move features by a good part of their size
within a few steps, without leaving the range where they add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpxfer.errors import HpxferError, nearest
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.regimes import REGIMES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Optimizer
from hpxfer.spec import Path, SweepSpec, parse_sweep, paths
from hpxfer.spec.axes import DIMENSION
from hpxfer.spec.blocks import model_roles
from hpxfer.spec.sweep import AxisSpec, ShapeChange
from hpxfer.trial import base_hps

# Axes along which features have no slope: nothing but the schedule moves.
SCHEDULES = ("batch", "duration")
REGIME_AXES = {f"regime-{regime.lower()}": regime for regime in REGIMES}
LEGAL = (*(name for name in DIMENSION if name not in SCHEDULES), "dense_ratio", *REGIME_AXES)
FACTORS = (1, 2, 4, 8)
# Dimension of Shape -> what a regime calls it.
REGIME_DIMS = {"width": "width", "expert_width": "expert_width", "num_experts": "experts", "num_active": "active"}

_EXPERTS = "{width: 32, depth: 2, num_experts: 4, num_active: 4, expert_ratio: 1, head_dim: 16}"
# Base shapes of the axes that another one suits better.
BASES = {
    "depth": "{width: 32, depth: 4, num_experts: 4, num_active: 4, expert_ratio: 1, head_dim: 16}",
    "active": "{width: 32, depth: 2, num_experts: 16, num_active: 2, expert_ratio: 1, head_dim: 16}",
    "capacity": "{width: 32, depth: 2, num_experts: 2, num_active: 2, expert_ratio: 1, head_dim: 16}",
    "granularity": "{width: 32, depth: 2, num_experts: 4, num_active: 4, expert_ratio: 2, head_dim: 16}",
    "shared": "{width: 32, depth: 2, num_experts: 4, num_active: 4, expert_ratio: 1, head_dim: 16, "
    "num_shared: 1, shared_ratio: 1}",
    "groups": "{width: 32, depth: 2, num_experts: 16, num_active: 8, expert_ratio: 1, head_dim: 16}",
    "dense_ratio": "{width: 32, depth: 2, dense_ratio: 1, head_dim: 16}",
}
DENSE_BASES = {
    "width": "{width: 32, depth: 2, dense_ratio: 2, head_dim: 16}",
    "depth": "{width: 32, depth: 4, dense_ratio: 2, head_dim: 16}",
    "dense_ratio": BASES["dense_ratio"],
}
# Of the MLP block; large numbers of small experts tell sums of independent from sums of common parts.
BLOCK_BASES = {
    "regime-i": Shape(width=64, depth=1, num_experts=4, num_active=4, expert_width=64, head_dim=1),
    "regime-ii": Shape(width=64, depth=1, num_experts=32, num_active=32, expert_width=4, head_dim=1),
    "regime-iii": Shape(width=48, depth=1, num_experts=6, num_active=6, expert_width=24, head_dim=1),
}
# Step sizes at the base, an entry and a step: LRs for Adam, for SGD against its gradients.
LR = {"adam": 2.0**-8, "sgd": 0.25}
LR_MULTS: dict[Optimizer, dict[str, float]] = {
    "adam": {"embedding": 16, "position": 16},
    "sgd": {
        **dict.fromkeys(("embedding", "position"), 12.0),
        **dict.fromkeys(("attn_q", "attn_k"), 8.0),
        **dict.fromkeys(("expert_in", "expert_out", "shared_in", "shared_out", "dense_in", "dense_out"), 4.0),
        **dict.fromkeys(("router",), 2.0),
        **dict.fromkeys(("attn_v", "attn_out", "norm"), 0.5),
        **dict.fromkeys(("final_norm", "readout"), 0.25),
    },
}
_SWEEP = """\
name: check
model:
  family: gpt
  base: {base}
  context: 32
  gate: {gate}
  tied_embeddings: {tied}
  embedding_std: 1.0
  position_std: 0.5
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: 256, steps: 100, validation_tokens: 256, optimizer: {optimizer}, eps: 1.0e-6}}
parameterizations: [sp]
axes: {{width: [32]}}
hps: {{residual_scale: {residual_scale}, router_bias_lr: 0}}
grid: {{lr: [{lr}]}}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is checked along one axis: a path of shapes, the base first, and the model, data and HPs to do it with."""

    spec: SweepSpec
    hps: HPs
    path: Path
    notes: tuple[str, ...] = ()


def own_case(
    choice: Parameterization, optimizer: Optimizer, axis: str, points: Sequence[float] | None, *, dense: bool
) -> Case:
    """Return what a table is checked with along an axis, if the user brings no sweep; `dense`: it knows no experts."""
    _require_axis(axis, LEGAL)
    if dense and axis not in DENSE_BASES:
        raise HpxferError(f"--axis {axis}: {choice.name} is for dense models; legal: {', '.join(DENSE_BASES)}")
    text = _SWEEP.format(
        base=DENSE_BASES[axis] if dense else BASES.get(axis, _EXPERTS),
        gate="normalized_sigmoid" if choice.table.normalized_gate else "sigmoid",
        tied="true" if dict(choice.conventions).get("embeddings") == "tied" else "false",
        optimizer="sgd" if optimizer == "sgd" else "adamw",
        residual_scale=0.25 if axis == "depth" else 0.5,
        lr=LR[optimizer],
    )
    spec = parse_sweep(text, "the check's own sweep")
    hps, roles = base_hps(spec), model_roles(spec.base_shape, spec.model)
    for role, factor in LR_MULTS[optimizer].items():
        if role in roles:
            hps = hps.with_value(f"{role}.lr_mult", factor)
    return Case(spec=spec, hps=hps, path=_path(spec, axis, _axis(spec, axis, points)))


def sweep_case(spec: SweepSpec, axis: str, points: Sequence[float] | None) -> Case:
    """Return a user's model, data and HPs along an axis; without `points`, the sweep's own shapes, if it has the axis.

    If the sweep scans its LR, the middle of its grid stands for it.
    """
    _require_axis(axis, (*LEGAL, *spec.axes))
    hps = base_hps(spec)
    notes: tuple[str, ...] = ()
    if spec.hps.lr is None:
        values = spec.grid["lr"].numbers()
        hps = hps.with_value("lr", values[len(values) // 2])
        notes = (f"the sweep scans lr and names no base value: checked at {hps.lr:g}",)
    moved = spec.axes[axis] if axis in spec.axes and points is None else _axis(spec, axis, points)
    return Case(spec=spec, hps=hps, path=_path(spec, axis, moved), notes=notes)


def own_axes(choice: Parameterization, optimizer: Optimizer, architecture: str = "gpt") -> tuple[str, ...]:
    """Return the axes of a table that move the model's shape, without those that the others imply."""
    table = choice.table
    if architecture == "block":
        return (f"regime-{(table.regime or 'I').lower()}",)
    if table.regime:
        return (f"regime-{table.regime.lower()}", *(("depth",) if table.covers("depth", optimizer) else ()))
    named = (*table.axes, *(table.adam_axes if optimizer == "adam" else ()))
    # With the share of active experts held, `experts` moves the active ones too.
    implied = ("active",) if "kappa" in table.fixed else ()
    return tuple(axis for axis in named if axis in LEGAL and axis not in implied)


def sweep_axes(spec: SweepSpec) -> tuple[str, ...]:
    """Return the axes of a user's sweep that move the model's shape."""
    return tuple(name for name in spec.axes if name not in SCHEDULES)


def _require_axis(axis: str, legal: Iterable[str]) -> None:
    if axis in SCHEDULES:
        raise HpxferError(f"--axis {axis}: features have no slope along it, only along what moves the model's shape")
    if axis not in legal:
        raise HpxferError(f"--axis: unknown axis {axis!r}; {nearest(axis, legal)}")


def _path(spec: SweepSpec, axis: str, moved: AxisSpec) -> Path:
    """Return the shapes along an axis, the base among them; raise HpxferError where no model can have one."""
    try:
        found = paths(spec.model_copy(update={"axes": {axis: moved}}))[0]
    except HpxferError as error:
        raise HpxferError(f"--axis {axis}: {error}") from None
    if len(found.points) < len(FACTORS):
        raise HpxferError(
            f"--axis {axis}: a slope needs at least {len(FACTORS)} shapes, the base among them, got "
            f"{len(found.points)}; give more with --points"
        )
    scale_name = "width" if axis in REGIME_AXES else "num_shared" if axis == "shared" else None
    if scale_name is None:
        return found
    points = tuple(replace(point, scale=float(getattr(point.shape, scale_name))) for point in found.points)
    return replace(found, scale_name=scale_name, points=points)


def _axis(spec: SweepSpec, axis: str, points: Sequence[float] | None) -> AxisSpec:
    base = spec.base_shape
    if axis in REGIME_AXES:
        factors = FACTORS if points is None else [one / base.width for one in points]
        grown = (_regime(base, REGIME_AXES[axis], one) for one in factors)
        return AxisSpec(shapes=tuple(ShapeChange(**dims) for dims in grown))
    if axis == "dense_ratio":
        ratios = [base.dense_ratio * factor for factor in FACTORS] if points is None else points
        return AxisSpec(shapes=tuple(ShapeChange(dense_ratio=one) for one in ratios))
    start = getattr(base, DIMENSION[axis])
    values = tuple(start * factor for factor in FACTORS) if points is None else tuple(points)
    return AxisSpec(values=tuple(float(one) for one in values))


def _regime(base: Shape, regime: str, factor: float) -> dict[str, int]:
    """Return the dimensions of a regime's path at `factor` times the base's width."""
    changed = {}
    for dim, name in REGIME_DIMS.items():
        value = getattr(base, dim) * (factor if name in REGIMES[regime] else 1)
        if value < 1 or not math.isclose(value, round(value), rel_tol=1e-9):
            raise HpxferError(f"--points: {dim} must be a whole number, got {value:g} at width {base.width * factor:g}")
        changed[dim] = round(value)
    return changed


def block_path(axis: str, points: Sequence[float] | None) -> tuple[Shape, ...]:
    """Return the shapes of the minimal MLP block along a regime, at its sizes in the check; `points` are widths."""
    if axis not in BLOCK_BASES:
        raise HpxferError(f"--axis: the block is checked along a regime, got {axis!r}; {nearest(axis, BLOCK_BASES)}")
    base = BLOCK_BASES[axis]
    factors = FACTORS if points is None else [one / base.width for one in points]
    if len(set(factors)) < len(FACTORS):
        raise HpxferError(f"--points: a slope needs at least {len(FACTORS)} widths, got {len(set(factors))}")
    return tuple(replace(base, **_regime(base, REGIME_AXES[axis], factor)) for factor in sorted(factors))
