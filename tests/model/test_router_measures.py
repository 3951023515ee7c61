"""Measures of routers against plain loops over samples and experts in numpy, and the properties that define them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from torch import Tensor

from hpxfer.model.router_measures import RouterView, expert_difference, rms, router_measures

TRIALS, SAMPLES = 3, 21
OF_CHOICE = {"margin_median", "margin_low", "tied_share"}


def view(
    num_experts: int, num_active: int, gate: str, *, samples: int = SAMPLES, seed: int = 0, size: float = 1.5
) -> RouterView:
    """Return a router whose logits are whole quarters, so that many are equal."""
    rng = np.random.default_rng(seed)
    logits = np.round(4 * size * rng.standard_normal((TRIALS, samples, num_experts))) / 4
    return gated(torch.from_numpy(logits).float(), num_active, gate)


def gated(logits: Tensor, num_active: int, gate: str) -> RouterView:
    scores = logits.sigmoid() if gate == "sigmoid" else logits.softmax(-1)
    if num_active == logits.shape[-1]:
        return RouterView(
            logits_KPE=logits, weights_KPE=scores, scores_KPE=scores, active_KPE=None, num_active=num_active
        )
    best = torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :num_active]
    active = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, best, True)
    weights = torch.where(active, scores, 0.0)
    if gate == "normalized_softmax":
        weights = weights / weights.sum(-1, keepdim=True)
    return RouterView(
        logits_KPE=logits, weights_KPE=weights, scores_KPE=scores, active_KPE=active, num_active=num_active
    )


def by_hand(now: RouterView, first: RouterView | None, k: int) -> dict[str, float]:
    """Return the measures of one trial, sample by sample."""

    def entropy(p: list[float]) -> float:
        return -sum(x * math.log(x) for x in p if x > 0)

    logits, weights, scores = (
        x[k].double().numpy().tolist() for x in (now.logits_KPE, now.weights_KPE, now.scores_KPE)
    )
    samples, experts = len(logits), len(logits[0])
    shares = [[w / sum(row) for w in row] for row in weights]
    out: dict[str, float] = {}
    if experts > 1:
        alike = [entropy([s / sum(row) for s in row]) for row in scores]
        out["entropy_of_all"] = float(np.mean(alike)) / math.log(experts)
        load = [float(np.mean([row[e] for row in shares])) for e in range(experts)]
        out["load_entropy"] = entropy(load) / math.log(experts)
    if now.num_active > 1:
        out["entropy_of_active"] = float(np.mean([entropy(row) for row in shares])) / math.log(now.num_active)
    means = [sum(row) / experts for row in logits]
    every = [x for row in logits for x in row]
    out["logit_rms"] = math.sqrt(sum(x * x for x in every) / len(every))
    out["logit_mean_rms"] = math.sqrt(sum(m * m for m in means) / samples)
    away = [x - m for row, m in zip(logits, means, strict=True) for x in row]
    out["logit_spread"] = math.sqrt(sum(x * x for x in away) / len(away))
    out["concentration_high"] = float(np.mean([experts * max(row) for row in shares]))
    out["concentration_low"] = float(np.mean([experts * min(row) for row in shares]))
    out["gate_slack"] = float(np.mean([w * (1 - w) for row in weights for w in row]))
    if now.active_KPE is not None:
        margins = []
        for row in logits:
            ordered = sorted(row, reverse=True)
            margins.append(ordered[now.num_active - 1] - ordered[now.num_active])
        out["margin_median"], out["margin_low"] = (float(q) for q in np.quantile(margins, [0.5, 0.05]))
        out["tied_share"] = sum(m == 0 for m in margins) / samples
        if first is not None and first.active_KPE is not None:
            sets = [now.active_KPE[k].tolist(), first.active_KPE[k].tolist()]
            out["changed_share"] = sum(a != b for a, b in zip(*sets, strict=True)) / samples
    return out


@pytest.mark.parametrize("gate", ["sigmoid", "softmax", "normalized_softmax"])
@pytest.mark.parametrize(("num_experts", "num_active"), [(1, 1), (2, 1), (4, 4), (5, 2), (9, 8)])
def test_measures_are_those_of_plain_loops(num_experts: int, num_active: int, gate: str) -> None:
    now, first = (view(num_experts, num_active, gate, seed=seed) for seed in (0, 1))
    measures = router_measures(now, first)
    for k in range(TRIALS):
        exact = by_hand(now, first, k)
        assert measures.keys() == exact.keys()
        for name, value in exact.items():
            assert measures[name].dtype == torch.float64
            assert measures[name][k].item() == pytest.approx(value, rel=1e-12, abs=1e-14), name


def test_what_a_router_cannot_have_is_left_out() -> None:
    one, soft, top1, top2 = (view(*sizes, "sigmoid") for sizes in ((1, 1), (4, 4), (4, 1), (4, 2)))
    assert not router_measures(one, one).keys() & {"entropy_of_all", "load_entropy", "entropy_of_active", *OF_CHOICE}
    assert not router_measures(soft, soft).keys() & {*OF_CHOICE, "changed_share"}
    assert "entropy_of_active" not in router_measures(top1, None)
    assert router_measures(top2, None).keys() >= {"entropy_of_active", *OF_CHOICE}
    assert "changed_share" not in router_measures(top2, None)


def test_a_router_at_zero_is_undecided_and_tied() -> None:
    now = gated(torch.zeros(TRIALS, SAMPLES, 4), 2, "normalized_softmax")
    got = {name: value.tolist() for name, value in router_measures(now, now).items()}
    ones, zeros = [1.0] * TRIALS, [0.0] * TRIALS
    assert got["entropy_of_all"] == pytest.approx(ones)
    assert got["entropy_of_active"] == pytest.approx(ones)
    assert got["load_entropy"] == pytest.approx([0.5] * TRIALS)  # all samples go to the first two of four
    assert got["tied_share"] == ones
    assert got["changed_share"] == got["logit_rms"] == got["margin_median"] == zeros
    assert got["concentration_high"] == [2.0] * TRIALS  # half of a sample's weight, of four experts
    assert got["gate_slack"] == [0.125] * TRIALS


def test_a_saturated_gate_keeps_its_small_entropy() -> None:
    """float32 rounds the largest score to 1. The entropy of what is left is 40 e^-40 and more, and not zero."""
    logits = torch.tensor([[[0.0, -40.0]]])
    got = router_measures(gated(logits, 2, "softmax"), None)["entropy_of_all"].item() * math.log(2)
    assert got == pytest.approx(41 * math.exp(-40), rel=1e-6)


def test_weights_of_zero_are_left_out_of_means() -> None:
    logits = torch.zeros(2, 2, 3)
    logits[0, 1] = logits[1] = -200.0  # whose sigmoid is zero in float32
    got = router_measures(gated(logits, 3, "sigmoid"), None)
    for name in ("entropy_of_all", "entropy_of_active", "load_entropy", "concentration_high", "concentration_low"):
        assert got[name][0].item() == pytest.approx(1.0), name
        assert got[name][1].isnan(), name
    assert got["gate_slack"].tolist() == [0.125, 0.0]


def test_logits_that_are_not_finite_give_no_number() -> None:
    now = gated(torch.full((1, 3, 4), torch.nan), 2, "softmax")
    got = router_measures(now, now)
    assert all(got[name].isnan() for name in ("entropy_of_all", "logit_rms", "logit_spread", "margin_median"))


def test_nothing_is_changed_in_place() -> None:
    now = view(5, 2, "sigmoid")
    copy = replace(now, logits_KPE=now.logits_KPE.clone(), weights_KPE=now.weights_KPE.clone())
    router_measures(now, now)
    assert torch.equal(now.logits_KPE, copy.logits_KPE)
    assert torch.equal(now.weights_KPE, copy.weights_KPE)


@pytest.mark.parametrize("samples", [1, 7, 64])
@pytest.mark.parametrize(("num_experts", "num_active"), [(2, 1), (3, 3), (8, 2), (33, 5)])
def test_bits_of_a_trial_do_not_depend_on_the_stack(num_experts: int, num_active: int, samples: int) -> None:
    now, first = (view(num_experts, num_active, "softmax", samples=samples, seed=seed) for seed in (0, 1))
    together = router_measures(now, first)
    for k in range(TRIALS):
        alone = router_measures(trial_of(now, k), trial_of(first, k))
        assert all(torch.equal(value[k], alone[name][0]) for name, value in together.items())


def trial_of(of: RouterView, k: int) -> RouterView:
    tensors = {name: getattr(of, f"{name}_KPE")[k : k + 1].clone() for name in ("logits", "weights", "scores")}
    active = None if of.active_KPE is None else of.active_KPE[k : k + 1].clone()
    return replace(of, **{f"{name}_KPE": value for name, value in tensors.items()}, active_KPE=active)


@settings(deadline=None, max_examples=examples(50))
@given(
    num_experts=st.integers(2, 9),
    active=st.integers(1, 9),
    gate=st.sampled_from(["sigmoid", "softmax", "normalized_softmax"]),
    seed=st.integers(0, 999),
    size=st.sampled_from([0.0, 0.25, 3.0, 20.0]),
    samples=st.integers(1, 40),
)
def test_measures_lie_in_their_ranges(
    num_experts: int, active: int, gate: str, seed: int, size: float, samples: int
) -> None:
    num_active = min(active, num_experts)
    now = view(num_experts, num_active, gate, seed=seed, size=size, samples=samples)
    got = router_measures(now, now)
    assert all(value.isfinite().all() for value in got.values())
    shares = ("entropy_of_all", "entropy_of_active", "load_entropy", "tied_share", "changed_share")
    for name in got.keys() & set(shares):
        assert (got[name] >= 0).all(), name
        assert (got[name] <= 1 + 1e-12).all(), name
    if "changed_share" in got:
        assert (got["changed_share"] == 0).all()
        assert (got["margin_low"] <= got["margin_median"]).all()
        assert (got["margin_low"] >= 0).all()
    assert (got["concentration_low"] <= 1 + 1e-6).all()
    assert (got["concentration_high"] >= 1 - 1e-6).all()
    parts = got["logit_mean_rms"].square() + got["logit_spread"].square()
    assert torch.allclose(parts, got["logit_rms"].square(), rtol=1e-12, atol=1e-15)
    order = torch.randperm(num_experts, generator=torch.Generator().manual_seed(seed))
    renamed = router_measures(permuted(now, order), permuted(now, order))
    assert all(torch.allclose(value, renamed[name], rtol=1e-9, atol=1e-9) for name, value in got.items())


def permuted(of: RouterView, order: Tensor) -> RouterView:
    active = None if of.active_KPE is None else of.active_KPE[..., order]
    return replace(
        of,
        logits_KPE=of.logits_KPE[..., order],
        weights_KPE=of.weights_KPE[..., order],
        scores_KPE=of.scores_KPE[..., order],
        active_KPE=active,
    )


@pytest.mark.parametrize("experts", [2, 3, 8])
def test_expert_difference_is_the_rms_over_pairs(experts: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((TRIALS, experts, 5, 7))).float()
    got = expert_difference(weight)
    for k in range(TRIALS):
        of_trial = weight[k].double().numpy()
        squares = [np.mean((of_trial[i] - of_trial[j]) ** 2) for i, j in itertools.combinations(range(experts), 2)]
        assert got[k].item() == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-12)
        assert torch.equal(got[k], expert_difference(weight[k : k + 1].clone())[0])


def test_tied_experts_do_not_differ() -> None:
    """The plain formula, the squares minus the square of the mean, would leave a rounding here."""
    tied = torch.full((1, 3, 4, 4), 0.1)
    tied[:, :, 0] = 1e4
    assert expert_difference(tied).item() == pytest.approx(0.0, abs=1e-11)
    assert expert_difference(torch.ones(1, 4, 4, 4)).item() == 0.0
    with pytest.raises(AssertionError, match="differs from nothing"):
        expert_difference(torch.ones(1, 1, 4, 4))


def test_rms_is_of_all_numbers_of_a_trial() -> None:
    assert rms(torch.tensor([[[3.0, 4.0]], [[1.0, 1.0]]])).tolist() == pytest.approx([math.sqrt(12.5), 1.0])
