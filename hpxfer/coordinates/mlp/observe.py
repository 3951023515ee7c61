"""What is measured in the family `mlp` at every step: the RMS of each piece, with one value per trial.

The trials are trained by the trainer's own state: its draws, batches, optimizer, router biases and ties. Every quantity
is measured on a fixed batch, except gradients, which are those of the step's batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpxfer.coordinates.gpt import PROBE_SEED
from hpxfer.coordinates.measure import MIN_SCALES, Observation
from hpxfer.coordinates.mlp.backward import (
    READOUT_SUFFIX,
    START,
    UPDATE,
    WAYS,
    BlockBackward,
    backward,
    name_of,
    total,
)
from hpxfer.coordinates.mlp.forward import BlockForward, Forward, Moved, Pieces, Split, forward
from hpxfer.coordinates.mlp.own import Options, OwnData, Training, default_training, own_trials
from hpxfer.errors import HpxferError
from hpxfer.model.flat import Weights
from hpxfer.model.mlp.loss import loss_backward, losses
from hpxfer.model.mlp.stack import MLPStack
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

PROBE_SAMPLES = 64
# RMS of what training added to a weight, in units of the weight's own. Rounding to float32 is 5% of this.
LEAST_CHANGE = 2.0**-21
# Yielded by a look at the trials: quantity, role, block (None outside the blocks), values [K, ...].
Measured = tuple[str, str, int | None, Tensor]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The state of a stack after `step` updates, with the gradients for the next update."""

    step: int
    model: MLPStack
    weights: Split
    forward: Forward
    backward: tuple[BlockBackward, ...]
    gradients: Weights
    by_outputs: Tensor  # gradient of every sample's loss by the model's outputs, [K, P, C]


@dataclass(kw_only=True)
class _Probe:
    """A fixed batch, and the passes of the model over it before training."""

    state: TrainState
    inputs: Tensor
    targets: Tensor
    first: tuple[Forward, tuple[BlockBackward, ...]] | None = None
    initial: Weights = field(default_factory=dict)

    @torch.no_grad()
    def look(self, step: int, gradients: Weights) -> Moment:
        """Return what is seen after `step` updates."""
        state = self.state
        model = state.model
        assert isinstance(model, MLPStack), "only the family mlp is split into pieces"
        now = state.layout.weights(state.flat)
        if not self.initial:
            self.initial = state.layout.weights(state.initial())
        change = {
            name: tuple(new - old for new, old in zip(copies, self.initial[name], strict=True))
            for name, copies in now.items()
        }
        weights = Split(initial=self.initial, change=change)
        before = (None, None) if self.first is None else self.first
        seen = forward(model, weights, self.inputs, state.router_bias, state.noise(step), before[0])
        back = backward(model, weights, seen, before[1])
        self.first = self.first or (seen, back)
        loss = model.setting.mlp.loss
        losses_KP, kept = losses(loss, seen.outputs.total, self.targets)
        by_outputs = loss_backward(loss, kept, self.targets, torch.ones_like(losses_KP))
        return Moment(
            step=step,
            model=model,
            weights=weights,
            forward=seen,
            backward=back,
            gradients=gradients,
            by_outputs=by_outputs,
        )


def moments(state: TrainState, steps: int, probe: tuple[Tensor, Tensor]) -> Iterator[Moment]:
    """Yield the states of a stack after 0, 1, ... `steps` updates at the peak LR. `probe` are inputs and targets."""
    inputs, targets = probe
    watched = _Probe(state=state, inputs=inputs, targets=targets)
    for step in range(steps + 1):
        output, gradients = state.forward_backward(step)
        yield watched.look(step, gradients)
        if step < steps:
            state.update(output, gradients)


def of_trials(
    trials: Sequence[Trial], *, scale: float, steps: int, data: OwnData | None = None
) -> Iterator[Observation]:
    """Yield the sizes in the trials of one shape, one trial per seed, before training and after each update.

    `data` replaces those of the trials' setting. Then the probe is the whole batch.
    """
    given = {} if data is None else {"data": data}
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"), **given)  # type: ignore[arg-type]
    seed, count = (0, state.setting.batch_tokens) if data else (PROBE_SEED, PROBE_SAMPLES)
    parts = state.data.train_batches(seed, 0, 1)
    probe = state.for_all((parts[0][0][:count], parts[1][0][:count]))
    pulled: set[str] = set()  # parameters that had a gradient
    for moment in moments(state, steps, probe):
        _require_digits(moment, state.roles, trials[0], pulled)
        pulled |= {name for name, copies in moment.gradients.items() if any(copy.any() for copy in copies)}
        for quantity, role, layer, values in measured(moment, state.roles):
            rms_K = values.flatten(1).square().mean(1).sqrt()
            yield Observation(
                quantity=quantity,
                role=role,
                layer=layer,
                step=moment.step,
                scale=scale,
                values=tuple(rms_K.tolist()),
            )


def _require_digits(moment: Moment, roles: dict[str, str], trial: Trial, pulled: set[str]) -> None:
    """Raise HpxferError if a weight has moved by so little that rounding decides by how much."""
    rates = trial.resolved()
    for name, copies in moment.weights.change.items():
        is_pulled = name in pulled and rates[roles[name]].lr > 0
        for change, start in zip(copies, moment.weights.initial[name], strict=True):
            moved, size = float(change.square().mean().sqrt()), float(start.square().mean().sqrt())
            if moved < LEAST_CHANGE * size and (moved or is_pulled):
                raise HpxferError(
                    f"{trial.shape.label()}: after {moment.step} updates {roles[name]} must have moved by "
                    f"{LEAST_CHANGE:.1g} of its size or more, got {moved / size:.1g}, which float32 rounds; take a "
                    "larger lr, or fewer blocks"
                )


def observe(
    choice: Parameterization,
    optimizer: Column,
    path: Sequence[Shape],
    *,
    seeds: Sequence[int],
    steps: int,
    options: Options | None = None,
    training: Training | None = None,
) -> tuple[Observation, ...]:
    """Return the sizes of all pieces along `path` on the check's own samples. The widths are the scales."""
    widths = [shape.width for shape in path]
    if len(set(widths)) != len(widths) or len(widths) < MIN_SCALES:
        raise HpxferError(f"mlp: path must have at least {MIN_SCALES} shapes of different width, got widths {widths}")
    options, training = options or Options(), training or default_training(choice, optimizer)
    out: list[Observation] = []
    for shape in path:
        trials = own_trials(choice, optimizer, shape, options, training, seeds=seeds, steps=steps)
        out += of_trials(trials, scale=float(shape.width), steps=steps, data=OwnData(options=options))
    return tuple(out)


def measured(moment: Moment, roles: dict[str, str]) -> Iterator[Measured]:
    """Yield everything that is measured. `roles` maps the name of a parameter to its role."""
    fwd = moment.forward
    yield "activation", "embedding", None, fwd.h.total
    yield "change", "embedding", None, fwd.h.change
    yield from _map("readout", None, fwd.outputs, _last(moment))
    is_single = moment.model.shape.depth == 1
    for block, (ahead, back) in enumerate(zip(fwd.blocks, moment.backward, strict=True)):
        layer = None if is_single else block
        yield from _forward(ahead, layer)
        yield from _backward(back, layer)
        if _is_one_number(moment):
            yield "dL/dpsi", "router", layer, moment.by_outputs[..., :1] * total(back.by_psi)
    for name, role in roles.items():
        parts = zip(moment.gradients[name], moment.weights.change[name], strict=True)
        for block, (gradient, change) in enumerate(parts):
            outside = is_single or role in ("embedding", "readout")
            yield "gradient", role, None if outside else block, gradient
            yield "weight change", role, None if outside else block, change


def _is_one_number(moment: Moment) -> bool:
    """Return whether the loss depends on f alone."""
    outputs = moment.by_outputs.shape[-1]
    return outputs == (2 if moment.model.setting.mlp.loss == "cross_entropy" else 1)


def _last(moment: Moment) -> Moved:
    """Return the features that the readout reads."""
    last = moment.forward.blocks[-1]
    if not moment.model.setting.mlp.residual:
        return last.aggregate
    return Moved(start=last.h.start + last.aggregate.start, change=last.h.change + last.aggregate.change)


def _map(role: str, layer: int | None, pieces: Pieces, inputs: Moved) -> Iterator[Measured]:
    """Yield the pieces of a map, and what it learned per unit of its input."""
    yield from ((name, role, layer, tensor) for name, tensor in pieces.named().items())
    yield "effective / input", role, layer, pieces.effective_now / _norm(inputs.total)


def _norm(x: Tensor) -> Tensor:
    """Return the RMS of each trial's features, in the form in which [K, ...] is divided by it. It is 1 for zeros."""
    rms = x.flatten(1).square().mean(1).sqrt()
    return torch.where(rms > 0, rms, 1.0).view(-1, *[1] * (x.dim() - 1))


def _forward(fwd: BlockForward, layer: int | None) -> Iterator[Measured]:
    yield from _map("router", layer, fwd.psi, fwd.h)
    if fwd.hidden is not None:
        inputs = Moved(start=fwd.h.start.unsqueeze(2), change=fwd.h.change.unsqueeze(2))
        yield from _map("expert_in", layer, fwd.hidden, inputs)
    yield from _map("expert_out", layer, fwd.expert, fwd.read)
    yield "logits", "router", layer, fwd.logits
    yield "spread of the change", "router", layer, fwd.psi.change - fwd.psi.change.mean(-1, keepdim=True)
    yield "gate", "router", layer, fwd.phi
    yield "gate slack", "router", layer, fwd.phi * (1 - fwd.phi)
    yield "h3", "expert_out", layer, fwd.aggregate.total
    yield "h3: change", "expert_out", layer, fwd.aggregate.change
    yield from ((f"h3: {name}", "expert_out", layer, piece) for name, piece in fwd.parts.items())


def _backward(back: BlockBackward, layer: int | None) -> Iterator[Measured]:
    for last, piece in back.by_h3.items():
        yield f"df/dh3: {name_of('readout', last)}", "readout", layer, piece
    yield "df/dh3_i", "expert_out", layer, back.by_expert
    has_two = len(back.by_h1_experts) == 2 * len(back.by_read)
    reads = "df/dh2_i" if has_two else "df/dh1_i"
    for label, pieces in ((reads, back.by_read), ("df/dphi", back.by_phi)):
        yield label, "expert_out", layer, total(pieces)
        for (w3, w4), piece in pieces.items():
            yield f"{label}: {name_of('expert_out', w3)} {name_of('readout', w4)}", "expert_out", layer, piece
    if has_two:
        yield "df/dh1: experts", "expert_in", layer, total(back.by_h1_experts)
        for (w2, w3, w4), piece in back.by_h1_experts.items():
            yield f"df/dh1: {WAYS[w2, w3]}{READOUT_SUFFIX[w4]}", "expert_in", layer, piece
    yield "df/dh1: router", "router", layer, total(back.by_h1_router)
    for which in (START, UPDATE):
        part = {key: piece for key, piece in back.by_h1_router.items() if key[0] == which}
        yield f"df/dh1: {name_of('router', which)}", "router", layer, total(part)
        for (_, w3, w4), piece in part.items():
            way = " ".join((name_of("router", which), name_of("expert_out", w3), name_of("readout", w4)))
            yield f"df/dh1: {way}", "router", layer, piece
    yield "df/dh1", "embedding", layer, back.by_h1
