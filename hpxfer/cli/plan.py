"""`hpxfer plan`: what a sweep will run, and what it will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hpxfer.cli.options import AsJson, Cluster, Hardware, SweepOptions
from hpxfer.cli.output import answer, warn

if TYPE_CHECKING:
    from hpxfer.driver import PreparedSweep


def plan(
    of: SweepOptions,
    trials: Annotated[bool, Option("--trials", help="List every trial: id, status, shape, HPs, seed.")] = False,
    address: Cluster = None,
    hardware: Hardware = None,
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
    from hpxfer.driver import preflight, trials_of, trials_text

    job = of.prepared(address=address, hardware=hardware)
    warn((*job.problems, *job.plan.cautions, *(() if of.strict_memory else job.plan.unfit)))
    listed = {"trials": trials_of(job)} if trials else {}
    table = ["", trials_text(listed["trials"])] if trials and not as_json else []
    answer(lambda: {**plan_data(job), **listed}, lambda: "\n".join([plan_lines(job), *table]), as_json=as_json)
    preflight(job, strict_memory=of.strict_memory, strict_code=of.strict_code, trains=False)
    keep_within(job.plan, of.max_gpu_hours)


def plan_lines(job: PreparedSweep) -> str:
    """Return a plan as text, with what is reused."""
    from hpxfer.plan import plan_text

    return "\n".join([plan_text(job.plan), *job.reuse.lines()])


def plan_data(job: PreparedSweep) -> dict[str, Any]:
    """Return a plan as JSON-ready data, with what is reused."""
    return {**job.plan.to_dict(), "reused": job.reuse.counts()}
