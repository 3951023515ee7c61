"""The router's kernels against plain torch in float64: outputs, gradients, choice, and the bits of a trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from router_cases import OUTPUTS, router_case
from tolerances import assert_near, is_near
from torch import Tensor
from triton_cases import BACKENDS, DEVICE, DTYPES, HALVES, TRITON, normal

from hpxfer.kernels import router as module
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.router import SCORES, router
from hpxfer.kernels.routing import BY_INDEX, of_chosen
from hpxfer.model.gates import GATES

PARTS = ("gain", "bias", "noise")
HALF = HALVES[-1]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token, one expert": {"trials": 1, "tokens": 1, "num_experts": 1},
    "gain, bias and noise": {"parts": PARTS},
    "bias": {"parts": ("bias",)},
    "softmax, top-2": {"score": "softmax", "num_active": 2, "parts": ("noise",)},
    "groups": {"num_experts": 12, "num_active": 4, "num_groups": 2, "score": "scaled_softmax", "ties": True},
    "many experts": {"num_experts": 33, "num_active": 3, "width": 72, "tokens": 35},
    "several blocks": {"tokens": 67, "width": 130},
    "rms norm": {"kind": "rmsnorm", "tokens": 67, "width": 130, "parts": ("gain", "noise")},
    "no score": {"score": None, "num_active": 2},
}


@BACKENDS
@DTYPES
@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_outputs_gradients_and_choice(options: dict[str, Any], dtype: torch.dtype, backend: Backend) -> None:
    case = router_case(**options, dtype=dtype)
    routed, grads = case.run(backend)
    (own, own_grads), (exact, exact_grads) = case.plain(), case.plain(torch.float64)
    assert (routed.stream.dtype, routed.h.dtype, routed.logits.dtype) == (dtype, dtype, torch.float32)
    for name, *tensors in zip(OUTPUTS, routed, own, exact, strict=False):
        assert_near(*tensors, name=name)
    assert grads.keys() == own_grads.keys()
    for name, grad in grads.items():
        assert grad.dtype == case.given[name].dtype
        assert_near(grad, own_grads[name], exact_grads[name], name)
    if case.score is None or backend is TORCH:
        assert routed.chosen is None
    else:
        assert routed.chosen is not None
        assert torch.equal(routed.chosen, case.chosen(routed.logits))


@pytest.mark.parametrize("broken", ["no rank-E term", "no mean", "another order of the pieces' features"])
def test_a_wrong_gradient_is_seen(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, plain = router_case(tokens=67), module._gradients

    def wrong(dtotal: Tensor, dh: Tensor, dlogits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        dx, dw = plain(dtotal, dh, dlogits, *rest)
        _, rstd, w, _ = rest
        if broken == "no rank-E term":
            return plain(dtotal, dh, torch.zeros_like(dlogits), *rest)[0], dw
        if broken == "no mean":
            g = dh + dlogits @ w.transpose(1, 2)
            return dx + rstd.unsqueeze(-1) * g.mean(-1, keepdim=True), dw
        return dx, dw.flip(1)

    monkeypatch.setattr(module, "_gradients", wrong)
    _, grads = case.run(TRITON)
    (_, own), (_, exact) = case.plain(), case.plain(torch.float64)
    name = "w" if "order" in broken else "x"
    assert not is_near(grads[name], own[name], exact[name])


def test_weights_are_not_rounded() -> None:
    """Weights that differ in their last bits give logits that differ."""
    case = router_case(dtype=HALF)
    w = torch.ones_like(case.given["w"])
    w[..., 0] += 2.0**-22
    given = {**case.given, "w": w}
    routed, _ = replace(case, given=given).run(TRITON)
    assert_near(routed.logits, routed.h.float() @ w, routed.h.double() @ w.double())
    assert bool((routed.logits[..., 0] != routed.logits[..., 1]).any())


@pytest.mark.parametrize("gate", ["sigmoid", "softmax", "normalized_sigmoid", "normalized_softmax"])
def test_the_score_of_a_gate_is_what_its_row_says(gate: str) -> None:
    """The formula stands in torch, where it is differentiated, and in the kernel, where it chooses."""
    row = GATES.get(gate)
    assert row.score_in_kernel is not None
    case = router_case(tokens=64, num_experts=8, num_active=3, score=row.score_in_kernel)
    routed, _ = case.run(TRITON)
    scores = row.scores(routed.logits.detach(), case.scale.view(-1, 1, 1))
    assert torch.equal(scores, SCORES[row.score_in_kernel](routed.logits.detach(), case.scale.view(-1, 1, 1)))
    assert routed.chosen is not None
    assert torch.equal(routed.chosen, case.chosen(routed.logits))
    others = [name for name in SCORES if name != row.score_in_kernel]
    assert any(not torch.equal(replace(case, score=name).chosen(routed.logits), routed.chosen) for name in others)


@pytest.mark.parametrize("score", SCORES)
def test_equal_experts_are_chosen_as_in_torch(score: str) -> None:
    """A router of zeros: all scores are equal, so the balance or the order of the ties decides."""
    case = router_case(3, 40, 24, 6, score=score, num_active=2)
    given = {**case.given, "w": torch.zeros_like(case.given["w"])}
    keys = torch.tensor([7, BY_INDEX, 2**31 - 1], dtype=torch.int32, device=DEVICE)
    for ties in (None, keys):
        for balance in (torch.zeros_like(case.balance), case.balance.sign()):
            tied = replace(case, given=given, balance=balance, ties=ties)
            routed, _ = tied.run(TRITON)
            assert routed.chosen is not None
            assert torch.equal(routed.chosen, tied.chosen(routed.logits))
    fixed = replace(case, given={**given, "noise": normal(3, 6, seed=9) * 0.02})
    routed, _ = fixed.run(TRITON)
    assert routed.chosen is not None
    assert torch.equal(routed.chosen, fixed.chosen(routed.logits))


@DTYPES
def test_bits_of_a_trial_do_not_depend_on_its_stack(dtype: torch.dtype) -> None:
    case = router_case(3, 70, 40, 20, dtype=dtype, parts=PARTS, num_active=2, ties=True)
    together, grads = case.run(TRITON)
    for k in range(3):
        alone, own = case.trial(k).run(TRITON)
        for mine, whole in zip(alone, together, strict=True):
            assert mine is not None
            assert whole is not None
            assert torch.equal(mine[0], whole[k])
        for name, grad in own.items():
            assert torch.equal(grad[0], grads[name][k]), name


@DTYPES
def test_bits_are_those_beside_trials_with_noise_and_ties(dtype: torch.dtype) -> None:
    case = router_case(2, 40, 24, 6, dtype=dtype, num_active=2)
    given = {**case.given, "noise": torch.zeros(2, 6, device=DEVICE)}
    beside = replace(case, given=given, ties=torch.full((2,), BY_INDEX, dtype=torch.int32, device=DEVICE))
    (routed, grads), (other, other_grads) = case.run(TRITON), beside.run(TRITON)
    for mine, theirs in zip(routed, other, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)
    for name, grad in grads.items():
        assert torch.equal(grad, other_grads[name]), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: the interpreter is made of it
def test_a_row_that_is_not_finite_stays_alone() -> None:
    case = router_case(tokens=40)
    clean, _ = case.run(TRITON)
    x = case.given["x"].clone()
    x[1, 3, 2] = torch.inf
    broken, grads = replace(case, given={**case.given, "x": x}).run(TRITON)
    others = torch.arange(40, device=DEVICE) != 3
    assert not broken.logits[1, 3].isfinite().any()
    assert torch.equal(broken.logits[0], clean.logits[0])
    assert torch.equal(broken.logits[1, others], clean.logits[1, others])
    assert grads["x"][1, others].isfinite().all()
    assert grads["w"][0].isfinite().all()


def test_torch_agrees_with_what_the_ops_say_of_themselves() -> None:
    for parts in ((), ("noise",)):
        case = router_case(parts=parts)
        leaves = case.leaves()
        ties = torch.tensor([BY_INDEX, 3], dtype=torch.int32, device=DEVICE)
        inputs = (leaves["x"], leaves["y"], leaves["w"], leaves.get("noise"), case.balance, case.scale, ties)
        torch.library.opcheck(module._route, (*inputs, 2, 1, "sigmoid", "layernorm", 1e-5))
        torch.library.opcheck(module._route, (*inputs, 0, 1, "", "rmsnorm", 1e-5))
    routed, _ = case.run(TRITON)
    rstd = torch.ones(routed.h.shape[:2], device=DEVICE)
    torch.library.opcheck(module._gradients, (*case.grads, routed.h.detach(), rstd, case.given["w"], "rmsnorm"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's compiler, of torch
def test_it_is_one_graph_of_compiled_code() -> None:
    case = router_case(parts=PARTS, num_active=2)

    def loss(x: Tensor, y: Tensor, w: Tensor, gain: Tensor, bias: Tensor, noise: Tensor) -> Tensor:
        shared: dict[str, Any] = {"balance_KE": case.balance, "score": "sigmoid", "scale_K": case.scale}
        shared |= {"num_active": 2, "backend": replace(TRITON, strict=False)}
        routed = router(x, y, w, gain_KD=gain, bias_KD=bias, noise_KE=noise, **shared)
        assert routed.chosen is not None
        weights = of_chosen(routed.logits.sigmoid(), routed.chosen, TRITON)
        return (routed.stream.float() * routed.h.float()).sum() * weights.sum()

    torch._dynamo.reset()
    results = []
    for function in (torch.compile(loss, backend="aot_eager", fullgraph=True), loss):
        leaves = list(case.leaves().values())
        results.append(torch.autograd.grad(function(*leaves), leaves))
    torch._dynamo.reset()
    for mine, other in zip(*results, strict=True):
        assert torch.equal(mine, other)


def test_outputs_without_a_gradient_count_as_zero() -> None:
    case = router_case()
    none = replace(case, grads=(*(torch.zeros_like(grad) for grad in case.grads[:2]), case.grads[2]))
    leaves = case.leaves()
    routed = router(
        *leaves.values(), balance_KE=case.balance, score="sigmoid", scale_K=case.scale, num_active=1, backend=TRITON
    )
    grads = torch.autograd.grad(routed.logits, list(leaves.values()), case.grads[2])
    for mine, other in zip(grads, none.run(TRITON)[1].values(), strict=True):
        assert torch.equal(mine, other)
