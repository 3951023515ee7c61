"""The stacked GPT against the plainest float64 code, what a tap is shown of it, and the compiled forward pass."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from gpt_cases import CASES, CPU, SMALL, Case
from plain_gpt import PlainGPT
from tiny_trials import trial
from tolerances import assert_gradients_near, assert_near, is_near
from torch import Tensor

from hpxfer.model.flat import gradients
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import FORWARD_ROLES
from hpxfer.model.output import router_entropies
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Trial


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_losses_and_gradients_equal_the_reference(case: tuple[Shape, dict[str, Any], str]) -> None:
    made = Case(*case)
    losses = made.losses()
    grads = gradients(losses, made.weights, made.grad_KT)
    (own, own_grads), (exact, exact_grads) = made.plain(torch.float32), made.plain(torch.float64)
    assert_near(losses, own, exact, "losses")
    assert_gradients_near(grads, own_grads, exact_grads)


def test_a_missing_multiplier_is_seen() -> None:
    made = Case(*CASES["mixed"])
    model, (own, _), (exact, _) = made.model, made.plain(torch.float32), made.plain(torch.float64)
    without = {role: replace(model, forward={**model.forward, role: torch.ones(2)}) for role in FORWARD_ROLES}
    for name, other in {**without, "route_scale": replace(model, route_scale=torch.ones(2)), "b_t": model}.items():
        assert not is_near(made.losses(other, noise=name != "b_t"), own, exact), name


@pytest.mark.parametrize("name", ["documents", "documents, rope"])
def test_documents_that_see_each_other_are_seen(name: str) -> None:
    """The reference, which runs each document by itself, tells masked attention from joined windows."""
    made = Case(*CASES[name])
    assert (made.inputs[..., :-1] == made.setting.document_eos).any()
    own, exact = made.plain(torch.float32)[0], made.plain(torch.float64)[0]
    for eos_id in (None, 1):
        other = replace(made.model, setting=replace(made.setting, document_eos=eos_id))
        assert not is_near(made.losses(other), own, exact)


def test_a_factor_of_the_embedding_costs_nothing_where_no_trial_has_one() -> None:
    plain, doubled = (
        trial(SMALL, hps=HPs(lr=1.0, multipliers=given)) for given in ((), (("embedding.forward_mult", 2.0),))
    )
    assert "embedding" not in build_gpt([plain, plain], CPU).forward
    assert torch.equal(build_gpt([plain, doubled], CPU).forward["embedding"], torch.tensor([1.0, 2.0]))


def with_forward(given: Trial, role: str, forward: float) -> Trial:
    """Return a trial whose resolved numbers hold another forward multiplier."""
    found = given.resolved()
    changed = {**found, role: replace(found[role], forward=forward)}
    kind = type("Changed", (Trial,), {"resolved": lambda self: changed})
    return kind(**{field.name: getattr(given, field.name) for field in fields(given)})


@pytest.mark.parametrize(("role", "refused"), [("attn_q", True), ("dense_in", False), ("router", False)])
def test_a_forward_multiplier_that_the_model_would_leave_out_is_refused(role: str, refused: bool) -> None:
    stack = [trial(SMALL), with_forward(trial(SMALL), role, 0.5)]
    if refused:
        with pytest.raises(AssertionError, match=role):
            build_gpt(stack, CPU)
    else:  # it is applied, or the model has no such tensor
        assert build_gpt(stack, CPU).num_trials == 2


@pytest.mark.parametrize("name", ["joint", "normalized in groups"])
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


Heard = dict[tuple[str, int], tuple[Tensor, Tensor]]


def heard(made: Case) -> Heard:
    found: Heard = {}

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        assert (name, block) not in found
        found[name, block] = x, y

    losses = made.losses(replace(made.model, tap=tap))
    assert torch.equal(losses, made.losses())
    return found


@pytest.fixture(scope="module")
def mixed() -> tuple[Case, Heard]:
    made = Case(*CASES["mixed"])
    return made, heard(made)


def test_every_part_of_the_model_is_heard_once(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    everywhere = {"attn_q", "attn_k", "attn_v", "attn_out", "attention", "stream"}
    routed = {"router", "gates", "moe"}
    routed |= {f"{kind}_{part}" for kind in ("expert", "shared") for part in ("in", "gate", "out")}
    dense = {"dense", "dense_in", "dense_gate", "dense_out"}
    moe = moe_blocks(made.shape, made.setting)
    expected = {("embedding", 0), ("final_norm", 0), ("readout", 0)}
    for block in range(made.shape.depth):
        expected |= {(name, block) for name in everywhere | (routed if block in moe else dense)}
    assert found.keys() == expected
    assert not any(y.requires_grad for _, y in found.values())


def test_linear_maps_are_heard_with_their_multiplier(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    for tensor in made.layout.parameters:
        first = tensor.name, (tensor.blocks or (0,))[0]
        if tensor.role == "embedding" or first not in found or len(tensor.size) != 2:
            continue  # not a matrix product, or one of several experts
        for copy, block in enumerate(tensor.blocks or (0,)):
            x, y = found[tensor.name, block]
            results = []
            for dtype in (torch.float32, torch.float64):
                own = x.to(dtype) @ made.weights[tensor.name][copy].to(dtype)
                if f"{tensor.name}_bias" in made.weights:
                    own = own + made.weights[f"{tensor.name}_bias"][copy].to(dtype).unsqueeze(1)
                if tensor.name in made.model.forward:
                    own = own * made.model.forward[tensor.name].view(2, 1, 1).to(dtype)
                results.append(own)
            assert_near(y, *results, name=f"{tensor.name} of block {block}")


def test_a_branch_is_what_the_stream_gains(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    x = found["embedding", 0][1]
    for block in range(made.shape.depth):
        before, after = found["stream", block]
        assert torch.equal(before, x)
        branch = found["moe" if ("moe", block) in found else "dense", block][1]
        assert torch.equal(after, before + found["attention", block][1] + branch)
        x = after
    assert torch.equal(found["final_norm", 0][0], x)
    assert torch.equal(found["readout", 0][0], found["final_norm", 0][1])


@pytest.mark.parametrize("name", ["softmax in groups", "mixed"])
def test_gates_are_those_of_the_active_experts(name: str) -> None:
    made = Case(*CASES[name])
    found = heard(made)
    for layer, block in enumerate(moe_blocks(made.shape, made.setting)):
        logits, gates = found["gates", block]
        assert torch.equal(logits, found["router", block][1] + made.noise_LKE[layer].unsqueeze(1))
        for k in (0, 1):
            plain = PlainGPT(
                shape=made.shape,
                setting=made.setting,
                w={},
                c={},
                route_scale=float(made.model.route_scale[k]),
                bias_LE=made.bias_LKE[:, k],
                noise_LE=made.noise_LKE[:, k],
            )
            for token in range(4):
                expected = plain.gates(layer, logits[k, token])
                active = {expert for expert, gate in enumerate(gates[k, token].tolist()) if gate}
                assert active == expected.keys()
                exact = torch.stack([expected[expert] for expert in sorted(active)])
                assert_near(gates[k, token][sorted(active)], exact, exact.double())


def test_the_gated_rows_of_the_experts_add_up_to_the_branch() -> None:
    """Rows are sorted by expert, then by token. expert_out is shown with its multiplier and without the gate."""
    made = Case(*CASES["joint"])
    found = heard(made)
    for block in range(made.shape.depth):
        gates, rows = found["gates", block][1], found["expert_out", block][1]
        h, y = found["moe", block]
        total = torch.zeros_like(y, dtype=torch.float64)
        for k in (0, 1):
            row = 0
            for expert in range(made.shape.num_experts):
                for token in gates[k, :, expert].nonzero().flatten().tolist():
                    assert torch.equal(found["expert_in", block][0][k, row], h[k, token])
                    total[k, token] += gates[k, token, expert].double() * rows[k, row].double()
                    row += 1
            assert row == rows.shape[1]
        assert_near(y, total.float(), total)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler, of torch
@pytest.mark.parametrize("name", ["mixed", "tied"])
def test_the_whole_forward_pass_is_one_graph(name: str) -> None:
    """It runs in bfloat16, because torch's traced grouped product takes no float32."""
    torch._dynamo.reset()
    made = Case(*CASES[name])
    model = replace(made.model, setting=replace(made.setting, precision="bfloat16"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for forward in (compiled, model):
        losses = forward(made.weights, made.bias_LKE, made.inputs, made.targets, noise_LKE=made.noise_LKE).losses_KT
        results.append((losses, gradients(losses, made.weights, made.grad_KT)))
    (losses, grads), (expected, expected_grads) = results
    assert torch.equal(losses, expected)
    for tensor, copies in grads.items():
        for got, own in zip(copies, expected_grads[tensor], strict=True):
            assert torch.equal(got, own), tensor
