"""Tuned on: what a recipe states about its base model and its training, and how a target differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.registry import rows_of
from hpxfer.spec.recipe_parts import OWN, own_roles

if TYPE_CHECKING:
    from hpxfer.scaling.shape import Shape
    from hpxfer.spec.recipe_file import RecipeFile
    from hpxfer.spec.sweep import ScheduleSpec

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
