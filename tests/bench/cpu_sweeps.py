"""CPU benchmarks of whole sweeps: starts of processes, Ray's cost per trial, and large stores.

Times are wall times, because processes share no other clock. A measurement in a process of its own is this file run
with the name of a function and its arguments, and prints JSON.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpxfer.bench.cases import Case, trials
from hpxfer.executors.executor import More, OnEvent, Placement, Trains, once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.worker import TrainStack
from hpxfer.plan.hardware import Row
from hpxfer.plan.packing import Device, Packer
from hpxfer.trial import Expansion
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from goals import measured
from planted_store import PlantedStore, planted_result

CASE = Case(width=32, depth=2, head_dim=32, vocab_size=128, context=64, batch_tokens=512, steps=200)
TRIALS, LONG_STEPS, POINTS = 8, 2000, 256


def parts() -> dict[tuple[str, ...], Callable[[], Sequence[Row]]]:
    """Return what is measured together -> its rows."""
    store = ("store-load", "store-rerun", "store-memory")
    return {("sweep-cpu", "sweep-cpu-2000"): start_rows, ("ray-trial", "ray-tune"): ray_rows, store: store_rows}


def in_a_process(name: str, *arguments: object) -> dict[str, float]:
    """Return what a function of this file returns in a process of its own, which inherits no imports and no memory."""
    return json.loads(output_of(__file__, name, *arguments).strip().splitlines()[-1])


def output_of(*command: object) -> str:
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def start_rows(case: Case = CASE, rounds: int = 3) -> list[Row]:
    """Return one persistent worker with stacked trials over one cold process per trial, at the measured steps and at
    LONG_STEPS. The cost of a process before it trains is the wall time outside of the trials' own.
    """
    with TemporaryDirectory() as folder:
        members = trials(case, TRIALS, Path(folder))
        runs = {
            "stacked": [list(Packer(device=Device()).pack(members))],
            "cold": [[Stack(trials=(trial,))] for trial in members],
        }
        ways = {name: [spent(stacks) for _ in range(rounds)] for name, stacks in runs.items()}
    starts = {
        f"{name}_start_s": statistics.median((wall - trained) / len(runs[name]) for wall, trained in found)
        for name, found in ways.items()
    }
    out = []
    for key, steps in (("sweep-cpu", case.steps), ("sweep-cpu-2000", LONG_STEPS)):
        more = steps / case.steps - 1
        took = {name: [wall + trained * more for wall, trained in found] for name, found in ways.items()}
        over = statistics.median(b / a for a, b in zip(took["stacked"], took["cold"], strict=True))
        out.append(measured(key, over, numbers={f"{n}_s": statistics.median(s) for n, s in took.items()} | starts))
    return out


def spent(runs: Sequence[Sequence[Stack]]) -> tuple[float, float]:
    """Return the seconds of running each list of stacks in its own worker process, one after the other: all of them,
    and those inside the trials.
    """
    start, take = time.perf_counter(), Results()
    for stacks in runs:
        LocalExecutor(Placement(workers=1)).run(once(stacks), TrainStack("cpu"), take)
    return time.perf_counter() - start, sum(result.wall_s for result in take.found)


class Results:
    """Takes the events of an executor and keeps the results."""

    def __init__(self) -> None:
        self.found: list[TrialResult] = []

    def __call__(self, _: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            assert all(result.status != "failed" for result in event.results), event.results[0].error
            self.found += event.results


class Nothing:
    """A stand-in for training that ends at once."""

    def __call__(self, stack: Stack) -> Iterator[Event]:
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))


def ray_rows(num_ours: int = 2000, num_tune: int = 100) -> list[Row]:
    """Return milliseconds per trial that does nothing through our executor, and the time of plain Ray Tune over it.

    Each trial is a stack of its own, which is the worst case. Where the two are compared, Ray is running already.
    """
    ours, tune = in_a_process("ray_ours", num_ours), in_a_process("ray_tune", num_tune)
    numbers = {"ours_all_ms": 1000 * ours["all_s"] / num_ours, "ours_ms": 1000 * ours["run_s"] / num_ours}
    numbers["tune_ms"] = 1000 * tune["run_s"] / num_tune
    values = {"ray-trial": numbers["ours_all_ms"], "ray-tune": numbers["tune_ms"] / numbers["ours_ms"]}
    return [measured(key, value, numbers=numbers) for key, value in values.items()]


def _with_ray(run: Callable[[], int], count: int) -> dict[str, float]:
    """Return seconds from before Ray starts until it has ended, and those of `run`, which returns how many finished."""
    from hpxfer.executors.ray_session import session

    start = time.perf_counter()
    with session(None, 0):
        began = time.perf_counter()
        assert run() == count
        run_s = time.perf_counter() - began
    return {"all_s": time.perf_counter() - start, "run_s": run_s}


def ray_ours(count: str) -> dict[str, float]:
    from hpxfer.executors.ray import RayExecutor
    from hpxfer.spec.resources_section import ResourcesSpec

    with TemporaryDirectory() as folder:
        members = trials(Case(**{**vars(CASE), "steps": 1}), int(count), Path(folder))
    take = Results()

    def run() -> int:
        executor = RayExecutor(Placement(resources=ResourcesSpec(device="cpu")))
        executor.run(once([Stack(trials=(trial,)) for trial in members]), Nothing(), take)
        return sum(result.status == "finished" for result in take.found)

    return _with_ray(run, int(count))


def ray_tune(count: str) -> dict[str, float]:
    from hpxfer.executors import ray_session  # noqa: F401  before ray itself: it sets Ray's environment

    # ruff: isort: split
    from ray import tune

    def nothing(config: dict[str, Any]) -> dict[str, Any]:
        return {"trial": config["trial"]}

    def run() -> int:
        with TemporaryDirectory() as folder:
            results = tune.Tuner(
                nothing,
                param_space={"trial": tune.grid_search(list(range(int(count))))},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(name="nothing", storage_path=folder, verbose=0),
            ).fit()
            return sum(results[index].error is None for index in range(len(results)))

    return _with_ray(run, int(count))


SWEEP = """\
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


def store_rows(stored: int = 667, planned: int = 3334, small: int = 4, rounds: int = 3) -> list[Row]:
    """Return the rows of reading, deciding and planning, for so many seeds. The numbers of the trials are made up; the
    files and the driver are real.
    """
    with TemporaryDirectory(prefix="hpxfer-bench-") as scratch:
        folder = Path(scratch)
        number = make_store(folder, stored)
        loads = [in_a_process("load", folder) for _ in range(rounds)]
        rerun = [_decided(folder, number) for _ in range(rounds)]
        peaks = []
        for path, seeds in ((folder / "few", small), (folder, planned)):
            drives = [in_a_process("drive", _sweep(path, seeds)) for _ in range(rounds)]
            peaks.append(sorted(drives, key=lambda one: one["peak_mb"])[rounds // 2])  # allocators keep tens of MB
    few, large = peaks
    memory = {"stored": number, **large, "few_planned": few["planned"], "few_peak_mb": few["peak_mb"]}
    total = statistics.median(load["total_s"] for load in loads)
    return [
        measured("store-load", total, numbers={**loads[0], "trials": number}),
        measured("store-rerun", statistics.median(rerun), numbers={"trials": number}),
        measured("store-memory", large["peak_mb"] - few["peak_mb"], numbers=memory),
    ]


def make_store(folder: Path, seeds: int) -> int:
    """Write a sweep with a finished store below `folder` and return its number of trials."""
    from hpxfer.data import data_ref
    from hpxfer.spec import load_sweep
    from hpxfer.store import Store

    spec = load_sweep(_sweep(folder, seeds) / "large.yaml")
    data, store = data_ref(spec.data), Store.open(folder / spec.name, write=True)
    pairs = ((trial, planted_result(trial, PlantedStore(points=POINTS))) for trial in Expansion(spec, data).trials())
    while part := list(islice(pairs, 2000)):
        store.append(part)
    store.compact()
    store.save_sweep(spec, data.digest)
    return len(store.done_ids())


def _sweep(folder: Path, seeds: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "large.yaml").write_text(SWEEP.format(seeds=seeds), encoding="utf-8")
    return folder


def load(folder: str) -> dict[str, float]:
    """Return the seconds of loading all results, and of loading their curves."""
    from hpxfer.results import load_results

    start = time.perf_counter()
    results = load_results(Path(folder, "large"))
    loaded = time.perf_counter()
    points = len(results.curves)
    end = time.perf_counter()
    return {"total_s": end - start, "load_s": loaded - start, "curves_s": end - loaded, "points": points}


class Enough(Exception):
    """The made-up workers have done their part."""


class OneStack:
    """An executor that returns the results of one stack."""

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        stack = more()[0]
        results = tuple(planted_result(trial, PlantedStore(points=POINTS)) for trial in stack.trials)
        on_event(stack, Ended(results=results))
        raise Enough


def drive(folder: str) -> dict[str, float]:
    """Return how many trials a driver planned, and the most memory that it held while it planned, started, stored the
    first results, and merged and loaded the store's files as at the end of a run.
    """
    from hpxfer.driver import prepare, run
    from hpxfer.results import load_results
    from hpxfer.store import Store

    job = prepare(Path(folder, "large.yaml"), results=Path(folder))
    planned = len(job.missing) + len(job.outcomes)
    with suppress(Enough):
        run(job, executor=OneStack())
    Store.open(job.folder, write=True).compact()
    assert len(load_results(job.folder).trials) > len(job.outcomes)
    if sys.platform == "darwin":
        return {"planned": planned, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    # On Linux, `getrusage` includes the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return {"planned": planned, "peak_mb": int(status.partition("VmHWM:")[2].split()[0]) / 1024}


def _decided(folder: Path, number: int) -> float:
    """Return the seconds until a user learns that a finished sweep is finished."""
    start = time.perf_counter()
    output = output_of("-m", "hpxfer.cli", "plan", folder / "large.yaml", "--results", folder)
    end = time.perf_counter()
    assert f"{number} trials, all done" in output, output
    return end - start


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])) + "\n")
