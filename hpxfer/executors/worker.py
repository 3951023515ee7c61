"""The work of every worker: it trains stacks, and turns exceptions into failed results."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpxfer.errors import HpxferError, RankLost, first_line
from hpxfer.executors.executor import Stopping, Train, Trains, failed
from hpxfer.registry import PluginFile, load_plugin
from hpxfer.train.checkpoints import CheckpointSpec
from hpxfer.trial import MEMBER, STOP, Ended, Event, Stack, TrialResult
from hpxfer.weights.kept import KeepSpec


@dataclass(frozen=True)
class TrainStack(Trains):
    """Trains a stack on a device, through `hpxfer.train.trainer.train`. It imports torch only where it runs."""

    device: str = "auto"
    determinism: str | None = None  # strict | fast; None is the default of the device
    kernels: str = "auto"  # auto | torch | triton
    checkpoints: CheckpointSpec | None = None
    stopping: Stopping | None = None  # early stopping; the training reports at the steps where trials are compared
    plugins: tuple[PluginFile, ...] = ()  # imported before the training, once per process
    keep: KeepSpec | None = None  # where weights are stored
    points: bool = False  # whether progress carries the new points of curves
    curves: bool = True  # whether the results have curves

    def __call__(self, stack: Stack) -> Iterator[Event]:
        from hpxfer.train.trainer import train
        from hpxfer.weights.kept import Keeper

        for file in self.plugins:
            load_plugin(file)
        yield from train(
            stack,
            self.device,
            determinism=self.determinism,
            kernels=self.kernels,
            checkpoints=self.checkpoints,
            report_at=() if self.stopping is None else self.stopping.rungs(stack.setting.steps),
            points=self.points and MEMBER.is_first,
            stop=STOP.check,
            keep=None if self.keep is None else Keeper(self.keep, stack),
            team=MEMBER.team,
            curves=self.curves,
        )


# Options of glibc's mallopt: how many free bytes at the end of the heap are given back, and how many requests are
# served by mmap.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> None:
    """Let this process keep the memory that it frees. It has no effect where the C library is not glibc.

    A training step frees memory that the next step asks for again. If the memory goes back to the system in between, it
    returns as fresh pages that must be zeroed: for a stack of 16 trials at width 256 up to 19,000 pages per step, which
    is 4% of the time (2% at width 128). The peak memory does not change.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, -1)
        set_option(_M_MMAP_MAX, 0)


def guarded(train: Train, stack: Stack, *, cut: bool = False) -> Iterator[Event]:
    """Yield the events of the training, and Ended once, with the results of all trials.

    If training raises, all trials have failed. If memory runs out, the halves of the stack are trained, and at last a
    single trial piece by piece, with its blocks computed again. No bit depends on it. `cut` trains the halves at once:
    it is set for the last try of a stack whose workers were lost, because a machine without memory may kill its
    workers. Results come when the whole stack is trained. So a worker that is lost before repeats the whole stack, and
    no result is sent twice. Ended has no results if this process was asked to stop.

    Several ranks cannot cut a stack each for itself: RankLost is raised, and the whole stack is tried again.
    """
    results: list[TrialResult] = []
    for event in _halves(train, stack, 0) if cut else _attempt(train, stack, 0):
        if isinstance(event, Ended):
            results += event.results
        else:
            yield event
    yield Ended(results=tuple(results) if len(results) == len(stack.trials) else ())


def _attempt(train: Train, stack: Stack, halvings: int) -> Iterator[Event]:
    """Yield the events of the training. `halvings`, a part of the results, is how often the stack was cut."""
    try:
        for event in train(stack):
            if isinstance(event, Ended):
                event = Ended(results=tuple(replace(result, halvings=halvings) for result in event.results))
            yield event
    except HpxferError as error:
        yield failed(stack, str(error), "input")
        return
    except Exception as error:
        if MEMBER.team is not None and _out_of_memory(error):
            raise RankLost(f"rank {MEMBER.team.rank} has no memory left: {first_line(error)}") from error
        if isinstance(error, RankLost):
            raise
        is_frugal = len(stack.trials) == stack.pieces == 1 and stack.recompute  # no way needs less memory
        if not _out_of_memory(error) or is_frugal:
            yield failed(stack, traceback.format_exc(), "memory" if _out_of_memory(error) else "bug")
            return
    else:
        return
    # After the except block: the frames of the exception hold the stack's tensors, whose memory the halves need.
    yield from _halves(train, stack, halvings)


def _halves(train: Train, stack: Stack, halvings: int) -> Iterator[Event]:
    """Yield the events of the halves of a stack. A single trial is trained in the way that needs the least memory."""
    if len(stack.trials) == 1:
        yield from _attempt(train, replace(stack, pieces=1, recompute=True), halvings)
        return
    middle = len(stack.trials) // 2
    for half in (stack.trials[:middle], stack.trials[middle:]):
        if STOP.is_set:
            return
        yield from _attempt(train, replace(stack, trials=half), halvings + 1)


# Messages of RuntimeErrors when memory runs out outside of torch's allocator: in the CPU's allocator, while a CUDA
# graph is captured, in a Triton launch, in cuBLAS.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "[CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def _out_of_memory(error: Exception) -> bool:
    # torch.OutOfMemoryError is known by name, because this module must not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)
