"""Interrupts: Ctrl-C and SIGTERM end a run between two steps on the disk, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The process was asked to end. `signal_number` is SIGINT or SIGTERM."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Interrupts:
    """Raises Interrupted in the main thread, at once or, inside `held`, at its end. Made by `interrupts`."""

    def __init__(self) -> None:
        self._holding = False
        self._waiting: int | None = None

    def take(self, signal_number: int, _: FrameType | None) -> None:
        """Raise, or remember; a second signal while one is remembered changes nothing."""
        if not self._holding:
            raise Interrupted(signal_number)
        self._waiting = self._waiting or signal_number

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the block has ended."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._waiting is not None:
            number, self._waiting = self._waiting, None
            raise Interrupted(number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take over SIGINT and SIGTERM while entered; nothing changes outside the main thread, which alone gets signals."""
    taken = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield taken
        return
    # A process that was told to ignore a signal, as nohup does, goes on ignoring it.
    before = {one: signal.getsignal(one) for one in _SIGNALS if signal.getsignal(one) not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, taken.take)
        yield taken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
