"""The cost of a large sweep for its driver: reading results, finding that nothing is left to train, and memory.

    20,010 finished trials with curves of at least 256 points, and the same sweep with five times the seeds

The numbers are made up; the files and the driver are real. Every measurement has its own process, and includes its
start if a user waits for it. The workers are an executor that makes up the results of one stack and then stops.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from hpxfer.bench.goals import measured
from hpxfer.bench.planted_store import PlantedStore, planted_result
from hpxfer.bench.process import output_of
from hpxfer.data import data_ref
from hpxfer.driver import prepare, run
from hpxfer.executors.executor import More, OnEvent, Train
from hpxfer.plan.speeds import Row
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.store import Store
from hpxfer.trial import Expansion
from hpxfer.trial.events import Ended

POINTS = 256
# How many trials are made at a time, for one part of the store.
_PART = 2000
_SWEEP = """\
name: large
model:
  family: gpt
  base: {{width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}}
  context: 64
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: 512, steps: 1000, validation_tokens: 1024}}
parameterizations: [completep-moe, sp]
axes: {{width: [32, 64]}}
grid: {{lr: {{log2: [-10, -1]}}}}
seeds: {seeds}
resources: {{executor: local}}
"""
TRIALS_PER_SEED = 30  # 10 LRs: at the base once, at the other width for both tables


class Enough(Exception):
    """The made-up workers have done their part."""


class OneStack:
    """An executor that returns the results of one stack."""

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`. Raises Enough."""
        stack = more()[0]
        results = tuple(planted_result(trial, PlantedStore(points=POINTS)) for trial in stack.trials)
        on_event(stack, Ended(results=results))
        raise Enough


def rows(stored: int = 667, planned: int = 3334, small: int = 4, rounds: int = 3) -> list[Row]:
    """Return the rows of reading, deciding and planning.

    `stored` and `planned` are numbers of seeds. The memory is compared with that of a plan of `small` seeds.
    """
    with TemporaryDirectory(prefix="hpxfer-bench-") as scratch:
        folder = Path(scratch)
        number = make_store(folder, stored)
        loads = [_measured("load", folder) for _ in range(rounds)]
        rerun = [_decided(folder, number) for _ in range(rounds)]
        _sweep(folder / "few", small)
        few = _peak(folder / "few", rounds)
        _sweep(folder, planned)
        large = _peak(folder, rounds)
    return [
        measured(
            "store-load",
            statistics.median(load["total_s"] for load in loads),
            numbers={**loads[0], "trials": number},
        ),
        measured("store-rerun", statistics.median(rerun), numbers={"trials": number}),
        measured(
            "store-memory",
            large["peak_mb"] - few["peak_mb"],
            numbers={
                "stored": number,
                "planned": large["planned"],
                "peak_mb": large["peak_mb"],
                "few_planned": few["planned"],
                "few_peak_mb": few["peak_mb"],
            },
        ),
    ]


def make_store(folder: Path, seeds: int) -> int:
    """Write a sweep with a finished store below `folder` and return its number of trials."""
    spec = load_sweep(_sweep(folder, seeds))
    data = data_ref(spec.data)
    trials = iter(Expansion(spec, data).trials())
    store = Store.open(folder / spec.name, write=True)
    while part := [(trial, planted_result(trial, PlantedStore(points=POINTS))) for trial in islice(trials, _PART)]:
        store.append(part)
    store.compact()
    store.save_sweep(spec, data.digest)
    return len(store.done_ids())


def load(folder: Path) -> dict[str, float]:
    """Return the seconds of loading all results, and of loading their curves."""
    start = time.perf_counter()
    results = load_results(folder / "large")
    loaded = time.perf_counter()
    points = len(results.curves)
    end = time.perf_counter()
    return {"total_s": end - start, "load_s": loaded - start, "curves_s": end - loaded, "points": points}


def drive(folder: Path) -> dict[str, float]:
    """Return how many trials a driver planned, and the most memory that it held.

    The driver plans, starts, and stores the first results. Then, as at the end of a run, it merges the store's files
    and loads them.
    """
    job = prepare(folder / "large.yaml", results=folder)
    planned = len(job.missing) + len(job.outcomes)
    with suppress(Enough):
        run(job, executor=OneStack())
    Store.open(job.folder, write=True).compact()
    assert len(load_results(job.folder).trials) > len(job.outcomes)
    return {"planned": planned, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    """Return the most memory that this program held. On Linux, `getrusage` includes the process that started it."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


_PARTS: dict[str, Callable[[Path], dict[str, float]]] = {"load": load, "drive": drive}


def _sweep(folder: Path, seeds: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "large.yaml"
    path.write_text(_SWEEP.format(seeds=seeds), encoding="utf-8")
    return path


def _measured(part: str, folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(output_of("hpxfer.bench.sweep_store", part, str(folder)))
    return found


def _peak(folder: Path, rounds: int) -> dict[str, float]:
    """Return the lines of `drive` at the median peak. What allocators keep differs by tens of MB from run to run."""
    return sorted((_measured("drive", folder) for _ in range(rounds)), key=lambda load: load["peak_mb"])[rounds // 2]


def _decided(folder: Path, number: int) -> float:
    """Return the seconds until a user learns that a finished sweep is finished."""
    start = time.perf_counter()
    output = output_of("hpxfer.cli", "plan", str(folder / "large.yaml"), "--results", str(folder))
    end = time.perf_counter()
    assert f"{number} trials, all done" in output, output
    return end - start


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_PARTS[sys.argv[1]](Path(sys.argv[2]))))
