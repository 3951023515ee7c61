"""The trainer on all cores of a CPU: one worker with a stack per core, against the plain way.

The plain way trains one trial at a time, with one thread or with as many as there are cores, which is PyTorch's
default; the faster of the two counts. All ways run in their own processes and take turns. Times are wall times. Threads
that wait for each other are extremely slow on a busy machine, so nothing else should run meanwhile.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hpxfer.bench.cases import trials
from hpxfer.bench.goals import WIDTHS, measured
from hpxfer.bench.parts import Part
from hpxfer.bench.trainer_cpu import MOST, cpu_case, plain_steps, stacked_step
from hpxfer.executors.worker import keep_memory
from hpxfer.host.machine import num_cpus
from hpxfer.plan.speeds import Row
from hpxfer.train.device import setup_for
from hpxfer.train.step import TrainStep
from hpxfer.trial.stack import Stack

ROUNDS = 5
STACKED = 0
# Steps of MOST trials per worker and round, enough that two workers end at nearly the same time.
_REPEATS = {32: 16, 64: 8, 128: 4}


def parts(widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS) -> list[Part]:
    """Return one part per width: trials/s of the whole machine over the plain way."""

    def part(width: int) -> Part:
        return Part(keys=(f"machine-{width}",), run=lambda: [row_of(width, rounds)])

    return [part(width) for width in widths]


def row_of(width: int, rounds: int) -> Row:
    """Return the row of one width. Its workers are started for it."""
    cores = num_cpus()
    with TemporaryDirectory() as folder, _workers([*[STACKED] * cores, 1, cores], Path(folder)) as pipes:
        return _row(width, rounds, pipes[:cores], pipes[cores:])


def _row(width: int, rounds: int, stacked: list[Connection], plain: list[Connection]) -> Row:
    repeats = _REPEATS.get(width, 2)
    for pipe in (*stacked, *plain):
        pipe.send(width)
    for pipe in (*stacked, *plain):
        pipe.recv()  # the worker is ready and warm
    fewer = max(1, repeats // 4)  # the plain way takes longer, and its threads much longer where the machine is busy
    times: list[list[float]] = []
    for _ in range(rounds):
        ours = _seconds(stacked, repeats) / (MOST * repeats * len(stacked))
        times.append([ours, *(_seconds([pipe], fewer) / (MOST * fewer) for pipe in plain)])
    for pipe in (*stacked, *plain):
        pipe.send(0)  # this width is done
    ms = [1000 * statistics.median(column) for column in zip(*times, strict=True)]
    ratios = [statistics.median(line[plainly] / line[0] for line in times) for plainly in (1, 2)]
    cores = len(stacked)
    return measured(
        f"machine-{width}",
        min(ratios),
        note=f"ms of the machine a trial-step: plain {ms[1]:.2f}, plain on {cores} threads {ms[2]:.2f}, "
        f"{cores} workers with stacks of {MOST} {ms[0]:.2f}",
        numbers={"stacked_ms": ms[0], "plain_ms": ms[1], "plain_threads_ms": ms[2], "workers": cores},
    )


def _seconds(pipes: list[Connection], repeats: int) -> float:
    """Return the wall time until all of these workers have done their round."""
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send(repeats)
    for pipe in pipes:
        pipe.recv()
    return time.perf_counter() - began


@contextmanager
def _workers(ways: Sequence[int], folder: Path) -> Iterator[list[Connection]]:
    """Start one process per way, STACKED or with the plain way's threads. At the end close their pipes, so that they
    exit.
    """
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number, way in enumerate(ways):
        own_end, worker_end = spawn.Pipe()
        own = folder / str(number)
        own.mkdir()
        process = spawn.Process(target=_serve, args=(worker_end, way, own), daemon=True)
        process.start()
        worker_end.close()
        pipes.append(own_end)
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join()


def _serve(pipe: Connection, way: int, folder: Path) -> None:
    """Make the job of a width and run it as often as asked. A request for the next width ends it."""
    torch.set_num_threads(way or 1)
    if way == STACKED:
        keep_memory()  # as workers do
    try:
        while True:
            width = pipe.recv()
            members = trials(cpu_case(width), MOST, folder)
            stack = Stack(trials=members)
            job = stacked_step(TrainStep(stack, setup_for("cpu"))) if way == STACKED else plain_steps(members)
            job()
            pipe.send(None)
            while repeats := pipe.recv():
                for _ in range(repeats):
                    job()
                pipe.send(None)
    except EOFError:
        return
