"""Engines: what tokenizes the segments of a source, processes of this machine or Ray Data.

Both yield the same numbers in the order of the source, whatever the number of processes.
"""

from __future__ import annotations

import os
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

import numpy as np

from hpxfer.errors import HpxferError
from hpxfer.prepare.blocks import Block, Segment, segments_of
from hpxfer.prepare.tokenize import Job, Tokenized, tokenized

# (block, segment): the place of a segment in the source.
Place = tuple[int, int]
# What each segment gives. Closing it ends the processes.
Found = Generator[tuple[Place, Tokenized], None, None]


def places(blocks: Sequence[Block], start: Place) -> Iterator[tuple[Place, Segment]]:
    """Yield the segments of a source from a place on, each with its place."""
    for number in range(start[0], len(blocks)):
        skip = start[1] if number == start[0] else 0
        for index, segment in enumerate(segments_of(blocks[number], skip), skip):
            yield (number, index), segment


def in_processes(blocks: Sequence[Block], job: Job, *, workers: int, start: Place) -> Found:
    """Yield what each segment gives, tokenized by processes of this machine."""
    if workers == 1:
        for place, segment in places(blocks, start):
            yield place, tokenized(segment, job)
        return
    waiting: deque[tuple[Place, Future[Tokenized]]] = deque()
    context = get_context("spawn")
    far_end, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(far_end,))
    try:
        for place, segment in places(blocks, start):
            waiting.append((place, pool.submit(tokenized, segment, job)))
            if len(waiting) > 2 * workers:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
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


def _result(place: Place, found: Future[Tokenized]) -> tuple[Place, Tokenized]:
    try:
        return place, found.result()
    except BrokenProcessPool:
        raise HpxferError(
            "hpxfer data prepare: a process was ended by the system, most likely for lack of memory; run the same "
            "command again with fewer --workers, and it goes on"
        ) from None


def on_ray(blocks: Sequence[Block], job: Job, *, address: str, workers: int | None, start: Place) -> Found:
    """Yield what each segment gives, tokenized by Ray Data on a cluster whose nodes all see the files."""
    from hpxfer.executors.ray_data import mapped

    rows_of = partial(_rows, blocks=blocks, job=job, start=start)
    for row in mapped(range(start[0], len(blocks)), rows_of, address=address, workers=workers):
        yield _from_row(row)


def _rows(batch: dict[str, Any], blocks: Sequence[Block], job: Job, start: Place) -> Iterator[dict[str, Any]]:
    """Yield a row for each segment of the blocks that a batch numbers. An error is a row too, which ends the block."""
    for number in batch["number"].tolist():
        skip = start[1] if number == start[0] else 0
        for index, segment in enumerate(segments_of(blocks[number], skip), skip):
            try:
                yield _to_row((number, index), tokenized(segment, job))
            except HpxferError as error:
                yield {**_to_row((number, index), _NOTHING), "error": [str(error)]}
                return


_NOTHING = Tokenized(
    ids=np.empty(0, "<u2"),
    lengths=np.empty(0, np.int64),
    offered=np.empty(0, bool),
    num_empty=0,
    goes_on=False,
    num_bytes=0,
)


def _to_row(place: Place, found: Tokenized) -> dict[str, Any]:
    return {
        "number": [place[0]],
        "segment": [place[1]],
        "ids": [found.ids.tobytes()],
        "token_bytes": [found.ids.itemsize],
        "lengths": [found.lengths.tobytes()],
        "offered": [found.offered.tobytes()],
        "num_empty": [found.num_empty],
        "goes_on": [found.goes_on],
        "num_bytes": [found.num_bytes],
        "error": [""],
    }


def _from_row(row: dict[str, Any]) -> tuple[Place, Tokenized]:
    if row["error"]:
        raise HpxferError(row["error"])
    return (int(row["number"]), int(row["segment"])), Tokenized(
        ids=np.frombuffer(row["ids"], f"<u{row['token_bytes']}"),
        lengths=np.frombuffer(row["lengths"], np.int64),
        offered=np.frombuffer(row["offered"], bool),
        num_empty=int(row["num_empty"]),
        goes_on=bool(row["goes_on"]),
        num_bytes=int(row["num_bytes"]),
    )
