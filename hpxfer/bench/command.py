"""Run benchmarks, keep each row as soon as it is measured, and return the tables, for `hpxfer bench`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch

from hpxfer.bench.machine import bench_device, record
from hpxfer.bench.parts import Part, chosen
from hpxfer.bench.table import table_text
from hpxfer.host.json_lines import require_appendable
from hpxfer.plan.speeds import Kind, Record, append, file_of, latest
from hpxfer.train.device import fix_workspace


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Finished benchmarks: their records, where they were appended, and their tables."""

    records: tuple[Record, ...]
    files: tuple[Path, ...]
    text: str


def run_benches(names: Sequence[str], device: str, output: Path, rows: Sequence[str] = ()) -> Ran:
    """Run the named benchmarks on a device, or of one benchmark only the named `rows`. Append each row to `output` as
    soon as it is measured.
    """
    where = bench_device(device)
    if where.type == "cuda":
        fix_workspace()  # measuring the peaks starts CUDA, and the strict trial comes after them
    plans = {name: chosen(_parts(name, where), rows, name, where.type) for name in names}
    for name in names:
        require_appendable(file_of(name, output))
    records, files, tables = [], [], []
    for name in names:
        records.append(_measured(name, where, plans[name], output, rows))
        files.append(file_of(name, output))
        known = latest(output, name, records[-1].device) if rows else records[-1]
        tables.append(table_text(name, records[-1].device, known))
        tables += [table_text(name, other, None) for other in get_args(Kind) if other != records[-1].device]
    return Ran(records=tuple(records), files=tuple(files), text="\n\n".join(tables))


def _measured(name: str, device: torch.device, parts: Sequence[Part], output: Path, rows: Sequence[str]) -> Record:
    """Return the record of one run. Each of its rows is on the disk before the next part begins."""
    run = record(name, device, (), asked=rows, run=uuid.uuid4().hex[:12])
    found = []
    for part in parts:
        for row in part.run():
            if not rows or row.key in rows:
                append(replace(run, rows=(row,)), output)
                found.append(row)
    return replace(run, rows=tuple(found))


def _parts(name: str, device: torch.device) -> list[Part]:
    """Return the parts of one benchmark. Code for a GPU is imported only for a GPU."""
    if device.type == "cuda":
        from hpxfer.bench import kernels_cuda, moe, sweep, trainer_cuda

        parts_of = {
            "trainer": trainer_cuda.parts,
            "kernels": kernels_cuda.parts,
            "moe": moe.parts,
            "sweep": sweep.parts,
        }
        return parts_of[name](device)
    from hpxfer.bench import (
        kernels_cpu,
        moe,
        samples_cpu,
        sweep,
        sweep_ray,
        sweep_store,
        trainer_cpu,
        whole_machine,
    )

    match name:
        case "trainer":
            return [*whole_machine.parts(), *trainer_cpu.parts(), *samples_cpu.parts()]
        case "kernels":
            return kernels_cpu.parts()
        case "moe":
            return moe.parts(device)
        case _:
            return [
                *sweep.parts(device),
                Part(keys=("ray-trial", "ray-tune"), run=sweep_ray.rows),
                Part(keys=("store-load", "store-rerun", "store-memory"), run=sweep_store.rows),
            ]
