"""The losses of a batch and their gradients by the outputs: those of the family `mlp`.

Letters: P samples, C outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from hpxfer.limit.given import Floats, Loss


def loss(kind: Loss, f_PC: Floats, targets: NDArray[Any]) -> float:
    """Return the mean over samples of sum (f - y)^2, or of the cross entropy in nats."""
    if kind == "squared_error":
        return float(np.mean(np.sum((f_PC - targets) ** 2, axis=1)))
    return -float(np.mean(log_softmax(f_PC, axis=1)[np.arange(len(f_PC)), targets]))


def by_outputs(kind: Loss, f_PC: Floats, targets: NDArray[Any]) -> Floats:
    """Return chi [P, C], the gradient of that mean by the outputs."""
    if kind == "squared_error":
        slopes: Floats = 2.0 * (f_PC - targets) / len(f_PC)
        return slopes
    p_PC: Floats = np.exp(log_softmax(f_PC, axis=1))
    p_PC[np.arange(len(f_PC)), targets] -= 1.0
    return p_PC / len(f_PC)
