"""Preflight: what would go wrong in a run is refused before anything is written, for run, plan and submit alike."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.data import require_data
from hpxfer.driver.prepared import PreparedSweep, located
from hpxfer.errors import HpxferError
from hpxfer.loggers import LoggerKind, logger_kinds
from hpxfer.plan import require_fit
from hpxfer.registry import PluginFile
from hpxfer.spec import SweepSpec, plugin_files, rows_without_plugin, stored_names
from hpxfer.store import Store

# Imports the plug-ins that it reads from stdin, as a worker would, and prints what goes wrong.
_IMPORT = """
import pickle, sys
from hpxfer.errors import HpxferError
from hpxfer.registry import load_plugin
try:
    files, gates = pickle.load(sys.stdin.buffer)
    for file in files:
        load_plugin(file)
    for gate in gates:
        from hpxfer.model.gates import GATES
        from hpxfer.model.gates import require_sound
        require_sound(GATES.get(gate))
except HpxferError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True, kw_only=True)
class Cleared:
    """What a preflight has found for the run."""

    plugins: tuple[PluginFile, ...] = ()
    loggers: tuple[LoggerKind, ...] = ()


def preflight(
    job: PreparedSweep,
    *,
    strict_memory: bool = True,
    strict_code: bool = False,
    trains: bool = True,
    in_process: bool = False,
) -> Cleared:
    """Return what a run needs. Raise HpxferError if it cannot train: the device, the data, a logger or a plug-in.

    `strict_memory` refuses a sweep if even one trial of some shape does not fit into memory, `strict_code` a user's own
    trainer whose commit or packages are not those of the last stored trial. A plan, which `trains` nothing, is refused
    for these two alone. The executor of a caller may train `in_process`, which has every row that it registered.
    """
    if strict_code:
        job.trainer.require_same_code(Store.open(job.folder, write=False))
    if strict_memory:
        require_fit(job.real if trains else job.plan)
    if not trains:
        return Cleared()
    address = job.given.address
    with located(job.given.file, job.given.overrides):
        if job.missing and not in_process:
            job.trainer.require_device(job.real.device, address)
        if job.missing and address is None:
            require_data(job.spec)  # a cluster whose nodes have the data needs only its digest
        loggers = logger_kinds(job.spec.resources.loggers if job.missing or job.reuse.wanted else ())
    return Cleared(plugins=plugin_files(job.spec) if in_process else _plugins(job.spec), loggers=loggers)


def _plugins(spec: SweepSpec) -> tuple[PluginFile, ...]:
    """Return the sweep's plug-ins for its workers. Raise HpxferError unless a new process can import what it needs."""
    if rows := rows_without_plugin(spec):
        raise HpxferError(
            f"{', '.join(rows)}: must be registered by a plug-in, got a registration in this process, which workers do "
            "not see; put it into a file and name the file under plugins: in the sweep, or with --plugin"
        )
    files = plugin_files(spec)
    if files:
        own = stored_names(spec.plugins or ()).get("gate", set())
        _import(files, [spec.model.gate] if spec.model.gate in own else [])
    return files


def _import(files: Sequence[PluginFile], gates: Sequence[str]) -> None:
    """Import the plug-ins and try their gates in a new process, which has what a worker of this machine has."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], input=pickle.dumps((files, gates)), capture_output=True, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended without a message"]
        raise HpxferError(f"{lines[-1]} (in a new process, such as a worker has)")
