"""`hpxfer slurm`: write the script that runs a sweep on an allocation of Slurm."""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import hpxfer
from hpxfer.cli.commands import Command
from hpxfer.cli.options import Overrides, Sweep
from hpxfer.cli.output import say
from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import read_bytes, reason, write_files

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec

# The script that travels in the package. What is written is this one, with a header and arguments for the sweep.
_SHIPPED = Path(hpxfer.__file__).parent / "examples" / "cluster" / "slurm.sh"
# A trainer gets this long beyond its grace, so that the driver stores what it has before Slurm kills the job.
_STORE_S, _LEAST_S = 60, 120
_MARK = "# Written by `hpxfer slurm`."
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,@+-]*")
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


def slurm(
    sweep: Sweep,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file, not to stdout.")] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes of the allocation; default: those of one trial.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="The time limit, as Slurm spells it: 4:00:00 or 1-12.")] = None,
    partition: Annotated[str | None, typer.Option(help="The partition.")] = None,
    account: Annotated[str | None, typer.Option(help="The account.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="CPUs per node; default: those of one trial.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs per node; default: those of one trial.")] = None,
    results: Annotated[str, typer.Option(help="The folder of results, on a disk that all nodes share.")] = "results",
    overrides: Overrides = None,
) -> None:
    """Write a script for sbatch: Ray over the nodes of an allocation, and the sweep on it.

    Slurm warns the job before its time limit. Trials that run then leave a checkpoint, and the same script goes on from
    what is stored, also after a preemption or a lost node.

    \b
    Example:
      hpxfer slurm mine.yaml --nodes 4 --time 8:00:00 -o mine.sh && sbatch mine.sh
    """
    from hpxfer.store.sweep_file import load_given

    spec = load_given(sweep, (), overrides or ())
    least = spec.resources.nodes
    if nodes is not None and nodes < least:
        raise HpxferError(f"--nodes must hold a trial, which takes {least} nodes (resources), got {nodes}")
    asked = {
        "job-name": f"hpxfer-{spec.name}",
        "nodes": str(nodes or least),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cpus or math.ceil(spec.resources.cpus_per_stack)),
        "gpus-per-node": str(_gpus(spec, gpus)),
        "time": _checked("--time", time, _TIME),
        "partition": _checked("--partition", partition, _WORD),
        "account": _checked("--account", account, _WORD),
        "signal": f"B:TERM@{_warning_s(spec)}",
        "open-mode": "append",
    }
    text = script(
        {name: value for name, value in asked.items() if value not in ("", "0")},
        [str(sweep.absolute()), results, *(f"--set={each}" for each in overrides or ())],
    )
    if output is None:
        say(text.rstrip("\n"))
        return
    _write(output, text.encode())
    say(f"wrote {output}; next: sbatch {shlex.quote(str(output))}", err=True)


def _write(path: Path, content: bytes) -> None:
    """Write the script to a new file, or over an older script. Raise HpxferError if another file is there."""
    try:
        if path.exists() and _MARK.encode() not in read_bytes(path):
            raise HpxferError(
                f"--output {path}: must be a new file or an older script of hpxfer slurm, got another file; "
                "name a new one"
            )
        write_files({path: lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"--output {path}: cannot be written: {reason(error)}; name another file") from None


def script(asked: dict[str, str], arguments: list[str]) -> str:
    """Return the shipped script with what is asked of Slurm and its arguments filled in. No value needs a shell."""
    lines = _SHIPPED.read_text(encoding="utf-8").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    header = ["#!/usr/bin/env bash", f"{_MARK} Run it again after a time limit or a lost node."]
    header += [f"#SBATCH --{name}={value}" for name, value in asked.items()]
    own = f"export HPXFER_ENV=${{HPXFER_ENV:-{shlex.quote(sys.prefix)}}}"
    return "\n".join([*header, "", own, f"set -- {shlex.join(arguments)}", *lines[last + 1 :]]) + "\n"


def _gpus(spec: SweepSpec, given: int | None) -> int:
    """Return the GPUs of a node: what a trial has on it, or what was given."""
    return math.ceil(spec.resources.gpus_on_node or spec.resources.gpus_per_node or 0) if given is None else given


def _warning_s(spec: SweepSpec) -> int:
    """Return how many seconds before its time limit the job is warned."""
    grace_s = 0.0 if spec.trainer is None else spec.trainer.timeouts.grace_s
    return max(_LEAST_S, math.ceil(grace_s) + _STORE_S)


def _checked(option: str, value: str | None, rule: re.Pattern[str]) -> str:
    """Return a word for a line of the script. Raise HpxferError for what could be more than one."""
    if value is not None and not rule.fullmatch(value):
        raise HpxferError(f"{option} must be what sbatch takes for it, one word, got {shown(value)}")
    return value or ""


SLURM = Command(name="slurm", run=slurm)
