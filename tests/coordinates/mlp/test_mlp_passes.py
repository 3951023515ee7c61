"""The split passes of the family mlp: against its own forward pass and autograd, by pieces, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from block_claims import block_of, predictions
from mlp_runs import ZERO_READOUT, path_of
from torch import Tensor

from hpxfer.coordinates.mlp import Options, Training, observe, own_trials
from hpxfer.coordinates.mlp.moments import Moment, moments
from hpxfer.coordinates.mlp.own import OwnData
from hpxfer.coordinates.mlp.passes import direction, total
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

SHAPE = Shape(width=8, depth=1, num_experts=4, num_active=4, expert_width=8)
TRAINING = Training(lr=0.5, eps=0.1)
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 1e-6}


def trials_of(
    name: str,
    options: Options,
    *,
    shape: Shape = SHAPE,
    depth: int = 1,
    seeds: int = 2,
    optimizer: Any = "sgd",
    conventions: Any = None,
    **of_mlp: Any,
) -> list[Trial]:
    """Return the check's own trials, at another depth and with other options of the family."""
    choice = parameterization(name, conventions)
    found = own_trials(choice, optimizer, shape, options, TRAINING, seeds=range(seeds), steps=3)
    return [
        replace(
            trial,
            shape=replace(trial.shape, depth=depth),
            setting=replace(trial.setting, mlp=replace(trial.setting.mlp, **of_mlp)),
        )
        for trial in found
    ]


def watched(trials: list[Trial], options: Options, steps: int = 3) -> Iterator[tuple[TrainState, Moment]]:
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"), OwnData(options=options))
    for moment in moments(state, steps, state.batch(0)):
        yield state, moment


@pytest.mark.parametrize("name", ["mup-ii", "mup"])
@pytest.mark.parametrize(
    ("options", "more"),
    [
        (Options(), {}),
        (Options(num_active=2), {}),
        (Options(activation="gelu", gate="normalized_softmax", input_activation="relu"), {}),
        (Options(activation="tanh", gate="softmax", num_active=2), {"inverse_temperature": 1.5}),
        (Options(expert_matrices=1, gate="normalized_softmax"), {}),
        (Options(expert_matrices=1, activation="relu", router_bias="learned"), {}),
        (Options(activation="gelu", router_bias="schedule"), {"depth": 3, "residual": True}),
        (Options(num_active=2), {"depth": 2, "tied_experts": True}),
    ],
)
def test_pieces_add_up_to_the_models_own_passes(name: str, options: Options, more: dict[str, Any]) -> None:
    for state, moment in watched(trials_of(name, options, **more), options):
        seen: dict[str, Tensor] = {}
        state.forward(*state.batch(0), moment.step, tap=lambda name, block, x, y, seen=seen: seen.update({name: y}))
        outputs = seen["readout"]  # of the model's own pass
        torch.testing.assert_close(moment.forward.outputs.total, outputs, **CLOSE)
        # Of two classes the loss depends on f alone, so that its gradients are chi times those of f.
        chi = moment.by_outputs[..., :1] / outputs.shape[1]
        scale = state.model.forward["router"].view(-1, 1, 1)  # type: ignore[attr-defined]
        for block, (ahead, back) in enumerate(zip(moment.forward.blocks, moment.backward, strict=True)):
            by_router = torch.einsum("kpn,kpe->kne", ahead.h.total, scale * chi * total(back.by_psi))
            torch.testing.assert_close(by_router, moment.gradients["router"][block], **CLOSE)
            reads = torch.einsum("kpe...h,kp->kpe...h", total(back.by_read), chi[..., 0])
            if options.expert_matrices == 2:
                by_w2 = torch.einsum("kpeh,kpn->kehn", reads, ahead.h.total)
                torch.testing.assert_close(by_w2, moment.gradients["expert_in"][block], **CLOSE)
                by_given = chi.unsqueeze(-1) * back.by_expert
                by_w3 = torch.einsum("kpeh,kpen->kehn", ahead.read.total, by_given)
                torch.testing.assert_close(by_w3, moment.gradients["expert_out"][block], **CLOSE)
        inputs = state.batch(0)[0]
        if options.input_activation == "linear":
            by_input = torch.einsum("kpd,kpn->kdn", inputs, chi * moment.backward[0].by_h1)
            torch.testing.assert_close(by_input, moment.gradients["input"][0], **CLOSE)
        assert torch.equal(direction(moment.model, 2), torch.tensor([1.0, -1.0]))


def test_a_seed_alone_is_the_seed_in_a_stack() -> None:
    choice, path = parameterization("mssp-iii"), path_of("mssp-iii", (16, 32, 64, 128))
    stacked = observe(choice, "adam", path, seeds=[5, 7], steps=2)
    alone = observe(choice, "adam", path, seeds=[7], steps=2)
    for both, seen in zip(stacked, alone, strict=True):
        assert both.values[1] == pytest.approx(seen.values[0], rel=1e-3, abs=1e-9)


def test_tied_experts_start_alike_and_part() -> None:
    tied = trials_of("mssp-iii", Options(), conventions=ZERO_READOUT)
    for _, moment in watched(tied, Options(), steps=2):
        start, change = moment.weights.both("expert_out")
        assert torch.equal(start[:, 0], start[:, 3])
    assert not torch.equal(change[:, 0], change[:, 3])
    (_, untied), *_ = watched(trials_of("mup-iii", Options()), Options(), steps=0)
    assert not torch.equal(untied.weights.initial["expert_out"][0][:, 0], untied.weights.initial["expert_out"][0][:, 3])


@pytest.mark.parametrize(
    ("activation", "optimizer"), [("linear", "sgd"), ("relu", "adam"), ("gelu", "sgd"), ("tanh", "adam")]
)
def test_what_has_not_moved_is_exactly_zero(activation: Any, optimizer: Any) -> None:
    options = Options(activation=activation, input_activation=activation)
    trials = trials_of("mssp-i", options, optimizer=optimizer, conventions=ZERO_READOUT, depth=2)
    for _, moment in watched(trials, options, steps=1):
        for ahead in moment.forward.blocks:
            assert not ahead.psi.total.any()
            assert not ahead.aggregate.change.any()
            assert not ahead.expert.change.any()
    assert moment.forward.outputs.effective.any()  # the readout alone has moved


def test_the_pieces_of_an_update_keep_their_digits() -> None:
    """Weights move by 1 in 10,000 of their size here. Their change is still the update, to 1 in 1,000."""
    options = Options()
    slow = [replace(trial, hps=trial.hps.with_value("lr", 1e-2)) for trial in trials_of("mup-i", options)]
    (_, before), (_, after) = watched(slow, options, steps=1)
    rate = slow[0].resolved()["expert_in"].lr
    expected = -rate * before.gradients["expert_in"][0]
    missing = (after.weights.change["expert_in"][0] - expected).square().mean().sqrt()
    assert missing < 1e-3 * expected.square().mean().sqrt()


def test_a_zero_router_chooses_among_equal_experts_at_random() -> None:
    def active(name: str, width: int = 8) -> Tensor:
        shape, options = replace(SHAPE, width=width, num_experts=8), Options(samples=256, num_active=2)
        (_, found), *_ = watched(trials_of(name, options, shape=shape), options, steps=0)
        chosen = found.forward.blocks[0].gated.active
        assert chosen is not None
        return chosen.float()

    start = active("mssp-i")
    assert torch.equal(start.sum(-1), torch.full((2, 256), 2.0))
    assert (start.mean(1) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 256) ** 0.5  # 5 sigma of a fair draw
    assert not torch.equal(start[0], start[1])
    assert torch.equal(active("mssp-i", 16), start)  # the same at every width
    assert (active("mup-i").mean(1) - 0.25).abs().max() > 0.05  # a random router prefers some experts


WITH_ADAM = {name for name in PARAMETERIZATIONS if "adam" in PARAMETERIZATIONS.get(name).rows}


@pytest.mark.parametrize("matrices", [2, 1])
def test_all_that_is_predicted_is_measured(matrices: Any) -> None:
    options, path = Options(expert_matrices=matrices), [sized(width, expert_width=width) for width in (8, 16, 32)]
    for name in WITH_ADAM - {"completep"}:
        choice = parameterization(name)
        found = observe(choice, "adam", path, seeds=[0], steps=0, options=options)
        measured = {(seen.quantity, seen.role) for seen in found}
        assert {(seen.quantity, seen.role) for seen in predictions(choice, "adam", path, block_of(options))} <= measured
    with pytest.raises(HpxferError, match="needs the role router"):
        observe(parameterization("completep"), "adam", path, seeds=[0], steps=0, options=options)


def sized(width: int, **changed: int) -> Shape:
    return replace(SHAPE, width=width, **changed)


@pytest.mark.parametrize(
    ("widths", "changed", "options", "what"),
    [
        ((8,), {}, Options(), "at least 3 shapes of different width"),
        ((8, 8, 8), {}, Options(), "different width"),
        ((8, 16, 32), {"num_shared": 1, "shared_width": 8}, Options(), "num_shared must"),
        ((8, 16, 32), {"num_groups": 2}, Options(), "num_groups must be 1"),
        ((8, 16, 32), {}, Options(expert_matrices=1), "expert_width must be the width"),
        ((8, 16, 32), {}, Options(num_active=5), "num_active must be from 1 to the 4"),
    ],
)
def test_paths_that_are_refused(widths: Any, changed: dict[str, int], options: Options, what: str) -> None:
    path = [sized(width, **changed) for width in widths]
    with pytest.raises(HpxferError, match=what):
        observe(parameterization("mup-i"), "sgd", path, seeds=[0], steps=0, options=options)
    dense = [Shape(width=width, depth=1, dense_width=8) for width in (8, 16, 32)]
    with pytest.raises(HpxferError, match="num_experts must be"):
        observe(parameterization("mup-i"), "sgd", dense, seeds=[0], steps=0, options=Options())
