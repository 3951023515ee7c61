"""The section `trainer` of a sweep file: the user's own trainer. The text below a field documents its key."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import OWN
from hpxfer.spec.data_section import OWN_DATA
from hpxfer.spec.fields import Positive, Section, Seq

DEV = "dev"  # the version of a trainer under work


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot hold, such as a date or a key that is no text: args travel to the trainer as JSON."""
    try:
        is_plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        is_plain = False
    if not is_plain:
        raise ValueError("texts, finite numbers, true, false, null, lists, and mappings with texts as keys")
    return value


Args = Annotated[dict[str, Any], AfterValidator(_plain)]
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

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """A Python function such as `mypackage.train:train`. It gets one trial, and returns the losses."""
    command: Seq[str] | None = None
    """A program and its arguments, without a shell. Placeholders stand within an argument: `{config_json}`, `{gpus}`,
    `{nodes}`, `{node_rank}`, `{rdzv_endpoint}`, `{rdzv_id}`, `{rdzv_is_host}`, `{run_dir}`, `{seed}`, `{steps}`,
    `{hp.lr}`, `{shape.d_model}`, `{arg.NAME}`. `{{` and `}}` are braces."""
    version: str | None = None
    """The version of your code, in words of your own. Raise it when a change moves numbers. `dev` is never reused by
    another results folder."""
    files: Seq[str] | None = None
    """The files that decide what is computed, as paths or globs such as `src/**/*.py` from the folder of the sweep
    file. Their contents are part of the trials' identity."""
    args: Args = Field(default_factory=dict)
    """What else the trainer gets, the same for all trials."""
    arms: dict[str, ArmSpec] | None = None
    """Ways to scale of your own, in place of `parameterizations`."""
    control: str | None = None
    """The arm that the others are compared with: one that does not scale. Among tables the default is `sp`. Arms of
    your own have no default, and without a control no verdict on them says `transfers`."""
    data: str = "unnamed"
    """The name of the data and of its version, such as `fineweb-10BT@2026-10`. It is part of the trials' identity."""
    nan_exit: Seq[str] = ()
    """Regular expressions. A trainer that ends by itself with an error whose last lines match one has diverged."""
    env: Seq[str] = ()
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
