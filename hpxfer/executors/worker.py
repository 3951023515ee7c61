"""What every worker does with a stack, whatever started it: train, and turn exceptions into failed results."""

from __future__ import annotations

import ctypes
import os
import socket
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Train, failed
from hpxfer.executors.stopping import Stopping
from hpxfer.train.checkpoints import CheckpointSpec
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


@dataclass(frozen=True)
class TrainStack:
    """`hpxfer.train.trainer.train` on a device; imports torch only where it runs."""

    device: str = "auto"
    determinism: str | None = None  # strict | fast; None: the device's default
    kernels: str = "auto"  # auto | torch | triton
    checkpoints: CheckpointSpec | None = None
    stopping: Stopping | None = None  # it reports where trials are compared

    def __call__(self, stack: Stack) -> Iterator[Event]:
        from hpxfer.train.trainer import train

        yield from train(
            stack,
            self.device,
            determinism=self.determinism,
            kernels=self.kernels,
            checkpoints=self.checkpoints,
            report_at=() if self.stopping is None else self.stopping.rungs(stack.setting.steps),
        )


# Of glibc's mallopt: trim what lies free at the heap's end down to so many bytes; serve so many requests by mmap.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> None:
    """Let this process keep the memory that it frees; without effect where the C library is not glibc.

    A step frees what the next one asks for again. Given back each time, it comes as fresh pages to be zeroed: in a
    stack of 16 at width 256 up to 19,000 a step, and 4% of the time (2% at width 128). The peak stays what it was.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, -1)
        set_option(_M_MMAP_MAX, 0)


def guarded(train: Train, stack: Stack, *, cut: bool = False) -> Iterator[Event]:
    """Yield that it starts, progress, then the results of all trials as the last event.

    An exception gives failed results; out of memory, the halves are trained. `cut` trains the halves at once: for the
    last try of a stack whose workers were lost, which may be how a machine without memory left says so. Results wait
    until all of the stack has been trained: a worker that is lost before repeats the whole stack, and no result is sent
    twice.
    """
    yield Started(host=socket.gethostname(), pid=os.getpid())
    results: list[TrialResult] = []
    events = _halves(train, stack, 0) if cut and len(stack.trials) > 1 else _attempt(train, stack, 0)
    for event in events:
        if isinstance(event, Ended):
            results += event.results
        else:
            yield event
    yield Ended(results=tuple(results))


def _attempt(train: Train, stack: Stack, halvings: int) -> Iterator[Event]:
    """Yield what training gives; `halvings` is how often the stack was cut already, and stands in its results."""
    try:
        for event in train(stack):
            yield _halved(event, halvings) if isinstance(event, Ended) else event
    except HpxferError as error:
        yield failed(stack, str(error), "input")
        return
    except Exception as error:
        if not _out_of_memory(error) or len(stack.trials) == 1:
            yield failed(stack, traceback.format_exc(), "memory" if _out_of_memory(error) else "bug")
            return
    else:
        return
    # Out of the except block: the exception's frames hold the stack's tensors, whose memory the halves need.
    yield from _halves(train, stack, halvings)


def _halved(ended: Ended, halvings: int) -> Ended:
    return Ended(results=tuple(replace(result, halvings=halvings) for result in ended.results))


def _halves(train: Train, stack: Stack, halvings: int) -> Iterator[Event]:
    middle = len(stack.trials) // 2
    for half in (stack.trials[:middle], stack.trials[middle:]):
        yield from _attempt(train, replace(stack, trials=half), halvings + 1)


# How a device's memory runs out where torch's allocator is not the one that asks: by the CPU's allocator, while a CUDA
# graph is made, in a Triton launch, in cuBLAS. All are plain RuntimeErrors.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "[CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def _out_of_memory(error: Exception) -> bool:
    # torch.OutOfMemoryError by name: this module must not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
