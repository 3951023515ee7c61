"""The active experts of a token, and the order of the rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpxfer.kernels.routing import choose_experts, group_rows


def naive_choice(scores: list[float], num_active: int) -> list[int]:
    """Take the best expert num_active times. Ties go to the first."""
    left, out = list(range(len(scores))), []
    for _ in range(num_active):
        best = left[0]
        for expert in left:
            if scores[expert] > scores[best]:
                best = expert
        left.remove(best)
        out.append(best)
    return out


@st.composite
def tied_gates(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Return scores and biases of few values, so that many tie and all sums are exact."""
    num_trials, tokens, num_experts = draw(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9)))
    value = st.integers(-2, 2).map(float)

    def tensor(*size: int) -> Tensor:
        count = torch.Size(size).numel()
        return torch.tensor(draw(st.lists(value, min_size=count, max_size=count))).view(size)

    return tensor(num_trials, tokens, num_experts), tensor(num_trials, num_experts), draw(st.integers(1, num_experts))


@given(tied_gates())
def test_choice_equals_a_loop(case: tuple[Tensor, Tensor, int]) -> None:
    gates_KTE, bias_KE, num_active = case
    got = choose_experts(gates_KTE, bias_KE, num_active).tolist()
    scores = gates_KTE + bias_KE[:, None]
    assert got == [[naive_choice(tensor.tolist(), num_active) for tensor in trial] for trial in scores]


@given(tied_gates(), st.integers(1, 3))
def test_choice_in_groups_is_a_choice_in_each(case: tuple[Tensor, Tensor, int], num_groups: int) -> None:
    gates_KTE, bias_KE, num_active = case
    num_experts = gates_KTE.shape[-1]
    each = [choose_experts(gates_KTE + g, bias_KE - g, num_active) + g * num_experts for g in range(num_groups)]
    gates = torch.cat([gates_KTE + g for g in range(num_groups)], -1)
    bias = torch.cat([bias_KE - g for g in range(num_groups)], -1)
    got = choose_experts(gates, bias, num_groups * num_active, num_groups)
    assert torch.equal(got, torch.cat(each, -1))


def test_groups_balance_what_a_free_choice_does_not() -> None:
    gates = torch.arange(8.0).expand(1, 5, 8)  # the last group has the best
    free = choose_experts(gates, torch.zeros(1, 8), 4)
    assert set(free.flatten().tolist()) == {4, 5, 6, 7}
    balanced = choose_experts(gates, torch.zeros(1, 8), 4, num_groups=4)
    assert balanced[0].tolist() == [[1, 3, 5, 7]] * 5


@pytest.mark.parametrize("num_experts", [4, 64, 100])
def test_equal_gates_go_to_the_lowest_experts(num_experts: int) -> None:
    chosen = choose_experts(torch.full((2, 33, num_experts), 0.5), torch.zeros(2, num_experts), 3)
    assert torch.equal(chosen, torch.arange(3).expand(2, 33, 3))


def test_bias_belongs_to_its_trial() -> None:
    bias_KE = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert choose_experts(torch.zeros(2, 1, 3), bias_KE, 1).flatten().tolist() == [1, 2]


def test_choice_passes_no_gradient() -> None:
    gates = torch.rand(1, 4, 3, requires_grad=True)
    assert not choose_experts(gates, torch.zeros(1, 3), 1).requires_grad


def test_a_token_meets_different_experts_even_if_its_gates_are_nan() -> None:
    chosen = choose_experts(torch.full((1, 4, 5), torch.nan), torch.zeros(1, 5), 3)
    assert all(len(set(tensor)) == 3 for tensor in chosen[0].tolist())


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 3), st.integers(0, 5), st.integers(0, 1000))
def test_rows_are_grouped_stably(num_trials: int, tokens: int, num_active: int, more: int, seed: int) -> None:
    num_experts = num_active + more
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(num_trials, tokens, num_experts, generator=generator).argsort(-1)[..., :num_active]
    groups = group_rows(chosen, num_experts)

    pairs = [
        (trial, int(chosen[trial, token, slot]), (trial * tokens + token) * num_active + slot)
        for trial in range(num_trials)
        for token in range(tokens)
        for slot in range(num_active)
    ]
    expected = sorted(pairs)  # by trial, by expert, then in token order
    assert groups.slot.tolist() == [slot for _, _, slot in expected]
    assert groups.token.tolist() == [slot // num_active for _, _, slot in expected]
    assert torch.equal(groups.row[groups.slot], torch.arange(len(pairs)))
    counts = [[sum(pair[:2] == (k, e) for pair in pairs) for e in range(num_experts)] for k in range(num_trials)]
    assert groups.load.tolist() == counts
    assert groups.load.sum(1).tolist() == [tokens * num_active] * num_trials
    assert groups.ends.dtype == torch.int32
    assert groups.ends.tolist() == groups.load.flatten().cumsum(0).tolist()
