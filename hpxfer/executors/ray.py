"""The Ray executor: persistent workers on this machine or on a cluster. Each is an actor that trains one stack at a
time.

It uses plain actors and not Ray Tune. Tune spends about half a second on every unit that it schedules, takes a list
that is fixed at its start, and reports a lost worker only through trials that must be resumed. Here, the call to a
worker returns the results of a stack. The call fails as soon as Ray knows that the process or its node is gone, and
another worker gets the stack. The loop below is the whole scheduler. It keeps no state that a later run needs.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hpxfer.errors import HpxferError, RankLost, first_line, last_line
from hpxfer.executors.executor import More, OnEvent, Placement, Queue, Train, failed, lost
from hpxfer.executors.ray_cluster import (
    Bundles,
    beside_driver,
    bundles_of,
    cluster_device,
    describe,
    joined,
    listing,
    most_workers,
    nodes,
    require_place,
)
from hpxfer.executors.ray_session import ClusterMonitor
from hpxfer.executors.ray_worker import Mail, Mailbox, Worker
from hpxfer.executors.worker import STOP_S
from hpxfer.host.machine import num_cpus
from hpxfer.plan.packing import SHARES, gpu_share
from hpxfer.trial.events import Ended, Started
from hpxfer.trial.stack import Stack

# ruff: isort: split
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# How often the driver empties the mailbox while no stack ends, and how often it asks the cluster for its room.
_POLL_S = 0.25
_ROOM_S = 5.0
# How long a worker may wait for room on a node before the driver logs it. If no node could ever hold it, the run ends.
_PATIENCE_S = 30.0
# After so many lost workers in a row, all lost while they started, the run ends: something is wrong with every worker.
_STARTS = 5
_MAIL_S = 10.0
# Errors that end a call and are not the fault of the call.
_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.TaskCancelledError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayExecutor:
    """Trains through Ray. Without an address it starts Ray on this machine, and stops it at the end."""

    placement: Placement

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        queue = Queue(more, self.placement.reached)
        workers = self.placement.resources.workers or (num_cpus() if self.placement.address is None else 0)
        if workers and not queue.ask(workers):  # no work is no reason to start Ray
            return
        with joined(self.placement):
            run = _Run(self.placement, queue, train, on_event)
            try:
                run.to_the_end()
            except HpxferError:
                raise  # the driver lost its lease, its disk is full, or the cluster is gone
            except BaseException:
                run.keep()
                raise
            finally:
                run.stop()


@dataclass(eq=False)
class _Actor:
    """A worker, as the driver knows it. `starting` is set until it is ready, `call` while it trains.

    A worker of several ranks has an actor for each. The first speaks for all. `others` are the calls of the others.
    """

    handle: Any
    gpus: float
    starting: Any = None
    who: Started | None = None
    stack: Stack | None = None
    number: int = 0  # of the current try
    call: Any = None
    ranks: tuple[Any, ...] = ()  # the actors of the other ranks
    others: tuple[Any, ...] = ()
    broken: str | Ended | None = None  # how another rank than the first has ended the stack
    place: Any = None  # the placement group of several ranks

    @property
    def waits_for(self) -> tuple[Any, ...]:
        return (self.call, *self.others) if self.starting is None else (self.starting,)

    @property
    def is_idle(self) -> bool:
        return self.starting is None and self.stack is None


class _Run:
    """One run: its workers, and the stack of each."""

    def __init__(self, placement: Placement, queue: Queue, train: Train, on_event: OnEvent) -> None:
        self._resources, self._measured = placement.resources, placement.measured
        self._queue, self._on_event = queue, on_event
        self._own_trainer = placement.own_trainer
        self._stop_s = STOP_S if placement.stop_s is None else placement.stop_s
        self._device = cluster_device(self._resources)
        self._monitor = ClusterMonitor.of_cluster()
        self._train = ray.put(train)
        self._mailbox: Any = (
            ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=beside_driver()).remote()
        )
        self._actors: list[_Actor] = []
        self._gpus: dict[str, float] = {}  # stack id -> share of a GPU
        self._numbers = 0  # how many tries there were so far
        self._failed_starts = 0
        self._any_started = False  # whether a worker has ever started in this run
        # when the cluster was last asked, and when a worker was last ready
        self._room_asked = self._last_ready = time.monotonic()
        self._emptied = 0.0  # when the mailbox was last emptied
        self._room = 0
        self._ask_room()

    def to_the_end(self) -> None:
        """Train stacks until there are no more."""
        while True:
            self._hand_out()
            if not self._queue.num_running and not self._queue.ask(self._idle()):
                return
            if self._monitor.is_alive():
                self._start()
            self._wait()
            self._check_cluster()

    def keep(self) -> None:
        """Ask the workers to write checkpoints and end, and wait for them a short time. Pass on the results that
        come.
        """
        deadline = time.monotonic() + self._stop_s
        busy = {actor.call: actor for actor in self._actors if actor.call is not None}
        with suppress(ray.exceptions.RayError, ConnectionError):
            if busy and self._monitor.is_alive():
                self._mailbox.stop.remote()
                while busy and time.monotonic() < deadline:
                    for call in ray.wait(list(busy), timeout=_POLL_S)[0]:
                        stack, ended, _ = self._outcome(busy.pop(call))
                        if isinstance(ended, Ended) and ended.results:
                            self._on_event(stack, ended)

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        for actor in self._actors:
            self._end(actor)
        self._kill(self._mailbox)

    def _end(self, actor: _Actor) -> None:
        """Kill the processes of a worker, and give its place back."""
        for handle in (actor.handle, *actor.ranks):
            self._kill(handle)
        if actor.place is not None:
            with suppress(ray.exceptions.RayError, ConnectionError):
                if self._monitor.is_alive():
                    remove_placement_group(actor.place)

    def _kill(self, handle: Any) -> None:
        with suppress(ray.exceptions.RayError, ConnectionError):
            if self._monitor.is_alive():
                ray.kill(handle)

    # Stacks to workers.

    def _hand_out(self) -> None:
        """Give idle workers the stacks that wait for a worker of their kind."""
        while self._queue.ask(self._idle()):
            if not sum(self._give(actor) for actor in self._actors if actor.is_idle):
                return

    def _give(self, actor: _Actor) -> bool:
        """Give an idle worker the first stack that waits for a worker of its kind. Return whether there was one."""
        stack = self._queue.take_if(lambda waiting: self._gpus_of(waiting) == actor.gpus)
        if stack is not None:
            self._numbers += 1
            actor.stack, actor.number = stack, self._numbers
            task = self._numbers, stack, self._queue.is_last_try(stack)
            actor.call, *others = (handle.train.remote(*task) for handle in (actor.handle, *actor.ranks))
            actor.others = tuple(others)
            assert actor.who is not None
            self._on_event(stack, actor.who)
        return stack is not None

    def _start(self) -> None:
        """Start the workers that waiting stacks need, as far as the cluster has room for them."""
        starting = [actor.gpus for actor in self._actors if actor.starting is not None]
        for stack in islice(self._queue.waiting(), self._most()):
            gpus = self._gpus_of(stack)
            if gpus in starting:
                starting.remove(gpus)
                continue
            if not self._has_room(gpus):
                # Idle workers that no stack waits for hold resources that others need.
                for actor in [other for other in self._actors if other.is_idle]:
                    self._drop(actor)
                if not self._has_room(gpus):
                    return
            self._start_one(gpus)

    def _start_one(self, gpus: float) -> None:
        bundles = self._bundles(gpus)
        if not self._any_started:
            require_place(bundles, apart=self._own_trainer)
        elif not most_workers(bundles, apart=self._own_trainer):
            return  # a node was lost and may come back; `_check_cluster` says so if it takes long
        if len(bundles) > 1:
            self._actors.append(self._team(bundles, gpus))
            return
        made: Any = ray.remote(Worker).options(scheduling_strategy="SPREAD", **bundles[0].options())
        handle = made.remote(self._train, self._mailbox, 0.0 if self._own_trainer else gpus)
        self._actors.append(_Actor(handle, gpus, starting=handle.ready.remote()))

    def _team(self, bundles: Bundles, gpus: float) -> _Actor:
        """Start a worker of several ranks, which lie on as few nodes as possible, or of a user's several nodes."""
        strategy = "STRICT_SPREAD" if self._own_trainer else "PACK"
        place = placement_group([bundle.resources() for bundle in bundles], strategy=strategy)
        handles = []
        for index, bundle in enumerate(bundles):
            at = PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=index)
            made: Any = ray.remote(Worker).options(scheduling_strategy=at, **bundle.options())
            handles.append(made.remote(self._train, self._mailbox, 0.0 if self._own_trainer else bundle.gpus))
        world, timeout_s = len(bundles), self._resources.rank_timeout_s
        address = handles[0].lead.remote(world, timeout_s)
        first, *_ = [handle.join.remote(rank, world, address, timeout_s) for rank, handle in enumerate(handles)]
        return _Actor(handles[0], gpus, starting=first, ranks=tuple(handles[1:]), place=place)

    def _gpus_of(self, stack: Stack) -> float:
        """Return the share of a GPU that a stack gets, or the GPUs that a trial of a user's own trainer gets."""
        if self._own_trainer:
            return self._resources.gpus_per_trial or 0.0
        if not self._device.cuda:
            return 0.0
        if self._resources.gpus_per_stack is not None:
            return self._resources.gpus_per_stack
        if stack.id not in self._gpus:
            self._gpus[stack.id] = gpu_share(stack, self._device, measured=self._measured.get(stack.shape))
        return self._gpus[stack.id]

    def _bundles(self, gpus: float) -> Bundles:
        return bundles_of(self._resources, gpus)

    # Room is counted in workers. Where each stack has its own share of a GPU, it is counted in GPUs.

    @property
    def _by_share(self) -> bool:
        share_is_open = self._resources.gpus_per_stack is None and not self._own_trainer
        return self._device.cuda and share_is_open and self._resources.workers is None

    def _ask_room(self) -> None:
        """Ask the cluster for its room."""
        if self._by_share:
            self._room = most_workers(self._bundles(1.0))
        else:
            fixed = (self._resources.gpus_per_stack or 1.0) if self._device.cuda else 0.0
            bundles = self._bundles(fixed if not self._own_trainer else self._resources.gpus_per_trial or 0.0)
            self._room = self._resources.workers or most_workers(bundles, apart=self._own_trainer)

    def _has_room(self, gpus: float) -> bool:
        if self._by_share:
            return sum(actor.gpus for actor in self._actors) + gpus <= self._room
        return len(self._actors) < max(1, self._room)

    def _most(self) -> int:
        """Return how many workers there can be at once."""
        return max(1, self._room) * (round(1 / min(SHARES)) if self._by_share else 1)

    def _idle(self) -> int:
        """Return how many stacks could start now, if they need as much as the running ones."""
        out = [actor.gpus for actor in self._actors if actor.stack is not None]
        if not self._by_share:
            return max(1, self._room) - len(out)
        return int((max(1, self._room) - sum(out)) / (min(out, default=1.0)))

    # Events from workers.

    def _wait(self) -> None:
        """Wait until a worker reports something, and pass on all reports."""
        waited = {ref: actor for actor in self._actors if not actor.is_idle for ref in actor.waits_for}
        if not waited:
            time.sleep(_POLL_S)
            return
        ready, late = ray.wait(list(waited), timeout=_POLL_S)
        if ready and late:
            ready += ray.wait(late, num_returns=len(late), timeout=0)[0]
        actors = [waited[ref] for ref in ready if waited[ref].waits_for[0] == ref]
        for ref in ready:
            if (actor := waited[ref]) not in actors and self._has_lost_rank(actor, ref):
                actors.append(actor)
        for actor in [other for other in actors if other.starting is not None]:
            self._take_start(actor)
            actors.remove(actor)
        outcomes = [(actor, *self._outcome(actor)) for actor in actors]
        if any(posted for *_, posted in outcomes) or time.monotonic() - self._emptied > _POLL_S:
            self._take_mail()
        for actor, stack, ended, _ in outcomes:
            self._pass_on(actor, stack, ended)

    def _take_mail(self) -> None:
        """Pass on the events that the workers left in the mailbox."""
        self._emptied = time.monotonic()
        mail: list[Mail] = []
        with suppress(ray.exceptions.RayError):  # a lost mailbox restarts empty
            mail = ray.get(self._mailbox.take.remote(), timeout=_MAIL_S)
        stacks = {actor.number: actor.stack for actor in self._actors if actor.stack is not None}
        for number, event in mail:
            if (stack := stacks.get(number)) is not None:
                self._on_event(stack, event)

    def _take_start(self, actor: _Actor) -> None:
        try:
            actor.who = ray.get(actor.starting)
        except _LOST as error:
            self._drop(actor)
            self._failed_starts += 1
            if "creation task" in str(error) or self._failed_starts >= _STARTS:
                raise HpxferError(
                    f"Ray cannot start a worker: {last_line(error)}; every node needs this hpxfer and this Python's "
                    "packages. The finished trials are stored; run again to train the rest"
                ) from error
        else:
            actor.starting, self._failed_starts, self._any_started = None, 0, True

    def _outcome(self, actor: _Actor) -> tuple[Stack, Ended | str, int]:
        """Return a worker's stack, its end or the reason why the worker was lost, and the number of events that came
        before.
        """
        stack = actor.stack
        assert stack is not None
        if actor.broken is not None:
            return stack, actor.broken, 1
        try:
            return stack, *ray.get(actor.call)
        except _LOST as error:
            return stack, first_line(error), 1
        except RankLost as error:
            return stack, first_line(getattr(error, "cause", error)), 1
        except ray.exceptions.RayTaskError as error:  # not caught by `guarded`, e.g. results that cannot be pickled
            return stack, failed(stack, str(error), "bug"), 1

    def _has_lost_rank(self, actor: _Actor, ref: Any) -> bool:
        """Return whether a rank beside the first has ended the stack, by an error or because it is gone."""
        actor.others = tuple(other for other in actor.others if other != ref)
        try:
            ended, _ = ray.get(ref)
        except (*_LOST, RankLost) as error:
            actor.broken = first_line(getattr(error, "cause", error))
            return True
        if any(result.status == "failed" for result in ended.results):
            actor.broken = ended
            return True
        return False

    def _pass_on(self, actor: _Actor, stack: Stack, ended: Ended | str) -> None:
        actor.stack, actor.call, actor.others = None, None, ()
        if isinstance(ended, str):
            self._drop(actor)
            if self._queue.lost(stack):
                return
            ended = lost(stack, ended)
        else:
            self._queue.done(stack)
            if actor.ranks and any(result.status == "failed" for result in ended.results):
                self._drop(actor)  # the other ranks may wait for this one
        self._gpus.pop(stack.id, None)
        self._on_event(stack, ended)

    def _drop(self, actor: _Actor) -> None:
        """Forget a worker and kill it. A worker that only cannot be reached must not train on."""
        self._actors.remove(actor)
        self._end(actor)

    def _check_cluster(self) -> None:
        """Every few seconds check that the cluster is there, ask for its room, and check that the run moves on."""
        now = time.monotonic()
        if any(actor.starting is None for actor in self._actors):
            self._last_ready = now
        if now - self._room_asked < _ROOM_S:
            return
        self._room_asked = now
        if not self._monitor.is_alive():
            self._monitor.require()
            return
        self._ask_room()
        if now - self._last_ready < _PATIENCE_S:
            return
        self._last_ready = now  # repeat the warning after the same time
        for stack in islice(self._queue.waiting(), 1):
            bundles = self._bundles(self._gpus_of(stack))
            require_place(bundles, apart=self._own_trainer)
            _log.warning(
                "waiting for a worker: it needs %s; the Ray cluster has %s, which others may be using",
                describe(bundles),
                listing(nodes()),
            )
