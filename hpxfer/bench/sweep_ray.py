"""The cost of Ray per trial: 2,000 trials that do nothing through our executor, and 100 through plain Ray Tune.

Each way runs in its own process with as many workers as there are CPUs. Each trial is a stack of its own, which is the
worst case: the planner's stacks share the cost. The time of a trial covers everything from before Ray starts until it
has ended. Where the two ways are compared, Ray is running already, and Tune keeps its workers from trial to trial
(reuse_actors).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.goals import measured
from hpxfer.bench.process import output_of
from hpxfer.executors.executor import once
from hpxfer.plan.speeds import Row
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

# Of the smallest size: nothing is trained, but trials travel to the workers, and results back.
CASE = Case(width=32, depth=2, head_dim=32, vocab_size=128, context=64, batch_tokens=512, steps=1)


class Nothing:
    """A stand-in for training that ends at once."""

    def __call__(self, stack: Stack) -> Iterator[Event]:
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))


def rows(num_ours: int = 2000, num_tune: int = 100) -> list[Row]:
    """Return milliseconds per trial, and the time of Tune over ours. The arguments count the trials of each way."""
    with_ours, with_tune = _in_a_process("ours", num_ours), _in_a_process("tune", num_tune)
    numbers = {
        "ours_all_ms": 1000 * with_ours.all_s / num_ours,
        "ours_ms": 1000 * with_ours.run_s / num_ours,
        "tune_ms": 1000 * with_tune.run_s / num_tune,
    }
    values = {"ray-trial": numbers["ours_all_ms"], "ray-tune": numbers["tune_ms"] / numbers["ours_ms"]}
    return [measured(key, value, numbers=numbers) for key, value in values.items()]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds from before Ray starts until it has ended, and the seconds of the run within."""

    all_s: float
    run_s: float


def spent(run: Callable[[], int], count: int) -> Spent:
    """Return the seconds of `run`, which returns how many trials have finished."""
    from hpxfer.executors.ray_session import session

    start = time.perf_counter()
    with session(None, 0):
        began = time.perf_counter()
        finished = run()
        run_s = time.perf_counter() - began
    assert finished == count
    return Spent(all_s=time.perf_counter() - start, run_s=run_s)


def ours(count: int) -> Spent:
    """Return the seconds of our executor."""
    from hpxfer.executors.placement import Placement
    from hpxfer.executors.ray import RayExecutor
    from hpxfer.spec.resources_section import ResourcesSpec

    placement = Placement(resources=ResourcesSpec(device="cpu"))
    with TemporaryDirectory() as folder:
        stacks = [Stack(trials=(trial,)) for trial in trials(CASE, count, Path(folder))]
    ended: list[TrialResult] = []

    def take(_: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            ended.extend(event.results)

    def run() -> int:
        RayExecutor(placement).run(once(stacks), Nothing(), take)
        return sum(result.status == "finished" for result in ended)

    return spent(run, count)


def tune(count: int) -> Spent:
    """Return the seconds of Ray Tune."""
    from hpxfer.executors import ray_session  # noqa: F401  before ray itself: it sets Ray's environment

    # ruff: isort: split
    from ray import tune as ray_tune

    def run() -> int:
        with TemporaryDirectory() as folder:
            tuner = ray_tune.Tuner(
                _nothing,
                param_space={"trial": ray_tune.grid_search(list(range(count)))},
                tune_config=ray_tune.TuneConfig(reuse_actors=True),
                run_config=ray_tune.RunConfig(name="nothing", storage_path=folder, verbose=0),
            )
            results = tuner.fit()
            return sum(results[index].error is None for index in range(len(results)))

    return spent(run, count)


def _nothing(config: dict[str, Any]) -> dict[str, Any]:
    return {"trial": config["trial"]}


def _in_a_process(way: str, count: int) -> Spent:
    output = output_of("hpxfer.bench.sweep_ray", way, str(count))
    return Spent(**json.loads(output.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict({"ours": ours, "tune": tune}[sys.argv[1]](int(sys.argv[2])))) + "\n")
