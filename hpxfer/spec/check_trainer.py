"""Rules of a sweep that a user's own trainer trains: its section `trainer`, its shapes and its resources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import OWN
from hpxfer.spec.axes import entries
from hpxfer.spec.fields import Problem
from hpxfer.spec.own import OF_RUN, TrainerSpec, labels, own_shape
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath

_AT: KeyPath = ("trainer",)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")  # of an arm: part of labels
# Fewer reports than this in the final window say too little of its mean.
LEAST_IN_WINDOW = 5
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# hf_token is a secret, while tokenizer, num_tokens and eos_token are none.
_SECRET = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|SECRET_KEY|ACCESS_KEY|JWT)$"
    r"|(^|_)(HF|HUGGINGFACE|HUB|WANDB|GITHUB|GITLAB|AUTH|ACCESS|API|BEARER|REFRESH)_?TOKEN$|^TOKEN$",
    re.IGNORECASE,
)


def trainer_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of a sweep of the family `user` that no later check needs to be kept first."""
    trainer = spec.trainer
    assert trainer is not None, "it is the family user"
    yield from _entry(trainer)
    yield from _arms(spec, trainer)
    yield from _texts(trainer)
    yield from _model(spec)
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


def _entry(trainer: TrainerSpec) -> Iterator[Problem]:
    if (trainer.function is None) == (trainer.command is None):
        got = "neither" if trainer.function is None else "both"
        yield _AT, f"must give exactly one of function and command, got {got}"
    if trainer.command is not None and (not trainer.command or not trainer.command[0]):
        yield (*_AT, "command"), "must name a program and its arguments, such as [python, train.py], got none"
    for index, part in enumerate(trainer.command or ()):
        if "\0" in part:
            yield (*_AT, "command", index), "must hold no NUL character"
    if trainer.version is None and not trainer.files:
        yield (
            _AT,
            "must give version or files, by which a change of your code is known: trials of other code are others; "
            "e.g. files: [train.py]",
        )
    if trainer.digests and not trainer.files:
        yield (*_AT, "digests"), "goes with trainer.files, and is written by a run; take it out"
    for index, name in enumerate(trainer.files or ()):
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
            yield (*_AT, "files", index), f"must be a path or glob below the folder of the sweep, got {shown(name)}"


def _arms(spec: SweepSpec, trainer: TrainerSpec) -> Iterator[Problem]:
    names = [chosen.table for chosen in spec.parameterizations]
    own = [name.removeprefix(OWN) for name in names if name.startswith(OWN)]
    arms = trainer.arms or {}
    if arms and (len(own) < len(names) or set(arms) - set(own)):
        yield ("parameterizations",), "must be left out with trainer.arms, which are the arms of the sweep"
    for name in arms:
        if not _NAME.fullmatch(name):
            rule = "must be at most 40 letters, digits, '.', '_' and '-', starting with a letter or digit"
            yield (*_AT, "arms", name), f"{rule}, got {shown(name)}"
    if unknown := [name for name in own if name not in arms]:
        yield ("parameterizations",), f"{OWN}{unknown[0]} must be an arm of trainer.arms; {nearest(unknown[0], arms)}"
    legal = arms or [name for name in names if not name.startswith(OWN)]
    if trainer.control is not None and trainer.control not in legal:
        yield (
            (*_AT, "control"),
            f"must be an arm of the sweep, got {shown(trainer.control)}; " + nearest(trainer.control, legal),
        )


def _texts(trainer: TrainerSpec) -> Iterator[Problem]:
    for index, pattern in enumerate(trainer.nan_exit):
        try:
            re.compile(pattern)
        except re.error as error:
            yield (*_AT, "nan_exit", index), f"must be a regular expression, got {shown(pattern)}: {error}"
    for index, name in enumerate(trainer.env):
        if not _ENV.fullmatch(name):
            yield (*_AT, "env", index), f"must be the name of a variable, got {shown(name)}"
    for key in ("version", "data"):
        value = getattr(trainer, key)
        if value is not None and (not value.strip() or len(value) > 200 or not value.isprintable()):
            yield (*_AT, key), f"must be 1 to 200 characters on one line, got {shown(value)}"
    of_arms = [((*_AT, "arms", name, "args"), arm.args) for name, arm in (trainer.arms or {}).items()]
    for at, args in (((*_AT, "args"), trainer.args), *of_arms):
        for path in _secrets(args):
            yield (
                (*at, *path),
                "must be no secret, as args stand in files and ids; name an environment variable in trainer.env",
            )


def _secrets(args: object) -> Iterator[KeyPath]:
    """Yield the key path of each text among the args, at any depth, whose name is that of a secret."""
    below = args.items() if isinstance(args, dict) else enumerate(args) if isinstance(args, list) else ()
    for name, value in below:
        if isinstance(name, str) and isinstance(value, str) and _SECRET.search(name):
            yield (name,)
        else:
            yield from ((name, *path) for path in _secrets(value))


def _model(spec: SweepSpec) -> Iterator[Problem]:
    model, trainer = spec.model, spec.trainer
    if model.own is None:
        yield ("model", "own"), "must be given: the base shape in your trainer's words, such as {d_model: 256}"
        return
    for name in OF_RUN:
        if name in model.own:
            yield ("model", "own", name), "is a number of the run; give it in training, or choose another name"
    try:
        own_shape(model.own, model.dims, batch=1, steps=1)
    except HpxferError as error:
        yield ("model",), str(error)
        return
    if not model.dims and trainer is not None and not trainer.arms:
        yield (
            ("model", "dims"),
            "must say what the parameterizations read of model.own, such as {width: d_model, depth: n_layer}; or give "
            "arms of your own as trainer.arms",
        )


def _keys(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the broken rules of batches, and of the loss that is judged."""
    training, at = spec.training, ("training",)
    if training.batch_tokens is not None and training.batch_samples is not None:
        yield at, "must give at most one of batch_tokens and batch_samples, got both"
    for name, axis in spec.axes.items():
        for below, entry in entries(axis):
            for key in ("batch_tokens", "batch_samples"):
                given = getattr(entry, key, None) is not None or (key == name and axis.values is not None)
                if given and getattr(training, key) is None:
                    yield ("axes", name, *below), f"must have its batch in the unit of the base; give training.{key}"
    if spec.judge.loss not in ("validation", "final_window"):
        yield ("judge", "loss"), f"must be validation or final_window with a trainer, got {spec.judge.loss}"
    if spec.judge.loss == "final_window" and spec.steps and spec.final_window_steps < LEAST_IN_WINDOW:
        yield (
            (*at, "final_window_steps"),
            f"must be at least {LEAST_IN_WINDOW} steps, of which each is reported, for judge.loss: final_window, got "
            f"{spec.final_window_steps}",
        )


def _resources(spec: SweepSpec) -> Iterator[Problem]:
    resources = spec.resources
    if resources.device == "cuda" and resources.gpus_per_trial is None:
        yield ("resources", "device"), "must be given with gpus_per_trial, which says how many GPUs a trial has"
    if resources.device == "cpu" and resources.gpus_per_trial is not None:
        yield ("resources", "device"), "must not be cpu with gpus_per_trial; take one of them out"
    gpus, each = resources.gpus_per_trial, resources.gpus_per_node
    if gpus is None:
        if each is not None:
            yield ("resources", "gpus_per_node"), "goes with gpus_per_trial, got none"
    elif each is not None and gpus % each:
        yield ("resources", "gpus_per_trial"), f"must be whole nodes of {each} GPUs, got {gpus:g}"
    elif each is not None and resources.nodes_per_trial not in (None, int(gpus / each)):
        yield ("resources", "nodes_per_trial"), f"must be gpus_per_trial / gpus_per_node, which is {gpus / each:g}"
    elif each is None and resources.nodes_per_trial is not None:
        yield ("resources", "gpus_per_node"), "must be given with gpus_per_trial on several nodes"
