"""The Tune executor: one trial at a time under Ray Tune's ASHA, for sweeps that ask for early stopping.

It has three costs. Trials are not stacked, so a trial of a small model takes several times as long. Tune itself spends
about half a second per trial. Which trials are stopped depends on which others had reported by then, so it differs from
run to run. A learning rate that is behind early on may win once the rate decays: see `hpxfer.spec.search`.

Trials are compared only with trials of their own arm, which is one parameterization at one shape. This process puts
stacks into a channel. A searcher hands them to Tune, and Tune's results bring the events back. Tune's folder is
temporary and never read.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Placement, Queue, Train, lost
from hpxfer.executors.ray_cluster import Bundles, bundles_of, cluster_device, joined, most_workers, require_place
from hpxfer.executors.tune_side import (
    LOSS,
    Lost,
    PerArm,
    ResultCallback,
    Runner,
    StackSearcher,
    Stop,
    Stopped,
    TuneChannel,
)
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack

# ruff: isort: split
from ray import tune

# How long an interrupted run waits for Tune to stop.
_STOP_S = 20.0


@dataclass(frozen=True)
class TuneExecutor:
    """Trains through Ray Tune and stops trials that fall behind. It never stops a stack of several trials.

    A stack gets a whole GPU unless the resources fix its share.
    """

    placement: Placement  # with its `stopping`

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        address, resources = self.placement.address, self.placement.resources
        if (address or "").startswith("ray://"):
            raise HpxferError(
                f"--address: early stopping runs Ray Tune in this process, which must be on a node of the cluster, got "
                f"{address}; give auto or HOST:PORT there, or send the sweep with `hpxfer submit`"
            )
        with joined(self.placement), _quiet():
            cuda = cluster_device(resources).cuda
            bundles = bundles_of(resources, (resources.gpus_per_stack or 1.0) if cuda else 0.0)
            require_place(bundles)
            channel, limit = TuneChannel(), resources.workers or most_workers(bundles)
            with tempfile.TemporaryDirectory(prefix="hpxfer-tune-", ignore_cleanup_errors=True) as scratch:
                tuner = self._tuner(train, channel, bundles, limit, scratch)
                thread = threading.Thread(target=channel.run, args=(tuner.fit,), daemon=True, name="tune")
                thread.start()
                try:
                    _drive(channel, Queue(more, self.placement.reached), limit, on_event)
                finally:
                    channel.stopped.set()
                    thread.join(_STOP_S)

    def _tuner(self, train: Train, channel: TuneChannel, bundles: Bundles, limit: int, scratch: str) -> Any:
        stopping = self.placement.stopping
        assert stopping is not None
        runner = tune.with_parameters(Runner, train=train)
        return tune.Tuner(
            tune.with_resources(runner, tune.PlacementGroupFactory([bundle.resources() for bundle in bundles])),
            tune_config=tune.TuneConfig(
                metric=LOSS,
                mode="min",
                search_alg=StackSearcher(channel),
                scheduler=PerArm(stopping),
                num_samples=-1,
                max_concurrent_trials=limit,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="hpxfer",
                storage_path=scratch,
                verbose=0,
                stop=Stop(channel),
                callbacks=[ResultCallback(channel)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Tune's messages about files that nobody reads."""
    logger = logging.getLogger("ray.tune")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _drive(channel: TuneChannel, waiting: Queue, limit: int, on_event: OnEvent) -> None:
    """Hand stacks to Tune and events to the driver, until no stack is running and there are no more."""
    at_tune: dict[str, _RunningStack] = {}
    while True:
        while len(at_tune) < limit and waiting.ask(limit - len(at_tune)):
            stack = waiting.take()
            at_tune[stack.id] = _RunningStack(stack)
            channel.stacks.put((stack, waiting.is_last_try(stack)))
        if not at_tune:
            return
        message = channel.next_message()
        if message is None or message[0] not in at_tune:
            continue
        running = at_tune[message[0]]
        event = running.event_of(message[1])
        if isinstance(event, Lost):
            del at_tune[running.stack.id]
            if not waiting.lost(running.stack):
                on_event(running.stack, lost(running.stack, event.why))
            continue
        if isinstance(event, Ended):
            del at_tune[running.stack.id]
            waiting.done(running.stack)
        on_event(running.stack, event)


@dataclass
class _RunningStack:
    """A stack that Tune is running, and the losses that it reported at its rungs."""

    stack: Stack
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def event_of(self, message: Event | Stopped | Lost) -> Event | Lost:
        """Return the event that a message of Tune stands for. A stopped trial has ended."""
        if isinstance(message, Progress) and message.step is not None and len(message.losses) == 1:
            self.steps.append(message.step - 1)  # curves count steps from 0
            self.losses += message.losses
        return Ended(results=(self._stopped(),)) if isinstance(message, Stopped) else message

    def _stopped(self) -> TrialResult:
        curve = Curve(metric="train_loss_nats", steps=tuple(self.steps), values=tuple(self.losses))
        last = self.losses[-1] if self.losses else None
        return TrialResult(
            trial_id=self.stack.trials[0].id,
            status="stopped",
            last_finite_loss_nats=last,
            curves=(curve,),
            finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
