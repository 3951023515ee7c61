"""Which sizes of matrices the Triton products copy ahead of their main loop. The module needs no torch."""

from __future__ import annotations

# The fewest bytes of a copy that the compiler keeps in a pipeline of two-byte numbers without spilling registers.
_COPY_BYTES = 8


def has_pipeline(size: int, dtype_bytes: int) -> bool:
    """Return whether products with rows of `size` numbers copy ahead and keep their registers.

    float32 always does. Two-byte numbers need rows of whole 8-byte copies: 50264 is such a size and 50257 is not.
    Widths and hidden sizes are multiples of 8, so only a vocabulary can be another size. Its products run in Triton
    with `determinism: strict`.
    """
    return dtype_bytes >= 4 or size * dtype_bytes % _COPY_BYTES == 0
