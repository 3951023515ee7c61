"""The weights of a trial in a model of transformers: equal logits, choices, balancing loss and gradients; and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from hf_cases import CASES, Stacked, hf_model, tokens, weights_of_case
from torch import Tensor

from hpxfer.errors import HpxferError
from hpxfer.model.flat import gradients
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.spec.model_section import Balance
from hpxfer.weights.folded import _joined, folded, pieces_of
from hpxfer.weights.homes import home_of
from hpxfer.weights.trained import TrialWeights

LOGITS, GRADIENTS, MARGIN = 1e-5, 1e-4, 1e-5


def ours(weights: TrialWeights) -> tuple[dict[str, Tensor], Any, dict[str, tuple[Tensor, ...]]]:
    """Return what the taps saw, the output, and the gradients of the mean loss plus the balancing loss."""
    trial = replace(weights.trial, hps=replace(weights.trial.hps, aux_weight=0.25 * has_loss(weights)))
    stacked, seen = Stacked(weights=weights), {}

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        seen[f"{name}.{block}"] = y[0]

    leaves = stacked.leaves()
    model = build_gpt([trial], torch.device("cpu")).with_tap(tap)
    output = model(leaves, weights.router_bias.unsqueeze(1), *tokens(trial))
    grad = torch.full_like(output.losses_KT, 1 / output.losses_KT.shape[1])
    return seen, output, gradients(output.losses_KT, leaves, grad, output.regularizer_K)


def has_loss(weights: TrialWeights) -> bool:
    return weights.trial.setting.balance.aux != "none" and weights.trial.shape.num_experts > 0


@pytest.mark.parametrize("name", CASES)
def test_the_model_of_transformers_is_ours_and_back(name: str) -> None:
    weights = weights_of_case(name)
    trial = weights.trial
    assert home_of(trial).model_type == CASES[name][0]
    model = hf_model(weights).train()
    inputs, targets = tokens(trial)
    given = {"output_router_logits": True} if has_loss(weights) else {}
    out = model(inputs[0], **given)
    seen, output, grads = ours(weights)
    logits = out.logits.detach().flatten(0, 1)
    assert float((seen["readout.0"] - logits).abs().max()) <= LOGITS * max(1.0, float(logits.abs().max()))
    loss = F.cross_entropy(out.logits.flatten(0, 1), targets.flatten())
    assert output.losses_KT.mean().item() == pytest.approx(loss.item(), rel=1e-5)
    if has_loss(weights):
        (aux,) = output.regularizers["balance_loss"]
        assert aux.item() == pytest.approx(out.aux_loss.item(), rel=1e-5)
        check_choices(weights, seen, out.router_logits)
        loss = loss + 0.25 * out.aux_loss
    loss.backward()
    check_gradients(weights, grads, model)


def check_choices(weights: TrialWeights, seen: dict[str, Tensor], router_logits: tuple[Tensor, ...]) -> None:
    """Assert that the same experts are active wherever the last is clearly better than the next."""
    shape = weights.trial.shape
    blocks = sorted(int(key.partition(".")[2]) for key in seen if key.startswith("gates."))
    for block, theirs in zip(blocks, router_logits, strict=True):
        scores = theirs.detach().softmax(-1)
        best = scores.topk(shape.num_active + 1, -1)
        clear = best.values[:, -2] - best.values[:, -1] > MARGIN
        assert clear.float().mean() > 0.9
        wanted = torch.zeros_like(scores).scatter(-1, best.indices[:, :-1], 1.0).bool()
        assert torch.equal(seen[f"gates.{block}"][clear] != 0, wanted[clear])


def check_gradients(weights: TrialWeights, grads: dict[str, Any], model: transformers.PreTrainedModel) -> None:
    """Assert that a gradient of ours is theirs by the chain rule: through the factors of the pieces."""
    own = {name: tuple(grad[0] for grad in copies) for name, copies in grads.items()}
    theirs = {name: p.grad for name, p in model.named_parameters()}
    scaled = replace(weights, tensors=own)
    tied = weights.trial.setting.tied_embeddings
    checked = 0
    for name, pieces in pieces_of(weights.trial).items():
        if any(piece.own is None for piece in pieces) or theirs.get(name) is None or (tied and "embed" in name):
            continue
        # d loss / d ours = factor * d loss / d theirs, in the order of theirs
        factors = {name: tuple(replace(piece, factor=1 / piece.factor) for piece in pieces)}
        got = _joined(scaled, factors[name])
        error = (got - theirs[name]).norm() / theirs[name].norm()
        assert float(error) <= GRADIENTS, f"{name}: {float(error):.2g}"
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", ["mixtral, away", "glm4_moe, away", "llama, away"])
def test_a_factor_that_is_left_out_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of_case(name)
    seen, _, _ = ours(weights)
    plain = pieces_of(weights.trial)
    changed = {key for key, pieces in plain.items() if any(p.own and p.factor != 1 for p in pieces)}
    assert len({key.partition("layers.")[2][2:] for key in changed}) >= 3
    inputs, _ = tokens(weights.trial)
    for key in sorted(changed)[:4]:
        model = hf_model(weights)
        with torch.no_grad():
            model.state_dict()[key].mul_(1 / max(piece.factor for piece in plain[key]))
        logits = model(inputs[0]).logits.detach().flatten(0, 1)
        assert float((seen["readout.0"] - logits).abs().max()) > 100 * LOGITS, key


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"norm": "layernorm"}, "norm is layernorm, not rmsnorm"),
        ({"positions": "learned"}, "positions is learned, not rope"),
        ({"ffn": "gelu"}, "ffn is gelu, not swiglu"),
        ({"attention_gate": True}, "attention_gate is true, not false"),
        ({"balance": Balance(bias="proportional")}, "a trained bias chooses the experts"),
        ({"qk_norm": "head", "gate": "sigmoid", "balance": Balance()}, None),
    ],
)
def test_options_that_stand_in_the_way(changes: dict[str, Any], problem: str | None) -> None:
    weights = weights_of_case("mixtral", **changes)
    if problem is None:
        assert home_of(weights.trial).model_type == "glm4_moe"
        return
    with pytest.raises(HpxferError) as caught:
        folded(weights)
    assert problem in str(caught.value)
    assert "--format safetensors" in str(caught.value)


def test_the_nearest_class_is_named_first() -> None:
    options = {"attention_gate": True, "qk_norm": "head", "qk_norm_kind": "layernorm"}
    with pytest.raises(HpxferError) as caught:
        folded(weights_of_case("qwen3_moe", **options))
    first, nearest, *_ = str(caught.value).splitlines()
    assert "no class that hpxfer knows does, as attention_gate is true, not false; take --format safetensors" in first
    assert nearest == "  qwen3_moe: attention_gate is true, not false, qk_norm_kind is layernorm, not rmsnorm"
