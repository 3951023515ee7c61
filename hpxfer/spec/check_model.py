"""Rules on the options of the model, and on the keys beside the model that its family reads.

Trials that differ in an option without effect would differ in nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpxfer.registry import registry, rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec import presets
from hpxfer.spec.axes import entries
from hpxfer.spec.check_trainer import trainer_problems
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import Balance, GPTModel, UserModel
from hpxfer.spec.sweep import Length, ShapeChange, SweepSpec
from hpxfer.spec.yaml_file import KeyPath

KeyedShape = tuple[KeyPath, Shape]
# The features that a share may miss a whole number by. A third of 96 features, written with six digits, misses by 3e-5.
_ROUNDING = 1e-3


def model_problems(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield every broken rule. `shapes` are those of the sweep, none if they are broken themselves."""
    model = spec.model
    yield from _balance(model.balance, model.gate)
    if isinstance(model, GPTModel):
        yield from _options(model)
        yield from _groups(model.top_groups, shapes)
        if shapes:
            yield from _without_effect(model, [shape for _, shape in shapes])


def _options(model: GPTModel) -> Iterator[Problem]:
    """Yield the options that are not at their default, although only another option reads them."""
    for key, names, readers in presets.READ_WITH:
        for name in names if (found := getattr(model, key)) not in readers else ():
            if getattr(model, name) != GPTModel.model_fields[name].default:
                yield ("model", name), f"goes with {key}: {' or '.join(readers)}, got it with {key}: {found}"
    rotated = model.base.head_dim * model.rope_share
    if model.positions == "rope" and abs(rotated - max(2, 2 * round(rotated / 2))) > _ROUNDING:
        rule = f"must rotate an even number of the {model.base.head_dim} features of a head"
        yield ("model", "rope_share"), f"{rule}, got {rotated:g}"
    if model.qkv_biases and model.biases:
        yield ("model", "qkv_biases"), "has no effect: biases gives all matrices a bias, these too"


def _balance(balance: Balance, gate: str) -> Iterator[Problem]:
    at, gates = ("model", "balance"), registry("gate")
    if balance.aux in ("none", "sequence") and balance.load != "batch":
        yield (*at, "load"), f"goes with a loss over the loads of a whole batch, got it with aux: {balance.aux}"
    if balance.aux != "none" and gate in gates and not gates.get(gate).probabilities:
        rule = "goes with a gate whose scores are probabilities up to a factor"
        yield (*at, "aux"), f"{rule}, got {balance.aux} with the gate {gate}"


def _groups(best: int | None, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield the shapes whose active experts cannot be chosen in their groups, or the base alone if it is one."""
    found = [(at, why) for at, shape in shapes if (why := _groups_problem(best, shape))]
    yield from found[:1] if found and found[0][0] == shapes[0][0] else found


def _groups_problem(best: int | None, shape: Shape) -> str | None:
    groups, active, size = shape.num_groups, shape.num_active, shape.num_experts // shape.num_groups
    if best is None:
        wrong = f"num_active must be a multiple of num_groups {groups}, got {active}; or give model.top_groups"
        return wrong if active % groups else None
    if best >= groups:
        return f"num_groups must be above model.top_groups {best}, got {groups}"
    if size < 2:
        return f"a group must hold at least 2 experts with model.top_groups, got {size}"
    wrong = f"num_active must be at most {best * size}, the experts of {best} groups of {size}, got {active}"
    return wrong if active > best * size else None


_OF_EXPERTS = ("moe_every", "dense_first", "ties", "top_groups", "route_scale", "balance", "learned_router_bias")


def _without_effect(model: GPTModel, shapes: Sequence[Shape]) -> Iterator[Problem]:
    """Yield the options of a part of the model that no shape has, but for those that come with the preset."""
    of_preset = presets.resolved({"like": model.like})
    if "balance" in of_preset:
        of_preset["balance"] = Balance(**of_preset["balance"])
    for part, count, names in (
        ("experts", "num_experts", _OF_EXPERTS),
        ("shared experts", "num_shared", ("shared_expert_gate",)),
    ):
        for name in () if any(getattr(shape, count) for shape in shapes) else names:
            if getattr(model, name) not in (GPTModel.model_fields[name].default, of_preset.get(name)):
                yield ("model", name), f"has no effect: no shape of this sweep has {part}"


def family_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every key beside the model that its family needs and does not get, or gets and does not read."""
    model, family = spec.model, rows_of("family").get(spec.model.family)
    if isinstance(model, UserModel) and spec.trainer is None:
        yield ("trainer",), f"must be given with model.family: {model.family}: what trains its models"
        return
    reads = "" if family.data == model.family else f", which reads {family.data}"
    yield from ((path, f"has no effect in the family {model.family}{reads}") for path in _unread(spec, family))
    if isinstance(model, UserModel) and spec.trainer is not None:
        yield from trainer_problems(spec, model, spec.trainer)
    else:
        for key in (f"batch_{family.data}", f"validation_{family.data}"):
            if getattr(spec.training, key) is None:
                yield ("training", key), "must be given"
    # `auto` may stand for either precision, by the device that will train.
    legal = (*family.precisions, *(("auto",) if len(family.precisions) > 1 else ()))
    if spec.precision not in legal:
        yield ("precision",), f"must be {' or '.join(legal)} in the family {family.name}, got {spec.precision}"


def _unread(spec: SweepSpec, family: Any) -> Iterator[KeyPath]:
    """Yield the keys beside the model that are not at their default, although the family does not read them."""
    for dotted in spec.model.unread:
        *above, key = dotted.split(".")
        section = getattr(spec, above[0]) if above else spec
        if getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True):
            yield (*above, key)
    for name, axis in spec.axes.items():
        if axis.scale is not None and family.data != "user":
            yield "axes", name, "scale"
        for below, entry in entries(axis):
            for key in spec.model.unread_of_point if isinstance(entry, ShapeChange) else ():
                if getattr(entry, key) is not None:
                    yield "axes", name, *below, key
    for key in ("warmup", "decay_length") if family.data == "samples" else ():
        length = getattr(spec.training.schedule, key)
        if isinstance(length, Length) and length.tokens is not None:
            yield "training", "schedule", key
