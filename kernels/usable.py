"""Usable kernels: which ones a device may have, and the message where a sweep asks for others.

The driver asks before a run begins, and `backend.choose_backend` where a stack begins. Nothing here imports torch.
"""

from __future__ import annotations

import os
from typing import Literal

Asked = Literal["auto", "torch", "triton"]

# The first architecture with bfloat16 tensor cores.
MIN_CAPABILITY = (8, 0)
NOT_INSTALLED = "triton is not installed"
DEBUGGING_AID = "a debugging aid on CUDA: slow, neither compiled nor captured, and never measured"


def refusal(asked: Asked, *, cuda: bool, strict: bool, missing: str | None) -> str | None:
    """Return the message for kernels that a device cannot have, or None.

    On CUDA a stack trains with the Triton kernels. It never falls back to torch's. `missing` says why Triton kernels
    cannot run on the device. It is None if they can.
    """
    if not cuda:
        if asked != "triton" or missing is None:
            return None
        return (
            f"resources.kernels: triton needs {_GPU} and the triton package, got a machine where {missing}; give "
            "kernels: auto or torch, or on such a device: pip install 'hpxfer[triton]'"
        )
    if asked == "torch":
        if not strict:
            return None
        return (
            "training.determinism: strict on CUDA needs the Triton kernels, because torch chooses the algorithm of a "
            "batched product by the number of trials, got resources.kernels: torch; give kernels: auto, or "
            "determinism: fast"
        )
    if missing is None:
        return None
    fix = "pip install 'hpxfer[triton]'" if missing == NOT_INSTALLED else f"take {_GPU}"
    return (
        f"resources.kernels: {asked} means the Triton kernels on CUDA, got a machine where {missing}; {fix}, or give "
        f"device: cpu (kernels: torch with determinism: fast is {DEBUGGING_AID})"
    )


_GPU = f"a CUDA device of capability {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} or more"


def interpreted() -> bool:
    """Return whether Triton kernels run in Triton's interpreter on the CPU. This is for tests only."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
