"""What is measured in the block at every step: the RMS of each piece, with one value per seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpxfer.coordinates.block.backward import (
    READOUT_SUFFIX,
    START,
    UPDATE,
    WAYS,
    Backward,
    name_of,
    total,
)
from hpxfer.coordinates.block.forward import Forward
from hpxfer.coordinates.block.train import Moment, Training, run
from hpxfer.coordinates.measure import MIN_SCALES, Observation
from hpxfer.errors import HpxferError
from hpxfer.scaling.claims.block import Block
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

# This eps is as large as the gradients, so that the table's factor on eps has an effect (it is faithful, Why Routers
# Freeze, Def. 7). The LRs change features by a good part of their size, and f by a few units.
ADAM = Training(lr=0.1, eps=0.1)
SGD = Training(lr=2.0, eps=0.1)
# Where all dimensions grow, f learns faster. A larger LR would end its training before gradients show a slope.
SGD_III = Training(lr=1.0, eps=0.1)
# Piece of the aggregate -> its name in MSSP.
AGGREGATE = {"init": "A1", "propagating": "A2", "effective0": "A3", "cross": "D"}


def observe(
    choice: Parameterization,
    optimizer: Column,
    path: Sequence[Shape],
    *,
    seeds: Sequence[int],
    steps: int,
    block: Block | None = None,
    training: Training | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Observation, ...]:
    """Return the sizes of all pieces along `path` after 0 to `steps` updates. The widths are the scales."""
    widths = [shape.width for shape in path]
    if len(set(widths)) != len(widths) or len(widths) < MIN_SCALES:
        raise HpxferError(f"block: path must have at least {MIN_SCALES} shapes of different width, got widths {widths}")
    block, training = block or Block(), training or default_training(choice, optimizer)
    out = []
    for shape in path:
        for moment in run(choice, shape, block, optimizer, training, seeds=seeds, steps=steps, dtype=dtype):
            for quantity, role, tensor in measured(moment, block):
                out.append(
                    Observation(
                        quantity=quantity,
                        role=role,
                        layer=None,
                        step=moment.step,
                        scale=float(shape.width),
                        values=tuple(_rms(tensor)),
                    )
                )
    return tuple(out)


def default_training(choice: Parameterization, optimizer: Column) -> Training:
    """Return the base HPs at which a check trains the block."""
    if optimizer == "adam":
        return ADAM
    return SGD_III if choice.table.regime == "III" else SGD


def measured(moment: Moment, block: Block) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (quantity, role, tensor [K, ...]) of everything that is measured."""
    yield from _forward(moment.forward)
    yield from _backward(moment.backward, block)
    chi = moment.chi[..., None]
    yield "dL/dpsi", "router", chi * total(moment.backward.by_psi)
    for role, gradient in moment.gradients.items():
        yield "gradient", role, gradient
        yield "weight change", role, moment.weights.change[role]


def _forward(fwd: Forward) -> Iterator[tuple[str, str, Tensor]]:
    for name in ("activation", "change"):
        yield name, "embedding", fwd.h1.named()[name]
    maps = {"router": fwd.psi, "expert_in": fwd.hidden, "expert_out": fwd.expert, "readout": fwd.f}
    for role, pieces in maps.items():
        if pieces is not None:
            yield from ((name, role, tensor) for name, tensor in pieces.named().items())
    yield "logits", "router", fwd.logits
    yield "spread of the change", "router", fwd.psi.change - fwd.psi.change.mean(-1, keepdim=True)
    yield "gate", "router", fwd.phi
    yield "gate slack", "router", fwd.phi * (1 - fwd.phi)
    yield "h3", "expert_out", fwd.aggregate.total
    named = fwd.aggregate.named()
    yield from ((f"h3: {label}", "expert_out", named[name]) for name, label in AGGREGATE.items())
    if fwd.through_hidden is not None:
        yield from ((f"h3: A2.{i}", "expert_out", piece) for i, piece in enumerate(fwd.through_hidden, start=1))


def _backward(back: Backward, block: Block) -> Iterator[tuple[str, str, Tensor]]:
    for last, piece in back.by_h3.items():
        yield f"df/dh3: {name_of('readout', last)}", "readout", piece
    yield "df/dh3_i", "expert_out", back.by_expert
    reads = "df/dh2_i" if block.experts == "two" else "df/dh1_i"
    for label, pieces in ((reads, back.by_read), ("df/dphi", back.by_phi)):
        yield label, "expert_out", total(pieces)
        for (w3, w4), piece in pieces.items():
            yield f"{label}: {name_of('expert_out', w3)} {name_of('readout', w4)}", "expert_out", piece
    if block.experts == "two":
        yield "df/dh1: experts", "expert_in", total(back.by_h1_experts)
        for (w2, w3, w4), piece in back.by_h1_experts.items():
            yield f"df/dh1: {WAYS[w2, w3]}{READOUT_SUFFIX[w4]}", "expert_in", piece
    yield "df/dh1: router", "router", total(back.by_h1_router)
    for which in (START, UPDATE):
        part = {key: piece for key, piece in back.by_h1_router.items() if key[0] == which}
        yield f"df/dh1: {name_of('router', which)}", "router", total(part)
        for (_, w3, w4), piece in part.items():
            way = " ".join((name_of("router", which), name_of("expert_out", w3), name_of("readout", w4)))
            yield f"df/dh1: {way}", "router", piece
    yield "df/dh1", "embedding", back.by_h1


def _rms(tensor: Tensor) -> list[float]:
    """Return the RMS of every seed."""
    return [float(size) for size in tensor.flatten(1).square().mean(1).sqrt()]
