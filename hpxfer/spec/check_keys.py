"""Rules on the keys of single sections: what the family reads, the model's options, a user's own trainer, the data.

Trials that differ in a key without effect would differ in nothing but their ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import OWN
from hpxfer.spec import presets
from hpxfer.spec.axes import changes, entries
from hpxfer.spec.data import points_with_data
from hpxfer.spec.data_section import KIND_OF, OWN_DATA, TOKENS, DataSpec, source_kind, vocabulary
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import Balance, GPTModel, TransformerModel, UserModel
from hpxfer.spec.own import OF_RUN, TrainerSpec, labels
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath

KeyedShape = tuple[KeyPath, Shape]
# The features that a share may miss a whole number by. A third of 96 features, written with six digits, misses by 3e-5.
_ROUNDING = 1e-3
_OF_EXPERTS = ("moe_every", "dense_first", "ties", "top_groups", "route_scale", "balance", "learned_router_bias")
# Fewer reports than this in the final window say too little of its mean.
LEAST_IN_WINDOW = 5
# hf_token is a secret, while tokenizer, num_tokens and eos_token are none.
_SECRET = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|SECRET_KEY|ACCESS_KEY|JWT)$"
    r"|(^|_)(HF|HUGGINGFACE|HUB|WANDB|GITHUB|GITLAB|AUTH|ACCESS|API|BEARER|REFRESH)_?TOKEN$|^TOKEN$",
    re.IGNORECASE,
)


_OF_TRAINER = ("trainer", "resources.gpus_per_trial", "resources.gpus_per_node", "resources.nodes_per_trial")
_OF_PIECES = {
    "tokens": ("training.accumulation_tokens", "resources.micro_batch_tokens"),
    "samples": ("training.accumulation_samples", "resources.micro_batch_samples"),
}
_EVERY_PIECE = (*_OF_PIECES["tokens"], *_OF_PIECES["samples"], "training.accumulation_lanes")
# What a family reads -> the keys of a sweep that it does not read: dotted paths of the file, and those of a point.
_UNREAD = {
    "tokens": (*_OF_TRAINER, *_OF_PIECES["samples"], "training.batch_samples", "training.validation_samples"),
    "samples": (
        *(*_OF_TRAINER, *_OF_PIECES["tokens"]),
        *("training.batch_tokens", "training.validation_tokens", "training.tokens"),
    ),
    "user": (
        *("training.validation_tokens", "training.validation_samples", "training.determinism"),
        *("early_stopping.asha", "resources.loggers", *_EVERY_PIECE, "resources.gpus_per_stack"),
        *(f"resources.{key}" for key in ("stack_size", "kernels", "recompute", "checkpoint_s", "keep")),
    ),
}
_UNREAD_OF_POINT = {
    "tokens": ("batch_samples", "own"),
    "samples": ("batch_tokens", "own"),
    "user": (
        *("data", "width", "depth", "num_heads", "kv_heads", "num_experts", "num_active", "expert_ratio"),
        *("expert_width", "num_shared", "shared_ratio", "shared_width", "num_groups", "dense_ratio", "dense_width"),
    ),
}


def family_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every key beside the model that its family needs and does not get, or gets and does not read."""
    model, family, training = spec.model, rows_of("family").get(spec.model.family), spec.training
    if isinstance(model, UserModel) and spec.trainer is None:
        yield ("trainer",), f"must be given with model.family: {model.family}: what trains its models"
        return
    reads = "" if family.data == model.family else f", which reads {family.data}"
    yield from ((path, f"has no effect in the family {model.family}{reads}") for path in _unread(spec, family))
    if isinstance(model, UserModel) and spec.trainer is not None:
        yield from _trainer(spec, model, spec.trainer)
    else:
        needed = (f"batch_{family.data}", f"validation_{family.data}")
        yield from ((("training", key), "must be given") for key in needed if getattr(training, key) is None)
    # `auto` may stand for either precision, by the device that will train.
    legal = (*family.precisions, *(("auto",) if len(family.precisions) > 1 else ()))
    if spec.precision not in legal:
        yield ("precision",), f"must be {' or '.join(legal)} in the family {family.name}, got {spec.precision}"


def _unread(spec: SweepSpec, family: Any) -> Iterator[KeyPath]:
    """Yield the keys beside the model that are not at their default, although the family does not read them."""
    pieces = () if family.has_pieces or family.data == "user" else (*_OF_PIECES["samples"], _EVERY_PIECE[-1])
    for dotted in (*_UNREAD[family.data], *pieces):
        *above, key = dotted.split(".")
        section = getattr(spec, above[0]) if above else spec
        if getattr(section, key) != type(section).model_fields[key].get_default(call_default_factory=True):
            yield (*above, key)
    for at, _, change in changes(spec):
        yield from ((*at, key) for key in _UNREAD_OF_POINT[family.data] if getattr(change, key) is not None)
    if family.data != "user":
        yield from (("axes", name, "scale") for name, axis in spec.axes.items() if axis.scale is not None)
    for key in ("warmup", "decay_length") if family.data == "samples" else ():
        length = getattr(spec.training.schedule, key)
        if length is not None and length.tokens is not None:
            yield "training", "schedule", key


def model_problems(spec: SweepSpec, shapes: Sequence[KeyedShape]) -> Iterator[Problem]:
    """Yield the options of the model that do not go together, or have no effect.

    `shapes` are those of the sweep, none if they are broken themselves.
    """
    model, balance, gate = spec.model, spec.model.balance, rows_of("gate").get(spec.model.gate)
    at: KeyPath = ("model", "balance")
    if balance.aux in ("none", "sequence") and balance.load != "batch":
        yield (*at, "load"), f"goes with a loss over the loads of a whole batch, got it with aux: {balance.aux}"
    if balance.aux != "none" and not gate.probabilities:
        rule = "goes with a gate whose scores are probabilities up to a factor"
        yield (*at, "aux"), f"{rule}, got {balance.aux} with the gate {gate.name}"
    defaults = {name: field.default for name, field in type(model).model_fields.items()}
    if isinstance(model, TransformerModel):
        yield from _transformer_problems(model, shapes, defaults)
    of_preset: dict[str, Any] = presets.resolved({"like": model.like})
    of_preset |= {"balance": Balance(**of_preset["balance"])} if "balance" in of_preset else {}
    for part, count, options in (
        ("experts", "num_experts", _OF_EXPERTS),
        ("shared experts", "num_shared", ("shared_expert_gate",)),
    ):
        for name in () if not shapes or any(getattr(shape, count) for _, shape in shapes) else options:
            if name in defaults and getattr(model, name) not in (defaults[name], of_preset.get(name)):
                yield ("model", name), f"has no effect: no shape of this sweep has {part}"


def _transformer_problems(
    model: TransformerModel, shapes: Sequence[KeyedShape], defaults: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield the options of a transformer that do not go together."""
    for key, names, readers in presets.READ_WITH:
        for name in names if key in defaults and (found := getattr(model, key)) not in readers else ():
            if getattr(model, name) != defaults[name]:
                yield ("model", name), f"goes with {key}: {' or '.join(readers)}, got it with {key}: {found}"
    if isinstance(model, GPTModel):
        yield from _gpt_problems(model)
    groups = [(at, why) for at, shape in shapes if (why := _groups_problem(model.top_groups, shape))]
    yield from groups[:1] if groups and groups[0][0] == shapes[0][0] else groups  # the base alone, if it is one


def _gpt_problems(model: GPTModel) -> Iterator[Problem]:
    """Yield the options of the GPT that do not go together."""
    rotated = model.base.head_dim * model.rope_share
    if model.positions == "rope" and abs(rotated - max(2, 2 * round(rotated / 2))) > _ROUNDING:
        rule = f"must rotate an even number of the {model.base.head_dim} features of a head"
        yield ("model", "rope_share"), f"{rule}, got {rotated:g}"
    if model.qkv_biases and model.biases:
        yield ("model", "qkv_biases"), "has no effect: biases gives all matrices a bias, these too"


def _groups_problem(best: int | None, shape: Shape) -> str | None:
    """Return why the active experts of a shape cannot be chosen in their groups, or None."""
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


def _trainer(spec: SweepSpec, model: UserModel, trainer: TrainerSpec) -> Iterator[Problem]:
    """Yield every broken rule of a user's own trainer that no later check needs to be kept first."""
    names, arms = [chosen.table for chosen in spec.parameterizations], trainer.arms or {}
    own = [name.removeprefix(OWN) for name in names if name.startswith(OWN)]
    control, legal = trainer.control, arms or [name for name in names if not name.startswith(OWN)]
    if arms and (len(own) < len(names) or set(arms) - set(own)):
        yield ("parameterizations",), "must be left out with trainer.arms, which are the arms of the sweep"
    if unknown := [name for name in own if name not in arms]:
        near = nearest(unknown[0], arms)
        yield ("parameterizations",), f"{OWN}{unknown[0]} must be an arm of trainer.arms; {near}"
    if control is not None and control not in legal:
        near = nearest(control, legal)
        yield ("trainer", "control"), f"must be an arm of the sweep, got {shown(control)}; {near}"
    for at, args in [(("args",), trainer.args), *((("arms", name, "args"), arm.args) for name, arm in arms.items())]:
        for path in _secrets(args):
            yield (
                ("trainer", *at, *path),
                "must be no secret, as args stand in files and ids; trainer.env passes variables",
            )
    for name in OF_RUN:
        if name in model.own:
            yield ("model", "own", name), "is a number of the run; give it in training, or choose another name"
    try:
        model.shape(1, 1)
    except HpxferError as error:
        yield ("model",), str(error)
        return
    if not model.dims and not trainer.arms:
        yield ("model", "dims"), "must say what the parameterizations read of model.own, or trainer.arms must be given"
    yield from _units(spec)
    yield from _gpus(spec)


def _secrets(args: object) -> Iterator[KeyPath]:
    """Yield the key path of each text among the args, at any depth, whose name is that of a secret."""
    below = args.items() if isinstance(args, dict) else enumerate(args) if isinstance(args, list) else ()
    for name, value in below:
        if isinstance(name, str) and isinstance(value, str) and _SECRET.search(name):
            yield (name,)
        else:
            yield from ((name, *path) for path in _secrets(value))


def _units(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the broken rules of a user's batches, and of the loss that is judged."""
    training, judged = spec.training, spec.judge.loss
    if training.batch_tokens is not None and training.batch_samples is not None:
        yield ("training",), "must give at most one of batch_tokens and batch_samples, got both"
    for at, name, entry in entries(spec):
        for key in ("batch_tokens", "batch_samples"):
            given = name == key if isinstance(entry, float | int) else getattr(entry, key) is not None
            if given and getattr(training, key) is None:
                yield at, f"must have its batch in the unit of the base; give training.{key}"
    if judged == "final_window" and spec.steps and spec.final_window_steps < LEAST_IN_WINDOW:
        why = f"must be at least {LEAST_IN_WINDOW} steps for judge.loss: final_window, got {spec.final_window_steps}"
        yield ("training", "final_window_steps"), why


def _gpus(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the broken rules of the GPUs of a user's trials."""
    at, resources = "resources", spec.resources
    gpus, each, nodes = resources.gpus_per_trial, resources.gpus_per_node, resources.nodes_per_trial
    if resources.device == "cuda" and gpus is None:
        yield (at, "device"), "must be given with gpus_per_trial, which says how many GPUs a trial has"
    if resources.device == "cpu" and gpus is not None:
        yield (at, "device"), "must not be cpu with gpus_per_trial"
    if each is not None and gpus is None:
        yield (at, "gpus_per_node"), "goes with gpus_per_trial, got none"
    elif gpus is not None and each is None and nodes is not None:
        yield (at, "gpus_per_node"), "must be given with gpus_per_trial on several nodes"
    elif gpus is not None and each is not None and gpus % each:
        yield (at, "gpus_per_trial"), f"must be whole nodes of {each} GPUs, got {gpus:g}"
    elif gpus is not None and each is not None and nodes not in (None, int(gpus / each)):
        yield (at, "nodes_per_trial"), f"must be gpus_per_trial / gpus_per_node, which is {gpus / each:g}, got {nodes}"


def cost_problems(spec: SweepSpec, shapes: Sequence[Shape]) -> Iterator[Problem]:
    """Yield every label of `trainer.cost` that no shape of the sweep has."""
    seconds = None if spec.trainer is None or spec.trainer.cost is None else spec.trainer.cost.seconds_per_trial
    legal = list(dict.fromkeys(label for shape in shapes for label in reversed(labels(shape))))
    for label in seconds if isinstance(seconds, dict) else ():
        if label not in legal:
            rule = f"must be the label of a shape of the sweep, got {shown(label)}"
            yield ("trainer", "cost", "seconds_per_trial", label), f"{rule}; {nearest(label, legal)}"


# What a family reads -> the keys of data of the other kind.
_OF_OTHERS = {"tokens": ("inputs", "classes", "targets", "only"), "samples": ("tokenizer", "vocab_size", "eos_id")}


def data_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the section. No rule touches the data. A user's own trainer has only a name for it."""
    data, family, reads = spec.data, spec.model.family, rows_of("family").get(spec.model.family).data
    if spec.trainer is not None:
        # A stored sweep has the digest of that name.
        if data.model_copy(update={"digest": None}) != DataSpec(source=f"{OWN_DATA}{spec.trainer.data}"):
            yield ("data",), "is read by the built-in trainer; give the name of your trainer's data as trainer.data"
        return
    sources = {("data", key): name for key in ("source", "validation") if (name := getattr(data, key)) is not None}
    wrong = [(at, why) for at, name in sources.items() if (why := _source_problem(name, family, reads))]
    yield from wrong
    other = "tokens" if reads == "samples" else "samples"
    unread = [key for key in _OF_OTHERS[reads] if getattr(data, key) is not None]
    unread += ["documents"] if reads == "samples" and data.documents != "joined" else []
    yield from ((("data", key), f"goes with {other}, and the family {family} reads {reads}") for key in unread)
    if not wrong:
        yield from _token_problems(data) if reads == "tokens" else _sample_problems(data)
    for at, _, own in points_with_data(spec):
        at = (*at, "data")
        if why := _source_problem(own.source, family, reads):
            yield (*at, "source"), why
        if data.validation is None:
            yield at, f"needs data.validation, so that the losses of all shapes are those of the same {reads}, got none"
        if (own.digest is None) != (data.digest is None):
            yield (*at, "digest"), "must be given with data.digest: all digests stand in for data, or none does"
    if data.validation is None and data.validation_digest is not None:
        yield ("data", "validation_digest"), "goes with data.validation, got none"
    elif data.validation is not None and (data.digest is None) != (data.validation_digest is None):
        key = "digest" if data.digest is None else "validation_digest"
        yield ("data", key), "must be given with the other digest: both stand in for data, or none does"


def _source_problem(name: str, family: str, reads: str) -> str | None:
    """Return why a family cannot read the data of this name, or None."""
    sources = registry(KIND_OF[reads])
    kind, colon, rest = name.partition(":")
    *usages, last = (source.usage for source in sources.rows())
    legal = f"{', '.join(usages)} or {last}"
    of_other = rest and (found := source_kind(name)) != KIND_OF[reads] and kind in registry(found)
    # A name that no kind knows, e.g. builtin:shape, is a slip in one of the family's own kind.
    if of_other and (kind not in sources or registry(found).get(kind).problem(rest) is None):
        return f"must name {reads}, which the family {family} reads, got {shown(name)}; legal: {legal}"
    if kind not in sources or not colon:
        return f"must be {legal}, got {shown(name)}"
    if not rest:
        return f"must name a path after {kind}:, got {shown(name)}"
    why: str | None = sources.get(kind).problem(rest)
    return why


def _token_problems(data: DataSpec) -> Iterator[Problem]:
    """Yield the broken rules of the vocabulary and of the ids."""
    sources, kind, size = registry(TOKENS), data.source.partition(":")[0], data.vocab_size
    source, at = sources.get(kind), ("data", "vocab_size")
    if size is not None and source.max_vocab_size is None:
        of_ids = ", ".join(f"{row.name}:" for row in sources.rows() if row.max_vocab_size is not None)
        yield at, f"only for data of {of_ids}; {kind}: data has the vocabulary of its tokenizer"
    elif size is not None and data.tokenizer is not None:
        yield at, "must give one of tokenizer and vocab_size, got both"
    elif data.tokenizer is not None and data.tokenizer not in source.tokenizers:
        legal = [*sorted(source.tokenizers), *(["vocab_size"] if source.max_vocab_size else [])]
        yield ("data", "tokenizer"), f"{kind}: data has no tokenizer {shown(data.tokenizer)}; legal: {', '.join(legal)}"
    elif size is not None and size > source.max_vocab_size:
        yield at, f"must be at most {source.max_vocab_size}, the ids of {kind}: data, got {size}"
    elif size is None and not source.tokenizers:
        yield at, f"must be given: {kind}: data does not say with which vocabulary it was written"
    elif data.validation is not None and sources.get(data.validation.partition(":")[0]).holds_ids != source.holds_ids:
        held = "token ids" if source.holds_ids else "text"
        yield ("data", "validation"), f"must hold {held}, as source does, got {data.validation}"
    elif data.eos_id is not None and data.eos_id >= (num_ids := vocabulary(data)[1]):
        yield ("data", "eos_id"), f"must be an id of the vocabulary, at most {num_ids - 1}, got {data.eos_id}"
    if (data.documents == "masked") is (data.eos_id is None):
        because = "must be given with documents: masked, because a document ends with this token"
        yield ("data", "eos_id"), because if data.eos_id is None else "goes with documents: masked, got joined"


def _sample_problems(data: DataSpec) -> Iterator[Problem]:
    """Yield the first broken rule of the keys that say what a sample is."""
    only, classes, targets = data.only, data.classes, data.targets
    # Classes that are filled in are those of data.only, so a broken data.only is the one thing to mend.
    if only is not None and (len(only) < 2 or len(set(only)) < len(only)):
        yield ("data", "only"), f"must name at least two different classes, got {list(only)}"
    elif only is not None and targets is not None:
        yield ("data", "only"), "chooses classes, but these samples have real targets"
    elif only is not None and classes not in (None, len(only)):
        yield ("data", "classes"), f"must be the {len(only)} classes of data.only, got {classes}"
    elif data.inputs is None:
        yield ("data", "inputs"), f"must be given where the samples are not on this machine, got {data.source}"
    elif (classes is None) == (targets is None):
        got = "neither" if classes is None else "both"
        yield ("data", "classes"), f"a sample has either one of several classes or real targets, got {got}"
    elif classes is not None and classes < 2:
        yield ("data", "classes"), f"must be at least 2, got {classes}"
