"""The plug-ins of a sweep, before anything trains: every row comes from one, and every worker can import them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.registry import PluginFile
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec import SweepSpec
from hpxfer.spec.load import plugin_files, rows_without_plugin, stored_names
from hpxfer.spec.sweep import PluginSpec
from hpxfer.store.sweep_file import stored_sweep

# Imports the plug-ins that it reads from stdin, as a worker would, and prints what goes wrong.
_PREFLIGHT = """
import pickle, sys
from hpxfer.errors import HpxferError
from hpxfer.registry import load_plugin
try:
    files, gates = pickle.load(sys.stdin.buffer)
    for file in files:
        load_plugin(file)
    for gate in gates:
        from hpxfer.model.gates import GATES
        from hpxfer.model.gates.probe import require_sound
        require_sound(GATES.get(gate))
except HpxferError as error:
    sys.exit(str(error))
"""


def without_defaults(spec: SweepSpec) -> SweepSpec:
    """Return the sweep without the conventions of a plug-in's table that are given at their default.

    The identity and the label of a choice leave defaults out. Stored results are read without the code of the table,
    which alone knows its defaults, so the stored sweep names only the others.
    """
    own = stored_names(spec.plugins or ()).get("parameterization", set())
    choices = tuple(
        choice.model_copy(
            update={"conventions": parameterization(choice.table, choice.conventions).changed_conventions()}
        )
        if choice.table in own
        else choice
        for choice in spec.parameterizations
    )
    return spec.model_copy(update={"parameterizations": choices})


def stored_plugins(folder: Path) -> tuple[PluginSpec, ...]:
    """Return the plug-ins of the sweep that a results folder holds. Nothing is imported."""
    stored = stored_sweep(folder)
    return () if stored is None else stored.plugins or ()


def require_plugins(spec: SweepSpec) -> tuple[PluginFile, ...]:
    """Return the sweep's plug-ins for its workers. Raise HpxferError unless a new process can import what it needs."""
    if rows := rows_without_plugin(spec):
        raise HpxferError(
            f"{', '.join(rows)}: must be registered by a plug-in, got a registration in this process, which workers do "
            "not see; put it into a file and name the file under plugins: in the sweep, or with --plugin"
        )
    files = plugin_files(spec)
    if files:
        own = stored_names(spec.plugins or ()).get("gate", set())
        _preflight(files, [spec.model.gate] if spec.model.gate in own else [])
    return files


def _preflight(files: Sequence[PluginFile], gates: Sequence[str]) -> None:
    """Import the plug-ins and try their gates in a new process, which has what a worker of this machine has."""
    done = subprocess.run(
        [sys.executable, "-c", _PREFLIGHT], input=pickle.dumps((files, gates)), capture_output=True, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended without a message"]
        raise HpxferError(f"{lines[-1]} (in a new process, such as a worker has)")
