"""The activations and their slopes, for float64 arrays of any shape."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from hpxfer.limit.given import Floats
from hpxfer.limit.network import Activation


def activate(kind: Activation, x: Floats) -> Floats:
    """Return act(x)."""
    match kind:
        case "relu":
            return np.maximum(x, 0.0)
        case "gelu":
            return x * ndtr(x)
        case "tanh":
            return np.tanh(x)
        case _:
            return x


def slope(kind: Activation, x: Floats) -> Floats:
    """Return act'(x). That of relu is 0 at 0."""
    match kind:
        case "relu":
            return (x > 0).astype(np.float64)
        case "gelu":
            return ndtr(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        case "tanh":
            return 1.0 - np.tanh(x) ** 2
        case _:
            return np.ones_like(x)
