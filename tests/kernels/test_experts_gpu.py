"""The experts compiled for the GPU: errors at realistic sizes, bits in any stack, no wait for the host, CUDA graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from expert_cases import Case, Leaves, by_kernels, gradients, use_products, with_gradients
from tolerances import assert_near
from torch import Tensor
from triton_cases import DEVICE, TRITON, captured, normal

from hpxfer.kernels import experts_library
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.routing import choose_experts, group_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES = {
    "base": Case(trials=2, tokens=4096, num_experts=4, width=512, hidden=512),
    "wide, SwiGLU, top-2": Case(tokens=2048, num_experts=4, num_active=2, width=1024, hidden=2048, swiglu=True),
    "SwiGLU": Case(trials=2, tokens=4096, num_experts=4, width=512, hidden=512, swiglu=True),
    "biases, odd": Case(trials=3, tokens=1000, num_experts=5, num_active=3, width=136, hidden=264, biases=True),
    "narrow": Case(trials=16, tokens=512, num_experts=16, num_active=2, width=64, hidden=64, biases=True),
    "one expert has all": Case(tokens=1000, num_experts=4, experts="2", width=128, hidden=128),
}


@pytest.fixture(params=["triton", "library"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The backend under either choice of the products. The library needs capability 9.0."""
    if request.param == "library" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the library's products need capability 9.0")
    return use_products(monkeypatch, request.param)


def by_groups(leaves: Leaves, chosen_KTA: Tensor, num_experts: int) -> Tensor:
    """Return y [M, D] of torch's own products, a group at a time."""
    x, w_in, w_gate, w_out, gate, b_in, b_gate, b_out = leaves
    groups = group_rows(chosen_KTA, num_experts)
    begin, slots = 0, []
    for g, end in enumerate(groups.ends.tolist()):
        rows, slot = x[groups.token[begin:end]], groups.slot[begin:end]
        u = rows @ w_in[g] + (0 if b_in is None else b_in[g])
        v = None if w_gate is None else rows @ w_gate[g] + (0 if b_gate is None else b_gate[g])
        h = F.gelu(u) if v is None else F.silu(v) * u
        y = h @ w_out[g] + (0 if b_out is None else b_out[g])
        slots.append(y * gate.flatten()[slot].to(y.dtype).unsqueeze(1))
        begin = end
    return torch.cat(slots)[groups.row].view(x.shape[0], -1, x.shape[1]).sum(1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_errors_are_no_larger_than_torchs(case: Case, dtype: torch.dtype, backend: Backend) -> None:
    chosen, dy = case.chosen(), normal(case.trials * case.tokens, case.width, seed=10, dtype=dtype)
    given = case.leaves(dtype)

    def leaves(to: torch.dtype) -> Leaves:
        return with_gradients(Leaves(*(None if tensor is None else tensor.to(to) for tensor in given)))

    own_leaves, exact_leaves, my_leaves = leaves(dtype), leaves(torch.float64), with_gradients(given)
    own = gradients(by_groups(own_leaves, chosen, case.num_experts), own_leaves, dy)
    exact = gradients(by_groups(exact_leaves, chosen, case.num_experts), exact_leaves, dy.double())
    mine = gradients(by_kernels(my_leaves, chosen, case.num_experts, backend), my_leaves, dy)
    for name in exact:
        assert_near(mine[name], own[name], exact[name], name)


@pytest.mark.parametrize("num_empty", [1, 3])
def test_a_group_without_rows_has_exactly_no_gradient(num_empty: int, backend: Backend) -> None:
    """The memory of the weights' gradients held NaNs before, which the library may leave where it writes nothing."""
    case = Case(tokens=1024, num_experts=4, width=256, hidden=256)
    chosen = case.chosen() % (4 - num_empty)
    leaves, dy = with_gradients(case.leaves(torch.bfloat16)), normal(1024, 256, seed=10, dtype=torch.bfloat16)
    poisoned = [torch.full_like(leaves.w_in, torch.nan) for _ in range(16)]
    del poisoned
    mine = gradients(by_kernels(leaves, chosen, 4, backend), leaves, dy)
    for name in ("w_in", "w_out"):
        assert mine[name].isfinite().all(), name
        assert not mine[name][4 - num_empty :].any(), name
        assert mine[name][: 4 - num_empty].any(), name


def test_the_library_is_really_used(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    calls: list[int] = []
    product = F.grouped_mm

    def noted(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        calls.append(b.dim())
        return product(a, b, offs=offs)

    monkeypatch.setattr(experts_library.F, "grouped_mm", noted)
    leaves = with_gradients(CASES["base"].leaves(torch.bfloat16))
    y = by_kernels(leaves, CASES["base"].chosen(), 4, backend)
    gradients(y, leaves, torch.ones_like(y))
    assert sorted(calls) == ([] if backend.strict else [2, 2, 3, 3, 3, 3])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bits_of_a_trial_do_not_depend_on_its_stack(case: Case) -> None:
    leaves, chosen = case.leaves(torch.bfloat16), case.chosen()
    dy = normal(case.trials * case.tokens, case.width, seed=10, dtype=torch.bfloat16)

    def run(trial: slice) -> dict[str, Tensor]:
        def of(given: Tensor) -> Tensor:
            return given.unflatten(0, (case.trials, -1))[trial].flatten(0, 1)

        own = with_gradients(Leaves(*(None if leaf is None else of(leaf) for leaf in leaves)))
        return gradients(by_kernels(own, chosen[trial], case.num_experts, TRITON), own, of(dy))

    stacked, alone = run(slice(None)), run(slice(case.trials - 1, None))
    for name, value in alone.items():
        assert torch.equal(value, stacked[name].chunk(case.trials)[-1]), name


def test_nothing_waits_for_the_host_and_a_graph_replays_it(backend: Backend) -> None:
    case = CASES["narrow"]
    leaves, dy = with_gradients(case.leaves(torch.bfloat16)), normal(16 * 512, 64, seed=10, dtype=torch.bfloat16)
    scores, bias = normal(16, 512, 16, seed=1), torch.zeros(16, 16, device=DEVICE)

    def step() -> dict[str, Tensor]:
        chosen = choose_experts(scores, bias, 2, 1, backend)
        return gradients(by_kernels(leaves, chosen, 16, backend), leaves, dy)

    replayed, graph = captured(step)
    scores.copy_(normal(16, 512, 16, seed=2))
    graph.replay()
    for name, value in step().items():
        assert torch.equal(value, replayed[name]), name
