"""The actors of the Ray executor: workers that train stacks, and the mailbox that brings home how they get on."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import ray

from hpxfer.executors.executor import Train
from hpxfer.executors.worker import guarded, keep_memory
from hpxfer.plan.packing import memory_fraction
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.stack import Stack

# How long a stack's results wait until all before them is in the mailbox. It costs a display its last update at worst.
_ARRIVE_S = 10.0
Mail = tuple[int, Event]


class Mailbox:
    """What workers say on the way. Nothing in it is needed: a lost mailbox starts anew, empty."""

    def __init__(self) -> None:
        self._mail: list[Mail] = []

    def put(self, number: int, event: Event) -> None:
        """Leave an event of the try with this number."""
        self._mail.append((number, event))

    def take(self) -> list[Mail]:
        """Return all mail, and empty the box."""
        mail, self._mail = self._mail, []
        return mail


class Worker:
    """One process that trains stack after stack."""

    def __init__(self, train: Train, mailbox: Any, gpu_share: float) -> None:
        keep_memory()
        self._train, self._mailbox = train, mailbox
        if 0 < gpu_share < 1:
            import torch

            from hpxfer.train.device import fix_workspace

            if torch.cuda.is_available():  # what exceeds the share is out of memory here, not for the neighbors
                fix_workspace()  # the next line starts CUDA
                torch.cuda.set_per_process_memory_fraction(memory_fraction(gpu_share))

    def ready(self) -> Started:
        """Return who the worker is, once it has started. The driver reports it when it gives the worker a stack."""
        return Started(host=socket.gethostname(), pid=os.getpid())

    def train(self, number: int, stack: Stack, cut: bool) -> tuple[Ended, int]:
        """Return the end of a stack, and how many events went into the mailbox before it. `cut`: see `guarded`."""
        ended = Ended(results=())
        last, posted = None, 0
        for event in guarded(self._train, stack, cut=cut):
            if isinstance(event, Ended):
                ended = event
            elif not isinstance(event, Started):
                last, posted = self._mailbox.put.remote(number, event), posted + 1
        if last is not None:
            with suppress(ray.exceptions.RayError):
                ray.wait([last], timeout=_ARRIVE_S)
        return ended, posted
