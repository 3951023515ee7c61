"""Executor: the protocol between driver and workers, and where and how wide a run trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpxfer.plan import Measured
from hpxfer.registry import PluginFile
from hpxfer.scaling.shape import Shape
from hpxfer.spec import ResourcesSpec
from hpxfer.trial import Ended, ErrorKind, Event, Stack, Trial, TrialResult

Train = Callable[[Stack], Iterator[Event]]
More = Callable[[], Sequence[Stack]]
OnEvent = Callable[[Stack, Event], None]
# How far a stack has come by what it left on the disk: a whole number that only grows, and has a limit.
Reached = Callable[[Stack], int]

# How long an interrupted run waits for checkpoints. A training step that takes longer is abandoned.
STOP_S = 5.0


class Trains(Protocol):
    """What trains the stacks of a sweep, and what an executor must know of it. Workers import it by name."""

    def __call__(self, stack: Stack) -> Iterator[Event]:
        """Train a stack, and yield its events but Started. Ended comes last."""

    @property
    def reached(self) -> Reached | None:
        """How far a stack has come; a loss after which it has come further costs no try."""
        return None

    @property
    def stop_s(self) -> float:
        """How long an interrupted run waits for its checkpoints."""
        return STOP_S

    @property
    def node_gpus(self) -> float | None:
        """The GPUs that it gets on each node. None: as many as a stack needs."""
        return None


class Executor(Protocol):
    """Runs stacks, on this machine or elsewhere. Every executor passes `hpxfer.testing.executor.ExecutorSuite`."""

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        """Train every stack that `more` returns, and call `on_event` with each event of its training.

        The executor calls `more` and `on_event` in this process and thread. It calls `more` whenever a worker is idle
        and no stack waits. `more` may return any number of stacks, which begin in their order. The run ends when `more`
        returns nothing and no stack is running.

        Each stack has the events Started, any number of Progress, and Ended, exactly once and last. If `train` raises,
        the stack's results are failed trials with the traceback. If a worker is lost, its stack is tried on any worker,
        see `lost_workers`. Workers import `train` by name.
        """


def once(stacks: Sequence[Stack]) -> More:
    """Return a `more` that returns all stacks at its first call, and nothing afterwards."""
    left = [tuple(stacks)]
    return lambda: left.pop() if left else ()


def failed(stack: Stack, message: str, kind: ErrorKind) -> Ended:
    """Return the end of a stack that could not be trained: all its trials have failed for the same reason."""
    return Ended(
        results=tuple(
            TrialResult(trial_id=trial.id, status="failed", error=message, error_kind=kind) for trial in stack.trials
        )
    )


@dataclass(frozen=True)
class Stopping:
    """Successive halving: of the trials at a rung, the best 1 / reduction_factor continue."""

    grace_steps: int  # training steps before the first rung
    reduction_factor: float  # between one rung and the next, in steps and in trials
    varied: tuple[str, ...] = ()  # the HPs that the sweep's search varies

    def arm(self, trial: Trial) -> Hashable:
        """Return what trials must share to be compared: shape, table, and every HP that the search does not vary.

        So arms with HPs of their own are halved apart.
        """
        held = trial.hps
        for name in self.varied:
            held = held.with_value(name, 1.0 if "." in name else 0.0)
        return trial.shape, trial.parameterization, held

    def rungs(self, steps: int) -> tuple[int, ...]:
        """Return the rungs of a run of this many steps, ascending, in steps done. The end of the run is no rung."""
        out = []
        at = float(self.grace_steps)
        while math.ceil(at) < steps:
            out.append(math.ceil(at))
            at *= self.reduction_factor
        return tuple(out)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how wide a run trains."""

    resources: ResourcesSpec = field(default_factory=ResourcesSpec)  # of the sweep
    workers: int | None = None  # stacks that run at once, for an executor that stays on this machine; None: per core
    address: str | None = None  # of a Ray cluster to join: auto | HOST:PORT | ray://HOST:PORT; None starts Ray here
    stopping: Stopping | None = None  # when trials that fall behind are stopped; None stops none
    plugins: tuple[PluginFile, ...] = ()  # every node must be able to import them
    measured: Mapping[Shape, Measured] = field(default_factory=dict)  # what stored trials say that stacks need
