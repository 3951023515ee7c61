"""The start of a sweep and its steps: one persistent worker with stacked trials, against one cold process per trial.

Both ways run through the local executor with one worker. The cost of a process before it trains (interpreter, imports,
device, compilation) is the wall time outside of the trials' own. Times are wall times, because processes share no other
clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.goals import measured
from hpxfer.bench.parts import Part
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.worker import TrainStack
from hpxfer.plan.packing import Device, pack
from hpxfer.plan.speeds import Row
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.stack import Stack

TRIALS = 8
LONG_STEPS = 2000
CPU_CASE = Case(width=32, depth=2, head_dim=32, vocab_size=128, context=64, batch_tokens=512, steps=200)
CUDA_CASE = Case(
    width=512,
    depth=8,
    head_dim=64,
    vocab_size=50304,
    context=1024,
    batch_tokens=32768,
    steps=200,
    precision="bfloat16",
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of one way through a sweep: all of them, and those inside the trials. `processes` is how many were
    started.
    """

    wall_s: float
    trained_s: float
    processes: int

    @property
    def start_s(self) -> float:
        """The seconds that one process costs beside training."""
        return (self.wall_s - self.trained_s) / self.processes

    def at(self, steps: int, measured: int) -> float:
        """Return the seconds that this way would take with another number of steps."""
        return self.processes * self.start_s + self.trained_s * steps / measured


def parts(device: torch.device) -> list[Part]:
    """Return the one part: the ratio at the measured steps and at LONG_STEPS."""
    cuda = device.type == "cuda"
    case = CUDA_CASE if cuda else CPU_CASE
    keys = tuple(_key(case, device, steps) for steps in (case.steps, LONG_STEPS))
    # On a GPU a cold process takes a minute or more, and all are alike: two are measured for eight.
    return [Part(keys=keys, run=lambda: measure(case, device, rounds=1 if cuda else 3, cold=2 if cuda else TRIALS))]


def measure(case: Case, device: torch.device, *, rounds: int, cold: int) -> list[Row]:
    """Return the rows of one case. `cold` processes are measured, and scaled to TRIALS."""
    with TemporaryDirectory() as folder:
        members = trials(case, TRIALS, Path(folder))
        ways: dict[str, list[Spent]] = {"stacked": [], "cold": []}
        for _ in range(rounds):
            ways["stacked"].append(spent([list(pack(members, _planned(device)))], device))
            alone = spent([[Stack(trials=(trial,))] for trial in members[:cold]], device)
            ways["cold"].append(_scaled(alone, TRIALS / cold))
    return [row_of(case, device, ways, steps, cold) for steps in (case.steps, LONG_STEPS)]


def row_of(case: Case, device: torch.device, ways: dict[str, list[Spent]], steps: int, cold: int) -> Row:
    """Return the ratio of the two ways at `steps`, measured or extrapolated."""
    key = _key(case, device, steps)
    pairs = list(zip(ways["stacked"], ways["cold"], strict=True))
    numbers = {f"{name}_s": statistics.median(way.at(steps, case.steps) for way in ways[name]) for name in ways}
    starts = {f"{name}_start_s": statistics.median(way.start_s for way in ways[name]) for name in ways}
    note = f"{cold} cold processes measured, scaled to {TRIALS}" if cold < TRIALS else ""
    value = statistics.median(b.at(steps, case.steps) / a.at(steps, case.steps) for a, b in pairs)
    return measured(key, value, note=note, numbers=numbers | starts)


def _key(case: Case, device: torch.device, steps: int) -> str:
    return f"sweep-{device.type}" + ("" if steps == case.steps else f"-{steps}")


def spent(runs: Sequence[Sequence[Stack]], device: torch.device) -> Spent:
    """Return the seconds of running each list of stacks in its own worker process, one after the other."""
    trained: list[float] = []

    def take(_: Stack, event: Event) -> None:
        if not isinstance(event, Ended):
            return
        if event.results[0].status == "failed":
            raise HpxferError(f"the benchmark's trials must train, got:\n{event.results[0].error}")
        assert event.results[0].wall_s is not None
        trained.append(event.results[0].wall_s)

    start = time.perf_counter()
    for stacks in runs:
        LocalExecutor(workers=1).run(once(stacks), TrainStack(device.type), take)
    wall_s = time.perf_counter() - start
    return Spent(wall_s=wall_s, trained_s=sum(trained), processes=len(runs))


def _planned(device: torch.device) -> Device:
    """Return the device for the planner, which chooses the size of the stack."""
    if device.type == "cpu":
        return Device()
    return Device(cuda=True, memory_bytes=torch.cuda.get_device_properties(device).total_memory)


def _scaled(way: Spent, factor: float) -> Spent:
    return Spent(wall_s=way.wall_s * factor, trained_s=way.trained_s * factor, processes=round(way.processes * factor))
