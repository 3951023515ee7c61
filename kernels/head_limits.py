"""Limits of the head: how many bytes of logits it computes at once, and how many it keeps.

The planner counts memory by the same numbers. They stand apart from `head.py` because the planner runs without torch.
"""

from __future__ import annotations

# Logits of one piece: as many whole trials as fit. They stay in a CPU's cache, or need few launches on a GPU.
CPU_PIECE_BYTES = 2**21
GPU_PIECE_BYTES = 2**32
# Logits of all trials that are kept from the forward to the backward pass. Above it, each piece is computed again.
KEPT_BYTES = 2**34


def held_bytes(logit_bytes: int, *, cuda: bool) -> int:
    """Return how many bytes of a stack's logits the head holds at once, of `logit_bytes` in all."""
    return logit_bytes if logit_bytes <= KEPT_BYTES else min(logit_bytes, GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES)
