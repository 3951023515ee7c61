"""`hpxfer submit`: send a sweep to a Ray cluster as a job."""

from __future__ import annotations

import shlex
from typing import Any

from hpxfer.cli.options import Address, AsJson, SweepOptions, Yes
from hpxfer.cli.output import answer, say, warn
from hpxfer.host import parse_root
from hpxfer.jobs import DEFAULT_ADDRESS, ray_job


def submit(of: SweepOptions, address: Address = DEFAULT_ADDRESS, yes: Yes = False, as_json: AsJson = False) -> None:
    """Send a sweep to a Ray cluster as a job, and print the job's id and the commands that follow it.

    The cluster is checked first. Every node that can train needs the same hpxfer, and the sweep's data under the same
    absolute path as here. If anything differs, nothing is submitted. A job always trains on the cluster's Ray, and its
    plan is for the cluster's hardware.

    \b
    Example:
      hpxfer submit sweeps/quickstart.yaml --address http://127.0.0.1:8265
    """
    from hpxfer.cli.consent import ask, keep_within
    from hpxfer.jobs import commands as jobs
    from hpxfer.jobs.client import connect

    cluster = connect(address)
    strict: dict[str, Any] = {"strict_memory": of.strict_memory, "strict_code": of.strict_code}
    offered = jobs.offer(cluster, of.sweep, **of.given(), **strict)
    warn(offered.warnings)
    say(offered.text, err=True)
    keep_within(offered.costs, of.max_gpu_hours)
    ask(offered.costs, yes=yes)
    job = jobs.submit(cluster, offered)
    place = {"results": offered.root, "host": offered.host, "address": cluster.address}
    answer(lambda: {"job": job, **place, "plan": offered.plan}, lambda: job, as_json=as_json)
    if not as_json:
        watched = shlex.join(["hpxfer", "watch", str(parse_root(offered.root) / offered.spec.name)])
        following = [
            ray_job("logs", "--follow", job, address=cluster.address),
            *(ray_job(action, job, address=cluster.address) for action in ("status", "stop")),
            watched if "://" in offered.root else f"{watched}  # on {offered.host}",
            shlex.join(["hpxfer", "fetch", job, "--address", cluster.address]),
        ]
        said = f"submitted; results go to {offered.root} ({offered.host}); next:"
        say("\n  ".join([said, *following]), err=True)
