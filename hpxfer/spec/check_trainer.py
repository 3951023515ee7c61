"""Rules of a sweep that a user's own trainer trains: its section `trainer`, its shapes and its resources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import OWN
from hpxfer.spec.axes import entries
from hpxfer.spec.fields import Problem
from hpxfer.spec.model_section import UserModel
from hpxfer.spec.own import OF_RUN, TrainerSpec, labels
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath

_AT: KeyPath = ("trainer",)
# Fewer reports than this in the final window say too little of its mean.
LEAST_IN_WINDOW = 5
# hf_token is a secret, while tokenizer, num_tokens and eos_token are none.
_SECRET = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|SECRET_KEY|ACCESS_KEY|JWT)$"
    r"|(^|_)(HF|HUGGINGFACE|HUB|WANDB|GITHUB|GITLAB|AUTH|ACCESS|API|BEARER|REFRESH)_?TOKEN$|^TOKEN$",
    re.IGNORECASE,
)


def trainer_problems(spec: SweepSpec, model: UserModel, trainer: TrainerSpec) -> Iterator[Problem]:
    """Yield every broken rule of a sweep of the family `user` that no later check needs to be kept first."""
    if trainer.digests and not trainer.files:
        yield (*_AT, "digests"), "goes with trainer.files, got none"
    yield from _arms(spec, trainer)
    of_arms = [((*_AT, "arms", name, "args"), arm.args) for name, arm in (trainer.arms or {}).items()]
    for at, args in (((*_AT, "args"), trainer.args), *of_arms):
        for path in _secrets(args):
            yield (*at, *path), "must be no secret, as args stand in files and ids; trainer.env passes variables"
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
    yield from _keys(spec)
    yield from _resources(spec)


def cost_problems(spec: SweepSpec, shapes: Sequence[Shape]) -> Iterator[Problem]:
    """Yield every label of `trainer.cost` that no shape of the sweep has."""
    seconds = None if spec.trainer is None or spec.trainer.cost is None else spec.trainer.cost.seconds_per_trial
    legal = list(dict.fromkeys(label for shape in shapes for label in reversed(labels(shape))))
    for label in seconds if isinstance(seconds, dict) else ():
        if label not in legal:
            rule = f"must be the label of a shape of the sweep, got {shown(label)}"
            yield (*_AT, "cost", "seconds_per_trial", label), f"{rule}; {nearest(label, legal)}"


def _arms(spec: SweepSpec, trainer: TrainerSpec) -> Iterator[Problem]:
    names, arms, at = [chosen.table for chosen in spec.parameterizations], trainer.arms or {}, ("parameterizations",)
    own = [name.removeprefix(OWN) for name in names if name.startswith(OWN)]
    if arms and (len(own) < len(names) or set(arms) - set(own)):
        yield at, "must be left out with trainer.arms, which are the arms of the sweep"
    if unknown := [name for name in own if name not in arms]:
        yield at, f"{OWN}{unknown[0]} must be an arm of trainer.arms; {nearest(unknown[0], arms)}"
    legal = arms or [name for name in names if not name.startswith(OWN)]
    if trainer.control is not None and trainer.control not in legal:
        why = f"must be an arm of the sweep, got {shown(trainer.control)}; {nearest(trainer.control, legal)}"
        yield (*_AT, "control"), why


def _secrets(args: object) -> Iterator[KeyPath]:
    """Yield the key path of each text among the args, at any depth, whose name is that of a secret."""
    below = args.items() if isinstance(args, dict) else enumerate(args) if isinstance(args, list) else ()
    for name, value in below:
        if isinstance(name, str) and isinstance(value, str) and _SECRET.search(name):
            yield (name,)
        else:
            yield from ((name, *path) for path in _secrets(value))


def _keys(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the broken rules of batches, and of the loss that is judged."""
    training, least = spec.training, LEAST_IN_WINDOW
    if training.batch_tokens is not None and training.batch_samples is not None:
        yield ("training",), "must give at most one of batch_tokens and batch_samples, got both"
    for name, axis in spec.axes.items():
        for below, entry in entries(axis):
            for key in ("batch_tokens", "batch_samples"):
                given = getattr(entry, key, None) is not None or (key == name and axis.values is not None)
                if given and getattr(training, key) is None:
                    yield ("axes", name, *below), f"must have its batch in the unit of the base; give training.{key}"
    if spec.judge.loss == "final_window" and spec.steps and spec.final_window_steps < least:
        why = f"must be at least {least} steps for judge.loss: final_window, got {spec.final_window_steps}"
        yield ("training", "final_window_steps"), why


def _resources(spec: SweepSpec) -> Iterator[Problem]:
    at, resources = "resources", spec.resources
    gpus, each, nodes = resources.gpus_per_trial, resources.gpus_per_node, resources.nodes_per_trial
    if resources.device == "cuda" and gpus is None:
        yield (at, "device"), "must be given with gpus_per_trial, which says how many GPUs a trial has"
    if resources.device == "cpu" and gpus is not None:
        yield (at, "device"), "must not be cpu with gpus_per_trial"
    if gpus is None:
        if each is not None:
            yield (at, "gpus_per_node"), "goes with gpus_per_trial, got none"
    elif each is None:
        if nodes is not None:
            yield (at, "gpus_per_node"), "must be given with gpus_per_trial on several nodes"
    elif gpus % each:
        yield (at, "gpus_per_trial"), f"must be whole nodes of {each} GPUs, got {gpus:g}"
    elif nodes not in (None, int(gpus / each)):
        yield (at, "nodes_per_trial"), f"must be gpus_per_trial / gpus_per_node, which is {gpus / each:g}, got {nodes}"
