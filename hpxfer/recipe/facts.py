"""Facts: what a recipe states of the model and the training of its sweep, in data and in words.

A recipe is made of these facts, a sweep that starts from a recipe is compared with them, and so is a target model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.file import ModelPart, RecipeFile
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.roles import CONDITIONED, ROLES
from hpxfer.scaling.shape import Shape, shape_from_mapping
from hpxfer.spec import LEARNED, Section, SweepSpec, TransformerModel, ties_at

if TYPE_CHECKING:
    from hpxfer.spec import ScheduleSpec

# Fields of a recipe's `init` -> keys of a sweep's `model`.
INIT = {
    "matrices": "init",
    "matrix_std": "matrix_std",
    "embedding_std": "embedding_std",
    "position_std": "position_std",
    "scale_of": "init_scale_of",
}
# Keys of a sweep's `model` that a recipe has in other sections, or under other names.
_ELSEWHERE = ("family", "like", "base", "balance", *INIT.values())
# Keys of `model` that a sweep of the family `user` may give, for the recipe alone.
READ_OF_USER = ("gate", "attention_scale")
# Options of a family that say how its base starts. A sweep that starts from a recipe gets them as it gets INIT.
INIT_OPTIONS = ("dit.adaln_init", "dit.readout_init", "dit.label_std")
# Fields of a recipe's model that say less than the key of the same name in a sweep.
_COARSER = ("biases", "qk_norm")


def model_facts(spec: SweepSpec, choice: Parameterization | None) -> dict[str, Any]:
    """Return field -> value of `ModelPart`, for the base of a sweep under a table."""
    model, shape = spec.model, spec.base_shape
    required = [name for name, field in ModelPart.model_fields.items() if field.is_required()]
    # A family says only what it has a key for. Recipes of the mlp have always had all defaults.
    has = {*required} if model.family == "mlp" else {*dict(model), *READ_OF_USER}
    facts = {name: getattr(model, name) if name in has else None for name in required}
    if spec.trainer is not None:  # of a user's own model only this is known
        return {name: facts[name] if name in READ_OF_USER else None for name in required}
    if isinstance(model, TransformerModel):
        facts |= {
            "embedding_scale": 1.0 if model.family == "gpt" else None,
            "norm": model.norm,
            "positions": model.positions,
            "qk_norm": model.qk_norm != "none",
            "biases": model.biases or model.qkv_biases or (model.learned_router_bias and bool(shape.num_experts)),
            "attention_ratio": shape.attention_width / shape.width,
            "bias_rule": model.balance.bias,
            "balance_loss": model.balance.aux,
        }
    alike = [name for name in facts if name not in _COARSER]
    given = {name: value for name, value in model if isinstance(value, bool | int | float | str | None)}
    named = [name for name in given if name not in (*_ELSEWHERE, *alike)]
    # Recipes of the gpt have always had these two, which are none.
    options: dict[str, Any] = {"own": None, "dims": None} if model.family == "gpt" else {}
    options |= {name: given[name] for name in named}
    sections = {name: value for name, value in model if isinstance(value, Section) and name not in _ELSEWHERE}
    own = {f"{name}.{key}": value for name, section in sections.items() for key, value in section}
    ties = {"ties": ties_at(spec, choice, shape), "balance.load": model.balance.load}
    return {**facts, "options": {**options, **own, **ties}}


def own_options(file: RecipeFile) -> dict[str, dict[str, Any]]:
    """Return the options of the recipe's family by the section of the sweep's `model` that has them, such as `mlp`."""
    out: dict[str, dict[str, Any]] = {}
    for name, value in (file.model.options or {}).items():
        section, dot, key = name.partition(".")
        if dot and section not in _ELSEWHERE:
            out.setdefault(section, {})[key] = value
    return out


def own_roles(file: RecipeFile) -> frozenset[str] | None:
    """Return the roles of the recipe's own model; None means any role.

    The recipe of a transformer, or of a user's own model, serves models with other parts than its base had. Models of
    another family have no such parts.
    """
    options = file.model.options or {}
    if file.family == "gpt":
        return frozenset(ROLES) - set(CONDITIONED)
    if file.family == "dit":
        return frozenset(ROLES) - {"embedding"}
    if file.family == "user" or not options:
        return None
    family, given = rows_of("family").get(file.family), own_options(file)
    classes = {name: field.annotation for name, field in family.section.model_fields.items() if name in given}
    sections = {name: kind().model_copy(update=given[name]) for name, kind in classes.items()}
    model = SimpleNamespace(**{**dict(file.model), **options, **sections, "family": file.family})
    found = frozenset(family.roles(shape_from_mapping(file.base_shape, "the base"), model))
    # The rule that balances experts may move a bias without training it. Of a fixed bias there is nothing to set.
    learned = any(getattr(one, "router_bias", None) in LEARNED for one in sections.values())
    moves = learned or file.model.bias_rule not in (None, "none")
    return found if moves else found - {"router_bias"}


def is_mlp(file: RecipeFile) -> bool:
    """Return whether the recipe's own model is a mixture of MLPs."""
    return "mlp" in own_options(file)


def training_facts(spec: SweepSpec) -> dict[str, Any]:
    """Return field -> value of `TrainingPart`. The precision may still be `auto`."""
    training = spec.training
    return {
        "steps": spec.steps,
        "batch_tokens": training.batch,
        "schedule": training.schedule,
        "gradient_clip": training.gradient_clip,
        "precision": spec.precision,
    }


def doubts(recipe: RecipeFile) -> tuple[str, ...]:
    """Return in words why the tuned value may not be the best, and the axes along which it is not known to transfer."""
    if (fitted := recipe.fitted) is None:
        return ()
    search, out = recipe.provenance.search, []
    if fitted.open_because:
        out.append(f"{fitted.hp} {fitted.value:g} may not be the best: {fitted.open_because}")
    out += [f"{bound} is a bound, no optimum" for bound in (() if search is None else search.bounds)]
    verdicts = {axis: part.verdict for axis, part in fitted.axes.items() if part.verdict != "transfers"}
    return (*out, *(f"the verdict of {fitted.hp} along {axis} is: {verdict}" for axis, verdict in verdicts.items()))


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
    "positions": {
        "learned": "learned positions",
        "rope": "rotary positions (RoPE)",
        "sincos": "a fixed table",
        "none": "none",
    },
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
    unseen += [f"{name} ({text})" for name, text in training_words(file).items() if not given.get(name)]
    return TunedOn(different=tuple(different), unseen=tuple(unseen))


def stated(file: RecipeFile) -> dict[str, str]:
    """Return in words what the recipe was tuned on, as far as it is known."""
    own = {
        name.replace("_", " "): str(value)
        for options in own_options(file).values()
        for name, value in options.items()
        if value is not None
    }
    if is_mlp(file):
        return {"gate": file.model.gate, **own, **training_words(file)}
    known = file.model
    values = {name: getattr(known, name) for name in VISIBLE}
    facts = {VISIBLE[name]: _spell(name, value) for name, value in values.items() if value is not None}
    return {**own, **facts, "attention scale": known.attention_scale, **training_words(file)}


def training_words(file: RecipeFile) -> dict[str, str]:
    """Return in words how the base was trained, which no model shows."""
    out = {"optimizer": file.optimizer}
    if file.model.context:
        out["context"] = f"{file.model.context} tokens"
    unit = rows_of("family").get(file.family).data
    if file.model.moe_every and not is_mlp(file):
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
