"""The active experts of a token, and the order of the rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpxfer.kernels.routing import BY_INDEX, choose_experts, group_rows, tie_order


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


def keys(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@given(tied_gates(), st.integers(1, 3), st.integers(0, 2**31 - 1))
def test_a_random_order_breaks_ties_and_nothing_else(
    case: tuple[Tensor, Tensor, int], num_groups: int, key: int
) -> None:
    gates, bias, num_active = case
    gates, bias = (torch.cat([tensor] * num_groups, -1) for tensor in (gates, bias))
    num_active *= num_groups
    ties = keys(key).expand(len(gates))
    by_index = choose_experts(gates, bias, num_active, num_groups)
    by_hash = choose_experts(gates, bias, num_active, num_groups, ties_K=ties)
    assert all(len(set(token)) == num_active for trial in by_hash.tolist() for token in trial)
    group_size = gates.shape[-1] // num_groups
    assert torch.equal(by_hash // group_size, by_index // group_size)
    scores = gates + bias[:, None]
    assert torch.equal(scores.gather(-1, by_hash), scores.gather(-1, by_index))  # equals for equals
    apart = scores + torch.linspace(0, 0.5, scores.shape[-1])  # no two experts of a token are equal
    plain = torch.zeros_like(bias)
    expected = choose_experts(apart, plain, num_active, num_groups)
    assert torch.equal(choose_experts(apart, plain, num_active, num_groups, ties_K=ties), expected)
    none = keys(BY_INDEX).expand(len(gates))
    assert torch.equal(choose_experts(gates, bias, num_active, num_groups, ties_K=none), by_index)


@pytest.mark.parametrize(("num_experts", "num_active"), [(4, 1), (4, 2), (64, 8), (100, 3)])
def test_equal_gates_share_the_tokens_in_a_random_order_and_no_other(num_experts: int, num_active: int) -> None:
    tokens, gates, bias = 4096, torch.full((2, 4096, num_experts), 0.5), torch.zeros(2, num_experts)
    chosen = choose_experts(gates, bias, num_active, ties_K=keys(7, 8))
    kappa = num_active / num_experts
    for trial in chosen:
        load = torch.bincount(trial.flatten(), minlength=num_experts) / tokens
        assert (load - kappa).abs().max() < 5 * (kappa * (1 - kappa) / tokens) ** 0.5  # 5 sigma of a fair draw
    assert not torch.equal(chosen[0], chosen[1])
    by_index = torch.bincount(choose_experts(gates, bias, num_active)[0].flatten(), minlength=num_experts) / tokens
    assert by_index.tolist() == [1.0] * num_active + [0.0] * (num_experts - num_active)


def test_a_random_order_depends_on_key_token_and_expert_alone() -> None:
    whole = tie_order(keys(5, BY_INDEX, 2**31 - 1), 96, 12)
    assert torch.equal(tie_order(keys(2**31 - 1), 40, 7), whole[2:, :40, :7])  # whatever is stacked beside it
    assert torch.equal(whole[1], torch.arange(12, dtype=torch.int32).expand(96, 12))
    assert all(len(set(token)) == 12 for trial in whole.tolist() for token in trial)


def lowbias32(x: int) -> int:
    """Return the hash of a 32-bit number, in integers without a sign."""
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


@given(st.integers(0, 2**31 - 1))
def test_a_random_order_is_that_of_a_published_hash(key: int) -> None:
    """Stored trials rely on it."""
    numbers = [[lowbias32((lowbias32(token ^ key) + e) % 2**32) for e in range(5)] for token in range(9)]
    signed = [[number - 2**32 * (number >= 2**31) for number in token] for token in numbers]
    assert tie_order(keys(key), 9, 5)[0].tolist() == signed


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
