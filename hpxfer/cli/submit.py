"""`hpxfer submit`: send a sweep to a Ray cluster as a job."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import (
    Address,
    AsJson,
    EarlyStopping,
    MaxGpuHours,
    Overrides,
    Plugins,
    Price,
    StrictCode,
    StrictMemory,
    Sweep,
    Yes,
)
from hpxfer.cli.output import say, warn
from hpxfer.jobs.request import DEFAULT_ADDRESS, ray_job
from hpxfer.storage.uri import parse_root

if TYPE_CHECKING:
    from hpxfer.jobs.commands import Offer


def submit(
    sweep: Sweep,
    address: Address = DEFAULT_ADDRESS,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            help="The folder on the cluster, or the URI, that holds the sweep's results folder; default: the sweep's "
            "storage, or ~/hpxfer-results on the head.",
        ),
    ] = None,
    reuse: Annotated[
        list[str] | None,
        typer.Option(
            "--reuse", help="Copy what is needed from this results folder on the cluster or URI; may be repeated."
        ),
    ] = None,
    price_per_hour: Price = None,
    max_gpu_hours: MaxGpuHours = None,
    early_stopping: EarlyStopping = None,
    strict_memory: StrictMemory = True,
    strict_code: StrictCode = False,
    yes: Yes = False,
    plugin: Plugins = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Send a sweep to a Ray cluster as a job, and print the job's id and the commands that follow it.

    The cluster is checked first. Every node that can train needs the same hpxfer, and the sweep's data under the same
    absolute path as here. If anything differs, nothing is submitted. A job always trains on the cluster's Ray, and its
    plan is for the cluster's hardware.

    \b
    Example:
      hpxfer submit sweeps/quickstart.yaml --address http://127.0.0.1:8265
    """
    from hpxfer.cli.consent import ask, keep_within
    from hpxfer.jobs import commands as job_commands
    from hpxfer.jobs.client import connect

    cluster = connect(address)
    offered = job_commands.offer(
        cluster,
        sweep,
        results,
        reuse=reuse or (),
        price_per_hour=price_per_hour,
        early_stopping=early_stopping,
        strict_memory=strict_memory,
        strict_code=strict_code,
        plugins=plugin or (),
        overrides=overrides or (),
    )
    warn(offered.warnings)
    say(offered.text, err=True)
    keep_within(offered, max_gpu_hours)
    ask(offered, yes=yes)
    job = job_commands.submit(cluster, offered)
    if as_json:
        say(
            json.dumps(
                {
                    "job": job,
                    "results": offered.root,
                    "host": offered.host,
                    "address": cluster.address,
                    "plan": offered.plan,
                }
            )
        )
    else:
        say(job)
        said = f"submitted; results go to {offered.root} ({offered.host}); next:"
        say("\n  ".join([said, *_next(offered, job, cluster.address)]), err=True)


def _next(offered: Offer, job: str, address: str) -> list[str]:
    """Return the commands that follow a job, end it, show how far its sweep is, and bring its results home."""
    place = "" if "://" in offered.root else f"  # on {offered.host}"
    return [
        ray_job("logs", "--follow", job, address=address),
        *(ray_job(action, job, address=address) for action in ("status", "stop")),
        shlex.join(["hpxfer", "watch", str(parse_root(offered.root) / offered.spec.name)]) + place,
        shlex.join(["hpxfer", "fetch", job, "--address", address]),
    ]


SUBMIT = Command(name="submit", run=submit)
