"""Limits of the head: how many bytes of logits it computes at once, in which pieces, and how many it keeps.

The planner counts memory by the same numbers. They stand apart from `head.py` because the planner runs without torch.
"""

from __future__ import annotations

import itertools

# Logits of one piece: as many whole trials as fit. They stay in a CPU's cache, or need few launches on a GPU.
# A strict product on a GPU takes a matrix of fewer than 2^31 elements, of two bytes each or more.
CPU_PIECE_BYTES = 2**21
GPU_PIECE_BYTES = 2**32 - 1
# Logits of all trials that are kept from the forward to the backward pass. Above it, each piece is computed again.
KEPT_BYTES = 2**34
# Rows of one tile of a product on a GPU. A product of another number of rows is not pipelined.
TILE_ROWS = 128


def pieces(num_trials: int, num_tokens: int, row_bytes: int, *, cuda: bool) -> list[tuple[slice, slice]]:
    """Return trials and tokens of each piece: several whole trials, or some tokens of one trial.

    `row_bytes` are those of one token's logits. How a trial's tokens are cut depends on that trial alone, not on
    `num_trials`. On CUDA the pieces are as few as possible and equal, because a small last piece leaves multiprocessors
    idle: 64k tokens of which 42,690 fit are 2 x 32,768, and 10 trials of which 4 fit are 4, 3 and 3. On a CPU each
    piece but the last is as large as possible. They fix the order in which the readout's gradient is summed.
    """
    most_rows = max(1, (GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES) // row_bytes)
    most_trials = max(1, most_rows // num_tokens)
    if not cuda:
        return list(itertools.product(_full(num_trials, most_trials), _full(num_tokens, most_rows)))
    tile = TILE_ROWS if most_rows >= TILE_ROWS else 1
    return list(itertools.product(_equal(num_trials, most_trials, 1), _equal(num_tokens, most_rows, tile)))


def _full(total: int, most: int) -> list[slice]:
    """Return slices of `most`, and a last one of what is left."""
    return [slice(begin, min(total, begin + most)) for begin in range(0, total, most)]


def _equal(total: int, most: int, tile: int) -> list[slice]:
    """Return the fewest slices of whole tiles, of at most `most`. Their sizes differ by at most one tile.

    Larger slices come first, so that the memory of the first holds each later one. But if the last tile is incomplete,
    it belongs to a larger slice.
    """
    if total <= most:
        return [slice(0, total)]
    tiles = -(-total // tile)
    number = -(-tiles // (most // tile))
    small, larger = divmod(tiles, number)
    sizes = [small + 1] * larger + [small] * (number - larger)
    if total % tile and larger:
        sizes = [*sizes[1:], small + 1]
    ends = list(itertools.accumulate(size * tile for size in sizes))
    return [slice(begin, min(total, end)) for begin, end in zip([0, *ends], ends, strict=False)]


def held_bytes(logit_bytes: int, *, cuda: bool) -> int:
    """Return how many bytes of a stack's logits the head holds at once, of `logit_bytes` in all."""
    return logit_bytes if logit_bytes <= KEPT_BYTES else min(logit_bytes, GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES)
