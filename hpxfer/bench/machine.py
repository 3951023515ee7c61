"""What a benchmark ran on: device, CPU, threads, GPU and versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Sequence

import torch

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.host.machine import cpu_name, num_cpus
from hpxfer.plan.speeds import Kind, Record


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
