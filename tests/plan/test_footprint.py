"""The model of a stack's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import BASE, JOINT, SETTING

from hpxfer.kernels import head
from hpxfer.kernels.head_limits import CPU_PIECE_BYTES, GPU_PIECE_BYTES, KEPT_BYTES
from hpxfer.model.cost import count_params
from hpxfer.plan.footprint import PEAK, most_trials, stack_bytes

PAPER = replace(SETTING, vocab_size=50304, batch_tokens=2**19)  # its logits take 98 GiB in float32


def test_a_trial_needs_its_state_and_its_tokens_activations() -> None:
    params = count_params(BASE, SETTING).total
    state = int(PEAK * 5 * 4 * params)
    first, two = (
        stack_bytes(BASE, replace(SETTING, batch_tokens=tokens), 1, cuda=True) - state for tokens in (512, 1024)
    )
    assert two == 2 * first > 0
    rounded = stack_bytes(BASE, replace(SETTING, batch_tokens=512, precision="bfloat16"), 1, cuda=True) - state
    assert rounded == first // 2 + int(PEAK * 2 * params)


@pytest.mark.parametrize(("cuda", "piece"), [(True, GPU_PIECE_BYTES), (False, CPU_PIECE_BYTES)])
def test_logits_that_the_head_computes_again_count_as_one_piece(cuda: bool, piece: int) -> None:
    small = replace(PAPER, vocab_size=1)
    params = count_params(BASE, PAPER).total - count_params(BASE, small).total
    state = int(PEAK * 5 * 4 * params)
    of_logits = stack_bytes(BASE, PAPER, 1, cuda=cuda) - stack_bytes(BASE, small, 1, cuda=cuda) - state
    assert of_logits == PEAK * (piece - 4 * PAPER.batch_tokens)
    few = replace(PAPER, batch_tokens=32)
    kept = stack_bytes(BASE, few, 1, cuda=cuda) - stack_bytes(BASE, replace(few, vocab_size=1), 1, cuda=cuda)
    assert kept - state == PEAK * 4 * 32 * 50303


def test_the_head_keeps_what_the_model_says_it_keeps() -> None:
    assert head.KEPT_BYTES == KEPT_BYTES


@given(
    st.sampled_from((BASE, JOINT, replace(BASE, width=512, depth=8))),
    st.sampled_from((32, 4096, 2**19)),
    st.floats(2**20, 2**40),
    st.booleans(),
)
def test_the_largest_stack_and_every_smaller_one_fit(shape: object, tokens: int, room: float, cuda: bool) -> None:
    setting = replace(PAPER, batch_tokens=tokens)

    def need(number: int) -> int:
        return stack_bytes(shape, setting, number, cuda=cuda)  # type: ignore[arg-type]

    most = most_trials(shape, setting, room, cuda=cuda)  # type: ignore[arg-type]
    sample = {1, 2, most // 2, most - 1, most, KEPT_BYTES // (4 * tokens * 50304)}
    assert all(need(number) <= room for number in sample if 1 <= number <= most)
    assert need(most + 1) > room
