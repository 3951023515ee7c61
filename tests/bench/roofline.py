"""Roofline: the bytes and the FLOPs of each part of a step on a GPU, and the time that they predict, beside what the
profile of an acceptance measured: `python tests/bench/roofline.py --case base-32k`. It needs no GPU.

A part takes as long as its products at `PRODUCT_SHARE` of the machine's peak, or its bytes at `COPY_SHARE` of the rate
of a copy, whichever is longer. The gaps between kernels come on top. The step is a captured bfloat16 step of one trial
in fast mode. Peak and copy rate were measured on an H200 by others; the shares and the gaps are assumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from goals import UNMEASURED

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.rates import LARGE, base_case
from hpxfer.host.output import aligned
from hpxfer.kernels.head_limits import KEPT_BYTES
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Setting, Trial

# What kernels of each kind reach of the peak, of a copy's rate, and the seconds between two kernels of a CUDA graph.
# Assumed: large products of a library, grouped products in Triton, attention, and kernels that read and write rows.
PRODUCT_SHARE: Mapping[str, float] = {"library": 0.7, "grouped": 0.55, "attention": 0.45}
COPY_SHARE, GAP_S = 0.8, 1.5e-6
BASE = "base-32k"
CASES: Mapping[str, Case] = {
    BASE: base_case(32768),
    "twin-32k": replace(base_case(32768), dense=True),
    "base-64k": base_case(65536),
    "large": LARGE,
    "large-twin": replace(LARGE, dense=True),
}
HEADINGS = ("part", "GFLOP", "GB", "bound by", "predicted", "measured")
# Group of parts -> words of which one is a part of a kernel's name, or after = the whole name. The first that fits
# counts.
GROUPS = {
    "cross entropy": "cross_entropy",
    "optimizer": "adamw",
    "router": "stream_gradient weight_gradient =route",
    "order of the rows": "count_pairs place_ map_tiles",
    "embedding": "table_rows long_pieces embedding",
    "experts": "rows_product hidden_ gate_gradient matrix_gradient sum_ =up",
    "attention": "cudnn flash fmha",
    "products of a library": "nvjet gemm cutlass",
    "norms": "rms_ heads_ triton_",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The rates that a step is predicted from: of an H200, a product of 8192^3 bfloat16 numbers and a copy."""

    flop_per_s: float = 790e12
    byte_per_s: float = 4.3e12


@dataclass(frozen=True)
class Part:
    """One part of a step: all its kernels, in all blocks, forward and backward.

    `group` is what a profile can tell apart: it shows the same library kernels for projections and the readout.
    """

    name: str
    group: str
    flops: float
    num_bytes: float
    launches: int = 0
    kind: str = "library"

    def times(self, machine: Machine) -> dict[str, float]:
        """Return what the part waits for -> seconds."""
        return {
            "products": self.flops / (PRODUCT_SHARE[self.kind] * machine.flop_per_s),
            "memory": self.num_bytes / (COPY_SHARE * machine.byte_per_s),
            "gaps": self.launches * GAP_S,
        }

    def seconds(self, machine: Machine) -> float:
        products, memory, gaps = self.times(machine).values()
        return max(products, memory) + gaps


def parts_of(shape: Shape, setting: Setting) -> tuple[Part, ...]:
    """Return the parts of a step of one trial of the GPT, without biases of experts and without shared experts."""
    return (*_of_blocks(shape, setting), *_of_ends(shape, setting))


def _of_blocks(shape: Shape, setting: Setting) -> Iterator[Part]:
    """Yield the parts that each block has."""
    tokens, depth, width, context = setting.batch_tokens, shape.depth, shape.width, setting.context
    matrices, num_moe = 3 if setting.ffn == "swiglu" else 2, len(moe_blocks(shape, setting))
    num_dense, row, heads, keys = depth - num_moe, 2 * tokens * width, shape.attention_width, shape.kv_width
    joined = heads * (2 if setting.attention_gate else 1) + 2 * keys  # queries, keys, values and gates of a token
    # They and the output, each forward and with two gradients: 6 FLOPs per parameter and token.
    flops, size = depth * 6 * tokens * (joined + heads) * width, depth * 6 * tokens * (joined + heads + 2 * width)
    yield Part("attention projections", "products of a library", flops, size, depth * 6)
    normed = setting.qk_norm != "none"
    if setting.positions == "rope" or normed:
        size = depth * 2 * tokens * (heads + keys) * (5 if normed else 4)
        yield Part("norms and rotations of queries and keys", "norms", 0, size, depth * (6 if normed else 4))
    # Two products forward, five backward (the scores are computed again), half of each by causality.
    size = depth * 12 * tokens * (heads + keys)
    yield Part("attention", "attention", depth * 7 * tokens * context * heads, size, depth * 4, "attention")
    # x + y is read twice and written with its norm, and three gradients become one. A router does the same by itself.
    norms = depth + num_dense + 1
    yield Part("norms and residual stream", "norms", 0, norms * 8 * row, norms * 4)
    if num_moe:
        active, hidden, experts = shape.num_active, shape.expert_width, shape.num_experts
        size = num_moe * (9.5 * row + tokens * (12 * experts + 8 * active + 4))
        yield Part("router", "router", num_moe * 6 * tokens * width * experts, size, num_moe * 4)
        # Indices: the chosen experts, then row, slot and token of each pair, written once and read by each product.
        rows = num_moe * tokens * active
        yield Part("order of the rows", "order of the rows", 0, rows * (2 * 8 + 3 * 4 + 6 * 4), num_moe * 5)
        # Several active experts write float32 slots, which are read again and summed: the output, and the gradient.
        slots = 1 if active == 1 else 4 + 1 / active
        size = rows * 2 * (width * (matrices + 2 + 2 * slots) + hidden * (5 * matrices - 1))
        launches = num_moe * (5 + 2 * matrices)
        yield Part("experts", "experts", 6 * rows * matrices * width * hidden, size, launches, "grouped")
    if num_dense:
        hidden, rows = shape.dense_width, num_dense * tokens
        size, launches = rows * 2 * (width * 3 * matrices + hidden * (6 * matrices - 2)), num_dense * (3 * matrices + 2)
        yield Part("dense FFN", "products of a library", 6 * rows * matrices * width * hidden, size, launches)


def _of_ends(shape: Shape, setting: Setting) -> Iterator[Part]:
    """Yield the parts before and after the blocks, and of the update."""
    tokens, width, vocab = setting.batch_tokens, shape.width, setting.vocab_size
    logits = tokens * vocab * 2
    again = logits > KEPT_BYTES  # then each piece of logits is computed a second time
    yield Part("embedding", "embedding", 0, tokens * width * (4 + 2 + 2) + 4 * vocab * width, 6)
    flops = (8 if again else 6) * tokens * width * vocab
    yield Part("readout", "products of a library", flops, (4 if again else 3) * logits, 8)
    # The second read of a row comes from the cache.
    yield Part("cross entropy", "cross entropy", 0, (4 if again else 2) * logits, 4)
    specs = gpt_parameters(shape, setting)
    params = sum(spec.numel * spec.layers for spec in specs)
    # Parameters are read in float32 and written in bfloat16 for the products, and gradients are widened to float32.
    yield Part("rounded weights", "norms", 0, (6 + 6) * params, 4 * shape.depth)
    yield Part("optimizer", "optimizer", 0, 28 * params, sum(spec.layers for spec in specs))


def trial_of(case: Case) -> Trial:
    with TemporaryDirectory() as folder:
        return trials(replace(case, steps=1), 1, Path(folder))[0]


def rows_of(name: str, machine: Machine, measured_us: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return the parts of a case, the slowest first, and the whole step. The cells are those of HEADINGS.

    `measured_us` are microseconds by group. They stand beside the first part of their group.
    """
    trial = trial_of(CASES[name])
    parts = parts_of(trial.shape, trial.setting)
    left, rows = dict(measured_us), []
    for part in sorted(parts, key=lambda part: -part.seconds(machine)):
        cell = f"see {part.group}" if part.group in measured_us else "not found" if measured_us else UNMEASURED
        if part.group in left:
            cell = _ms(left.pop(part.group) / 1e6)
        counted, times = (f"{part.flops / 1e9:.0f}", f"{part.num_bytes / 1e9:.2f}"), part.times(machine)
        rows.append((part.name, *counted, max(times, key=times.__getitem__), _ms(part.seconds(machine)), cell))
    rows += [(group, "", "", "", "", _ms(us / 1e6)) for group, us in left.items()]
    seconds = sum(part.seconds(machine) for part in parts)
    total = _ms(sum(measured_us.values()) / 1e6) if measured_us else UNMEASURED
    speed = f"{trial.setting.batch_tokens / seconds / 1e6:.3g} M tokens/s"
    return [*rows, (f"a step: {speed} predicted", "", "", "", _ms(seconds), total)]


def measured_groups(name: str, folder: Path) -> dict[str, float]:
    """Return group -> microseconds as the last acceptance in `folder` profiled the case. Only the base is profiled."""
    path = folder / "accept.jsonl"
    lines = path.read_text().splitlines() if name == BASE and path.exists() else []
    steps = [line for line in map(json.loads, lines) if line.get("key") == "step-us"]
    return groups_of(steps[-1].get("top", ())) if steps else {}


def groups_of(kernels: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Return group -> microseconds of a profile: rows (microseconds, launches, name) of the kernels of one step."""
    out: dict[str, float] = {}
    words = [(group, word) for group, words in GROUPS.items() for word in words.split()]
    for us, _, name in kernels:
        fits = (group for group, word in words if (f"={name}" == word if word[0] == "=" else word in name))
        group = next(fits, "others")
        out[group] = out.get(group, 0.0) + float(us)
    return out


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="roofline.py", description="Predict the time of each part of a GPU step.")
    parser.add_argument("--case", choices=CASES, default=BASE)
    parser.add_argument("--tflops", type=float, default=790, help="the GPU's bfloat16 peak in TFLOP/s")
    parser.add_argument("--tb-s", type=float, default=4.3, help="the GPU's copy bandwidth in TB/s")
    options = parser.parse_args(arguments)
    machine = Machine(flop_per_s=options.tflops * 1e12, byte_per_s=options.tb_s * 1e12)
    groups = measured_groups(options.case, Path(__file__).parents[2] / "results" / "bench")
    sys.stdout.write("\n".join([*aligned([HEADINGS, *rows_of(options.case, machine, groups)]), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
