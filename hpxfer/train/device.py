"""How a stack trains on a device: every choice and every global switch of torch's, in one place.

strict    the same bits on the same machine, whatever K, slot or neighbors: no compiler (its reductions follow the
          whole stack's shape), torch's deterministic algorithms, Triton kernels of fixed launch shapes
fast      CUDA only: what is fastest; on a CPU it is the same code as strict

Steps are compiled and captured with the Triton kernels only: torch's own grouped products ask the host for sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from hpxfer.errors import HpxferError
from hpxfer.kernels.backend import TORCH, Asked, Backend, BackendError, choose_backend

Determinism = Literal["strict", "fast"]

# The host looks at a GPU's losses once in so many steps: each look waits for the steps that are under way.
GPU_LOOK_STEPS = 16
# cuBLAS reads it when it is first used in a process.
_WORKSPACE, _WORKSPACE_VALUE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a stack trains."""

    device: torch.device
    determinism: Determinism
    backend: Backend
    compiled: bool = False  # torch.compile for the training forward pass
    captured: bool = False  # a step is a replay of CUDA graphs, kept for the next stack of its shape
    look_steps: int = 1  # steps from one look of the host to the next

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


CPU = Setup(device=torch.device("cpu"), determinism="strict", backend=TORCH)


def setup_for(device: str = "auto", determinism: str | None = None, kernels: str = "auto") -> Setup:
    """Return how to train on a device: auto (CUDA if there is one), cpu or cuda.

    `determinism` is strict, fast or None (strict on a CPU, fast on CUDA), `kernels` auto, torch or triton. Raises
    HpxferError where they cannot be had.
    """
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    cuda = where.type == "cuda"
    chosen = cast(Determinism, determinism or ("fast" if cuda else "strict"))
    strict = chosen == "strict" or not cuda
    if cuda and strict:
        fix_workspace()
    try:
        backend = choose_backend(where, asked=cast(Asked, kernels), strict=strict)
    except BackendError as error:
        raise HpxferError(str(error)) from None
    return Setup(
        device=where,
        determinism=chosen,
        backend=backend,
        compiled=backend.is_triton and cuda and not strict,
        captured=backend.is_triton and cuda,
        look_steps=GPU_LOOK_STEPS if cuda else 1,
    )


@contextmanager
def switched(setup: Setup) -> Iterator[None]:
    """Set torch's global switches for a run, and set them back."""
    with _threads(setup), _algorithms(setup), _precision():
        yield


@contextmanager
def _threads(setup: Setup) -> Iterator[None]:
    """On a CPU, one intra-op thread, as bitwise reproducibility needs."""
    before = torch.get_num_threads()
    if not setup.cuda:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _algorithms(setup: Setup) -> Iterator[None]:
    """On CUDA in strict mode, no algorithm whose result depends on the order of threads."""
    if not setup.cuda or setup.determinism != "strict":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    module: Any = torch.utils.deterministic  # its switch is a property, which no type stub knows
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
    """On CUDA, float32 products are float32, and bfloat16 ones are summed in float32: the sweep chose its precision."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = False, False
    try:
        yield
    finally:
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = before


def fix_workspace() -> None:
    """Fix cuBLAS's workspace; raise HpxferError if CUDA has started in this process without.

    To be called before whatever starts CUDA in a process that may train a strict stack. On Hopper it is the size that
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
