"""`hpxfer plan`: what a sweep will run, and what it will cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import (
    AsJson,
    MaxGpuHours,
    OnHardware,
    Overrides,
    Plugins,
    Price,
    ReuseFrom,
    RootOrUri,
    StrictCode,
    StrictMemory,
    Sweep,
)
from hpxfer.cli.output import say, warn

if TYPE_CHECKING:
    from hpxfer.driver import PreparedSweep


def plan(
    sweep: Sweep,
    results: RootOrUri = None,
    reuse: ReuseFrom = None,
    trials: Annotated[bool, typer.Option("--trials", help="List every trial: id, status, shape, HPs, seed.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Plan for this Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
    ] = None,
    hardware: OnHardware = None,
    price_per_hour: Price = None,
    max_gpu_hours: MaxGpuHours = None,
    strict_memory: StrictMemory = True,
    strict_code: StrictCode = False,
    plugin: Plugins = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show what a sweep will run and what it will cost. Nothing runs.

    \b
    Examples:
      hpxfer plan sweeps/quickstart.yaml
      hpxfer plan sweeps/quickstart.yaml --hardware h100 --price-per-hour 2.5
      hpxfer plan sweeps/quickstart.yaml --trials
    """
    from hpxfer.cli.consent import keep_within
    from hpxfer.driver import prepare
    from hpxfer.driver.own_code import require_same_code
    from hpxfer.driver.trial_list import trials_of, trials_text
    from hpxfer.plan.cautions import require_fit
    from hpxfer.plan.text import plan_text
    from hpxfer.store import Store

    job = prepare(
        sweep,
        results=results,
        address=address,
        reuse=reuse or (),
        hardware=hardware,
        price_per_hour=price_per_hour,
        plugins=plugin or (),
        overrides=overrides or (),
    )
    warn((*job.problems, *job.plan.cautions, *(() if strict_memory else job.plan.unfit)))
    listed = trials_of(job) if trials else None
    if as_json:
        say(json.dumps({**plan_data(job), **({} if listed is None else {"trials": listed})}))
    else:
        table = [] if listed is None else ["", trials_text(listed)]
        say("\n".join([plan_text(job.plan), *job.reuse.lines(), *table]))
    if strict_code:
        require_same_code(job.spec, Store.open(job.folder, write=False))
    keep_within(job.plan, max_gpu_hours)
    if strict_memory:
        require_fit(job.plan)


def plan_data(job: PreparedSweep) -> dict[str, Any]:
    return {**job.plan.to_dict(), "reused": job.reuse.counts()}


PLAN = Command(name="plan", run=plan)
