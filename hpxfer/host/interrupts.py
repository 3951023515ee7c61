"""Interrupts: Ctrl-C and SIGTERM end a run between two writes to the disk, never during one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The process was asked to end. `signal_number` is SIGINT or SIGTERM."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Interrupts:
    """Turns signals into the exception Interrupted, in the main thread. Made by `interrupts`.

    A signal raises at once. Inside a `deferred` block it raises when the block ends.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._waiting: int | None = None
        self.last: int | None = None  # the last signal that came

    def handle(self, signal_number: int, _: FrameType | None) -> None:
        """Raise Interrupted, or remember the first signal until the `deferred` block ends."""
        self.last = signal_number
        if not self._deferring:
            raise Interrupted(signal_number)
        self._waiting = self._waiting or signal_number

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Keep signals from raising until the block has ended."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._waiting is not None:
            number, self._waiting = self._waiting, None
            raise Interrupted(number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle SIGINT and SIGTERM while entered.

    Only the main thread receives signals. In any other thread this changes nothing.
    """
    signals = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    # A process that ignores a signal, e.g. under nohup, goes on ignoring it.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, signals.handle)
        yield signals
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) or signals.last is None:
            raise
        interrupted = Interrupted(signals.last)  # a library, such as Ray, raised its own in the place of ours
        for note in getattr(error, "__notes__", ()):
            interrupted.add_note(note)
        raise interrupted from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
