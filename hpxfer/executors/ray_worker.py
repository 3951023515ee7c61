"""The actors of the Ray executor: workers that train stacks, and the mailbox through which they report progress."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import ray

from hpxfer.executors.executor import Train
from hpxfer.executors.worker import MEMBER, STOP, guarded, keep_memory
from hpxfer.plan.packing import memory_fraction
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.stack import Stack, Team

# How long the results of a stack wait for its last event to reach the mailbox. Without it, a display may miss that
# event.
_ARRIVE_S = 10.0
# How often a worker asks the mailbox whether to stop.
_ASK_S = 0.5
Mail = tuple[int, Event]


class Mailbox:
    """The progress events of all workers. A run needs none of them: a lost mailbox restarts empty."""

    def __init__(self) -> None:
        self._mail: list[Mail] = []
        self._is_stopping = False

    def put(self, number: int, event: Event) -> None:
        """Add an event of the try with this number."""
        self._mail.append((number, event))

    def is_stopping(self) -> bool:
        """Return whether the driver has asked the workers to stop."""
        return self._is_stopping

    def stop(self) -> None:
        """Ask the workers to stop."""
        self._is_stopping = True

    def take(self) -> list[Mail]:
        """Return all events, and empty the mailbox."""
        mail, self._mail = self._mail, []
        return mail


class Worker:
    """One process that trains one stack after another, alone or as a rank of several such processes."""

    def __init__(self, train: Train, mailbox: Any, gpu_share: float) -> None:
        keep_memory()
        self._train, self._mailbox = train, mailbox
        self._asked: Any = None
        STOP.look, STOP.every_s = self._is_stopping, _ASK_S
        if 0 < gpu_share < 1:
            import torch

            from hpxfer.train.device import fix_workspace

            # a worker that exceeds its share runs out of memory itself, not its neighbors
            if torch.cuda.is_available():
                fix_workspace()  # the next line starts CUDA
                torch.cuda.set_per_process_memory_fraction(memory_fraction(gpu_share))

    def ready(self) -> Started:
        """Return host and process id, once the worker has started. The driver reports them with each stack of the
        worker.
        """
        return Started(host=socket.gethostname(), pid=os.getpid())

    def lead(self, world: int, timeout_s: float) -> str:
        """Open the store of a team of which this is rank 0. Return its address."""
        from hpxfer.train.ranks import open_store

        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        MEMBER.store, address = open_store(world, host=host, timeout_s=timeout_s)
        return address

    def join(self, rank: int, world: int, address: str, timeout_s: float) -> Started:
        """Become a rank of the team at this address. See `ready`."""
        MEMBER.team = Team(rank=rank, world=world, address=address, timeout_s=timeout_s)
        return self.ready()

    def train(self, number: int, stack: Stack, cut: bool) -> tuple[Ended, int]:
        """Return the end of a stack, and how many events went into the mailbox before it. `cut`: see `guarded`."""
        ended = Ended(results=())
        last, posted = None, 0
        for event in guarded(self._train, stack, cut=cut):
            if isinstance(event, Ended):
                ended = event
            elif not isinstance(event, Started) and MEMBER.is_first:
                last, posted = self._mailbox.put.remote(number, event), posted + 1
        if last is not None:
            with suppress(ray.exceptions.RayError):
                ray.wait([last], timeout=_ARRIVE_S)
        return ended, posted

    def _is_stopping(self) -> bool:
        """Return the mailbox's last answer, and ask again. Training waits for no answer."""
        answer = False
        if self._asked is not None:
            if not ray.wait([self._asked], timeout=0)[0]:
                return False
            with suppress(ray.exceptions.RayError):
                answer = ray.get(self._asked)
        self._asked = self._mailbox.is_stopping.remote()
        return answer
