"""Roofline: the bytes and the FLOPs of each part of a step on a GPU, and the time that they predict.

A part takes as long as its products at `PRODUCT_SHARE` of the machine's peak, or its bytes at `COPY_SHARE` of the rate
of a copy, whichever is longer. The gaps between kernels come on top. The step is a captured bfloat16 step of one trial
in fast mode. Peak and copy rate were measured on an H200 by others; the shares and the gaps are assumed.

Letters: T tokens of a step, D width, H hidden features, A active experts, E experts, V vocabulary, C context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpxfer.kernels.head_limits import KEPT_BYTES
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Setting

Bound = Literal["products", "memory", "gaps"]
# Rates of an NVIDIA H200: a product of 8192^3 bfloat16 numbers, and a copy with reads and writes counted.
PEAK_FLOP_PER_S, COPY_BYTE_PER_S = 790e12, 4.3e12
# What kernels of each kind reach of these rates. Assumed: large products of a library, grouped products in Triton,
# attention, and kernels that read and write rows.
PRODUCT_SHARE: Mapping[str, float] = {"library": 0.7, "grouped": 0.55, "attention": 0.45}
COPY_SHARE = 0.8
# Between two kernels of a CUDA graph. Assumed.
GAP_S = 1.5e-6
_SIZE = 2  # bytes of a bfloat16 number


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The rates that a step is predicted from."""

    flop_per_s: float = PEAK_FLOP_PER_S
    byte_per_s: float = COPY_BYTE_PER_S


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a step: all its kernels, in all blocks, forward and backward.

    `group` is what a profile can tell apart: it shows the same library kernels for projections and the readout.
    """

    name: str
    group: str
    flops: float
    num_bytes: float
    kind: str = "library"
    launches: int = 0

    def seconds(self, machine: Machine) -> float:
        """Return the predicted time."""
        return max(self._product_s(machine), self._copy_s(machine)) + self.launches * GAP_S

    def bound(self, machine: Machine) -> Bound:
        """Return what the part waits for most."""
        times: dict[Bound, float] = {
            "products": self._product_s(machine),
            "memory": self._copy_s(machine),
            "gaps": self.launches * GAP_S,
        }
        return max(times, key=lambda bound: times[bound])

    def _product_s(self, machine: Machine) -> float:
        return self.flops / (PRODUCT_SHARE[self.kind] * machine.flop_per_s)

    def _copy_s(self, machine: Machine) -> float:
        return self.num_bytes / (COPY_SHARE * machine.byte_per_s)


def parts_of(shape: Shape, setting: Setting) -> tuple[Part, ...]:
    """Return the parts of a step of one trial of the GPT.

    Experts and dense FFNs have no biases here, and there are no shared experts: the benchmark has none of them.
    """
    return (*_of_blocks(shape, setting), *_of_ends(shape, setting))


def seconds_of(parts: Sequence[Part], machine: Machine) -> float:
    """Return the predicted time of a step."""
    return sum(part.seconds(machine) for part in parts)


def _of_blocks(shape: Shape, setting: Setting) -> Iterator[Part]:
    """Yield the parts that each block has."""
    tokens, depth, width, context = setting.batch_tokens, shape.depth, shape.width, setting.context
    matrices = 3 if setting.ffn == "swiglu" else 2
    num_moe = len(moe_blocks(shape, setting))
    num_dense = depth - num_moe
    row = tokens * width * _SIZE
    heads, keys = shape.attention_width, shape.kv_width
    joined = heads * (2 if setting.attention_gate else 1) + 2 * keys  # queries, keys, values and gates of a token
    # They and the output, each forward and with two gradients: 6 FLOPs per parameter and token.
    yield Part(
        name="attention projections",
        group="products of a library",
        flops=depth * 6 * tokens * (joined + heads) * width,
        num_bytes=depth * 3 * tokens * _SIZE * (joined + heads + 2 * width),
        launches=depth * 6,
    )
    turned, normed = setting.positions == "rope", setting.qk_norm != "none"
    if turned or normed:
        yield Part(
            name="norms and rotations of queries and keys",
            group="norms",
            flops=0,
            num_bytes=depth * tokens * _SIZE * (heads + keys) * (5 if normed else 4),
            launches=depth * (6 if normed else 4),
        )
    # Two products forward, five backward (the scores are computed again), half of each by causality.
    yield Part(
        name="attention",
        group="attention",
        kind="attention",
        flops=depth * 7 * tokens * context * heads,
        num_bytes=depth * tokens * _SIZE * 6 * (heads + keys),
        launches=depth * 4,
    )
    # x + y is read twice and written with its norm, and three gradients become one. A router does the same by itself.
    yield Part(
        name="norms and residual stream",
        group="norms",
        flops=0,
        num_bytes=(depth + num_dense + 1) * 8 * row,
        launches=(depth + num_dense + 1) * 4,
    )
    if num_moe:
        rows, hidden, experts = tokens * shape.num_active, shape.expert_width, shape.num_experts
        yield Part(
            name="router",
            group="router",
            flops=num_moe * 6 * tokens * width * experts,
            num_bytes=num_moe * (9.5 * row + tokens * (12 * experts + 8 * shape.num_active + 4)),
            launches=num_moe * 4,
        )
        # Indices: the chosen experts, then row, slot and token of each pair, written once and read by each product.
        yield Part(
            name="order of the rows",
            group="order of the rows",
            flops=0,
            num_bytes=num_moe * rows * (2 * 8 + 3 * 4 + 6 * 4),
            launches=num_moe * 5,
        )
        # Several active experts write float32 slots, which are read again and summed: the output, and the gradient.
        slots = 1 if shape.num_active == 1 else 4 + 1 / shape.num_active
        yield Part(
            name="experts",
            group="experts",
            kind="grouped",
            flops=num_moe * 6 * rows * matrices * width * hidden,
            num_bytes=num_moe * rows * _SIZE * (width * (matrices + 2 + 2 * slots) + hidden * (5 * matrices - 1)),
            launches=num_moe * (5 + 2 * matrices),
        )
    if num_dense:
        hidden = shape.dense_width
        yield Part(
            name="dense FFN",
            group="products of a library",
            flops=num_dense * 6 * tokens * matrices * width * hidden,
            num_bytes=num_dense * tokens * _SIZE * (width * 3 * matrices + hidden * (6 * matrices - 2)),
            launches=num_dense * (3 * matrices + 2),
        )


def _of_ends(shape: Shape, setting: Setting) -> Iterator[Part]:
    """Yield the parts before and after the blocks, and of the update."""
    tokens, width, vocab = setting.batch_tokens, shape.width, setting.vocab_size
    logits = tokens * vocab * _SIZE
    again = logits > KEPT_BYTES  # then each piece of logits is computed a second time
    yield Part(
        name="embedding",
        group="embedding",
        flops=0,
        num_bytes=tokens * width * (4 + 2 + 2) + 4 * vocab * width,
        launches=6,
    )
    yield Part(
        name="readout",
        group="products of a library",
        flops=(8 if again else 6) * tokens * width * vocab,
        num_bytes=(4 if again else 3) * logits,
        launches=8,
    )
    # The second read of a row comes from the cache.
    yield Part(
        name="cross entropy",
        group="cross entropy",
        flops=0,
        num_bytes=(4 if again else 2) * logits,
        launches=4,
    )
    specs = gpt_parameters(shape, setting)
    params = sum(spec.numel * spec.layers for spec in specs)
    # Parameters are read in float32 and written in bfloat16 for the products, and gradients are widened to float32.
    yield Part(name="rounded weights", group="norms", flops=0, num_bytes=(6 + 6) * params, launches=4 * shape.depth)
    yield Part(
        name="optimizer", group="optimizer", flops=0, num_bytes=28 * params, launches=sum(s.layers for s in specs)
    )
