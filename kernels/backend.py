"""Backend: the kernels that a stack runs on, chosen once, and the launch of a Triton kernel.

Triton kernels are in files named `*_triton.py`, the only ones that import triton. They are imported inside the function
that launches them, so that every other module of this folder works where triton is not installed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hpxfer.kernels.usable import DEBUGGING_AID, MIN_CAPABILITY, NOT_INSTALLED, Asked, interpreted, refusal


class BackendError(ValueError):
    """This machine lacks what was asked for. The message names the rule, what was given, and a fix."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The kernels of a stack."""

    name: Literal["torch", "triton"]
    reason: str
    strict: bool  # the bits of a trial depend on the trial alone: not on K, its position or its neighbors

    @property
    def is_triton(self) -> bool:
        return self.name == "triton"


TORCH = Backend(name="torch", reason="the default", strict=True)


def choose_backend(device: torch.device, *, asked: Asked = "auto", strict: bool) -> Backend:
    """Return the kernels for this device, and log why. Raise BackendError if it lacks what was asked for.

    CUDA has the Triton kernels. Torch's are for those who ask for them there, to debug a kernel.
    """
    cuda, missing = device.type == "cuda", _why_no_triton(device)
    if text := refusal(asked, cuda=cuda, strict=strict, missing=missing):
        raise BackendError(text)
    reason = f"on {device.type}" if asked == "auto" else "asked for"
    if asked == "triton" or (asked == "auto" and cuda):
        backend = Backend(name="triton", reason=reason, strict=strict)
    else:
        backend = Backend(name="torch", reason=f"{reason}, {DEBUGGING_AID}" if cuda else reason, strict=strict)
    _log_once(backend.name, backend.reason, "strict" if strict else "fast")
    return backend


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a Triton kernel on the device of its first tensor argument. Do nothing if the grid is empty."""
    if 0 in grid:
        return
    device = next(arg.device for arg in args if isinstance(arg, Tensor))
    # Explicit, because Triton is about to change its default, and with it the bits. A kernel may override it.
    options = {"enable_fp_fusion": True, **options}
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](*args, **options)


def _why_no_triton(device: torch.device) -> str | None:
    """Return why Triton kernels cannot run here, or None."""
    if importlib.util.find_spec("triton") is None:
        return NOT_INSTALLED
    if interpreted() and device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"the device is {device.type}"
    if torch.version.hip is not None:
        return "torch is built for ROCm"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return f"the device has capability {capability[0]}.{capability[1]}"
    return None


@functools.cache
def _log_once(name: str, reason: str, determinism: str) -> None:
    logging.getLogger("hpxfer").info("kernels: %s (%s), %s", name, reason, determinism)
