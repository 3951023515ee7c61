"""The sizes that are measured in the family `mlp`: the pieces of both passes by the names of the papers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hpxfer.coordinates.mlp.moments import Moment
from hpxfer.coordinates.mlp.passes import (
    READOUT_SUFFIX,
    START,
    UPDATE,
    WAYS,
    BlockBackward,
    BlockForward,
    Moved,
    Pieces,
    name_of,
    total,
)

# What predictions are about, by quantity and role -> its name here.
NAMES = {
    ("aggregate init", "expert_out"): ("h3: A1", "expert_out"),
    ("aggregate effective", "expert_out"): ("h3: A3", "expert_out"),
    ("activation", "moe"): ("h3", "expert_out"),
    ("change", "moe"): ("h3: change", "expert_out"),
    ("activation", "gates"): ("gate", "router"),
    ("change", "gates"): ("gate: change", "router"),
}

# Quantity, role, block (None outside the blocks), values [K, ...].
Measured = tuple[str, str, int | None, Tensor]


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
    rms = x.double().flatten(1).square().mean(1).sqrt()  # the squares of float32 may overflow
    return torch.where(rms > 0, rms, 1.0).to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def _forward(fwd: BlockForward, layer: int | None) -> Iterator[Measured]:
    yield from _map("router", layer, fwd.psi, fwd.h)
    if fwd.hidden is not None:
        inputs = Moved(start=fwd.h.start.unsqueeze(2), change=fwd.h.change.unsqueeze(2))
        yield from _map("expert_in", layer, fwd.hidden, inputs)
    yield from _map("expert_out", layer, fwd.expert, fwd.read)
    yield "logits", "router", layer, fwd.logits
    yield "spread of the change", "router", layer, fwd.psi.change - fwd.psi.change.mean(-1, keepdim=True)
    yield "gate", "router", layer, fwd.phi
    yield "gate: change", "router", layer, fwd.phi_change
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
