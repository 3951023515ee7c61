"""Consent: which runs cost so much that the user is asked first."""

from __future__ import annotations

import math
import sys
from typing import Protocol

import typer

from hpxfer.cli.output import INTERRUPTED, say
from hpxfer.errors import HpxferError

# The user is asked before a run above either limit. 8 GPU-hours are a working day of one GPU, which cost a few tens of
# dollars in a cloud of 2026. 48 hours of CPU workers are a night of four cores. Sweeps for a laptop stay far below.
ASK_GPU_HOURS = 8.0
ASK_WORKER_HOURS = 48.0


class Costs(Protocol):
    """What a run will cost: a `hpxfer.plan.plan.Plan`, or the offer of a cluster."""

    @property
    def num_left(self) -> int: ...
    @property
    def gpu_hours(self) -> float: ...
    @property
    def worker_hours(self) -> float: ...
    @property
    def rate_from(self) -> str: ...


def keep_within(plan: Costs, max_gpu_hours: float | None) -> None:
    """Raise HpxferError if the plan needs more GPU-hours than the user allows, or if its time is not known."""
    if max_gpu_hours is None or plan.gpu_hours <= max_gpu_hours:
        return
    got = "its time is not known" if math.isnan(plan.gpu_hours) else f"got {_cost(plan)} ({plan.rate_from})"
    raise HpxferError(f"--max-gpu-hours: the plan must stay within {max_gpu_hours:g} GPU-hours, {got}")


def ask(plan: Costs, *, yes: bool) -> None:
    """Ask the user before a run that costs much, unless `yes`. End the program if the answer is no."""
    # Where the time is not known, as of a user's own trainer, the user knows as much as the plan says.
    if yes or not plan.num_left or not (plan.gpu_hours > ASK_GPU_HOURS or plan.worker_hours > ASK_WORKER_HOURS):
        return
    if not sys.stdin.isatty():
        raise HpxferError(
            f"a run above {ASK_GPU_HOURS:g} GPU-hours or {ASK_WORKER_HOURS:g} hours of CPU workers needs consent, got "
            f"{_cost(plan)} and there is no terminal to ask at; give --yes to run it"
        )
    try:
        agreed = typer.confirm(f"This run takes {_cost(plan)} ({plan.rate_from}). Go on?", err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D is a no
        say("", err=True)
        agreed = False
    if not agreed:
        say("nothing was run", err=True)
        raise typer.Exit(INTERRUPTED)


def _cost(plan: Costs) -> str:
    if plan.gpu_hours:
        return f"about {plan.gpu_hours:.3g} GPU-hours"
    return f"about {plan.worker_hours:.3g} hours of CPU workers"
