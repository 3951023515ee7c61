"""builtin:teacher: vectors of Gaussian numbers, and what a fixed function says of them.

`polynomial` is a regression on 20 inputs, as in Fig. 18 of the paper of CompleteP for MoE, which names a multi-index
polynomial and gives no coefficients. Here it is y = (u1 + u1 u2 + u1 u2 u3 + u1 u2 u3 u4) / 2: u_k are projections of
the first 16 inputs on orthogonal directions of length 1, so that y has mean 0 and variance 1. The other inputs say
nothing.

`network` is a classification on 20 inputs: which of 100 outputs of a random network with one hidden layer is largest.

`few` is a regression on 4 inputs, y = x1 + x2 x3, with 4 samples again and again: for training on the full batch, where
all seeds and steps see the same and the infinite limit of a network is one curve.

A Gaussian number is the sum of twelve uniform numbers of 16 bits, minus its mean, over 2^16: its variance is 1, and it
lies within 6. Everything is integer arithmetic, or float64 products of integers below 2^53, so all machines agree.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.windows import word_parts, words

VERSION = 1
POLYNOMIAL_INPUTS, NETWORK_INPUTS, CLASSES = 20, 20, 100
FEW, FEW_INPUTS = 4, 4
_UNIFORMS, _BITS = 12, 16
_MEAN = _UNIFORMS * (2**_BITS - 1) // 2
# Rows of Sylvester's Hadamard matrix of order 16, whose entries are 1 and -1.
_DIRECTIONS, _ORDER = (3, 5, 9, 14), 16
# Hidden units, the first of which are odd and the others even functions. A linear model cannot see even ones. Their
# inputs have a standard deviation of 1145, so 772 is the median of the size. Most values are cut off.
_HIDDEN, _ODD, _MEDIAN, _MOST = 20, 6, 772, 500


def polynomial(
    stream: str, begin: int, end: int, classes: tuple[int, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return samples `begin` to `end` of a stream: inputs [N, 20], and targets [N, 1]."""
    whole = _gaussian(f"hpxfer teacher/polynomial {VERSION} {stream}", begin, end, POLYNOMIAL_INPUTS)
    index = np.arange(_ORDER)
    signs = [[1 - 2 * (int(row & column).bit_count() & 1) for column in index.tolist()] for row in _DIRECTIONS]
    # u in units of 2^-18, and then of 2^-10, so that a product of four is a number of 63 bits.
    u = whole[:, :_ORDER] @ np.array(signs).T >> 8
    terms = np.cumprod(u, axis=1)
    total = sum((terms[:, k] << 10 * (3 - k) for k in range(3)), terms[:, 3])
    return _real(whole), (total.astype(np.float64) / 2**41).astype(np.float32)[:, None]


def network(
    stream: str, begin: int, end: int, classes: tuple[int, ...]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return samples `begin` to `end` of a stream: inputs [N, 20], and the place of their classes in `classes`, [N]."""
    whole = _gaussian(f"hpxfer teacher/network {VERSION} {stream}", begin, end, NETWORK_INPUTS)
    first, last = _network()
    hidden = (whole >> 8).astype(np.float64) @ first
    hidden[:, _ODD:] = abs(hidden[:, _ODD:]) - _MEDIAN
    outputs = np.clip(hidden, -_MOST, _MOST) @ last
    return _real(whole), outputs[:, list(classes)].argmax(axis=1)


def few(stream: str, begin: int, end: int, classes: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return samples `begin` to `end` of a stream: inputs [N, 4], and targets [N, 1]."""
    whole = _gaussian(f"hpxfer teacher/few {VERSION} {stream}", begin, end, FEW_INPUTS)
    total = (whole[:, 0] << _BITS) + whole[:, 1] * whole[:, 2]
    return _real(whole), (total.astype(np.float64) / 2 ** (2 * _BITS)).astype(np.float32)[:, None]


def _gaussian(stream: str, begin: int, end: int, num: int) -> NDArray[np.int64]:
    """Return Gaussian numbers in units of 2^-16, [N, num]."""
    uniform = word_parts(words(stream, begin, end, num * _UNIFORMS // 4), "<u2")
    total = uniform.reshape(end - begin, num, _UNIFORMS).sum(axis=2, dtype=np.int64)
    return np.asarray(total - _MEAN, np.int64)


def _real(whole: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return numbers of at most 20 bits in units of 2^-16 as float32, which holds them."""
    return np.asarray(whole / 2**_BITS, np.float32)


@lru_cache(maxsize=1)
def _network() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of the network, 1 and -1."""
    sizes = {"first": (NETWORK_INPUTS, _HIDDEN), "last": (_HIDDEN, CLASSES)}
    random = [words(f"hpxfer teacher/network {VERSION} {name}", 0, *size) for name, size in sizes.items()]
    first, last = ((each >> np.uint64(63)).astype(np.float64) * 2 - 1 for each in random)
    return first, last
