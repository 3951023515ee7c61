"""Engines: what tokenizes the segments of a source, processes of this machine or Ray Data.

Both yield the same numbers in the order of the source, whatever the number of processes.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.prepare.blocks import Place, Segment, segments
from hpxfer.prepare.tokenize import Job, Tokenized, tokenized

# What each segment gives. Closing it ends the processes.
Found = Generator[tuple[Place, Tokenized], None, None]


def in_processes(blocks: Sequence[Segment], job: Job, *, workers: int, start: Place) -> Found:
    """Yield what each segment gives, tokenized by processes of this machine."""
    if workers == 1:
        for place, segment in segments(blocks, start):
            yield place, tokenized(segment, job)
        return
    waiting: deque[tuple[Place, Future[Tokenized]]] = deque()
    context = get_context("spawn")
    far_end, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(far_end,))
    try:
        for place, segment in segments(blocks, start):
            waiting.append((place, pool.submit(tokenized, segment, job)))
            if len(waiting) > 2 * workers:
                place, found = waiting.popleft()
                yield place, found.result()
        for place, found in waiting:
            yield place, found.result()
    except BrokenProcessPool:
        raise HpxferError(
            "hpxfer data prepare: a process was ended by the system, most likely for lack of memory; run the same "
            "command again with fewer --workers, and it goes on"
        ) from None
    except BaseException:
        lifeline.close()  # what the processes still work on is of no use
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        lifeline.close()
        far_end.close()


def _begin(lifeline: Connection) -> None:
    """Leave Ctrl-C to the process that the user started, and end when that process closes the lifeline or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    """End this process as soon as the other end of a pipe is closed, as SIGKILL of its owner does too.

    Without this a pool's processes wait for ever: each holds a writing end of the pipe that it reads its tasks from.
    """
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def on_ray(blocks: Sequence[Segment], job: Job, *, address: str, workers: int | None, start: Place) -> Found:
    """Yield what each segment gives, tokenized by Ray Data on a cluster whose nodes all see the files."""
    from hpxfer.executors.ray_session import mapped

    rows_of = partial(_rows, blocks=blocks, job=job, start=start)
    for row in mapped(range(start[0], len(blocks)), rows_of, address=address, workers=workers):
        place, found = pickle.loads(row["found"])
        if isinstance(found, str):
            raise HpxferError(found)
        yield place, found


def _rows(batch: dict[str, Any], blocks: Sequence[Segment], job: Job, start: Place) -> Iterator[dict[str, Any]]:
    """Yield a row for each segment of the blocks that a batch numbers. An error is a row too, which ends the block."""
    for number in batch["number"].tolist():
        try:
            for place, segment in segments(blocks[: number + 1], max(start, (number, 0))):
                yield {"found": [pickle.dumps((place, tokenized(segment, job)))]}
        except HpxferError as error:
            yield {"found": [pickle.dumps(((number, 0), str(error)))]}
