"""The stacked GPT on Triton's kernels against the plainest float64 code: its routers, gates of one's own, and the tap.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpt_cases import CASES, Case
from tolerances import assert_gradients_near, assert_near
from torch import Tensor

from hpxfer.kernels.backend import Backend
from hpxfer.model.flat import gradients
from hpxfer.model.gates import GATES, Gate

TRITON = Backend(name="triton", reason="a test", strict=True)
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the cases of these tests are on a CPU")


def small(name: str) -> Case:
    """Return a case with half the tokens, and with one block where another case of these tests has several."""
    shape, changes, parameterization = CASES[name]
    several = name in ("base", "dense first")
    return Case(shape if several else replace(shape, depth=1), {**changes, "batch_tokens": 16}, parameterization)


@pytest.mark.parametrize(
    "name", ["base", "gains and biases", "softmax in groups", "normalized", "dense first", "documents"]
)
def test_losses_and_gradients_equal_the_reference(name: str) -> None:
    made = small(name)
    losses = made.losses(replace(made.model, backend=TRITON))
    grads = gradients(losses, made.weights, made.grad_KT)
    (own, own_grads), (exact, exact_grads) = made.plain(torch.float32), made.plain(torch.float64)
    assert_near(losses, own, exact, "losses")
    assert_gradients_near(grads, own_grads, exact_grads)


def test_loads_and_scores_are_those_of_torch() -> None:
    made = small("softmax in groups")
    args = made.weights, made.bias_LKE, made.inputs, made.targets
    mine, torchs = (model(*args) for model in (replace(made.model, backend=TRITON), made.model))
    assert torch.equal(mine.load_LKE, torchs.load_LKE)
    for found, expected in zip(mine.scores, torchs.scores, strict=True):
        assert found.dtype == torch.float32
        assert_near(found, expected, expected.double())


def test_a_gate_of_ones_own_chooses_by_its_own_scores() -> None:
    def scores(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-logits_KTE)  # the lowest logit is the best

    gate = Gate(name="lowest", formula="softplus(-logit)", sums_to_one_over=None, scores=scores)
    with GATES.registered(gate):
        made = Case(CASES["joint"][0], {"gate": gate.name}, "completep-moe")
        losses, expected = made.losses(replace(made.model, backend=TRITON)), made.losses()
        assert_near(losses, expected, expected.double())
        other = Case(*CASES["joint"]).losses()
        assert not torch.allclose(losses, other)


def test_a_tap_hears_the_same_parts() -> None:
    made = Case(*CASES["mixed"])

    def heard(backend: Backend) -> dict[tuple[str, int], tuple[Tensor, Tensor]]:
        found: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        made.losses(
            replace(made.model, backend=backend, tap=lambda name, block, x, y: found.update({(name, block): (x, y)}))
        )
        return found

    mine, torchs = heard(TRITON), heard(made.model.backend)
    assert mine.keys() == torchs.keys()
    for part in ("router", "gates", "stream", "moe"):
        for one, other in zip(mine[part, 1], torchs[part, 1], strict=True):
            assert_near(one, other, other.double(), part)
