"""Whether a target follows from the base, lies within what was measured, and is trained as the base was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.recipe.file import OWN, own_roles
from hpxfer.registry import rows_of
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import check_attention
from hpxfer.scaling.table import Column

if TYPE_CHECKING:
    from hpxfer.recipe.file import FittedPart, RecipeFile
    from hpxfer.scaling.shape import Shape
    from hpxfer.spec import ScheduleSpec


# Field of the recipe's `model` -> what people call it. These can be seen in a model, if its modules are common ones.
VISIBLE = {
    "norm": "norm",
    "norm_gains": "gains of the norms",
    "qk_norm": "norms on queries and keys",
    "positions": "positions",
    "ffn": "FFN",
    "gate": "gate",
    "tied_embeddings": "readout",
    "biases": "biases of the matrices",
}
WORDS: dict[str, dict[Any, str]] = {
    "norm": {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "layernorm and rmsnorm": "LayerNorm and RMSNorm"},
    "positions": {"learned": "learned positions", "rope": "rotary positions (RoPE)", "none": "none"},
    "ffn": {"gelu": "GELU without a gate", "relu": "ReLU without a gate", "swiglu": "SwiGLU"},
    "tied_embeddings": {True: "tied to the embedding", False: "a matrix of its own"},
}
SOME = {True: "some", False: "none"}


class OtherModelWarning(UserWarning):
    """The target is another model than the one that the recipe was tuned on, so that its HPs need not be good there."""


@dataclass(frozen=True, kw_only=True)
class TunedOn:
    """How a target compares with what a recipe was tuned on."""

    different: tuple[str, ...]  # one sentence per difference
    unseen: tuple[str, ...]  # what the recipe states and the target does not show

    def warning(self) -> str | None:
        """Return the warning, one block, or None if nothing that can be seen differs."""
        if not self.different:
            return None
        lines = [f"  {line}" for line in (*self.different, *self.notes())]
        rule = "the target is another model than the one that this recipe was tuned on, so that its HPs may not be good"
        return "\n".join([rule, *lines])

    def notes(self) -> tuple[str, ...]:
        return (f"not seen in the target, so compare it yourself: {', '.join(self.unseen)}",) if self.unseen else ()


def compared(file: RecipeFile, target: Shape, seen: Mapping[str, Any], constants: Iterable[str] = ()) -> TunedOn:
    """Return how a target with these facts differs. A fact that the recipe does not know is not compared.

    `constants` are sentences on numbers of the target's config that the recipe does not know.

    Batch and tokens are compared with the fitted range where the target shape gives them.
    """
    known = file.model
    facts = {name: value for name in VISIBLE if (value := getattr(known, name)) is not None}
    if not target.num_experts:
        facts.pop("gate", None)
    different = [
        f"{VISIBLE[name]}: {_spell(name, value)} at the base, {_spell(name, seen[name])} in the target"
        for name, value in facts.items()
        if name in seen and seen[name] != value
    ]
    different += constants
    unseen = [f"{VISIBLE[name]} ({_spell(name, value)})" for name, value in facts.items() if name not in seen]
    given = {"batch": target.batch_tokens, "tokens": target.steps}
    unseen += [f"{name} ({text})" for name, text in training_facts(file).items() if not given.get(name)]
    return TunedOn(different=tuple(different), unseen=tuple(unseen))


def stated(file: RecipeFile) -> dict[str, str]:
    """Return in words what the recipe was tuned on, as far as it is known."""
    if own_roles(file) is not None:
        options = {name: value for name, value in (file.model.options or {}).items() if value is not None}
        own = {name[len(OWN) :].replace("_", " "): str(options[name]) for name in options if name.startswith(OWN)}
        return {"gate": file.model.gate, **own, **training_facts(file)}
    known = file.model
    values = {name: getattr(known, name) for name in VISIBLE}
    facts = {VISIBLE[name]: _spell(name, value) for name, value in values.items() if value is not None}
    return {**facts, "attention scale": known.attention_scale, **training_facts(file)}


def training_facts(file: RecipeFile) -> dict[str, str]:
    """Return in words how the base was trained, which no model shows."""
    out = {"optimizer": file.optimizer}
    if file.model.context:
        out["context"] = f"{file.model.context} tokens"
    unit = rows_of("family").get(file.family).data
    if file.model.moe_every and own_roles(file) is None:
        first = f" above the first {file.model.dense_first}" if file.model.dense_first else ""
        out["blocks with experts"] = (
            f"every one{first}" if file.model.moe_every == 1 else (f"one in {file.model.moe_every}{first}")
        )
    known = file.model
    if known.bias_rule and file.base_shape.get("num_experts"):
        out["balance"] = f"{_bias(known.bias_rule)}, {_loss(known.balance_loss, file.hps.aux_weight)}"
    if training := file.training:
        out["schedule"] = _schedule(training.schedule)
        out["batch"] = f"{training.batch_tokens} {unit}"
        out[unit] = f"{training.batch_tokens * training.steps} in {training.steps} steps"
        out["gradient clipping"] = "none" if training.gradient_clip is None else f"{training.gradient_clip:g}"
        out["precision"] = training.precision
    if file.provenance.tokenizer and unit == "tokens":
        out["tokenizer"] = f"{file.provenance.tokenizer}, {file.provenance.vocab_size} ids"
    return out


def _bias(rule: str) -> str:
    return "no bias" if rule == "none" else f"a bias, {'by its sign' if rule == 'sign' else rule}"


def _loss(loss: str | None, weight: float) -> str:
    return "no loss" if loss in (None, "none") else f"the {loss} loss of weight {weight:g}"


def _schedule(schedule: ScheduleSpec) -> str:
    warmup = f"{schedule.decay} after {schedule.warmup.spell()} of warm-up"
    if schedule.decay_length is not None:
        warmup += f", over the last {schedule.decay_length.spell()}"
    return f"{warmup}, to {schedule.final_fraction:g} of the peak" if schedule.decay != "constant" else warmup


def _spell(name: str, value: Any) -> str:
    return WORDS.get(name, SOME).get(value, str(value))


# The dimensions whose fitted range a recipe holds. Hidden sizes are ratios, because they follow the width.
MODEL_DIMS = (
    *("width", "depth", "num_experts", "num_active", "expert_ratio"),
    *("num_shared", "shared_ratio", "num_groups", "dense_ratio", "head_dim"),
)
SCHEDULE_DIMS = ("batch_tokens", "steps")
DIMS = (*MODEL_DIMS, *SCHEDULE_DIMS)
SAME = 1e-9


class OutOfRangeWarning(UserWarning):
    """The target lies outside the range that the recipe was fitted on, or its HP is not known to transfer there."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a recipe scales: its table, its optimizer's column, its base, and what is known about the model."""

    choice: Parameterization
    optimizer: Column
    base: Shape
    facts: ModelFacts

    def not_covered(self, target: Shape) -> tuple[list[str], list[str]]:
        """Return what the table's source does not cover: of the changes from base to target shape, and of all else.

        Batch and duration are not part of a model's shape, and belong to the second list.
        """

        def warnings(base: Shape, target: Shape) -> list[str]:
            return coverage_warnings(self.choice, base, target, self.facts, self.optimizer)

        bare = replace(target, batch_tokens=0, steps=0)
        unchanged = warnings(bare, bare)
        bare_base = replace(self.base, batch_tokens=0, steps=0)
        changes = [warning for warning in warnings(bare_base, bare) if warning not in unchanged]
        return changes, [warning for warning in warnings(self.base, target) if warning not in changes]


def dim(shape: Shape, name: str) -> float:
    """Return one of DIMS. It is 0 where the shape has no such part or does not give it."""
    return shape.shared_width / (shape.width or 1) if name == "shared_ratio" else float(getattr(shape, name))


def check_covered(rule: Rule, fitted: FittedPart | None, target: Shape) -> None:
    """Raise HpxferError if neither the table's source nor the recipe's sweep covers the changes from base to target.

    A sweep may measure changes that its table's source does not cover. `out_of_range` warns about these.
    """
    if problem := check_attention(rule.base, target):
        raise HpxferError(f"target_shape: {problem}")
    changes, _ = rule.not_covered(target)
    if changes and not _was_measured(rule.base, fitted, target):
        choice, base = rule.choice, rule.base
        raise HpxferError(
            f"target_shape: must be a shape that {choice.label()} leads to from the recipe's base {base.label()}, "
            f"got {target.label()}: {'; '.join(changes)}; take a base that differs from the target in "
            f"{', '.join(choice.table.axes)} only, or a parameterization that covers the rest"
        )


def out_of_range(rule: Rule, fitted: FittedPart | None, target: Shape) -> list[str]:
    """Return in words how `target` lies outside the fitted range and outside what the parameterization covers."""
    base, out = rule.base, []
    moved = _moved(base, target)
    for name, value in moved.items() if fitted else ():
        low, high = _range(base, fitted, name)
        if value and not _inside(value, low, high):  # 0 means that there is no such layer
            where = f"from {low:g} to {high:g}" if low != high else f"at {low:g} only" if low else "without it"
            out.append(f"{name} {value:g}: fitted {where}")
    for axis_name, axis in fitted.axes.items() if fitted else ():
        if fitted and axis.verdict != "transfers" and moved.keys() & axis.dims.keys():
            out.append(f"{fitted.hp} along the axis {axis_name}: the verdict is {shown(axis.verdict)}")
    changes, others = rule.not_covered(target)
    return [*out, *changes, *others]


def _moved(base: Shape, target: Shape) -> dict[str, float]:
    """Return the dimensions in which the target differs from the base, as far as both give them."""
    out = {}
    for name in DIMS:
        old, new = dim(base, name), dim(target, name)
        unknown = name in SCHEDULE_DIMS and not (old and new)
        if not unknown and abs(new - old) > SAME * old:
            out[name] = new
    return out


def _range(base: Shape, fitted: FittedPart | None, name: str) -> tuple[float, float]:
    ends = [end for axis in (fitted.axes.values() if fitted else ()) for end in axis.dims.get(name, ())]
    return min([dim(base, name), *ends]), max([dim(base, name), *ends])


def _was_measured(base: Shape, fitted: FittedPart | None, target: Shape) -> bool:
    """Return whether each dimension of the model that differs stays within the range of the recipe's sweep."""
    moved = _moved(base, target)
    return all(_inside(moved[name], *_range(base, fitted, name)) for name in MODEL_DIMS if name in moved)


def _inside(value: float, low: float, high: float) -> bool:
    return low * (1 - SAME) <= value <= high * (1 + SAME)


def check_embeddings(rule: Rule, tied: bool | None) -> None:
    """Raise HpxferError if the conventions do not suit a model whose embeddings are tied, or are not tied."""
    base = rule.base

    def warnings(tied: bool | None) -> list[str]:
        facts = replace(rule.facts, tied_embeddings=tied)
        return coverage_warnings(rule.choice, base, base, facts, rule.optimizer)

    if wrong := [warning for warning in warnings(tied) if warning not in warnings(None)]:
        raise HpxferError("\n".join(f"roles: {warning}" for warning in wrong))
