"""Rules on the keys that a family reads: those of tokens or of samples, and the parts of a model that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hpxfer.errors import nearest
from hpxfer.registry import registry
from hpxfer.spec import presets
from hpxfer.spec.axes import entries
from hpxfer.spec.check_trainer import OF_USER, trainer_problems, without_trainer
from hpxfer.spec.model_section import BalanceSpec, MLPSpec, ModelSpec, ShapeSpec
from hpxfer.spec.own import USER
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import Length, ShapeChange, SweepSpec
from hpxfer.spec.yaml_file import KeyPath

# Keys of `training` in a family that reads tokens -> those that stand in their place where it reads samples.
_OF_TOKENS = {
    "batch_tokens": "batch_samples",
    "validation_tokens": "validation_samples",
    "tokens": "steps",
    "accumulation_tokens": None,
}
_REQUIRED = {
    "tokens": ("batch_tokens", "validation_tokens"),
    "samples": ("batch_samples", "validation_samples"),
}


def family_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every key that the sweep's family needs and does not get, or gets and does not read."""
    if spec.model.family == USER:
        yield from trainer_problems(spec)
        return
    yield from without_trainer(spec)
    family = registry("family").get(spec.model.family)
    of_tokens = family.data == "tokens"
    own = _REQUIRED[family.data]
    for key in own:
        if getattr(spec.training, key) is None:
            yield ("training", key), "must be given"
    yield from _other_data(spec, of_tokens, family.name)
    for at, change in _points(spec):
        key = "batch_samples" if of_tokens else "batch_tokens"
        if getattr(change, key) is not None:
            yield (*at, key), _of_other(of_tokens, family.name, "batch_tokens" if of_tokens else "batch_samples")
    if of_tokens:
        if spec.model.context is None:
            yield ("model", "context"), "must be given"
        if spec.model.base.head_dim is None:
            yield ("model", "base", "head_dim"), "must be given"
    base = spec.model.base
    if family.base_keys is not None and "dense_width" not in family.base_keys and base.num_experts is None:
        yield ("model", "base"), "must give num_experts, num_active and expert_width or expert_ratio"
    yield from _unread(spec, family)
    # `auto` may stand for either precision, by the device that will train.
    legal = (*family.precisions, *(("auto",) if len(family.precisions) > 1 else ()))
    if spec.precision not in legal:
        yield ("precision",), f"must be {' or '.join(legal)} in the family {family.name}, got {spec.precision}"


def _points(spec: SweepSpec) -> Iterator[tuple[KeyPath, ShapeChange]]:
    for name, axis in spec.axes.items():
        for below, entry in entries(axis):
            if isinstance(entry, ShapeChange):
                yield ("axes", name, *below), entry


def _of_other(of_tokens: bool, family: str, instead: str | None) -> str:
    reads, other = ("tokens", "samples") if of_tokens else ("samples", "tokens")
    fix = f"write {instead}" if instead else "take it out"
    return f"goes with {other}, and the family {family} reads {reads}; {fix}"


def _other_data(spec: SweepSpec, of_tokens: bool, family: str) -> Iterator[Problem]:
    """Yield the keys of tokens in a family that reads samples, and the reverse."""
    training = spec.training
    of_samples = {new: old for old, new in _OF_TOKENS.items() if new in _REQUIRED["samples"]}
    wrong: Mapping[Any, Any] = of_samples if of_tokens else _OF_TOKENS
    for key, instead in wrong.items():
        if getattr(training, key) is not None:
            yield ("training", key), _of_other(of_tokens, family, instead)
    if of_tokens:
        return
    if training.accumulation_lanes > 1:
        yield ("training", "accumulation_lanes"), _of_other(False, family, None)
    if spec.resources.micro_batch_tokens is not None:
        yield ("resources", "micro_batch_tokens"), _of_other(False, family, None)
    for key in ("warmup", "decay_length"):
        length = getattr(training.schedule, key)
        if isinstance(length, Length) and length.tokens is not None:
            yield ("training", "schedule", key), _of_other(False, family, "a number of steps or a fraction")


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
    for name in (key for key in keys if key not in OF_USER):  # `without_trainer` names those
        default = defaults.get(name, ModelSpec.model_fields[name].default)
        if is_given(model, name, default):
            read = [key for key in ModelSpec.model_fields if key not in (*unread["model"], "family", "base")]
            yield ("model", name), f"has no effect in the family {family.name}; {nearest(name, read)}"
    for name in unread["base"]:
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
        ["mlp", *OF_USER] if family.model_keys is None else _without(ModelSpec, (*family.model_keys, "family", "base"))
    )
    return {"model": model, "base": [] if family.base_keys is None else _without(ShapeSpec, family.base_keys)}


def _without(section: Any, keys: Collection[str]) -> list[str]:
    return [name for name in section.model_fields if name not in keys]
