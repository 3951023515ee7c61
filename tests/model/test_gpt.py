"""The stacked GPT against the plainest float64 code."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from gpt_cases import CASES, CPU, SHARED, SMALL, TWO, Case
from tiny_trials import JOINT, trial
from tolerances import assert_gradients_near, assert_near, is_near

from hpxfer.model.flat import gradients
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import FORWARD_ROLES
from hpxfer.model.output import router_entropies
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Trial


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_losses_and_gradients_equal_the_reference(case: tuple[Shape, dict[str, Any], str]) -> None:
    made = Case(*case)
    losses = made.losses()
    grads = gradients(losses, made.weights, made.grad_KT)
    (own, own_grads), (exact, exact_grads) = made.plain(torch.float32), made.plain(torch.float64)
    assert_near(losses, own, exact, "losses")
    assert_gradients_near(grads, own_grads, exact_grads)


@pytest.mark.parametrize("role", [*FORWARD_ROLES, "route_scale", "b_t"])
def test_a_missing_multiplier_is_seen(role: str) -> None:
    made = Case(*CASES["mixed"])
    model = made.model
    if role == "route_scale":
        model = replace(model, route_scale=torch.ones(2))
    elif role != "b_t":
        model = replace(model, forward={**model.forward, role: torch.ones(2)})
    losses = made.losses(model, noise=role != "b_t")
    assert not is_near(losses, made.plain(torch.float32)[0], made.plain(torch.float64)[0])


@pytest.mark.parametrize("name", ["documents", "documents, rope"])
def test_documents_that_see_each_other_are_seen(name: str) -> None:
    """The reference, which runs each document by itself, tells masked attention from joined windows."""
    made = Case(*CASES[name])
    eos_id = made.setting.document_eos
    assert (made.inputs[..., :-1] == eos_id).any()
    joined = replace(made.model, setting=replace(made.setting, document_eos=None))
    assert not is_near(made.losses(joined), made.plain(torch.float32)[0], made.plain(torch.float64)[0])
    other = replace(made.model, setting=replace(made.setting, document_eos=1))
    assert not is_near(made.losses(other), made.plain(torch.float32)[0], made.plain(torch.float64)[0])


@pytest.mark.parametrize(("gate", "matters"), [("sigmoid", False), ("softmax", True), ("normalized_sigmoid", True)])
def test_the_route_scale_is_for_gates_that_sum_to_one(gate: str, matters: bool) -> None:
    made = Case(TWO, {"gate": gate}, "sp")
    doubled = replace(made.model, route_scale=2 * made.model.route_scale)
    assert torch.equal(made.losses(), made.losses(doubled)) is not matters


def test_one_active_expert_of_normalized_gates_teaches_the_router_nothing() -> None:
    """Its weight is the route scale for any logit. The gradient is an exact zero, of which Adam makes no step."""
    made = Case(*CASES["normalized, one active"])
    grads = gradients(made.losses(), made.weights, made.grad_KT)
    assert not any(copy.any() for copy in grads["router"])
    assert all(copy.any() for copy in grads["expert_in"])


def test_shared_experts_are_one_wide_ffn() -> None:
    """S experts of width h sum to the FFN that holds the hidden features of all of them."""
    made = Case(*CASES["shared"])
    wide = Case(replace(SHARED, num_shared=1, shared_width=72), CASES["shared"][1], "complete-mue")
    weights = dict(made.weights)
    weights["shared_in"] = tuple(copy.transpose(1, 2).flatten(2).unsqueeze(1) for copy in weights["shared_in"])
    weights["shared_in_bias"] = tuple(copy.flatten(1).unsqueeze(1) for copy in weights["shared_in_bias"])
    weights["shared_out"] = tuple(copy.flatten(1, 2).unsqueeze(1) for copy in weights["shared_out"])
    weights["shared_out_bias"] = tuple(copy.sum(1, keepdim=True) for copy in weights["shared_out_bias"])
    wide.model, wide.weights = replace(wide.model, forward=made.model.forward), weights
    assert_near(wide.losses(), *(made.plain(dtype)[0] for dtype in (torch.float32, torch.float64)))


def test_a_factor_of_the_embedding_costs_nothing_where_no_trial_has_one() -> None:
    plain, doubled = (
        trial(SMALL, hps=HPs(lr=1.0, multipliers=given)) for given in ((), (("embedding.forward_mult", 2.0),))
    )
    assert "embedding" not in build_gpt([plain, plain], CPU).forward
    assert torch.equal(build_gpt([plain, doubled], CPU).forward["embedding"], torch.tensor([1.0, 2.0]))


def with_forward(given: Trial, role: str, forward: float) -> Trial:
    """Return a trial whose resolved numbers hold another forward multiplier."""

    class Changed(Trial):
        def resolved(self) -> dict[str, Multipliers]:
            found = super().resolved()
            return {**found, role: replace(found[role], forward=forward)}

    return Changed(**{field.name: getattr(given, field.name) for field in fields(given)})


@pytest.mark.parametrize(("role", "refused"), [("attn_q", True), ("dense_in", False), ("router", False)])
def test_a_forward_multiplier_that_the_model_would_leave_out_is_refused(role: str, refused: bool) -> None:
    stack = [trial(SMALL), with_forward(trial(SMALL), role, 0.5)]
    if refused:
        with pytest.raises(AssertionError, match=role):
            build_gpt(stack, CPU)
    else:  # it is applied, or the model has no such tensor
        assert build_gpt(stack, CPU).num_trials == 2


def test_the_multipliers_of_a_stack_are_those_of_its_trials() -> None:
    model = build_gpt([trial(SMALL, JOINT, name, residual_scale=0.5) for name in ("sp", "completep-moe")], CPU)
    # residual_scale; for completep-moe also depth^-1, active^-1 and width^-1 of 3/2, 2 and 2.
    assert torch.equal(model.forward["attn_out"], torch.tensor([0.5, 0.5 / 1.5]))
    assert torch.equal(model.forward["expert_out"], torch.tensor([0.5, 0.5 / 1.5 / 2]))
    assert torch.equal(model.forward["readout"], torch.tensor([1.0, 0.5]))
    assert torch.equal(model.forward["router"], torch.ones(2))
    assert torch.equal(model.route_scale, torch.tensor([1.0, 2.0]))
    assert not {"shared_out", "dense_out"} & model.forward.keys()


@pytest.mark.parametrize("name", ["base", "joint", "softmax", "normalized in groups"])
def test_loads_and_entropies(name: str) -> None:
    made = Case(*CASES[name])
    shape, groups = made.shape, made.shape.num_groups
    router = tuple(torch.zeros_like(copy) for copy in made.weights["router"])
    output = made.model({**made.weights, "router": router}, made.bias_LKE, made.inputs, made.targets)
    # Equal gates: the largest biases of each group win, and the entropy is that of a uniform choice.
    bias = made.bias_LKE.unflatten(-1, (groups, -1))
    chosen = bias.argsort(-1, descending=True)[..., : shape.num_active // groups]
    expected = torch.zeros_like(bias, dtype=torch.long).scatter(-1, chosen, made.setting.batch_tokens).flatten(2)
    assert torch.equal(output.load_LKE, expected)
    uniform = torch.full((2,), shape.num_experts, dtype=torch.float64).log()
    entropies = router_entropies(output)
    assert len(entropies) == shape.depth
    for entropy_K in entropies:
        assert_near(entropy_K, uniform.float(), uniform)


def test_a_dense_model_routes_nothing() -> None:
    made = Case(*CASES["dense"])
    output = made.model(made.weights, made.bias_LKE, made.inputs, made.targets)
    assert output.load_LKE.shape == (0, 2, 0)
    assert router_entropies(output) == ()
