"""Cases of a check: the path of shapes along an axis, model, data and HPs, and how large a check may be.

The check's own models are small. All experts are active, so that no token changes its experts: such a jump would hide
small updates. Only axes that need inactive experts have some. Branches start at 1/depth of the base, as in the sources,
so that a few blocks are already close to the limit of many. The LRs change features by a good part of their size within
a few steps, and stay in the range where updates add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpxfer.errors import HpxferError, nearest
from hpxfer.host import host_bytes
from hpxfer.plan import stack_bytes
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.muon import kind_of, muon_of
from hpxfer.scaling.regimes import REGIMES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.spec import DIMENSION, Axis, AxisSpec, ShapeChange, SweepSpec, axes_of, data_sizes, model_roles, parse_sweep
from hpxfer.trial import DataRef, base_hps, setting_of

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


# Axes along which features have no slope, because only the schedule changes.
SCHEDULES = ("batch", "duration")
REGIME_AXES = {f"regime-{regime.lower()}": regime for regime in REGIMES}
LEGAL = (*(name for name in DIMENSION if name not in SCHEDULES), "dense_ratio", *REGIME_AXES)
FACTORS = (1, 2, 4, 8)
# Dimension of Shape -> its name in a regime.
REGIME_DIMS = {"width": "width", "expert_width": "expert_width", "num_experts": "experts", "num_active": "active"}

BASE_WIDTH = 32
_EXPERTS = "{width: 32, depth: 2, num_experts: 4, num_active: 4, expert_ratio: 1, head_dim: 16}"
# Base shapes of the axes that need another base than `_EXPERTS`.
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
# Under Muon the exponents of experts change where they are as wide as the model: the path stays on one side of it.
MUON_BASES = {**BASES, "granularity": BASES["granularity"].replace("expert_ratio: 2", "expert_ratio: 8")}
DENSE_BASES = {
    "width": "{width: 32, depth: 2, dense_ratio: 2, head_dim: 16}",
    "depth": "{width: 32, depth: 4, dense_ratio: 2, head_dim: 16}",
    "dense_ratio": BASES["dense_ratio"],
}
# Base shapes of the check's own MLP mixture. Many small experts show whether a sum has independent or common parts.
MLP_BASES = {
    "regime-i": Shape(width=64, depth=1, num_experts=4, num_active=4, expert_width=64),
    "regime-ii": Shape(width=64, depth=1, num_experts=32, num_active=32, expert_width=4),
    "regime-iii": Shape(width=48, depth=1, num_experts=6, num_active=6, expert_width=24),
}
# LRs at the base. For Adam they are the change per entry and step; for SGD they multiply the gradients. That of Muon
# multiplies sqrt(out/in), and is divided by what another scale is for a square matrix of the base.
LR = {"adam": 2.0**-8, "sgd": 0.25, "muon": 0.04}
# The gradients of a squared error move as it falls, so that the family dit takes less of these LRs.
DIT_LR = 0.25
LR_MULTS: dict[Column, dict[str, float]] = {
    "adam": {"embedding": 16, "position": 16},
    "muon": {"embedding": 16, "position": 16},
    "sgd": {
        **dict.fromkeys(("embedding", "position"), 12.0),
        **dict.fromkeys(("attn_q", "attn_k"), 8.0),
        **dict.fromkeys(("expert_in", "expert_out", "shared_in", "shared_out", "dense_in", "dense_out"), 4.0),
        **dict.fromkeys(("router",), 2.0),
        **dict.fromkeys(("attn_v", "attn_out", "norm"), 0.5),
        **dict.fromkeys(("final_norm", "readout"), 0.25),
    },
}
# Modulations and readout of the family dit start at random: from zero it takes some updates until all gradients are
# there. The readout starts small, so that the first error is about that of a guess of zero at every width. Classes do
# little and times are close, so that conditions have much in common, and what is learned of one shows in another.
_MODEL = {
    "gpt": """\
  context: 32
  tied_embeddings: {tied}
  embedding_std: 1.0
  position_std: 0.5
  biases: true
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: 256, steps: 100, validation_tokens: 256, optimizer: "{optimizer}", eps: 1.0e-6}}
""",
    "dit": """\
  dit: {{patch: 4, adaln_init: random, readout_init: random, label_std: 0.25, time_scale: 1}}
data: {{source: "builtin:shapes"}}
training: {{batch_samples: 8, steps: 100, validation_samples: 16, optimizer: "{optimizer}", eps: 1.0e-6}}
""",
}
_SWEEP = """\
name: check
model:
  family: {family}
  base: {base}
  gate: {gate}
{model}\
parameterizations: [sp]
axes: {{width: [32]}}
hps: {{residual_scale: {residual_scale}, router_bias_lr: 0{adamw_lr}{hps}}}
grid: {{lr: [{lr}]}}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is checked along an axis: a path of shapes that starts at the base, and the model, data and HPs to use."""

    spec: SweepSpec
    hps: HPs
    axis: Axis
    notes: tuple[str, ...] = ()


def own_case(
    choice: Parameterization,
    optimizer: Column,
    axis: str,
    points: Sequence[float] | None,
    *,
    dense: bool,
    architecture: str = "gpt",
) -> Case:
    """Return the case of a table along an axis, for a check without a sweep. A `dense` table has no expert rows."""
    _require_axis(axis, LEGAL)
    if dense and axis not in DENSE_BASES:
        raise HpxferError(f"--axis {axis}: {choice.name} is for dense models; legal: {', '.join(DENSE_BASES)}")
    kind, muon = kind_of(optimizer), muon_of(optimizer)
    is_dit = architecture == "dit"
    tied = "true" if dict(choice.conventions).get("embeddings") == "tied" else "false"
    text = _SWEEP.format(
        family=architecture,
        model=_MODEL[architecture].format(tied=tied, optimizer="adamw" if kind == "adam" else optimizer),
        base=DENSE_BASES[axis] if dense else (BASES if muon is None else MUON_BASES).get(axis, _EXPERTS),
        gate="normalized_sigmoid" if choice.table.normalized_gate else "sigmoid",
        hps=", multipliers: {readout.init_mult: 0.25}" if is_dit else "",
        residual_scale=0.25 if axis == "depth" else 0.5,
        lr=LR[kind] * (DIT_LR if is_dit else 1.0) / (1.0 if muon is None else muon.factor(BASE_WIDTH, BASE_WIDTH)),
        adamw_lr="" if muon is None else f", adamw_lr: {LR['adam']}",
    )
    spec = parse_sweep(text, "the check's own sweep")
    hps, roles = base_hps(spec), model_roles(spec.base_shape, spec.model)
    for role, factor in LR_MULTS[kind].items():
        if role in roles:
            hps = hps.with_value(f"{role}.lr_mult", factor)
    return Case(spec=spec, hps=hps, axis=_axis(spec, axis, _axis_spec(spec, axis, points)))


def sweep_case(spec: SweepSpec, axis: str, points: Sequence[float] | None) -> Case:
    """Return the case of a sweep along an axis. Without `points` it has the sweep's own shapes, if it has the axis.

    If the sweep scans its LR, the case uses the middle of its grid.
    """
    _require_axis(axis, (*LEGAL, *spec.axes))
    hps = base_hps(spec)
    notes: tuple[str, ...] = ()
    if spec.hps.lr is None:
        values = spec.grid["lr"].numbers()
        hps = hps.with_value("lr", values[len(values) // 2])
        notes = (f"the sweep scans lr and names no base value: checked at {hps.lr:g}",)
    moved = spec.axes[axis] if axis in spec.axes and points is None else _axis_spec(spec, axis, points)
    return Case(spec=spec, hps=hps, axis=_axis(spec, axis, moved), notes=notes)


def own_axes(choice: Parameterization, optimizer: Column, architecture: str = "gpt") -> tuple[str, ...]:
    """Return the axes of a table that change the model's shape, without those that other axes imply."""
    table = choice.table
    if architecture == "mlp":
        return (f"regime-{(table.regime or 'I').lower()}",)
    if table.regime:
        return (f"regime-{table.regime.lower()}", *(("depth",) if table.covers("depth", optimizer) else ()))
    named = (*table.axes, *(table.adam_axes if optimizer == "adam" else ()))
    # At a fixed share of active experts, the axis `experts` changes their number too.
    implied = ("active",) if "kappa" in table.fixed else ()
    return tuple(axis for axis in named if axis in LEGAL and axis not in implied)


def sweep_axes(spec: SweepSpec) -> tuple[str, ...]:
    """Return the axes of a sweep that change the model's shape."""
    return tuple(name for name in spec.axes if name not in SCHEDULES)


def _require_axis(axis: str, legal: Iterable[str]) -> None:
    if axis in SCHEDULES:
        raise HpxferError(
            f"--axis {axis}: features have no slope along it: it leaves the model's shape as it is; leave it out"
        )
    if axis not in legal:
        raise HpxferError(f"--axis: unknown axis {axis!r}; {nearest(axis, legal)}")


def _axis(spec: SweepSpec, axis: str, moved: AxisSpec) -> Axis:
    """Return the shapes along an axis, the base among them. Raise HpxferError if no model can have one of them."""
    try:
        found = axes_of(spec.model_copy(update={"axes": {axis: moved}}))[0]
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


def _axis_spec(spec: SweepSpec, axis: str, points: Sequence[float] | None) -> AxisSpec:
    base = spec.base_shape
    if axis in REGIME_AXES:
        factors = FACTORS if points is None else [width / base.width for width in points]
        grown = (_regime(base, REGIME_AXES[axis], factor) for factor in factors)
        return AxisSpec(shapes=tuple(ShapeChange(**dims) for dims in grown))
    if axis == "dense_ratio":
        ratios = [base.dense_ratio * factor for factor in FACTORS] if points is None else points
        return AxisSpec(shapes=tuple(ShapeChange(dense_ratio=ratio) for ratio in ratios))
    start = getattr(base, DIMENSION[axis])
    values = tuple(start * factor for factor in FACTORS) if points is None else tuple(points)
    return AxisSpec(values=tuple(float(value) for value in values))


def _regime(base: Shape, regime: str, factor: float) -> dict[str, Any]:
    """Return the dimensions on a regime's path at `factor` times the width of the base."""
    changed = {}
    for dim, name in REGIME_DIMS.items():
        value = getattr(base, dim) * (factor if name in REGIMES[regime] else 1)
        if value < 1 or not math.isclose(value, round(value), rel_tol=1e-9):
            raise HpxferError(f"--points: {dim} must be a whole number, got {value:g} at width {base.width * factor:g}")
        changed[dim] = round(value)
    return changed


def mlp_path(axis: str, points: Sequence[float] | None) -> tuple[Shape, ...]:
    """Return the shapes of the check's own MLP mixture along a regime. `points` are widths."""
    if axis not in MLP_BASES:
        raise HpxferError(f"--axis: mlp is checked along a regime, got {axis!r}; {nearest(axis, MLP_BASES)}")
    base = MLP_BASES[axis]
    factors = FACTORS if points is None else [width / base.width for width in points]
    if len(set(factors)) < len(FACTORS):
        raise HpxferError(f"--points: a slope needs at least {len(FACTORS)} widths, got {len(set(factors))}")
    return tuple(replace(base, **_regime(base, REGIME_AXES[axis], factor)) for factor in sorted(factors))
