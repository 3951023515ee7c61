"""The balancing losses and the z-loss, against code that counts token by token, and against transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, SETTING, random_like, trial
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout, gradients
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.model.gpt.regularizers import Choice, Regularizers
from hpxfer.spec.balance import Balance, BalanceLoss

TRIALS, LAYERS, TOKENS, CONTEXT, EXPERTS, ACTIVE = 2, 3, 24, 8, 5, 2
ONES = torch.ones(TRIALS)


def layers(scored: str = "softmax", seed: int = 0) -> list[Choice]:
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


def by_hand(layer: Choice, k: int, tokens: range) -> float:
    """Return E sum f P over some tokens of one trial, token by token."""
    counts, total = [0.0] * EXPERTS, [0.0] * EXPERTS
    for token in tokens:
        scores = layer.scores_KTE[k, token].tolist()
        for expert in layer.chosen_KTA[k, token].tolist():
            counts[expert] += 1 / (len(tokens) * ACTIVE)
        for expert in range(EXPERTS):
            total[expert] += scores[expert] / sum(scores) / len(tokens)
    return EXPERTS * sum(f * p for f, p in zip(counts, total, strict=True))


@pytest.mark.parametrize("scored", ["softmax", "sigmoid"])
@pytest.mark.parametrize("aux", ["switch", "sequence"])
def test_losses_count_token_by_token(aux: BalanceLoss, scored: str) -> None:
    given = layers(scored)
    total_K, values = regularizers(aux, torch.tensor([0.5, 2.0]))(given, None)
    pieces = [range(TOKENS)] if aux == "switch" else [range(b, b + CONTEXT) for b in range(0, TOKENS, CONTEXT)]
    for k, weight in enumerate((0.5, 2.0)):
        exact = [sum(by_hand(layer, k, piece) for piece in pieces) / len(pieces) for layer in given]
        assert [value[k].item() for value in values["balance_loss"]] == pytest.approx(exact, rel=1e-5)
        assert total_K is not None
        assert total_K[k].item() == pytest.approx(weight * sum(exact) / LAYERS, rel=1e-5)


def test_the_form_of_transformers_is_that_librarys() -> None:
    given = layers()
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


def test_layers_of_opposite_imbalance_look_balanced_to_transformers_alone() -> None:
    """Why `switch` is taken layer by layer (both are at their minimum of 1 at balance, here divided by num_active)."""
    scores = torch.full((1, 4, 2), 1e-3)
    opposite = []
    for expert in (0, 1):
        mine = scores.clone()
        mine[..., expert] = 1.0
        load = torch.tensor([[4, 0] if expert == 0 else [0, 4]])
        chosen = torch.full((1, 4, 1), expert)
        opposite.append(Choice(logits_KTE=mine.log(), scores_KTE=mine, chosen_KTA=chosen, load_KE=load))
    one = torch.ones(1)
    pooled, apart = (regularizers(aux, one)(opposite, None)[0] for aux in ("transformers", "switch"))
    assert pooled.item() == pytest.approx(1.0)
    assert apart.item() > 1.9


@pytest.mark.parametrize(("aux", "value"), [("switch", 1.0), ("sequence", 1.0), ("transformers", ACTIVE)])
def test_perfect_balance(aux: BalanceLoss, value: float) -> None:
    chosen = torch.stack([(torch.arange(20) + slot) % EXPERTS for slot in range(ACTIVE)], -1).expand(1, -1, -1)
    even = torch.full((1, 20, EXPERTS), 0.3)
    load = torch.full((1, EXPERTS), 20 * ACTIVE // EXPERTS)
    choice = Choice(logits_KTE=even, scores_KTE=even, chosen_KTA=chosen, load_KE=load)
    found = Regularizers(aux=aux, context=5, aux_weight_K=torch.ones(1), z_weight_K=None)([choice] * 2, None)[0]
    assert found.item() == pytest.approx(value)


def test_the_z_loss() -> None:
    given = layers()
    total_K, values = regularizers("none", None, torch.tensor([0.1, 0.2]))(given, None)
    exact = [torch.logsumexp(layer.logits_KTE.double(), -1).square().mean(-1) for layer in given]
    for got, wanted in zip(values["router_z_loss"], exact, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=1e-6)
    assert torch.allclose(total_K.double(), torch.tensor([0.1, 0.2]) * sum(exact) / LAYERS, rtol=1e-6)


@pytest.mark.parametrize("aux", ["switch", "transformers"])
def test_other_loads_stand_in_for_the_batchs(aux: BalanceLoss) -> None:
    given, others = layers(), layers(seed=10)
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


def exact(name: str, layers_of: list[Choice], k: int, *, f_has_gradient: bool = False) -> Tensor:
    """Return a loss of one trial in float64 from the formula, with autograd of torch as its gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for layer in layers_of:
        logits = layer.logits_KTE[k].double()
        p = logits.softmax(-1)
        hot = torch.nn.functional.one_hot(layer.chosen_KTA[k], EXPERTS).double()
        if f_has_gradient:
            hot = hot * p.unsqueeze(1) / p.unsqueeze(1).detach()
        if name == "z":
            total = total + logits.exp().sum(-1).log().pow(2).mean()
            continue
        size = TOKENS if name == "switch" else CONTEXT
        f = hot.sum(1).view(-1, size, EXPERTS).mean(1) / ACTIVE
        total = total + EXPERTS * (f * p.view(-1, size, EXPERTS).mean(1)).sum(-1).mean()
    return total / LAYERS


@pytest.mark.parametrize("name", ["switch", "sequence", "z"])
def test_gradients_are_those_of_the_formula(name: Any) -> None:
    given = layers()
    weights = (None, ONES) if name == "z" else (ONES, None)
    total_K, _ = regularizers("none" if name == "z" else name, *weights)(given, None)
    logits = [layer.logits_KTE for layer in given]
    got = torch.autograd.grad(total_K.sum(), logits, retain_graph=True)
    wanted = torch.autograd.grad(sum(exact(name, given, k) for k in range(TRIALS)), logits)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-8)


def test_a_gradient_through_the_loads_is_seen() -> None:
    given = layers()
    logits = [layer.logits_KTE for layer in given]
    got = torch.autograd.grad(regularizers("switch")(given, None)[0].sum(), logits)
    wrong = torch.autograd.grad(sum(exact("switch", given, k, f_has_gradient=True) for k in range(TRIALS)), logits)
    assert not torch.allclose(got[0], wrong[0], rtol=1e-2, atol=1e-8)


def test_scores_that_are_all_zero_make_no_nan() -> None:
    """A neighbor of such a trial would get 0 * NaN."""
    logits = torch.full((1, 4, 3), -200.0).requires_grad_()
    chosen = torch.zeros(1, 4, 1, dtype=torch.int64)
    load = torch.tensor([[4, 0, 0]])
    choice = Choice(logits_KTE=logits, scores_KTE=logits.sigmoid(), chosen_KTA=chosen, load_KE=load)
    total = Regularizers(aux="switch", context=4, aux_weight_K=torch.zeros(1), z_weight_K=None)([choice], None)[0]
    (grad,) = torch.autograd.grad(total.sum(), logits)
    assert torch.equal(grad, torch.zeros_like(grad))
