"""Rules on the options of the model and on the keys that its family reads.

Trials that differ in an option without effect would differ in nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from hpxfer.errors import nearest
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec import presets
from hpxfer.spec.axes import entries
from hpxfer.spec.check_trainer import trainer_problems
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import BalanceSpec, MLPSpec, ModelSpec, ShapeSpec
from hpxfer.spec.own import USER
from hpxfer.spec.sweep import Length, ShapeChange, SweepSpec
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


_OF_TRAINER = (("trainer",), *(("resources", key) for key in ("gpus_per_trial", "gpus_per_node", "nodes_per_trial")))
_OF_STACKS = ("gpus_per_stack", "stack_size", "micro_batch_tokens", "kernels", "recompute", "checkpoint_s", "keep")
# What a family reads -> the keys beside the model that it does not read.
_UNREAD: dict[str, tuple[tuple[str, ...], ...]] = {
    "tokens": (*_OF_TRAINER, ("training", "batch_samples"), ("training", "validation_samples")),
    "samples": (
        *_OF_TRAINER,
        *(("training", key) for key in ("batch_tokens", "validation_tokens", "tokens")),
        *(("training", key) for key in ("accumulation_tokens", "accumulation_lanes")),
        ("resources", "micro_batch_tokens"),
    ),
    USER: (
        *(("training", key) for key in ("validation_tokens", "validation_samples", "determinism")),
        *(("training", key) for key in ("accumulation_tokens", "accumulation_lanes")),
        *(("precision",), ("early_stopping", "asha"), ("resources", "loggers")),
        *(("resources", key) for key in _OF_STACKS),
    ),
}
_READ_OF_POINT = ("own", "batch_tokens", "batch_samples", "steps", "schedule")  # by a user's own trainer
# What a family reads -> the keys of a point that it does not read.
_UNREAD_OF_POINT = {
    "tokens": ("batch_samples", "own"),
    "samples": ("batch_tokens", "own"),
    USER: tuple(key for key in ShapeChange.model_fields if key not in _READ_OF_POINT),
}
_REQUIRED = {
    "tokens": ("batch_tokens", "validation_tokens"),
    "samples": ("batch_samples", "validation_samples"),
}


def family_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every key that the sweep's family needs and does not get, or gets and does not read."""
    family = rows_of("family").get(spec.model.family)
    if spec.model.family == USER and spec.trainer is None:
        yield ("trainer",), f"must be given with model.family: {USER}: what trains its models"
        return
    yield from _unread_keys(spec, family)
    yield from _unread(spec, family)
    if spec.model.family == USER:
        yield from trainer_problems(spec)
        return
    for key in _REQUIRED[family.data]:
        if getattr(spec.training, key) is None:
            yield ("training", key), "must be given"
    if family.data == "tokens" and spec.model.context is None:
        yield ("model", "context"), "must be given"
    if family.data == "tokens" and spec.model.base.head_dim is None:
        yield ("model", "base", "head_dim"), "must be given"
    if family.base_keys is not None and "dense_width" not in family.base_keys and spec.model.base.num_experts is None:
        yield ("model", "base"), "must give num_experts, num_active and expert_width or expert_ratio"
    # `auto` may stand for either precision, by the device that will train.
    legal = (*family.precisions, *(("auto",) if len(family.precisions) > 1 else ()))
    if spec.precision not in legal:
        yield ("precision",), f"must be {' or '.join(legal)} in the family {family.name}, got {spec.precision}"


def _unread_keys(spec: SweepSpec, family: Any) -> Iterator[Problem]:
    """Yield the keys beside the model that are not at their default, although the family does not read them."""
    why = f"has no effect in the family {family.name}" + ("" if family.data == USER else f", which reads {family.data}")
    for *above, key in _UNREAD[family.data]:
        section = getattr(spec, above[0]) if above else spec
        if getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True):
            yield (*above, key), why
    for name, axis in spec.axes.items():
        if axis.scale is not None and family.data != USER:
            yield ("axes", name, "scale"), why
        for below, entry in entries(axis):
            for key in _UNREAD_OF_POINT[family.data] if isinstance(entry, ShapeChange) else ():
                if getattr(entry, key) is not None:
                    yield ("axes", name, *below, key), why
    for key in ("warmup", "decay_length") if family.data == "samples" else ():
        length = getattr(spec.training.schedule, key)
        if isinstance(length, Length) and length.tokens is not None:
            yield ("training", "schedule", key), why


def _unread(spec: SweepSpec, family: Any) -> Iterator[Problem]:
    """Yield the keys of the model that the file gives and the family does not read, at their default too."""
    model, defaults = spec.model, presets.of_family(family.name)
    unread = unread_keys(family)

    def is_given(section: Any, name: str, default: Any) -> bool:
        value = getattr(section, name)
        if isinstance(value, BalanceSpec | MLPSpec) and isinstance(default, dict):
            default = type(value)(**default)
        return value != default or name in section.model_fields_set

    # A preset fills in keys that the file does not give.
    keys = ["like"] if model.like is not None and "like" in unread["model"] else unread["model"]
    for name in keys:
        default = defaults.get(name, ModelSpec.model_fields[name].default)
        if is_given(model, name, default):
            read = [key for key in ModelSpec.model_fields if key not in (*unread["model"], "family", "base")]
            yield ("model", name), f"has no effect in the family {family.name}; {nearest(name, read)}"
    for name in unread["base"] if family.data != USER else ():  # whose base stands for `own`
        if is_given(model.base, name, ShapeSpec.model_fields[name].default):
            yield (
                ("model", "base", name),
                f"has no effect in the family {family.name}; {nearest(name, family.base_keys)}",
            )


def unread_keys(family: Any) -> dict[str, list[str]]:
    """Return the keys of the section `model`, and of its `base`, that a family does not read.

    `family` is its row.
    """
    model = (
        ["mlp", "own", "dims"]
        if family.model_keys is None
        else _without(ModelSpec, (*family.model_keys, "family", "base"))
    )
    return {"model": model, "base": [] if family.base_keys is None else _without(ShapeSpec, family.base_keys)}


def _without(section: Any, keys: Collection[str]) -> list[str]:
    return [name for name in section.model_fields if name not in keys]
