"""Rules on the keys that a family reads: those of tokens or of samples, and the parts of a model that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from hpxfer.errors import nearest
from hpxfer.registry import rows_of
from hpxfer.spec import presets
from hpxfer.spec.axes import entries
from hpxfer.spec.check_trainer import trainer_problems
from hpxfer.spec.model_section import BalanceSpec, MLPSpec, ModelSpec, ShapeSpec
from hpxfer.spec.own import USER
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import Length, ShapeChange, SweepSpec

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
