"""Measure this machine, keep each row as soon as it is measured, and return a table, for `hpxfer bench`."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import hpxfer
from hpxfer.bench.rates import rows as rows_on
from hpxfer.errors import HpxferError, shown
from hpxfer.host import aligned, append_line, cpu_name, num_cpus
from hpxfer.plan import SPEEDS, Kind, Record, Row, append, file_of, latest

Rows = Mapping[str, Callable[[], Row | None]]


def run_bench(device: str, output: Path, keys: Sequence[str] = ()) -> Record:
    """Measure the rows of this machine, or only the named ones, and return what is now known of it.

    Each row is in `output` before the next one is measured.
    """
    where = bench_device(device)
    rows = _chosen(rows_on(where), keys, where.type)
    append_line(file_of(SPEEDS, output), None)
    run = record(SPEEDS, f"hpxfer bench --device {where.type}", where, asked=keys, run=uuid.uuid4().hex[:12])
    for measure in rows.values():
        if (row := measure()) is not None:
            append(replace(run, rows=(row,)), output)
    return latest(output, SPEEDS, run.device) or run


def table_text(found: Record) -> str:
    """Return the rows for a terminal, under what they were measured on."""
    cells = [(row.key, row.what, f"{row.value:.3g} {row.unit}", _numbers(row)) for row in found.rows]
    return "\n".join([found.provenance(), *aligned([("row", "what", "measured", "of it"), *cells])])


def _numbers(row: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.numbers.items())


def _chosen(rows: Rows, keys: Sequence[str], device: str) -> Rows:
    """Return these rows, or all if none is named. Raise HpxferError for an unknown row."""
    for key in keys:
        if key not in rows:
            raise HpxferError(f"--row: {device} has no row {shown(key)}; legal: {', '.join(rows)}")
    return {key: rows[key] for key in keys or rows}


def bench_device(asked: str) -> torch.device:
    """Return the device of a benchmark. `auto` is CUDA if there is a GPU. Raises HpxferError if the device is
    absent.
    """
    if asked not in ("auto", "cpu", "cuda"):
        raise HpxferError(f"--device must be auto, cpu or cuda, got {asked!r}")
    if asked == "cuda" and not torch.cuda.is_available():
        raise HpxferError("--device cuda needs a CUDA device that torch sees, got none; use --device cpu")
    return torch.device("cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu")


def record(name: str, command: str, device: torch.device, *, asked: Sequence[str] = (), run: str = "") -> Record:
    """Return a record without rows: date, command, machine and versions. `asked` are the rows that the user named."""
    kind: Kind = "cuda" if device.type == "cuda" else "cpu"
    return Record(
        name=name,
        device=kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=command + "".join(f" --row {key}" for key in asked),
        machine=machine_of(device),
        versions=versions_of(device),
        rows=(),
        run=run,
    )


def machine_of(device: torch.device) -> dict[str, str | int]:
    """Return the names of the CPU and of the GPU, if it is used, and the number of cores and threads."""
    machine: dict[str, str | int] = {"cpu": cpu_name(), "cores": num_cpus(), "threads": 1}
    return machine | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def versions_of(device: torch.device) -> dict[str, str]:
    """Return the versions that a speed depends on."""
    versions = {"hpxfer": hpxfer.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        versions |= {"cuda": str(torch.version.cuda), "triton": _version("triton")}
    return versions


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
