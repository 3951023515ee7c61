"""A user's own trainer in a sweep file: its section `trainer`, and its shapes in that trainer's words.

A sweep of the family `user` gives its base as `model.own`. `model.dims` says which of these numbers are the dimensions
that a parameterization knows: `{width: d_model, depth: n_layer}`. A dimension that it does not name is 0, and counts as
one that never changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.shape import DIMENSIONS, MAX_DIM, OwnDim, Shape, heads_of, own_problem, spell_own
from hpxfer.scaling.tables import OWN
from hpxfer.spec.data_section import OWN_DATA
from hpxfer.spec.fields import Matching, Positive, Section, Seq, arm_name

DEV = "dev"  # the version of a trainer under work


def _below(name: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError("a path or glob below the folder of the sweep")
    return name


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _line(text: str) -> str:
    if not text.strip() or len(text) > 200 or not text.isprintable():
        raise ValueError("1 to 200 characters on one line")
    return text


def _command(parts: Sequence[str]) -> Sequence[str]:
    if not parts or not parts[0] or any("\0" in part for part in parts):
        raise ValueError("a program and its arguments, without a NUL character")
    return parts


Args = dict[str, Annotated[JsonValue, WithJsonSchema({})]]  # they travel to the trainer as JSON
Line = Annotated[str, AfterValidator(_line)]
ArmName = Annotated[str, AfterValidator(arm_name)]
_Function = Annotated[
    str, Matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "a module and its function, such as mypackage.train:train")
]
_Variable = Annotated[
    str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and '_', starting with a letter or '_'")
]
_Second = Annotated[float, Field(gt=0, le=1e7)]


class TimeoutsSpec(Section):
    """How long a trial may take, in seconds. A trial beyond a limit is ended, tried once more, and then has failed."""

    start_s: _Second = 1800.0
    """Until its first line."""
    silence_s: _Second | None = None
    """Between two of its lines. The default is 900 seconds, or 20 times its median gap if that is longer."""
    wall_s: _Second | None = None
    """For one attempt. There is no limit by default."""
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """From the request to end (SIGTERM) until it is killed."""


class ArmSpec(Section):
    """One way of your own trainer to scale its HPs from shape to shape."""

    args: Args = Field(default_factory=dict)
    """What the trainer gets in its args, beside those of all arms."""


class LossSpec(Section):
    """What the losses are that the trainer reports."""

    name: str = "loss"
    """The name in reports, e.g. `validation loss`."""
    unit: Literal["nats", "bits per byte", "squared error"] = "nats"
    """The unit of every loss. No loss is converted."""


def _form(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "number"


class CostSpec(Section):
    """What a trial costs, where no stored trial says it."""

    seconds_per_trial: Annotated[
        Annotated[dict[str, Positive], Tag("mapping")] | Annotated[Positive, Tag("number")], Discriminator(_form)
    ]
    """The seconds of one trial: for all shapes, or by the label of each as `hpxfer plan` prints it, such as
    `d_model=128 n_layer=2`."""


class TrainerSpec(Section):
    """Your own trainer. Goes with `model.family: user`. Give `function` or `command`, and `version` or `files`."""

    function: _Function | None = None
    """A Python function such as `mypackage.train:train`. It gets one trial, and returns the losses."""
    command: Annotated[Seq[str], AfterValidator(_command)] | None = None
    """A program and its arguments, without a shell. Placeholders stand within an argument: `{config_json}`, `{gpus}`,
    `{nodes}`, `{node_rank}`, `{rdzv_endpoint}`, `{rdzv_id}`, `{rdzv_is_host}`, `{run_dir}`, `{seed}`, `{steps}`,
    `{hp.lr}`, `{shape.d_model}`, `{arg.NAME}`. `{{` and `}}` are braces."""
    version: Line | None = None
    """The version of your code, in words of your own. Raise it when a change moves numbers. `dev` is never reused by
    another results folder."""
    files: Seq[Annotated[str, AfterValidator(_below)]] | None = None
    """The files that decide what is computed, as paths or globs such as `src/**/*.py` from the folder of the sweep
    file. Their contents are part of the trials' identity."""
    args: Args = Field(default_factory=dict)
    """What else the trainer gets, the same for all trials."""
    arms: dict[ArmName, ArmSpec] | None = None
    """Ways to scale of your own, in place of `parameterizations`."""
    control: str | None = None
    """The arm that the others are compared with: one that does not scale. Among tables the default is `sp`. Arms of
    your own have no default, and without a control no verdict on them says `transfers`."""
    data: Line = "unnamed"
    """The name of the data and of its version, such as `fineweb-10BT@2026-10`. It is part of the trials' identity."""
    nan_exit: Seq[Annotated[str, AfterValidator(_pattern)]] = ()
    """Regular expressions. A trainer that ends by itself with an error whose last lines match one has diverged."""
    env: Seq[_Variable] = ()
    """The environment variables that the trainer gets, beside PATH and the like. No other reaches it."""
    timeouts: TimeoutsSpec = TimeoutsSpec()
    """How long a trial may take."""
    loss: LossSpec = LossSpec()
    """What the losses are."""
    cost: CostSpec | None = None
    """What a trial costs."""
    folder: str | None = None
    """Where the command runs and paths start. The default is the folder of the sweep file. Never part of a trial's
    identity."""
    digests: dict[str, str] | None = None
    """File -> the hash of its content. Written by a run."""

    @model_validator(mode="after")
    def _says_what_trains(self) -> TrainerSpec:
        if (self.function is None) == (self.command is None):
            raise ValueError("given by exactly one of function and command")
        if self.version is None and not self.files:
            raise ValueError("given with version or files, by which a change of your code is known")
        return self

    def seconds_of(self, shape: Shape) -> float | None:
        """Return the seconds of a trial of a shape by `cost`, or None if it does not say."""
        seconds = None if self.cost is None else self.cost.seconds_per_trial
        if not isinstance(seconds, dict):
            return seconds
        return next((seconds[label] for label in labels(shape) if label in seconds), None)

    @property
    def entry(self) -> dict[str, Any]:
        """What is called, unfilled, as an identity holds it."""
        return {"function": self.function} if self.function is not None else {"command": list(self.command or ())}


def labels(shape: Shape) -> tuple[str, str]:
    """Return what `cost` may call a shape: with batch and steps, or without."""
    return shape.label(schedule=True), shape.label()


def with_trainer(sweep: Any) -> Any:
    """Return a sweep file with what its own trainer stands for: the data by name, and arms in place of tables.

    A stored sweep spells both out. Its data is what `trainer.data` says by now.
    """
    trainer = sweep.get("trainer") if isinstance(sweep, dict) else None
    if not isinstance(trainer, dict):
        return sweep
    out = dict(sweep)
    name = trainer.get("data", TrainerSpec.model_fields["data"].default)
    data = sweep.get("data")
    is_stored = "data" in trainer and isinstance(data, dict) and str(data.get("source")).startswith(OWN_DATA)
    if isinstance(name, str) and ("data" not in sweep or is_stored):
        source = f"{OWN_DATA}{name}"
        out["data"] = data if data is not None and data.get("source") == source else {"source": source}
    arms = trainer.get("arms")
    if isinstance(arms, dict) and arms and "parameterizations" not in sweep:
        out["parameterizations"] = [{"table": f"{OWN}{arm}"} for arm in arms]
    return out


# The dimensions that `model.dims` may name. The schedule is `training`'s, whatever the trainer.
NAMED_DIMS = tuple(name for name in DIMENSIONS if name not in ("batch_tokens", "steps"))
# What an axis of a user's own shapes may be measured by, beside the keys of these shapes. A shape may not have keys of
# these names.
OF_RUN = ("batch_tokens", "steps", "tokens")


def _own(value: Any) -> Any:
    if value is not None and (problem := own_problem(value)) is not None:
        raise PydanticCustomError("own", "{why}", {"why": problem})
    return value


OwnDims = Annotated[dict[str, bool | int | float | str], BeforeValidator(_own)]


def own_shape(own: Mapping[str, OwnDim], dims: Mapping[str, int | str] | None, *, batch: int, steps: int) -> Shape:
    """Return the Shape of a user's own shape. Raise HpxferError if `dims` cannot be read from it."""
    found = {"width": 0, "depth": 0, **{name: _dim(own, name, value) for name, value in (dims or {}).items()}}
    width, num_heads, kv_heads = found["width"], found.pop("num_heads", None), found.pop("kv_heads", None)
    if num_heads and "head_dim" not in found:  # by which tables scale attention
        if width % num_heads:
            rule = "must divide the width if dims.head_dim is not given"
            raise HpxferError(f"dims.num_heads: {rule}, got {num_heads} at width {width}")
        found["head_dim"] = width // num_heads
    heads = heads_of(width, found.get("head_dim", 0), num_heads, kv_heads)
    return Shape(**found, **heads, batch_tokens=batch, steps=steps, own=spell_own(own))


def _dim(own: Mapping[str, OwnDim], name: str, value: int | str) -> int:
    if name not in NAMED_DIMS:
        raise HpxferError(f"dims: unknown dimension {shown(name)}; {nearest(name, NAMED_DIMS)}")
    if isinstance(value, str) and value not in own:
        raise HpxferError(f"dims.{name}: must be a key of own or a number, got {shown(value)}; {nearest(value, own)}")
    number = own[value] if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_DIM:
        got = f"{shown(number)} of own.{value}" if isinstance(value, str) else shown(number)
        raise HpxferError(f"dims.{name}: must be a whole number from 0 to {MAX_DIM}, got {got}")
    return number


def changed(base: Mapping[str, OwnDim], change: Mapping[str, OwnDim]) -> dict[str, OwnDim]:
    """Return an own shape with some numbers changed. Raise HpxferError for a key or a kind that the base lacks.

    A number is as the base has it, as a shape has one spelling and so one id: 256.0 is 256 where the base has a whole
    number, and 1 is 1.0 where it has none.
    """
    out = dict(base)
    for name, value in change.items():
        if name not in base:
            raise HpxferError(f"own: unknown key {shown(name)}; {nearest(name, base)}")
        known = base[name]
        if (_is_number(value), isinstance(value, str)) != (_is_number(known), isinstance(known, str)):
            rule = f"{name} must be of the kind that it has at the base, {shown(known)}"
            raise HpxferError(f"own: {rule}, got {shown(value)}")
        if isinstance(known, float):
            value = float(value)
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        out[name] = value
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def own_scale(axis_name: str, asked: str | None, shapes: Sequence[Shape]) -> tuple[str, list[float]]:
    """Return what the scale of an axis counts, and its value at each of a user's own shapes.

    It is the key that the axis asks for or is named after, else the only number that differs between all shapes. Raise
    HpxferError if there is no such number, or if two shapes share its value.
    """
    keys = [*shapes[0].own_dims, *OF_RUN]
    found = {key: numbers for key in keys if None not in (numbers := [_number(shape, key) for shape in shapes])}
    name = asked or (axis_name if axis_name in keys else _only_change(found))
    if name not in keys:
        raise HpxferError(f"scale: must be a key of own, or of the run, got {shown(name)}; {nearest(name, keys)}")
    scales = [scale for scale in found.get(name, ()) if scale is not None and scale > 0]
    if len(scales) < len(shapes):
        raise HpxferError(f"scale: {name} must be a number above 0 at every shape of the axis")
    if len(set(scales)) < len(scales):
        raise HpxferError(f"scale: {name} must differ between the shapes of the axis, as drift is measured along it")
    return name, scales


def _only_change(numbers: Mapping[str, Sequence[float | None]]) -> str:
    """Return the only number that has another value at each shape. Among equals, numbers of the shape come first."""
    found = [name for name, values in numbers.items() if len(set(values)) == len(values)]
    own = [name for name in found if name not in OF_RUN]
    if len(own) == 1 or (not own and found):
        return found[0]
    got = f"{', '.join(own)} differ" if own else "none differs"
    raise HpxferError(f"scale: must be given: the number of a shape that the axis is measured by; {got} everywhere")


def _number(shape: Shape, name: str) -> float | None:
    value = getattr(shape, name) if name in OF_RUN else shape.own_dims.get(name)
    return float(value) if value is not None and _is_number(value) else None
