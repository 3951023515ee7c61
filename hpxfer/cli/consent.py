"""Consent: what a run may cost before anybody is asked, and how the question is put."""

from __future__ import annotations

import sys
from typing import Protocol

import typer

from hpxfer.cli.output import INTERRUPTED, say
from hpxfer.errors import HpxferError

# Above this a run is asked about. 8 GPU-hours are a working day of one GPU, or a few tens of dollars at what clouds
# charge for one in 2026; two days of a CPU worker are a night of four cores. Sweeps that fit a laptop stay far below.
ASK_GPU_HOURS = 8.0
ASK_WORKER_HOURS = 48.0


class Costs(Protocol):
    """What is asked about of a plan: `hpxfer.plan.plan.Plan`, or a cluster's word on one."""

    @property
    def num_left(self) -> int: ...
    @property
    def gpu_hours(self) -> float: ...
    @property
    def worker_hours(self) -> float: ...
    @property
    def rate_from(self) -> str: ...


def keep_within(plan: Costs, max_gpu_hours: float | None) -> None:
    """Raise HpxferError if the plan needs more GPU-hours than the user allows."""
    if max_gpu_hours is None or plan.gpu_hours <= max_gpu_hours:
        return
    raise HpxferError(
        f"--max-gpu-hours: the plan must stay within {max_gpu_hours:g} GPU-hours, got {_cost(plan)} "
        f"({plan.rate_from}); raise the limit, or make the sweep smaller (fewer seeds, grid points or steps)"
    )


def ask(plan: Costs, *, yes: bool) -> None:
    """Ask before a run that costs much, unless `yes`; end the program if the answer is no."""
    if yes or not plan.num_left or (plan.gpu_hours <= ASK_GPU_HOURS and plan.worker_hours <= ASK_WORKER_HOURS):
        return
    if not sys.stdin.isatty():
        raise HpxferError(
            f"a run of {_cost(plan)} is asked about (it is above {ASK_GPU_HOURS:g} GPU-hours or {ASK_WORKER_HOURS:g} "
            f"hours of CPU workers), and there is no terminal to ask at; give --yes to run it"
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
