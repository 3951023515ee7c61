"""The section `training` of a sweep file: batch, length, optimizer and schedule of every trial.

The text below a field documents its key.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hpxfer.spec.fields import Count, CountOrNone, NotNegative, Positive, Registered, Section, Seq, Tokens, into, whole


class Length(Section):
    """A length of a part of the run, in one of three forms. A bare whole number is short for `{steps: NUMBER}`.

    It is rounded to whole steps, at least 1, where it is not 0.
    """

    steps: CountOrNone | None = None
    """In steps of the base's run. Where an axis changes the steps, the length keeps its share of the run."""
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """As a fraction of the run, at every shape."""
    tokens: Tokens | None = None
    """In tokens: the same number at every shape, whatever its batch and steps."""

    @model_validator(mode="after")
    def _has_one_form(self) -> Length:
        if sum(form is not None for form in (self.steps, self.fraction, self.tokens)) != 1:
            raise ValueError("a whole number of steps, or one of {fraction: x} and {tokens: n}")
        return self

    @property
    def is_some(self) -> bool:
        return self.steps != 0

    def spell(self) -> str:
        """Return e.g. `20 steps`, `0.1 of the run` or `10240 tokens`."""
        if self.fraction is not None:
            return f"{self.fraction:g} of the run"
        return f"{self.tokens} tokens" if self.tokens is not None else f"{self.steps} steps"

    def __str__(self) -> str:
        if self.fraction is not None:
            return f"{{fraction: {self.fraction:g}}}"
        return f"{{tokens: {self.tokens}}}" if self.tokens is not None else str(self.steps)


StepsOrLength = Annotated[
    Length,
    BeforeValidator(lambda given: into("steps", int)(whole(given)), json_schema_input_type=CountOrNone | Length),
]


class ScheduleSpec(Section):
    """The learning rate over the run: linear warm-up, then the named decay to `final_fraction` of the peak.

    Warm-up and decay must fit into the run at every shape.
    """

    decay: Annotated[str, Registered("schedule")] = "constant"
    """The shape of the decay. wsd (warm-up, stable, decay) is constant until the last part of the run."""
    warmup: StepsOrLength = Length(steps=0)
    """The length of the linear warm-up."""
    decay_length: StepsOrLength | None = None
    """The length of the last part of the run, over which the LR falls linearly. Given exactly with decay `wsd`."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The LR at the end of the decay, as a fraction of the peak."""


class TrainingSpec(Section):
    """How every trial is trained. Give steps or tokens, not both."""

    batch_tokens: Count | None = None
    """Tokens per optimizer step: a multiple of 32 and of the context. Given in a family that reads tokens."""
    batch_samples: Count | None = None
    """Samples per optimizer step. Given in a family that reads samples, such as `mlp`."""
    accumulation_tokens: Count | None = None
    """The tokens of a piece of the batch: a multiple of 32 and of the context that divides the batch. By default the
    whole batch is one piece, and so is a batch of at most this many tokens.

    The gradient of a batch is the sum of the gradients of its pieces, in order. So this key is part of a trial's
    identity, and how many pieces are computed at once changes no bit."""
    accumulation_samples: Count | None = None
    """The samples of a piece of the batch, as accumulation_tokens are its tokens, in a family that reads samples."""
    accumulation_lanes: Count = 1
    """The groups of consecutive pieces. Each is summed by itself, then the sums are added in order. Several GPUs share
    a trial by lanes. Part of a trial's identity."""
    steps: Count | None = None
    """Optimizer steps. A run has at most 2^53 tokens."""
    tokens: Tokens | None = None
    """Tokens of the run, a multiple of batch_tokens, in at most 1e9 steps. The data must hold more than these, unless
    data.epochs lets a run read it several times."""
    optimizer: Annotated[str, Registered("optimizer")] = "adamw"
    """The optimizer. Muon may have options, as in `muon[scale=original,router=muon]` (docs/parameterizations.md)."""
    betas: Annotated[Seq[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = (0.9, 0.95)
    """The two betas of AdamW, each in [0, 1)."""
    eps: Positive = 1e-12
    """AdamW's eps at the base. With 0, the embedding of a token not yet seen would be 0/0."""
    weight_decay: NotNegative = 0.0
    """The weight decay at the base."""
    schedule: ScheduleSpec = ScheduleSpec()
    """The learning rate over the run."""
    final_window_steps: Count | None = None
    """The last steps, over which the final training loss is averaged. The default is a tenth of the run."""
    validation_tokens: Tokens | None = None
    """The held-out tokens, a multiple of batch_tokens: the end of the data, or the start of data.validation. Given in a
    family that reads tokens."""
    validation_samples: Tokens | None = None
    """The held-out samples, a multiple of batch_samples. Given in a family that reads samples."""
    gradient_clip: Positive | None = None
    """The largest L2 norm of a trial's whole gradient. Nothing is clipped by default."""
    determinism: Literal["strict", "fast"] | None = None
    """strict: a trial has the same bits whatever is stacked beside it. The default is strict on a CPU and fast on CUDA.

    On a CPU both run the same code. Never part of a trial's identity."""

    @property
    def batch(self) -> int:
        """The tokens or samples per step. `checks` refuses a file that gives neither, or both."""
        return self.batch_tokens or self.batch_samples or 1

    @property
    def piece(self) -> int | None:
        """The tokens or samples of a piece of the batch. None: the batch is one piece."""
        return self.accumulation_tokens or self.accumulation_samples

    @property
    def validation(self) -> int:
        """The held-out tokens or samples."""
        return self.validation_tokens or self.validation_samples or 0
