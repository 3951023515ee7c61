"""The error rates of the analysis, measured on planted sweeps: `python tests/tools/error_rates.py`.

Every sweep goes through the analysis of `hpxfer report`, and its verdict is compared with what was planted. The core
scenarios cross drift, noise and seeds. The others show where the analysis breaks, and are reported whatever they give.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from docs_markdown import table
from planted_sweeps import Planted, plant

import hpxfer
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.transfer import find

SWEEPS = 1000
CHUNK = 50
CORE = {
    f"drift {drift:g}, noise {noise:g}, {seeds} seeds": Planted(drift=drift, noise=noise, seeds=seeds)
    for drift in (0.0, 0.1, 0.25, 0.5, 1.0)
    for noise in (0.003, 0.01)
    for seeds in (2, 3, 5)
}
OTHERS = {
    "a seed's luck is smooth in the HP, as in real sweeps": Planted(noise=0.003, luck=0.02, luck_slope=0.006),
    "smooth luck, drift 0.25": Planted(noise=0.003, luck=0.02, luck_slope=0.006, drift=0.25),
    "smooth luck, 2 seeds": Planted(noise=0.003, luck=0.02, luck_slope=0.006, seeds=2),
    "asymmetric basin, 0.15 an octave": Planted(noise=0.01, asymmetry=0.15),
    "asymmetric basin, drift 0.25": Planted(noise=0.01, asymmetry=0.15, drift=0.25),
    "curvature differs between shapes by 50%": Planted(noise=0.01, curvature_spread=0.4),
    "heavy tails (Student's t, 3 degrees)": Planted(noise=0.01, tail=3.0),
    "noise grows by half per octave of the HP": Planted(noise=0.01, noise_slope=math.log2(1.5)),
    "10% of the trials missing": Planted(noise=0.01, missing=0.1),
    "30% of the trials missing": Planted(noise=0.01, missing=0.3),
    "all seeds diverge 1.5 octaves above": Planted(noise=0.01, cliff=1.5),
    "seeds diverge from 0.5 to 1.5 octaves above": Planted(noise=0.01, cliff=1.5, cliff_width=1.0),
    "losses blow up, finite, 1.5 octaves above": Planted(noise=0.01, cliff=1.5, blow_up=True),
    "coarse grid: 4 points at factor 4": Planted(noise=0.01, num_points=4, step=2.0),
    "coarse grid, drift 0.25": Planted(noise=0.01, num_points=4, step=2.0, drift=0.25),
    "optima at the upper edge of the grid": Planted(noise=0.01, off_center=3.0),
    "half of the optima beyond it, drift 0.5": Planted(noise=0.01, off_center=2.5, drift=0.5),
    "optima scatter by 0.2 octaves about the line": Planted(noise=0.01, scatter=0.2),
    "3 shapes over 2 doublings, 2 seeds": Planted(noise=0.01, doublings=(0.0, 1.0, 2.0), seeds=2),
    "3 shapes, 2 seeds, drift 0.5": Planted(noise=0.01, doublings=(0.0, 1.0, 2.0), seeds=2, drift=0.5),
    "flat basin, curvature 0.002": Planted(noise=0.01, curvature=0.002),
    "noise as large as the basin: 0.1, curvature 0.002": Planted(noise=0.1, curvature=0.002),
    "noise 0.03": Planted(noise=0.03),
    "noise 0.03, drift 0.25": Planted(noise=0.03, drift=0.25),
}


@dataclass(frozen=True, kw_only=True)
class VerdictCounts:
    """Counts over planted sweeps of one kind."""

    sweeps: int = 0
    optima: int = 0  # shapes with an interval or a bound
    optima_covered: int = 0
    bounds: int = 0  # of these, bounds
    drifts_known: int = 0  # sweeps with a drift and its interval
    drifts_covered: int = 0
    transfers: int = 0
    drifts: int = 0
    undecided: int = 0

    def __add__(self, other: VerdictCounts) -> VerdictCounts:
        names = [field.name for field in fields(VerdictCounts)]
        return VerdictCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def rates(self) -> dict[str, float | None]:
        """Return the shares of intervals that cover what was planted, and of sweeps with each verdict."""
        return {
            "optimum_coverage": self.optima_covered / self.optima if self.optima else None,
            "drift_coverage": self.drifts_covered / self.drifts_known if self.drifts_known else None,
            "drift_known": self.drifts_known / self.sweeps,
            **{verdict: getattr(self, verdict) / self.sweeps for verdict in ("transfers", "drifts", "undecided")},
        }


def count_verdicts(kind: Planted, seeds: Sequence[int]) -> VerdictCounts:
    """Return the counts over the planted sweeps of these random seeds."""
    total = VerdictCounts()
    for seed in seeds:
        planted = plant(kind, seed)
        (finding,) = find([planted.grid()])
        pairs = [(shape.optimum, true) for shape, true in zip(finding.shapes, planted.optimum_I.tolist(), strict=True)]
        known = [(optimum, true) for optimum, true in pairs if (optimum.low_log2, optimum.high_log2) != (None, None)]
        drift = finding.drift.interval(0.95) if finding.drift else None
        total += VerdictCounts(
            sweeps=1,
            optima=len(known),
            optima_covered=sum(_covers(optimum, true) for optimum, true in known),
            bounds=sum(optimum.kind != "interior" for optimum, _ in known),
            drifts_known=drift is not None,
            drifts_covered=drift is not None and drift[0] <= planted.drift <= drift[1],
            **{finding.verdict: 1},
        )
    return total


def error_rates(scenarios: dict[str, Planted], sweeps: int, workers: int) -> Iterator[dict[str, Any]]:
    """Yield a row per scenario: its name, what was planted, counts and rates. Verdicts are shares of the sweeps.

    The number of workers does not matter. All scenarios draw from the same random seeds, so errors are shared by rows.
    """
    jobs = [(name, range(start, min(start + CHUNK, sweeps))) for name in scenarios for start in range(0, sweeps, CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(count_verdicts, [scenarios[name] for name, _ in jobs], [seeds for _, seeds in jobs])
        totals = dict.fromkeys(scenarios, VerdictCounts())
        for (name, _), counts in zip(jobs, found, strict=True):
            totals[name] += counts
            if totals[name].sweeps == sweeps:
                kind = {key: value for key, value in asdict(scenarios[name]).items() if value != math.inf}
                yield {"name": name, "planted": kind, **asdict(totals[name]), **totals[name].rates()}


def error_rates_tables(entry: dict[str, Any]) -> str:
    """Return one run as Markdown tables, one of the core scenarios and one of the others."""
    head = ("covered: optimum", "covered: drift", "transfers", "drifts", "undecided")
    core = [
        (*(f"{row['planted'][key]:g}" for key in ("drift", "noise", "seeds")), *_rates(row)) for row in entry["core"]
    ]
    others = [(row["name"], *_rates(row)) for row in entry["others"]]
    parts = [
        table(("drift, octaves per doubling", "noise, nats", "seeds", *head), core),
        table(("planted (noise 0.01, 3 seeds, drift 0 unless given)", *head), others),
        f"{entry['sweeps']:,} sweeps per row, {entry['date']}, hpxfer {entry['hpxfer']}.",
    ]
    return "\n\n".join(parts)


def _rates(row: dict[str, float | None]) -> list[str]:
    names = ("optimum_coverage", "drift_coverage", "transfers", "drifts", "undecided")
    return ["-" if (value := row[name]) is None else f"{100 * value:.1f}%" for name in names]


def _covers(optimum: Optimum, true: float) -> bool:
    low, high = optimum.low_log2, optimum.high_log2
    return (low is None or low <= true) and (high is None or true <= high)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the error rates, append them to error_rates.jsonl, and print them as Markdown."""
    parser = argparse.ArgumentParser(prog="python tests/tools/error_rates.py", description=main.__doc__)
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help="planted sweeps per scenario")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder")
    given = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # workers read it: on small arrays, threads only wait for each other
    start = time.monotonic()
    core, others = (list(error_rates(kinds, given.sweeps, given.workers)) for kinds in (CORE, OTHERS))
    entry = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python tests/tools/error_rates.py --sweeps {given.sweeps}",
        "hpxfer": hpxfer.__version__,
        "versions": {"numpy": np.__version__, "scipy": scipy.__version__, "python": platform.python_version()},
        "sweeps": given.sweeps,
        "wall_s": round(time.monotonic() - start, 1),
        "core": core,
        "others": others,
    }
    given.output.mkdir(parents=True, exist_ok=True)
    with (given.output / "error_rates.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")
    sys.stdout.write(error_rates_tables(entry) + "\n")


if __name__ == "__main__":
    main()
