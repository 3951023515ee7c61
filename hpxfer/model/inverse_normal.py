"""Normal numbers from random integers, by the inverse of the normal distribution, with the same bits on every device.

The 2^32 values of an integer stand for equal shares of probability. An integer v becomes the middle of its share: the
number z whose probability Phi(z) is 1/2 + (v + 1/2) / 2^32. So |z| is at most 6.34.

The sign is that of v, and 31 bits are left. The lower half of their range is the center. The upper half is the tail,
which is counted from its far end. A count t = 1, 3, 5, ... is thus in units of probability 2^-33 from 1/2 or from the
end, and float32 holds it to 24 digits. Each octave of t is cut into PIECES equal pieces, and each piece has a cubic.

A GPU gives the bits of a CPU because every step is an integer operation, a conversion, a lookup, or one float32
addition or multiplication, which IEEE 754 rounds in one way. A fused multiply-add (addcmul, a compiled kernel) rounds
once less, and log, sqrt and the like come from other libraries on a GPU, so none of them may be used here. The
coefficients are found in Python's float64 by + - * / alone. They are therefore the same on every machine.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

DEGREE = 3
SPLIT = 4
PIECES = 2**SPLIT  # per octave
OCTAVES = 31
HALF = 32 * PIECES  # the rows of a half in the table; the last octave is not used, but for its first row
_TERMS = 16  # of the power series
_MANTISSA = 23 - SPLIT  # the bits of a float32's mantissa that say where in its piece a count lies
_ONE = 127 << SPLIT  # the upper bits of the float32 1.0
_MAX = 2**31 - 1
# The inverse at a probability of 2^-33, and its slope by the probability in units of 2^-33.
_END, _END_SLOPE = 6.3379577545537895, -0.15411377108941832
_NODES = (0.03806023374435663, 0.3086582838174551, 0.6913417161825448, 0.9619397662556434)  # Chebyshev's, in [0, 1]


def to_normal(words: Tensor) -> Tensor:
    """Return the normal numbers that random int32 `words` stand for, float32 of the same size.

    The relative error against the exact inverse is at most 1.6e-7: a test holds a million words of every octave to it.
    """
    table = _table(words.device)
    word = words.flatten()
    magnitude = (word >> 31).bitwise_xor_(word)  # v or -1 - v
    row = (magnitude >> 30).bitwise_left_shift_(SPLIT + 5)  # 0 in the center, HALF in the tail
    count = torch.minimum(magnitude, magnitude.bitwise_xor(_MAX), out=magnitude)
    bits = count.mul_(2).add_(1).to(torch.float32).view(torch.int32)
    row = row.add_(bits >> _MANTISSA).sub_(_ONE).long()  # a lookup by int64 is twice as fast on a CPU
    place = bits.bitwise_and_(2**_MANTISSA - 1).to(torch.float32)
    out = torch.index_select(table[DEGREE], 0, row)
    for power in reversed(range(DEGREE)):
        out.mul_(place).add_(torch.index_select(table[power], 0, row))
    out.view(torch.int32).bitwise_xor_(word.bitwise_and(-_MAX - 1))
    return out.view(words.shape)


@functools.lru_cache(maxsize=4)
def _table(device: torch.device) -> Tensor:
    """Return the coefficients [DEGREE + 1, 2 * HALF] on a device, float32."""
    rows = _rows(0.0, math.sqrt(2 * math.pi) / 2**33, start=0.0) + _rows(_END, _END_SLOPE, start=1.0)
    return torch.tensor(rows, dtype=torch.float32).T.contiguous().to(device)


def _rows(value: float, slope: float, *, start: float) -> list[list[float]]:
    """Return HALF cubics of the inverse, in units of 2^-_MANTISSA of their piece.

    `value` and `slope` are those at the count `start`. The series go on from the end of one piece to the next. This
    loses no digits from the far end toward the center, nor over half of the way in the other direction.
    """
    if start == 0.0:  # to the first count
        value, slope = _next(_series(value, slope))
    slope /= PIECES  # per piece
    rows = []
    for _ in range(OCTAVES):
        for _ in range(PIECES):
            series = _series(value, slope)
            rows.append(_cubic(series))
            value, slope = _next(series)
        slope *= 2
    rows.append([value] + [0.0] * DEGREE)
    return rows + [[0.0] * (DEGREE + 1)] * (HALF - len(rows))


def _series(value: float, slope: float) -> list[float]:
    """Return the power series of the inverse from a point on, by its differential equation z'' = z z'^2.

    Sums are `math.fsum`, which rounds once. The built-in `sum` has other bits in other versions of Python.
    """
    z, dz = [value, slope], [slope]
    squares: list[float] = []
    for n in range(_TERMS):
        squares.append(math.fsum(dz[i] * dz[n - i] for i in range(n + 1)))
        z.append(math.fsum(z[i] * squares[n - i] for i in range(n + 1)) / ((n + 1) * (n + 2)))
        dz.append((n + 2) * z[n + 2])
    return z


def _next(series: list[float]) -> tuple[float, float]:
    """Return the value and the slope at 1."""
    return math.fsum(series), math.fsum(k * term for k, term in enumerate(series))


def _cubic(series: list[float]) -> list[float]:
    """Return the cubic through a series at the four Chebyshev points of [0, 1], in units of 2^-_MANTISSA.

    Terms that float32 cannot see beside the value are zero, so that no product is subnormal.
    """
    newton = [_horner(series, x) for x in _NODES]
    for order in range(1, DEGREE + 1):
        for i in range(DEGREE, order - 1, -1):
            newton[i] = (newton[i] - newton[i - 1]) / (_NODES[i] - _NODES[i - order])
    terms = [newton[DEGREE]]
    for i in range(DEGREE - 1, -1, -1):  # times (x - node), plus the next
        shifted = [newton[i], *terms]
        for k, term in enumerate(terms):
            shifted[k] -= _NODES[i] * term
        terms = shifted
    kept = [term if abs(term) > 2.0**-30 * abs(terms[0]) else 0.0 for term in terms]
    return [term / 2.0 ** (_MANTISSA * k) for k, term in enumerate(kept)]


def _horner(terms: list[float], x: float) -> float:
    out = 0.0
    for term in reversed(terms):
        out = out * x + term
    return out
