"""Setup: how a stack trains on a device, and what is recorded of it. All global switches of torch are made here.

strict    a trial has the same bits on the same machine, whatever is stacked beside it: no compiler (its reductions
          depend on the size of the stack), torch's deterministic algorithms, Triton kernels of fixed launch shapes
fast      CUDA only: the fastest code. On a CPU it is the same code as strict.

On CUDA a stack trains with the Triton kernels, and its steps are captured. Torch's kernels are a debugging aid there:
their grouped products ask the host for sizes, so their steps are neither compiled nor captured.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.host import cpu_name
from hpxfer.kernels.backend import TORCH, Backend, BackendError, choose_backend
from hpxfer.kernels.usable import Asked


def provenance(setup: Setup) -> dict[str, Any]:
    """Return the fields of a TrialResult that name the machine, its memory, the versions and the kernels."""
    device = torch.cuda.get_device_name(setup.device) if setup.cuda else "cpu"
    versions = {"hpxfer": hpxfer.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        "peak_bytes": _peak_bytes(setup),
        "device": device,
        "cpu": None if setup.cuda else f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}",
        "determinism": setup.determinism,
        "backend": setup.backend.name,
        "backend_reason": setup.backend.reason,
        "kernel_configs": _configs(setup),
        "host": socket.gethostname(),
        "versions": json.dumps(versions),
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def _configs(setup: Setup) -> str | None:
    if not setup.backend.is_triton:
        return None
    from hpxfer.kernels.configs import config_hash

    return config_hash()


def _peak_bytes(setup: Setup) -> int:
    if setup.cuda:
        return torch.cuda.max_memory_allocated(setup.device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


Determinism = Literal["strict", "fast"]

# The host reads a GPU's losses once per this many steps, because reading waits for the steps that were queued.
GPU_STEPS_PER_READ = 16
# cuBLAS reads this variable when it is first used in a process.
_WORKSPACE, _WORKSPACE_VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a stack trains."""

    device: torch.device
    determinism: Determinism
    backend: Backend
    compiled: bool = False  # torch.compile for the training forward pass
    captured: bool = False  # a step replays CUDA graphs, which are cached for the next stack of its shape
    steps_per_read: int = 1  # steps between two reads of the losses by the host

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


CPU = Setup(device=torch.device("cpu"), determinism="strict", backend=TORCH)


def setup_for(device: str = "auto", determinism: str | None = None, kernels: str = "auto") -> Setup:
    """Return how to train on a device. `device` is auto (CUDA if there is one), cpu or cuda.

    `determinism` is strict, fast or None (strict on a CPU, fast on CUDA). `kernels` is auto, torch (on CUDA a
    debugging aid) or triton. Raise HpxferError if this machine does not have them.
    """
    chosen_device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    cuda = chosen_device.type == "cuda"
    mode = cast(Determinism, determinism or ("fast" if cuda else "strict"))
    strict = mode == "strict" or not cuda
    if cuda and strict:
        fix_workspace()
    try:
        backend = choose_backend(chosen_device, asked=cast(Asked, kernels), strict=strict)
    except BackendError as error:
        raise HpxferError(str(error)) from None
    return Setup(
        device=chosen_device,
        determinism=mode,
        backend=backend,
        compiled=backend.is_triton and cuda and not strict,
        captured=backend.is_triton and cuda,
        steps_per_read=GPU_STEPS_PER_READ if cuda else 1,
    )


@contextmanager
def switched(setup: Setup) -> Iterator[None]:
    """Set torch's global switches for the length of a `with` block."""
    with nullcontext() if setup.cuda else one_thread(), _algorithms(setup), _precision():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU operators on one thread, which bitwise reproducibility needs. Restore the caller's setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _algorithms(setup: Setup) -> Iterator[None]:
    """On CUDA in strict mode, forbid algorithms whose result depends on the order of threads."""
    if not setup.cuda or setup.determinism != "strict":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    module: Any = torch.utils.deterministic  # its switch is a property that the type stubs lack
    fill = module.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    module.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        module.fill_uninitialized_memory = fill


@contextmanager
def _precision() -> Iterator[None]:
    """On CUDA, compute float32 products in float32 and sum bfloat16 products in float32, as the sweep asks."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
    try:
        yield
    finally:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = before


def fix_workspace() -> None:
    """Fix cuBLAS's workspace. Raise HpxferError if CUDA has started in this process without it.

    Call this before anything starts CUDA in a process that may train a strict stack. On Hopper the size is the one that
    torch gives cuBLAS anyway.
    """
    if os.environ.get(_WORKSPACE) in (":4096:8", ":16:8"):
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise HpxferError(
            f"training.determinism: strict on CUDA needs {_WORKSPACE}={_WORKSPACE_VALUE} before CUDA starts, got "
            f"{os.environ.get(_WORKSPACE)!r} in a process that has used CUDA; set it in the environment, or give fast"
        )
    os.environ[_WORKSPACE] = _WORKSPACE_VALUE


# When diverged trials leave their stack. In strict mode the other trials keep their bits.


def saves_time(dead_fraction: float, left_s: float, build_s: float, setup: Setup) -> bool:
    """Return whether a smaller stack saves time.

    `dead_fraction` is the fraction of the stack that has diverged. `left_s` is the time that the run would still take
    with it. `build_s` is the time that building the current step took. A smaller stack builds its step again, and where
    steps are captured, the next stack of the old size does so too.
    """
    return dead_fraction * left_s > build_s * (2 if setup.captured else 1)


def fits_memory(fraction: float, setup: Setup) -> bool:
    """Return whether a stack of this fraction of the size has room beside the one that it replaces."""
    if not setup.cuda:
        return True
    free, _ = torch.cuda.mem_get_info(setup.device)
    cached = torch.cuda.memory_reserved(setup.device) - torch.cuda.memory_allocated(setup.device)
    return fraction * torch.cuda.max_memory_allocated(setup.device) < free + cached
