"""How long the analysis takes on a large sweep: `python -m hpxfer.testing.analysis_speed`.

CPU seconds of one process, so that what else runs on the machine plays no part; set OMP_NUM_THREADS=1 for one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hpxfer.analysis import analyze
from hpxfer.analysis.basin import Basin, basins
from hpxfer.analysis.bootstrap import draw_optima, pool_noise
from hpxfer.analysis.estimate import fitted
from hpxfer.spec import parse_sweep
from hpxfer.testing.planted_store import PlantedStore, planted_results

DRAWS = 1000
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
  schedule: {{decay: constant, warmup_steps: 20}}
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


def measure(seeds: int, folder: Path) -> dict[str, float]:
    """Return the size of the sweep and the CPU seconds of each part."""
    results = planted_results(
        parse_sweep(SWEEP.format(seeds=seeds)), folder, PlantedStore(drift={"sp": -0.5}, points=200, balance_points=64)
    )
    times: dict[str, float] = {"trials": float(len(results.trials))}
    start = time.process_time()
    line = results.line("lr", "validation")
    times["load_line_s"] = time.process_time() - start
    start = time.process_time()
    groups: dict[tuple[str, str], list[Basin]] = {}
    for basin in basins(line):
        groups.setdefault((basin.axis, basin.parameterization), []).append(basin)
    fits = [fitted(group) for group in groups.values()]
    noise = pool_noise([(one.cube, one.fit) for one in fits if one.fit is not None])
    for one in fits:
        if one.fit is not None and noise is not None:
            draw_optima(one.cube, one.fit, noise, DRAWS)
    times[f"bootstrap_{DRAWS}_s"] = time.process_time() - start
    start = time.process_time()
    _ = results.curves
    times["load_curves_s"] = time.process_time() - start
    start = time.process_time()
    analyze(results).to_dict()
    times["analyze_s"] = time.process_time() - start
    return {name: round(value, 2) for name, value in times.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times as JSON."""
    parser = argparse.ArgumentParser(prog="python -m hpxfer.testing.analysis_speed", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the planted sweep; 20 are 10,500 trials")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(measure(given.seeds, Path(folder) / "large")) + "\n")


if __name__ == "__main__":
    main()
