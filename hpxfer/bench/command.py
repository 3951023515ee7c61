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
    if device.type == "cuda":
        from hpxfer.bench import kernels_cuda, sweep, trainer_cuda

        rows_of = {"trainer": trainer_cuda.rows, "kernels": kernels_cuda.rows, "sweep": sweep.rows}
        return rows_of[name](device)
    from hpxfer.bench import kernels_cpu, sweep, sweep_ray, sweep_store, trainer_cpu, whole_machine

    match name:
        case "trainer":
            return [*whole_machine.rows(), *trainer_cpu.rows()]
        case "kernels":
            return kernels_cpu.rows()
        case _:
            return [*sweep.rows(device), *sweep_ray.rows(), *sweep_store.rows()]
