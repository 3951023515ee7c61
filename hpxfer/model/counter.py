"""Normal numbers from a key and a counter: any part of a stream by itself, with the same bits on every device.

The words are those of SplitMix64, the generator of `java.util.SplittableRandom`, which passes BigCrush of TestU01
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The n-th word of a stream is
mix(start + n * gamma) modulo 2^64. The key decides the start and the odd gamma. A word gives two numbers, the first
from its lower half. int64 tensors wrap around on a CPU and on a GPU, so no bit depends on the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpxfer.model.inverse_normal import to_normal

# mix(z): z ^= z >> shift (without the sign), z *= factor, for each pair. The constants are "Mix13" of D. Stafford.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# The numbers that are computed at once: a CPU's cache holds the buffers, and a GPU is busy longer than a launch takes.
CHUNK = {"cpu": 2**16, "cuda": 2**23}


def normals(keys: Sequence[str], numel: int, device: torch.device, chunk: int) -> Iterator[Tensor]:
    """Yield the first `numel` numbers of each key's stream, float32 [keys, n], `chunk` after `chunk`.

    How many numbers of a stream are computed at once changes none of them. An odd `chunk` counts as the next even one.
    """
    words, step = (numel + 1) // 2, (chunk + 1) // 2
    starts, gammas = torch.tensor([stream(key) for key in keys], device=device).T.unsqueeze(-1)
    for first in range(0, words, step):
        mixed = _mixed(first, min(step, words - first), starts, gammas)
        yield to_normal(mixed.view(torch.int32))[:, : numel - 2 * first]


def stream(key: str) -> tuple[int, int]:
    """Return the start and the gamma of a key's stream, as signed numbers of 64 bits."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    start, gamma = (int.from_bytes(part, "little") for part in (digest[:8], digest[8:]))
    gamma |= 1
    if (gamma ^ gamma >> 1).bit_count() < 24:  # too regular, as in the paper's mixGamma
        gamma ^= 0xAAAAAAAAAAAAAAAA
    return _signed(start), _signed(gamma)


def _mixed(first: int, num: int, starts: Tensor, gammas: Tensor) -> Tensor:
    """Return the words [streams, num] from `first` on, int64, for starts and gammas [streams, 1]."""
    words = torch.arange(first, first + num, device=starts.device) * gammas
    words.add_(starts)
    for shift, factor in _MIX:
        high = (words >> shift).bitwise_and_(2 ** (64 - shift) - 1)
        words.bitwise_xor_(high)
        if factor != 1:
            words.mul_(_signed(factor))
    return words


def _signed(number: int) -> int:
    """Return the signed number that has the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number
