"""How long the analysis and the report of a large sweep take: `python tests/tools/analysis_speed.py`.

It counts CPU seconds, so that other work on the machine does not matter. Set OMP_NUM_THREADS=1 for one core.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from planted_results import planted_results
from planted_store import PlantedStore

from hpxfer.analysis import analyze
from hpxfer.figures import all_figures, save_transfer, transfer_info
from hpxfer.report import Source, make_report, to_html
from hpxfer.report.write import garbage_collection_paused
from hpxfer.results import Results, load_results
from hpxfer.spec import parse_sweep
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import loss_grids

SWEEP = """\
name: large
model:
  family: gpt
  base: {{width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}}
  context: 64
data: {{source: "builtin:stdlib"}}
training:
  batch_tokens: 512
  steps: 400
  schedule: {{decay: constant, warmup: 20}}
  validation_tokens: 1024
parameterizations: [completep-moe, sp]
axes:
  width: [32, 64, 96, 128, 192, 256]
  depth: [2, 3, 4, 6, 8]
  experts: [4, 8, 12, 16, 24]
  expert_ratio: [1, 2, 3, 4, 6]
hps: {{lr: 0.015625, init_scale: 1.0}}
grid:
  lr: {{log2: [-11, -2]}}
  init_scale: {{log2: [-3, 2]}}
seeds: {seeds}
"""
Times = dict[str, float]


def measure(seeds: int, folder: Path) -> Times:
    """Return the size of the sweep and the CPU seconds of each part."""
    times: Times = {"imports": time.process_time()}  # this process has done nothing else yet
    planted = parse_sweep(SWEEP.format(seeds=seeds))
    planted_results(planted, folder, PlantedStore(drift={"sp": -0.5}, points=200, balance_points=64))
    with _timed(times, "load"):
        results = load_results(folder)
    times["trials"] = float(len(results.trials))
    _measure_estimate(results, times)
    with garbage_collection_paused():
        _measure_report(results, folder, times)
    times["report_command"] = _command(folder)
    return {name: round(value, 2) for name, value in times.items()}


def _measure_estimate(results: Results, times: Times) -> None:
    """Add the time of the posterior that gives every optimum and verdict of one HP."""
    line = results.line("lr", "validation")
    with _timed(times, "estimate"):
        estimate_all(loss_grids(line))


def _measure_report(results: Results, folder: Path, times: Times) -> None:
    """Add the time of each part of a report."""
    with _timed(times, "load_curves"):
        _ = results.curves
    with _timed(times, "analyze"):
        analysis = analyze(results)
    with _timed(times, "make_figures"):
        figures, not_drawn = all_figures(results, analysis)
    with _timed(times, "draw_figures"):
        for figure in figures:
            _ = figure.svg
    with _timed(times, "transfer_figure"):
        assert analysis.report is not None
        save_transfer(transfer_info(analysis.report, results.line()), folder)
    with _timed(times, "page"):
        source = Source(results=results, analysis=analysis, figures=figures, not_drawn=not_drawn)
        to_html(make_report([source]))


def _command(folder: Path) -> float:
    """Return the time of the whole command in a process of its own, its imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = "from hpxfer.cli import main; main()"
    subprocess.run([sys.executable, "-c", command, "report", str(folder)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@contextmanager
def _timed(times: Times, name: str) -> Iterator[None]:
    start = time.process_time()
    yield
    times[name] = time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the CPU seconds of each part as JSON; `report_command` is the whole of `hpxfer report`."""
    parser = argparse.ArgumentParser(prog="python tests/tools/analysis_speed.py", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the planted sweep; 20 are 10,500 trials")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(measure(given.seeds, Path(folder) / "large")) + "\n")


if __name__ == "__main__":
    main()
