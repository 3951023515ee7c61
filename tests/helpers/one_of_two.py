"""What the workers of `test_rank_loss.py` train with: it imports little, as every worker does so when it starts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpxfer.errors import HpxferError, RankLost
from hpxfer.executors.executor import Trains
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.process import MEMBER
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

FINE, DIES_ONCE, DIES, GIVES_UP, REFUSES, NO_MEMORY, BUG = range(7)
WAIT_S = 600.0  # of a rank for another that never comes


@dataclass(frozen=True)
class OneOfTwo(Trains):
    """A stand-in for training in which rank 1 does what the stack's seed says, and rank 0 waits for it."""

    folder: str

    def __call__(self, stack: Stack) -> Iterator[Event]:
        assert MEMBER.team is not None
        act, rank = stack.trials[0].seed, MEMBER.team.rank
        assert MEMBER.team.world == 2
        with self._tries(act, rank).open("a", encoding="utf-8") as file:
            file.write("x")
        count = self._begun(act, rank)
        yield Progress(tokens=1, step=1, losses=(2.0,))
        if rank == 1:
            self._meet(act, count)
            self._act(act, count)
        elif act not in (FINE, DIES_ONCE) or (act == DIES_ONCE and count == 1):
            time.sleep(WAIT_S)
        yield Ended(results=tuple(TrialResult(trial_id=trial.id, status="finished") for trial in stack.trials))

    def _meet(self, act: int, count: int) -> None:
        """Wait until rank 0 has begun this try: if it was killed before, it would not count the try."""
        deadline = time.monotonic() + WAIT_S
        while self._begun(act, 0) < count:
            assert time.monotonic() < deadline, f"rank 0 does not begin try {count}"
            time.sleep(0.01)

    def _act(self, act: int, count: int) -> None:
        if act == DIES or (act == DIES_ONCE and count == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if act == GIVES_UP:
            raise RankLost("rank 1 waited for the gradients and gave up after 4 s: rank 0 (here, pid 1) is at step 3")
        if act == REFUSES:
            raise HpxferError("ranks: all ranks of a stack must have the same torch, got 1 on rank 1")
        if act == NO_MEMORY:
            raise MemoryError
        if act == BUG:
            raise ZeroDivisionError("a bug")

    def _tries(self, act: int, rank: int) -> Path:
        return Path(self.folder) / f"{act}-{rank}"

    def _begun(self, act: int, rank: int) -> int:
        path = self._tries(act, rank)
        return path.stat().st_size if path.exists() else 0

    def tries(self, act: int) -> int:
        return max(self._begun(act, rank) for rank in range(2))
