"""The Ray backend: persistent workers on this machine or on a cluster. Each rank is an actor.

It uses plain actors and not Tune's. Tune spends about half a second on every unit that it schedules, takes a list that
is fixed at its start, and reports a lost worker only through trials that must be resumed. Here, the call to a worker
returns the results of a stack. The call fails as soon as Ray knows that the process or its node is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hpxfer.errors import RankLost, first_line, last_line
from hpxfer.executors.executor import More, OnEvent, Placement, Trains, failed
from hpxfer.executors.ray_cluster import Claim, beside_driver, claim_of, cluster_device, joined, listing, nodes
from hpxfer.executors.ray_session import ClusterMonitor
from hpxfer.executors.ray_worker import Actor, Mailbox
from hpxfer.executors.scheduler import Lost, Message, Need, Worker, schedule
from hpxfer.plan import gpu_share
from hpxfer.trial import Stack

# ruff: isort: split
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# How often the driver empties the mailbox while no stack ends, and how often it asks the cluster for its room.
_POLL_S = 0.25
_ROOM_S = 5.0
# How long a worker may wait for room on a node before the driver logs it. If no node could ever hold it, the run ends.
_PATIENCE_S = 30.0
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

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        if not (first := more()):  # no work is no reason to start Ray
            return
        asked = chain([first], iter(more, None))
        with joined(self.placement):
            backend = RayBackend(self.placement, train)
            try:
                schedule(backend, train, self.placement.stopping, lambda: next(asked), on_event)
            finally:
                backend.end(backend.mailbox)


@dataclass
class _Rank:
    actor: Any
    call: Any  # what it does now: its start, or a training


class RayBackend:
    """See `Backend`."""

    def __init__(self, placement: Placement, train: Trains) -> None:
        self._placement, self._resources, self._node_gpus = placement, placement.resources, train.node_gpus
        self._device = cluster_device(self._resources)
        self._monitor = ClusterMonitor.of_cluster()
        self._train = ray.put(train)
        self.mailbox: Any = (
            ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1, scheduling_strategy=beside_driver()).remote()
        )
        self._emptied = 0.0  # when the mailbox was last emptied
        self._shares: dict[str, float] = {}  # stack id -> share of a GPU
        self._tries: dict[Worker, int] = {}  # number of the current try of each worker
        self._num_tries = 0
        self._any_ready = False  # whether a worker has ever been ready in this run
        self._room_asked = self._last_ready = time.monotonic()
        self._room = self._ask_room()

    # Room is counted in workers. Where each stack has its own share of a GPU, it is counted in GPUs.

    @property
    def _is_shared(self) -> bool:
        """Whether each stack has the share of a GPU that it needs."""
        return self._node_gpus is None and self._device.cuda and self._resources.gpus_per_stack is None

    def _ask_room(self) -> float:
        if self._resources.workers is not None:
            return self._resources.workers
        gpus = 1.0 if self._is_shared or not self._device.cuda else self._resources.gpus_per_stack or 1.0
        return self._claim(gpus if self._device.cuda else 0.0).most(nodes())

    def _claim(self, gpus: float) -> Claim:
        return claim_of(self._resources, gpus, self._node_gpus)

    def room(self) -> float:
        """Every few seconds ask the cluster for its room. Raise HpxferError if its head has gone for good."""
        if (now := time.monotonic()) - self._room_asked > _ROOM_S:
            self._room_asked = now
            if self._monitor.is_alive():
                self._room = self._ask_room()
            else:
                self._monitor.require()
        return self._room

    def need(self, stack: Stack) -> Need:
        if not self._is_shared:
            return Need(gpus=(self._resources.gpus_per_stack or 1.0) if self._device.cuda else 0.0)
        if stack.id not in self._shares:
            known = self._placement.measured.get(stack.shape)
            self._shares[stack.id] = gpu_share(stack, self._device, measured=known)
        share = self._shares[stack.id]
        return Need(1.0 if self._resources.workers else share, share)

    def start(self, number: int, need: Need) -> Worker | None:
        if not self._monitor.is_alive():
            return None
        claim = self._claim(need.gpus)
        if not self._any_ready:
            claim.require(nodes())
        elif not claim.most(nodes()):
            self._warn(need)
            return None  # a node was lost and may come back
        if claim.ranks == 1:
            actor = self._actor(claim, "SPREAD")
            return Worker(number, need, [_Rank(actor, actor.ready.remote())])
        # On as few nodes as possible, or on a user's several nodes.
        world, timeout_s = claim.ranks, self._resources.rank_timeout_s
        place = placement_group([claim.resources] * world, strategy="STRICT_SPREAD" if claim.apart else "PACK")
        at = (PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=rank) for rank in range(world))
        actors = [self._actor(claim, strategy) for strategy in at]
        address = actors[0].lead.remote(world, timeout_s)
        joins = [actor.join.remote(rank, world, address, timeout_s) for rank, actor in enumerate(actors)]
        ranks = [_Rank(actors[0], joins[0]), *(_Rank(actor, None) for actor in actors[1:])]
        return Worker(number, need, ranks, place=place)

    def _actor(self, claim: Claim, strategy: Any) -> Any:
        share = 0.0 if self._node_gpus is not None else claim.gpus
        made = ray.remote(Actor).options(scheduling_strategy=strategy, **claim.options)
        return made.remote(self._train, self.mailbox, share)

    def _warn(self, need: Need) -> None:
        """Say that no worker is ready, once in a while. Raise HpxferError if no node could ever hold one."""
        if time.monotonic() - self._last_ready > _PATIENCE_S:
            self._last_ready = time.monotonic()
            claim, found = self._claim(need.gpus), nodes()
            claim.require(found)
            _log.warning(
                "waiting for a worker: it needs %s; the Ray cluster has %s, which others may be using",
                claim,
                listing(found),
            )

    def send(self, worker: Worker, stack: Stack | None, last_try: bool = False) -> bool:
        if stack is None:
            with suppress(ray.exceptions.RayError, ConnectionError):
                if self._monitor.is_alive():
                    self.mailbox.stop.remote(self._tries[worker])
                    return True
            return False
        self._num_tries += 1
        self._tries[worker] = self._num_tries
        for rank in worker.ranks:
            rank.call = rank.actor.train.remote(self._num_tries, stack, last_try)
        return True

    def poll(self, workers: Sequence[Worker], timeout_s: float) -> Iterator[tuple[Worker, int, Message]]:
        if any(worker.who for worker in workers):
            self._last_ready = time.monotonic()
        elif workers:
            self._warn(workers[0].need)
        waited = {
            rank.call: (worker, index)
            for worker in workers
            for index, rank in enumerate(worker.ranks)
            if rank.call is not None
        }
        if not waited:
            time.sleep(_POLL_S)
            return
        ready, late = ray.wait(list(waited), timeout=min(timeout_s, _POLL_S))
        if ready and late:
            ready += ray.wait(late, num_returns=len(late), timeout=0)[0]
        if ready or time.monotonic() - self._emptied > _POLL_S:
            yield from self._mail(workers)
        for ref in ready:
            worker, index = waited[ref]
            message = self._outcome(worker, ref)
            worker.ranks[index].call = None
            self._any_ready = self._any_ready or worker.who is not None
            yield worker, index, message

    def _mail(self, workers: Sequence[Worker]) -> Iterator[tuple[Worker, int, Message]]:
        """Yield the events that the workers left in the mailbox."""
        self._emptied = time.monotonic()
        by_try = {self._tries[worker]: worker for worker in workers if worker.stack is not None}
        with suppress(ray.exceptions.RayError):  # a lost mailbox restarts empty
            for number, event in ray.get(self.mailbox.take.remote(), timeout=_MAIL_S):
                if number in by_try:
                    yield by_try[number], 0, event

    def _outcome(self, worker: Worker, ref: Any) -> Message:
        """Return the message of a call that has ended."""
        try:
            found: Message = ray.get(ref)
        except _LOST as error:
            never = "creation task" in str(error)  # a node without hpxfer, or without what trains
            return Lost(last_line(error) if never else first_line(error), for_good=never)
        except RankLost as error:
            return Lost(first_line(getattr(error, "cause", error)))
        except ray.exceptions.RayTaskError as error:  # not caught by `guarded`, e.g. results that cannot be pickled
            return Lost(first_line(error)) if worker.stack is None else failed(worker.stack, str(error), "bug")
        return found

    def kill(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self._tries.pop(worker, None)
            for rank in worker.ranks:
                self.end(rank.actor)
            if worker.place is not None:
                with suppress(ray.exceptions.RayError, ConnectionError):
                    if self._monitor.is_alive():
                        remove_placement_group(worker.place)

    def end(self, actor: Any) -> None:
        """Kill an actor, whatever it is doing."""
        with suppress(ray.exceptions.RayError, ConnectionError):
            if self._monitor.is_alive():
                ray.kill(actor)
