"""Measure the CPU tables of docs/benchmarks.md, each speed beside its yardstick: `python tests/bench/run_bench.py`.

    python tests/bench/run_bench.py trainer kernels moe sweep
    python tests/bench/run_bench.py trainer --row mixtral-32 --row mixtral-64

Each row is a JSON line of results/bench/NAME.jsonl before the next one is measured. `--row` measures single rows, which
replace those of the run before it, if machine and versions are the same. A GPU is measured by accept.py.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import cpu_kernels
import cpu_steps
import cpu_sweeps
import torch
from goals import TABLES, table_text

from hpxfer.bench.command import record
from hpxfer.plan.hardware import Record, append, latest

ROOT = Path(__file__).parents[2]
BENCHES: dict[str, Callable[[], cpu_steps.Parts]] = {
    "trainer": cpu_steps.trainer_parts,
    "kernels": cpu_kernels.kernel_parts,
    "moe": cpu_kernels.moe_parts,
    "sweep": cpu_sweeps.parts,
}


def run_bench(name: str, rows: Sequence[str], output: Path) -> Record:
    """Measure a benchmark, or of it only these rows, and return what is now known of it."""
    command = f"python tests/bench/run_bench.py {name}"
    run = record(name, command, torch.device("cpu"), asked=rows, run=uuid.uuid4().hex[:12])
    for keys, measure in BENCHES[name]().items():
        if not rows or set(keys) & set(rows):
            for row in measure():
                if not rows or row.key in rows:
                    append(replace(run, rows=(row,)), output)
    found = latest(output, name, "cpu")
    assert found is not None
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="run_bench.py", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=TABLES)
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "bench")
    options = parser.parse_args(arguments)
    legal = [key for name in options.names for keys in BENCHES[name]() for key in keys]
    if unknown := set(options.row) - set(legal):
        parser.error(f"no row {', '.join(sorted(unknown))}; legal: {', '.join(legal)}")
    for name in options.names:
        sys.stdout.write(f"{table_text(name, run_bench(name, options.row, options.output))}\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
