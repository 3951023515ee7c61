"""Rules on the options of the model: those that contradict each other, and those that would have no effect.

Trials that differ in an option without effect would differ in nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape
from hpxfer.spec import presets
from hpxfer.spec.model_section import BalanceSpec, ModelSpec
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath

KeyedShape = tuple[KeyPath, Shape]
# The features that a share may miss a whole number by. A third of 96 features, written with six digits, misses by 3e-5.
_ROUNDING = 1e-3


def model_problems(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield every broken rule. `shapes` are those of the sweep, none if they are broken themselves."""
    model = spec.model
    yield from _positions(model)
    yield from _norms(model)
    if model.qkv_biases and model.biases:
        yield (
            ("model", "qkv_biases"),
            "has no effect: biases gives all matrices a bias, these too; take one of them out",
        )
    yield from _balance(model)
    yield from _groups(model, shapes)
    if shapes:
        yield from _without_effect(model, [shape for _, shape in shapes])


def _positions(model: ModelSpec) -> Iterator[Problem]:
    head_dim = model.base.head_dim or 0
    rotated = head_dim * model.rope_share
    if model.positions != "rope":
        yield from _goes_with(model, ("rope_theta", "rope_share"), "positions: rope", f"positions: {model.positions}")
    elif abs(rotated - max(2, 2 * round(rotated / 2))) > _ROUNDING:
        yield (
            ("model", "rope_share"),
            f"must rotate an even number of the {head_dim} features of a head, got {rotated:g}",
        )
    if model.positions != "learned":
        yield from _goes_with(model, ("position_std",), "positions: learned", f"positions: {model.positions}")


def _norms(model: ModelSpec) -> Iterator[Problem]:
    if model.qk_norm == "none":
        yield from _goes_with(model, ("qk_norm_kind",), "qk_norm: head or all", "qk_norm: none")


def _balance(model: ModelSpec) -> Iterator[Problem]:
    balance, gates = model.balance, registry("gate")
    at: KeyPath = ("model", "balance")
    if balance.aux == "none":
        if balance.load != "batch":
            yield (*at, "load"), f"goes with a loss, got {balance.load} with aux: none; take it out"
        return
    if balance.aux == "sequence" and balance.load != "batch":
        yield (
            (*at, "load"),
            f"must be batch with aux: sequence, whose loads are those of each sequence, got {balance.load}",
        )
    if model.gate in gates and not gates.get(model.gate).probabilities:
        yield (
            (*at, "aux"),
            f"goes with a gate whose scores are probabilities up to a factor, got {balance.aux} with the gate "
            f"{model.gate}; take aux: none, or another gate",
        )


def _groups(model: ModelSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield the shapes whose active experts cannot be chosen in their groups, or the base alone if it is one."""
    found = [(at, why) for at, shape in shapes if (why := _groups_problem(model.top_groups, shape))]
    yield from found[:1] if found and found[0][0] == shapes[0][0] else found


def _groups_problem(best: int | None, shape: Shape) -> str | None:
    groups, active, size = shape.num_groups, shape.num_active, shape.num_experts // shape.num_groups
    if best is None:
        wrong = f"num_active must be a multiple of num_groups {groups}, got {active}; or give model.top_groups"
        return wrong if active % groups else None
    if best >= groups:
        return f"num_groups must be above model.top_groups {best}, got {groups}; take top_groups out"
    if size < 2:
        return f"a group must hold at least 2 experts with model.top_groups, got {size}; take fewer groups"
    most = best * size
    wrong = f"num_active must be at most {most}, the experts of {best} groups of {size}, got {active}; raise top_groups"
    return wrong if active > most else None


def _goes_with(model: ModelSpec, names: Sequence[str], wanted: str, got: str) -> Iterator[Problem]:
    """Yield the options that are not at their default, although only `wanted` reads them."""
    for name in names:
        if getattr(model, name) != ModelSpec.model_fields[name].default:
            yield ("model", name), f"goes with {wanted}, got it with {got}; take it out"


_NEEDS: dict[str, tuple[str, Callable[[Shape], int]]] = {
    "moe_every": ("experts", lambda shape: shape.num_experts),
    "dense_first": ("experts", lambda shape: shape.num_experts),
    "ties": ("experts", lambda shape: shape.num_experts),
    "top_groups": ("experts", lambda shape: shape.num_experts),
    "route_scale": ("experts", lambda shape: shape.num_experts),
    "balance": ("experts", lambda shape: shape.num_experts),
    "learned_router_bias": ("experts", lambda shape: shape.num_experts),
    "shared_expert_gate": ("shared experts", lambda shape: shape.num_shared),
}


def _without_effect(model: ModelSpec, shapes: Sequence[Shape]) -> Iterator[Problem]:
    """Yield the options of a part of the model that no shape has, but for those that come with the preset."""
    of_preset = presets.resolved({"like": model.like})
    for name, (part, count) in _NEEDS.items():
        value = getattr(model, name)
        if isinstance(value, BalanceSpec) and name in of_preset:
            of_preset[name] = BalanceSpec(**of_preset[name])
        untouched = value in (ModelSpec.model_fields[name].default, of_preset.get(name))
        if not untouched and not any(map(count, shapes)):
            yield ("model", name), f"has no effect: no shape of this sweep has {part}; take it out"
