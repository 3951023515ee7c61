"""The pieces of the head: each row is in one of them, and those of a GPU are equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.kernels import head_limits
from hpxfer.kernels.head_limits import CPU_PIECE_BYTES, GPU_PIECE_BYTES, TILE_ROWS, pieces

BFLOAT16_50304 = 2 * 50304


def heights(found: list[tuple[slice, slice]], axis: int) -> list[int]:
    """Return the sizes of the pieces along the trials (0) or the tokens (1)."""
    return [piece[axis].stop - piece[axis].start for piece in found]


def test_64k_tokens_of_the_base_model_are_two_halves() -> None:
    found = pieces(1, 65536, BFLOAT16_50304, cuda=True)
    assert found == [(slice(0, 1), slice(0, 32768)), (slice(0, 1), slice(32768, 65536))]


@pytest.mark.parametrize("vocabulary", [2**15, 2**16, 2**17, 50304])
def test_the_logits_of_a_gpu_s_piece_are_fewer_than_a_strict_product_takes(vocabulary: int) -> None:
    found = pieces(1, 2**17, 2 * vocabulary, cuda=True)
    assert max(heights(found, 1)) * vocabulary < 2**31


@pytest.mark.parametrize(
    ("trials", "fitting", "expected"), [(10, 4, [4, 3, 3]), (9, 4, [3, 3, 3]), (8, 4, [4, 4]), (3, 4, [3])]
)
def test_pieces_of_whole_trials_are_equal_on_a_gpu(trials: int, fitting: int, expected: list[int]) -> None:
    row_bytes = GPU_PIECE_BYTES // (fitting * 1000)
    found = pieces(trials, 1000, row_bytes, cuda=True)
    assert heights(found, 0) == expected
    assert heights(found, 1) == [1000] * len(expected)


def test_a_cpu_fills_its_pieces() -> None:
    """They fix the order in which the readout's gradient is summed, and with it the bits of stored trials."""
    row_bytes = CPU_PIECE_BYTES // 4096
    assert heights(pieces(10, 1024, row_bytes, cuda=False), 0) == [4, 4, 2]
    assert heights(pieces(1, 10000, row_bytes, cuda=False), 1) == [4096, 4096, 1808]


@given(st.integers(1, 12), st.integers(1, 500), st.integers(1, 700), st.booleans())
def test_every_row_is_in_one_piece_and_no_piece_is_too_large(
    trials: int, tokens: int, most_rows: int, cuda: bool
) -> None:
    row_bytes = (GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES) // most_rows
    rows = set()
    for of_trials, of_tokens in pieces(trials, tokens, row_bytes, cuda=cuda):
        own = {(k, t) for k in range(trials)[of_trials] for t in range(tokens)[of_tokens]}
        assert 0 < len(own) * row_bytes <= (GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES)
        assert not own & rows
        rows |= own
    assert len(rows) == trials * tokens


def test_a_row_above_the_limit_is_a_piece_of_its_own() -> None:
    for cuda, limit in ((True, GPU_PIECE_BYTES), (False, CPU_PIECE_BYTES)):
        assert heights(pieces(2, 3, limit + 1, cuda=cuda), 1) == [1] * 6


@given(st.integers(1, 10**4), st.integers(1, 10**4))
def test_a_gpus_pieces_of_a_trial_are_few_and_equal(tokens: int, most_rows: int) -> None:
    row_bytes = GPU_PIECE_BYTES // most_rows
    most_rows = GPU_PIECE_BYTES // row_bytes  # as rounding leaves it
    sizes = heights(pieces(1, tokens, row_bytes, cuda=True), 1)
    tile = TILE_ROWS if most_rows >= TILE_ROWS else 1
    assert max(sizes) - min(sizes) <= tile
    assert len(sizes) == 1 or not any(size % tile for size in sizes[:-1])
    largest = most_rows // tile * tile
    assert len(sizes) == (1 if tokens <= most_rows else -(-tokens // largest))


@given(st.integers(1, 10**3), st.integers(1, 10**3))
def test_the_largest_piece_of_a_trial_comes_first(tokens: int, tiles: int) -> None:
    """What it leaves free in the allocator holds every later one."""
    sizes = heights(pieces(1, TILE_ROWS * tokens, GPU_PIECE_BYTES // (TILE_ROWS * tiles), cuda=True), 1)
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 20), st.integers(1, 3000), st.integers(1, 2000), st.booleans())
def test_how_the_tokens_of_a_trial_are_cut_does_not_depend_on_the_stack(
    trials: int, tokens: int, most_rows: int, cuda: bool
) -> None:
    row_bytes = (GPU_PIECE_BYTES if cuda else CPU_PIECE_BYTES) // most_rows
    alone = [of_tokens for _, of_tokens in pieces(1, tokens, row_bytes, cuda=cuda)]
    together = pieces(trials, tokens, row_bytes, cuda=cuda)
    for trial in range(trials):
        own = [of_tokens for of_trials, of_tokens in together if trial in range(trials)[of_trials]]
        assert own == alone


def test_the_limits_are_those_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_limits, "GPU_PIECE_BYTES", 256 * BFLOAT16_50304)
    assert heights(pieces(1, 1000, BFLOAT16_50304, cuda=True), 1) == [256, 256, 256, 232]
