"""Run benchmarks, keep their records, and return their tables, for `hpxfer bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from hpxfer.bench.machine import bench_device, record
from hpxfer.bench.table import table_text
from hpxfer.plan.speeds import Kind, Record, Row, append, require_writable
from hpxfer.train.device import fix_workspace


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Finished benchmarks: their records, where they were appended, and their tables."""

    records: tuple[Record, ...]
    files: tuple[Path, ...]
    text: str


def run_benches(names: Sequence[str], device: str, output: Path) -> Ran:
    """Run the named benchmarks on a device. Append each record to `output` as soon as it is measured."""
    where = bench_device(device)
    if where.type == "cuda":
        fix_workspace()  # measuring the peaks starts CUDA, and the strict trial comes after them
    for name in names:
        require_writable(name, output)
    records, files, tables = [], [], []
    for name in names:
        records.append(record(name, where, _rows(name, where)))
        files.append(append(records[-1], output))
        tables.append(table_text(name, records[-1].device, records[-1]))
        tables += [table_text(name, other, None) for other in get_args(Kind) if other != records[-1].device]
    return Ran(records=tuple(records), files=tuple(files), text="\n\n".join(tables))


def _rows(name: str, device: torch.device) -> list[Row]:
    """Return the rows of one benchmark. Code for a GPU is imported only for a GPU."""
    cuda = device.type == "cuda"
    match name:
        case "trainer" if cuda:
            from hpxfer.bench import trainer_cuda

            return trainer_cuda.rows(device)
        case "trainer":
            from hpxfer.bench import trainer_cpu, whole_machine

            return [*whole_machine.rows(), *trainer_cpu.rows()]
        case "kernels" if cuda:
            from hpxfer.bench import kernels_cuda

            return kernels_cuda.rows(device)
        case "kernels":
            from hpxfer.bench import kernels_cpu

            return kernels_cpu.rows()
        case "sweep" if cuda:
            from hpxfer.bench import sweep

            return sweep.rows(device)
        case "sweep":
            from hpxfer.bench import sweep, sweep_ray, sweep_store

            return [*sweep.rows(device), *sweep_ray.rows(), *sweep_store.rows()]
    raise AssertionError(name)
