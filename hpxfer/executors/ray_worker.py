"""The actors of the Ray backend: ranks that train stacks, and the mailbox through which they report progress."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import ray

from hpxfer.executors.executor import Train
from hpxfer.executors.worker import guarded, keep_memory
from hpxfer.plan import memory_fraction
from hpxfer.trial import MEMBER, STOP, Ended, Event, Stack, Started, Team

# How long the results of a stack wait for its last event to reach the mailbox. Without it, a display may miss that
# event.
_ARRIVE_S = 10.0
# How often an actor asks the mailbox whether to stop.
_ASK_S = 0.5


class Mailbox:
    """The progress events of all tries. A run needs none of them: a lost mailbox restarts empty."""

    def __init__(self) -> None:
        self._mail: list[tuple[int, Event]] = []
        self._stopped: set[int] = set()

    def put(self, number: int, event: Event) -> None:
        """Add an event of the try with this number."""
        self._mail.append((number, event))

    def take(self) -> list[tuple[int, Event]]:
        """Return all events, and empty the mailbox."""
        mail, self._mail = self._mail, []
        return mail

    def stop(self, number: int) -> None:
        """Ask the worker of a try to leave it."""
        self._stopped.add(number)

    def is_stopped(self, number: int) -> bool:
        """Return whether the driver has asked the worker of a try to leave it."""
        return number in self._stopped


class Actor:
    """One process that trains one stack after another, alone or as a rank of several such processes."""

    def __init__(self, train: Train, mailbox: Any, gpu_share: float) -> None:
        keep_memory()
        self._train, self._mailbox, self._number = train, mailbox, 0
        self._asked: Any = None
        STOP.look, STOP.every_s = self._is_stopped, _ASK_S
        if 0 < gpu_share < 1:
            import torch

            from hpxfer.train.device import fix_workspace

            # a worker that exceeds its share runs out of memory itself, not its neighbors
            if torch.cuda.is_available():
                fix_workspace()  # the next line starts CUDA
                torch.cuda.set_per_process_memory_fraction(memory_fraction(gpu_share))

    def ready(self) -> Started:
        """Return host and process id, once the process has started."""
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

    def train(self, number: int, stack: Stack, cut: bool) -> Ended:
        """Return the end of a stack. Its other events go to the mailbox. `cut`: see `guarded`."""
        self._number, self._asked = number, None
        STOP.begin()
        ended, last = Ended(results=()), None
        for event in guarded(self._train, stack, cut=cut):
            if isinstance(event, Ended):
                ended = event
            elif MEMBER.is_first:
                last = self._mailbox.put.remote(number, event)
        if last is not None:
            with suppress(ray.exceptions.RayError):
                ray.wait([last], timeout=_ARRIVE_S)
        return ended

    def _is_stopped(self) -> bool:
        """Return the mailbox's last answer, and ask again. Training waits for no answer."""
        answer = False
        if self._asked is not None:
            if not ray.wait([self._asked], timeout=0)[0]:
                return False
            with suppress(ray.exceptions.RayError):
                answer = ray.get(self._asked)
        self._asked = self._mailbox.is_stopped.remote(self._number)
        return answer
