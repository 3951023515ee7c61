"""TrialResult: what a finished training run reports. Missing is None, never 0. Losses are in nats.

A loss of the family `mlp` under a squared error is that error, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A diverged trial is a result and is never run again. A failed trial is no result, and the next run tries it again. A
# stopped trial fell behind others under early stopping. It is no result either, and runs again if the sweep no longer
# stops trials early.
Status = Literal["finished", "diverged", "stopped", "failed"]
# Why a trial failed. bug: an exception in training. input: something that the user has to fix, such as absent data.
# memory: a single trial did not fit. lost: its worker was lost on every try. timeout: a user's own trainer was twice
# silent or slow. The first two affect other trials too.
ErrorKind = Literal["bug", "input", "memory", "lost", "timeout"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over the steps of a trial, e.g. metric `train_loss_nats`, or `grad_rms` of a role."""

    metric: str
    layer: int | None = None
    role: str | None = None
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The numbers of one trial and where they come from."""

    trial_id: str
    status: Status
    final_window_loss_nats: float | None = None  # the mean training loss over the last window of steps
    validation_loss_nats: float | None = None
    validation_error: float | None = None  # share of the held-out samples; None for tokens and for real targets
    validation_top5_error: float | None = None  # None for five classes or fewer, too
    diverged_step: int | None = None  # the first step whose loss was not finite or blew up
    last_finite_loss_nats: float | None = None  # of the step before that
    error: str | None = None  # message or traceback of a failed trial
    error_kind: ErrorKind | None = None  # of a failed trial
    curves: tuple[Curve, ...] = ()
    wall_s: float | None = None  # of the whole stack
    tokens_per_s: float | None = None  # of the whole stack: all its trials' training tokens over wall_s
    peak_bytes: int | None = None  # of the process (CPU: resident set) or of the device (CUDA)
    stack_size: int | None = None
    halvings: int | None = None  # how often the stack was cut in half for lack of memory
    resumes: int | None = None  # how often its training resumed from a checkpoint
    loss_name: str | None = None  # of a user's own trainer, as are the fields up to `provenance`
    loss_unit: str | None = None  # None: nats
    trainer: str | None = None  # JSON: its function or command
    attempts: int | None = None  # how often it was started
    num_gpus: int | None = None
    num_nodes: int | None = None
    provenance: str | None = None  # JSON: commit and packages of its code
    device: str | None = None
    cpu: str | None = None  # name and instructions of the CPU, if that is the device
    determinism: str | None = None  # strict: the same bits in every stack; fast: not promised
    backend: str | None = None  # of the kernels: torch or triton
    backend_reason: str | None = None  # why that backend
    kernel_configs: str | None = None  # hash of the launch configurations; None if no Triton kernel ran
    host: str | None = None
    versions: str | None = None  # JSON object: hpxfer, torch, python
    finished_at: str | None = None  # UTC, ISO 8601
