"""Balancing losses, the z-loss and measures of routers, against plain loops, formulas and transformers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from tiny_trials import BASE, SETTING, random_like, trial
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hpxfer.model.draws import draw
from hpxfer.model.ffn import Choice, Regularizers
from hpxfer.model.flat import FlatLayout, gradients
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.model.router_measures import RouterView, expert_difference, router_measures
from hpxfer.spec.model_section import Balance, BalanceLoss

TRIALS, LAYERS, TOKENS, CONTEXT, EXPERTS, ACTIVE = 2, 3, 24, 8, 5, 2
ONES = torch.ones(TRIALS)


def choices(scored: str = "softmax", seed: int = 0) -> list[Choice]:
    out = []
    for layer in range(LAYERS):
        logits = 2 * random_like(torch.zeros(TRIALS, TOKENS, EXPERTS), seed + layer).requires_grad_()
        scores = logits.softmax(-1) if scored == "softmax" else logits.sigmoid()
        chosen = scores.detach().topk(ACTIVE, -1).indices
        load = torch.stack([torch.bincount(chosen[k].flatten(), minlength=EXPERTS) for k in range(TRIALS)])
        out.append(Choice(logits_KTE=logits, scores_KTE=scores, chosen_KTA=chosen, load_KE=load))
    return out


def regularizers(aux: BalanceLoss, aux_weight: Tensor | None = ONES, z_weight: Tensor | None = None) -> Regularizers:
    return Regularizers(aux=aux, context=CONTEXT, aux_weight_K=aux_weight, z_weight_K=z_weight)


def test_the_form_of_transformers_is_that_librarys() -> None:
    given = choices()
    _, values = regularizers("transformers")(given, None)
    (mine_K,) = values["balance_loss"]
    for k in range(TRIALS):
        logits = tuple(layer.logits_KTE[k] for layer in given)
        theirs = load_balancing_loss_func(logits, EXPERTS, ACTIVE)
        assert mine_K[k].item() == pytest.approx(theirs.item(), rel=1e-6)
        wanted = torch.autograd.grad(theirs, logits, retain_graph=True)
        got = torch.autograd.grad(mine_K[k], [layer.logits_KTE for layer in given], retain_graph=True)
        for mine, other in zip(got, wanted, strict=True):
            assert torch.allclose(mine[k], other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("aux", ["switch", "transformers"])
def test_other_loads_stand_in_for_the_batchs(aux: BalanceLoss) -> None:
    given, others = choices(), choices(seed=10)
    load = torch.stack([layer.load_KE for layer in others])
    mine = regularizers(aux)(given, load)[0]
    swapped = [replace(layer, load_KE=other.load_KE) for layer, other in zip(given, others, strict=True)]
    assert torch.equal(mine, regularizers(aux)(swapped, None)[0])
    assert not torch.equal(mine, regularizers(aux)(given, None)[0])
    # Before the first step nothing was chosen: then all experts have the same load, and the loss is constant.
    start = regularizers(aux)(given, torch.zeros_like(load))[0]
    assert torch.allclose(start, torch.full((TRIALS,), 1.0 if aux == "switch" else float(ACTIVE)))


def case(aux: BalanceLoss, **weights: float) -> tuple[Any, ...]:
    setting = replace(SETTING, balance=Balance(aux=aux), gate="normalized_softmax")
    shape = replace(BASE, num_active=2)
    trials = [trial(setting, shape, seed=k, **weights) for k in (0, 1)]
    layout = FlatLayout(parameters=gpt_parameters(shape, setting), num_trials=2)
    stds = [{role: values.init_std for role, values in member.resolved().items()} for member in trials]
    weights_of = layout.leaves(draw(layout, (0, 1), stds))
    size = (2, 2, setting.batch_tokens // setting.context, setting.context)
    ids = torch.randint(setting.vocab_size, size, generator=torch.Generator().manual_seed(1))
    bias = torch.zeros(shape.depth, 2, shape.num_experts)
    output = build_gpt(trials, torch.device("cpu"))(weights_of, bias, *ids)
    grad = torch.full((2, setting.batch_tokens), 1 / setting.batch_tokens)
    return output, gradients(output.losses_KT, weights_of, grad, output.regularizer_K)


@pytest.mark.parametrize("weights", [{"aux_weight": 0.3}, {"z_weight": 0.3}])
def test_losses_do_not_have_it_and_gradients_do(weights: dict[str, float]) -> None:
    plain, plain_grads = case("switch")
    assert plain.regularizer_K is None
    output, grads = case("switch", **weights)
    assert torch.equal(output.losses_KT, plain.losses_KT)
    assert not torch.equal(grads["router"][0], plain_grads["router"][0])
    # It is the gradient of the sum: that of the regularizer alone is the difference.
    _, alone_grads = case("switch", **{name: 2 * value for name, value in weights.items()})
    for name, copies in grads.items():
        for got, base, doubled in zip(copies, plain_grads[name], alone_grads[name], strict=True):
            assert torch.allclose(2 * (got - base), doubled - base, rtol=1e-3, atol=1e-6)


def exact(name: str, layer: Choice, k: int, *, f_has_gradient: bool = False) -> Tensor:
    """Return a loss of one layer and trial in float64 from the formula, with autograd of torch as its gradient."""
    logits = layer.logits_KTE[k].double()
    if name == "z":
        return logits.exp().sum(-1).log().pow(2).mean()
    scores = layer.scores_KTE[k].double()
    p = scores / scores.sum(-1, keepdim=True)
    hot = torch.nn.functional.one_hot(layer.chosen_KTA[k], EXPERTS).double()
    if f_has_gradient:
        hot = hot * p.unsqueeze(1) / p.unsqueeze(1).detach()
    size = TOKENS if name == "switch" else CONTEXT
    f = hot.sum(1).view(-1, size, EXPERTS).mean(1) / ACTIVE
    return EXPERTS * (f * p.view(-1, size, EXPERTS).mean(1)).sum(-1).mean()


@pytest.mark.parametrize(
    ("name", "scored"), [("switch", "softmax"), ("switch", "sigmoid"), ("sequence", "sigmoid"), ("z", "softmax")]
)
def test_losses_and_gradients_are_those_of_the_formula(name: Any, scored: str) -> None:
    given, weights = choices(scored), torch.tensor([0.5, 2.0])
    aux, metric = ("none", "router_z_loss") if name == "z" else (name, "balance_loss")
    total_K, values = regularizers(aux, *((None, weights) if name == "z" else (weights, None)))(given, None)
    wanted = [[exact(name, layer, k) for layer in given] for k in range(TRIALS)]
    for k in range(TRIALS):
        assert [value[k].item() for value in values[metric]] == pytest.approx([each.item() for each in wanted[k]], 1e-5)
        assert total_K[k].item() == pytest.approx((weights[k] * sum(wanted[k]) / LAYERS).item(), 1e-5)
    logits = [layer.logits_KTE for layer in given]
    got = torch.autograd.grad(total_K.sum(), logits, retain_graph=True)
    right = torch.autograd.grad(sum(weights[k] * sum(wanted[k]) / LAYERS for k in range(TRIALS)), logits)
    for mine, theirs in zip(got, right, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-8)


def test_a_gradient_through_the_loads_is_seen() -> None:
    given = choices()
    logits = [layer.logits_KTE for layer in given]
    got = torch.autograd.grad(regularizers("switch")(given, None)[0].sum(), logits, retain_graph=True)
    through = sum(exact("switch", layer, k, f_has_gradient=True) / LAYERS for layer in given for k in range(TRIALS))
    assert not torch.allclose(got[0], torch.autograd.grad(through, logits)[0], rtol=1e-2, atol=1e-8)


def test_scores_that_are_all_zero_make_no_nan() -> None:
    """A neighbor of such a trial would get 0 * NaN."""
    logits = torch.full((1, 4, 3), -200.0).requires_grad_()
    chosen = torch.zeros(1, 4, 1, dtype=torch.int64)
    load = torch.tensor([[4, 0, 0]])
    choice = Choice(logits_KTE=logits, scores_KTE=logits.sigmoid(), chosen_KTA=chosen, load_KE=load)
    total = Regularizers(aux="switch", context=4, aux_weight_K=torch.zeros(1), z_weight_K=None)([choice], None)[0]
    (grad,) = torch.autograd.grad(total.sum(), logits)
    assert torch.equal(grad, torch.zeros_like(grad))


STACK, SAMPLES = 3, 21
OF_CHOICE = {"margin_median", "margin_low", "tied_share"}


def view(
    num_experts: int, num_active: int, gate: str, *, samples: int = SAMPLES, seed: int = 0, size: float = 1.5
) -> RouterView:
    """Return a router whose logits are whole quarters, so that many are equal."""
    rng = np.random.default_rng(seed)
    logits = np.round(4 * size * rng.standard_normal((STACK, samples, num_experts))) / 4
    return routed(torch.from_numpy(logits).float(), num_active, gate)


def routed(logits: Tensor, num_active: int, gate: str) -> RouterView:
    scores = logits.sigmoid() if gate == "sigmoid" else logits.softmax(-1)
    active, weights = None, scores
    if num_active < logits.shape[-1]:
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
    out["logit_low"], out["logit_high"] = (float(q) for q in np.quantile(every, [0.05, 0.95]))
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


@pytest.mark.parametrize(
    ("num_experts", "num_active", "gate"),
    [
        *((1, 1, "sigmoid"), (2, 1, "softmax"), (4, 4, "softmax"), (4, 4, "sigmoid")),
        *((5, 2, "sigmoid"), (5, 2, "softmax"), (5, 2, "normalized_softmax"), (9, 8, "normalized_softmax")),
    ],
)
def test_measures_are_those_of_plain_loops_and_what_a_router_cannot_have_is_left_out(
    num_experts: int, num_active: int, gate: str
) -> None:
    now, first = view(num_experts, num_active, gate), view(num_experts, num_active, gate, seed=1, size=0.5)
    measures = router_measures(now, first)
    assert router_measures(now, None).keys() == by_hand(now, None, 0).keys()
    for k in range(STACK):
        exact = by_hand(now, first, k)
        assert measures.keys() == exact.keys()
        for name, value in exact.items():
            assert measures[name].dtype == torch.float64
            assert measures[name][k].item() == pytest.approx(value, rel=1e-12, abs=1e-14), name


def test_saturated_gates_weights_of_zero_and_logits_that_are_not_finite() -> None:
    """float32 rounds the largest score to 1. The entropy of what is left is 40 e^-40 and more, and not zero."""
    logits = torch.tensor([[[0.0, -40.0]]])
    got = router_measures(routed(logits, 2, "softmax"), None)["entropy_of_all"].item() * math.log(2)
    assert got == pytest.approx(41 * math.exp(-40), rel=1e-6)
    logits = torch.zeros(2, 2, 3)
    logits[0, 1] = logits[1] = -200.0  # whose sigmoid is zero in float32
    got = router_measures(routed(logits, 3, "sigmoid"), None)
    for name in ("entropy_of_all", "entropy_of_active", "load_entropy", "concentration_high", "concentration_low"):
        assert got[name][0].item() == pytest.approx(1.0), name
        assert got[name][1].isnan(), name
    assert got["gate_slack"].tolist() == [0.125, 0.0]
    now = routed(torch.full((1, 3, 4), torch.nan), 2, "softmax")
    got = router_measures(now, now)
    assert all(got[name].isnan() for name in ("entropy_of_all", "logit_rms", "logit_spread", "margin_median"))


@pytest.mark.parametrize(
    ("num_experts", "num_active", "samples"), [(2, 1, 1), (3, 3, 7), (8, 2, 64), (33, 5, 1), (33, 5, 7), (3, 3, 64)]
)
def test_bits_of_a_trial_do_not_depend_on_the_stack(num_experts: int, num_active: int, samples: int) -> None:
    now, first = (view(num_experts, num_active, "softmax", samples=samples, seed=seed) for seed in (0, 1))
    together = router_measures(now, first)
    for k in range(STACK):
        alone = router_measures(*(every(each, lambda x, k=k: x[k : k + 1].clone()) for each in (now, first)))
        assert all(torch.equal(value[k], alone[name][0]) for name, value in together.items())


def every(of: RouterView, change: Callable[[Tensor], Tensor]) -> RouterView:
    """Return the view with all tensors changed."""
    tensors = {name: tensor for name, tensor in vars(of).items() if isinstance(tensor, Tensor)}
    return replace(of, **{name: change(tensor) for name, tensor in tensors.items()})


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


@pytest.mark.parametrize("experts", [2, 3, 8])
def test_expert_difference_is_the_rms_over_pairs(experts: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((STACK, experts, 5, 7))).float()
    got = expert_difference(weight)
    for k in range(STACK):
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
