"""The block's own passes: against autograd, by pieces, seed by seed; and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from block_runs import ZERO_READOUT, path_of

from hpxfer.coordinates.block import Block, Training, observe, predictions
from hpxfer.coordinates.block.forward import top_k
from hpxfer.coordinates.block.train import Moment, run
from hpxfer.coordinates.block.weights import Rules, inputs, rules
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS

SHAPE = Shape(width=8, depth=1, num_experts=4, num_active=4, expert_width=8, head_dim=1)
TOP_2 = replace(SHAPE, num_active=2)
TRAINING = Training(lr=0.5, eps=0.1)


def plain_losses(weights: dict[str, torch.Tensor], moment: Moment, rule: Rules, block: Block) -> torch.Tensor:
    """Return the loss of every seed, written down once more without pieces; the choice of experts is given."""
    x, y = inputs(block, torch.float64)
    h1 = rule.forward("embedding") * torch.einsum("knd,pd->kpn", weights["embedding"], x)
    psi = rule.forward("router") * torch.einsum("ken,kpn->kpe", weights["router"], h1)
    if block.gate == "sigmoid":
        phi = torch.sigmoid(psi) * moment.forward.active
    else:
        phi = rule.route_scale * torch.softmax(psi.masked_fill(moment.forward.active == 0, -torch.inf), -1)
    if block.experts == "two":
        z = rule.forward("expert_in") * torch.einsum("kehn,kpn->kpeh", weights["expert_in"], h1)
        z = F.gelu(z) if block.activation == "gelu" else z
        outputs = torch.einsum("kenh,kpeh->kpen", weights["expert_out"], z)
    else:
        outputs = torch.einsum("kenh,kph->kpen", weights["expert_out"], h1)
    h3 = rule.forward("expert_out") * torch.einsum("kpe,kpen->kpn", phi, outputs)
    f = rule.forward("readout") * torch.einsum("kn,kpn->kp", weights["readout"], h3)
    return F.softplus(-y * f).mean(1)


@pytest.mark.parametrize("name", ["mup-ii", "mup"])
@pytest.mark.parametrize("shape", [SHAPE, TOP_2])
@pytest.mark.parametrize(
    "block",
    [
        Block(),
        Block(activation="gelu", gate="softmax"),
        Block(experts="one", gate="softmax"),
        Block(experts="one"),
    ],
)
def test_gradients_are_those_of_autograd(block: Block, shape: Shape, name: str) -> None:
    choice = parameterization(name)
    rule = rules(choice, shape, block, "sgd")
    for moment in run(choice, shape, block, "sgd", TRAINING, seeds=[0, 1], steps=3):
        start, change = moment.weights.initial, moment.weights.change
        weights = {role: (start[role] + change[role]).requires_grad_() for role in start}
        plain_losses(weights, moment, rule, block).sum().backward()
        for role, weight in weights.items():
            assert weight.grad is not None
            torch.testing.assert_close(moment.gradients[role], weight.grad, rtol=1e-9, atol=1e-12)


def test_adam_is_torch_adam() -> None:
    choice, block = parameterization("mup-iii"), Block()
    rule = rules(choice, SHAPE, block, "adam")
    moments = run(choice, SHAPE, block, "adam", TRAINING, seeds=[3], steps=3)
    own: dict[str, torch.nn.Parameter] = {}
    optimizers: dict[str, torch.optim.Adam] = {}
    for moment in moments:
        for role, start in moment.weights.initial.items():
            if role not in own:
                own[role] = torch.nn.Parameter(start.clone())
                numbers = rule.roles[role]
                optimizers[role] = torch.optim.Adam(
                    [own[role]], lr=TRAINING.lr * numbers.lr, betas=(0.9, 0.95), eps=TRAINING.eps * numbers.eps
                )
            torch.testing.assert_close(own[role].data, start + moment.weights.change[role], rtol=1e-9, atol=1e-12)
            own[role].grad = moment.gradients[role].clone()
            optimizers[role].step()


def test_a_seed_alone_is_the_seed_in_a_stack() -> None:
    choice, path = parameterization("mssp-iii"), path_of("mssp-iii", (16, 32, 64, 128))
    stacked = observe(choice, "adam", path, seeds=[5, 7], steps=2, dtype=torch.float64)
    alone = observe(choice, "adam", path, seeds=[7], steps=2, dtype=torch.float64)
    for both, seen in zip(stacked, alone, strict=True):
        assert both.values[1] == pytest.approx(seen.values[0], rel=1e-9)


def test_tied_experts_start_alike_and_part() -> None:
    choice = parameterization("mssp-iii", ZERO_READOUT)
    for moment in run(choice, SHAPE, Block(), "sgd", TRAINING, seeds=[0], steps=2):
        start, change = moment.weights.both("expert_out")
        assert torch.equal(start[:, 0], start[:, 3])
    assert not torch.equal(change[:, 0], change[:, 3])
    untied = next(run(parameterization("mup-iii"), SHAPE, Block(), "sgd", TRAINING, seeds=[0], steps=0))
    assert not torch.equal(untied.weights.initial["expert_out"][:, 0], untied.weights.initial["expert_out"][:, 3])


@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_what_has_not_moved_is_exactly_zero(activation: str) -> None:
    choice = parameterization("mssp-i", ZERO_READOUT)
    block = Block(activation=activation)  # type: ignore[arg-type]
    for moment in run(choice, SHAPE, block, "adam", TRAINING, seeds=[0], steps=1, dtype=torch.float32):
        assert not moment.forward.psi.total.any()
        assert not moment.forward.aggregate.change.any()
        assert not moment.forward.expert.change.any()


def test_ties_go_to_the_lowest_index() -> None:
    assert top_k(torch.zeros(1, 1, 4), 2).tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


def test_a_zero_router_chooses_among_equal_experts_at_random() -> None:
    def active(name: str, width: int = 8) -> torch.Tensor:
        shape = replace(SHAPE, width=width, num_experts=8, num_active=2)
        many = run(parameterization(name), shape, Block(samples=256), "sgd", TRAINING, seeds=[0, 1], steps=0)
        return next(many).forward.active

    start = active("mssp-i")
    assert torch.equal(start.sum(-1), torch.full((2, 256), 2.0, dtype=start.dtype))
    assert (start.mean(1) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 256) ** 0.5  # 5 sigma of a fair draw
    assert not torch.equal(start[0], start[1])
    assert torch.equal(active("mssp-i", 16), start)  # the same at every width
    assert (active("mup-i").mean(1) - 0.25).abs().max() > 0.05  # a random router prefers some experts


@pytest.mark.parametrize("name", [name for name in PARAMETERIZATIONS if "adam" in PARAMETERIZATIONS.get(name).rows])
@pytest.mark.parametrize("experts", ["two", "one"])
def test_all_that_is_predicted_is_measured(name: str, experts: str) -> None:
    choice, block = parameterization(name), Block(experts=experts)  # type: ignore[arg-type]
    path = [replace(SHAPE, width=width, expert_width=width) for width in (8, 16, 32)]
    if name == "completep":
        with pytest.raises(HpxferError, match="needs the role router"):
            observe(choice, "adam", path, seeds=[0], steps=0, block=block)
        return
    measured = {(seen.quantity, seen.role) for seen in observe(choice, "adam", path, seeds=[0], steps=0, block=block)}
    assert {(seen.quantity, seen.role) for seen in predictions(choice, "adam", path, block)} <= measured


@pytest.mark.parametrize(
    ("shapes", "block", "what"),
    [
        ([SHAPE], Block(), "at least 3 shapes of different width"),
        ([SHAPE, SHAPE, SHAPE], Block(), "different width"),
        ([replace(SHAPE, width=w, num_shared=1, shared_width=8) for w in (8, 16, 32)], Block(), "num_shared must be 0"),
        ([replace(SHAPE, width=w, num_groups=2) for w in (8, 16, 32)], Block(), "num_groups must be 1"),
        ([replace(SHAPE, width=w) for w in (8, 16, 32)], Block(experts="one"), "expert_width must be the width 16"),
        ([Shape(width=w, depth=1, dense_width=8, head_dim=1) for w in (8, 16, 32)], Block(), "num_experts must be"),
    ],
)
def test_paths_that_are_refused(shapes: list[Shape], block: Block, what: str) -> None:
    choice: Parameterization = parameterization("mup-i")
    with pytest.raises(HpxferError, match=what):
        observe(choice, "sgd", shapes, seeds=[0], steps=0, block=block)
