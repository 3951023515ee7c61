"""Hold the model of memory against this machine's CPU.

`python tests/studies/memory_peaks.py` prints, for a few stacks, the model's bytes, the peak of the resident memory
above a process that trained a tiny stack, and their ratio. `hpxfer.plan.footprint.CPU_ALLOCATOR` comes from it.

`python tests/studies/memory_peaks.py --random 30 --seed 7` trains random stacks and prints the model's bytes over the
most bytes that torch had allocated at once.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

# Width, trials and depth of each stack.
STACKS = ((64, 16, 2), (128, 16, 2), (256, 16, 2), (512, 4, 2), (128, 8, 8))


def trained(width: int, trials: int, depth: int) -> int:
    """Train a stack for a few steps and return the bytes of the model of its memory."""
    from tiny_trials import text_setting, trial

    from hpxfer.plan.footprint import footprint
    from hpxfer.scaling.shape import Shape
    from hpxfer.train.trainer import train
    from hpxfer.trial.stack import Stack

    shape = Shape(width=width, depth=depth, head_dim=32, num_experts=4, num_active=1, expert_width=width)
    with tempfile.TemporaryDirectory() as folder:
        setting = replace(text_setting(Path(folder)), batch_tokens=512, steps=6, validation_tokens=512)
        list(train(Stack(trials=tuple(trial(setting, shape, seed=k) for k in range(trials))), "cpu"))
    return footprint(shape, setting, trials, cuda=False).total


def resident() -> int:
    """Return the peak of this process's resident memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def random_case(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the dimensions of a shape, changes of a setting, and a number of trials."""
    from hpxfer.spec.balance import Balance

    width, tokens = draw.choice([32, 64, 128, 256]), draw.choice([128, 512, 1024, 4096])
    dims: dict[str, Any] = {"width": width, "depth": draw.choice([1, 2, 3, 5]), "head_dim": draw.choice([16, 32])}
    if draw.random() < 0.2:
        dims["dense_width"] = draw.choice([64, 256])
    else:
        experts = draw.choice([1, 2, 4, 8, 16])
        active = draw.choice([number for number in (1, 2, 4) if number <= experts])
        dims |= {"num_experts": experts, "num_active": active, "expert_width": draw.choice([32, 64, 128, 256])}
        if draw.random() < 0.3:
            dims |= {"num_shared": draw.choice([1, 2]), "shared_width": draw.choice([32, 96])}
    if width // dims["head_dim"] > 1 and draw.random() < 0.5:
        dims["kv_heads"] = width // dims["head_dim"] // 2
    changes = {
        "ffn": draw.choice(["gelu", "relu", "swiglu"]),
        "norm": draw.choice(["layernorm", "rmsnorm"]),
        "qk_norm": draw.choice(["none", "none", "head", "all"]),
        "positions": draw.choice(["learned", "rope", "none"]),
        "attention_gate": draw.random() < 0.2,
        "shared_expert_gate": draw.random() < 0.5 and "num_shared" in dims,
        "norm_gains": draw.random() < 0.5,
        "biases": draw.random() < 0.3,
        "tied_embeddings": draw.random() < 0.3,
        "optimizer": draw.choice(["adamw", "sgd"]),
        "gate": draw.choice(["sigmoid", "softmax", "normalized_softmax"]),
        "balance": Balance(aux=draw.choice(["none", "switch", "sequence", "transformers"])),
        "vocab_size": draw.choice([128, 1024, 8192]),
        "gradient_clip": draw.choice([None, 1.0]),
        "document_eos": draw.choice([None, None, ord("e")]),
        "precision": draw.choice(["float32", "bfloat16"]) if width <= 64 else "float32",
        "batch_tokens": tokens,
        "validation_tokens": tokens,
        "steps": 3,
    }
    if draw.random() < 0.5:
        pieces = draw.choice([2, 4])
        changes |= {"accumulation_tokens": tokens // pieces, "accumulation_lanes": draw.choice([1, 2])}
    return dims, changes, draw.choice([1, 2, 5, 12]) if width < 128 else draw.choice([1, 2])


def random_cases(number: int, seed: int) -> None:
    """Print the ratio of each case, then the smallest and the largest."""
    import torch
    from allocations import allocated_peak
    from tiny_trials import text_setting, trial

    from hpxfer.plan.footprint import Way, footprint
    from hpxfer.scaling.shape import Shape
    from hpxfer.train.trainer import train
    from hpxfer.trial.stack import Stack

    torch.set_num_threads(1)
    draw, ratios = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        base = text_setting(Path(folder))
        for _ in range(number):
            dims, changes, count = random_case(draw)
            shape, setting = Shape(**dims), replace(base, **changes)
            # The model counts the moments of momentum for every SGD, because HPs are not known to it.
            momentum = 0.9 if setting.optimizer == "sgd" else 0.0
            weight = 0.01 if shape.num_experts and setting.balance.aux != "none" else 0.0
            hps = {"momentum": momentum, "aux_weight": weight}
            pieces = draw.choice([number for number in (1, 2, 4) if setting.pieces_per_lane % number == 0])
            way = Way(pieces=pieces, recompute=draw.random() < 0.5)
            trials = tuple(trial(setting, shape, seed=k, **hps) for k in range(count))
            stack = Stack(trials=trials, pieces=way.pieces, recompute=way.recompute)
            model = footprint(shape, setting, count, cuda=False, way=way)
            ratios.append(model.total / allocated_peak(lambda stack=stack: list(train(stack, "cpu"))))
            sys.stdout.write(f"{ratios[-1]:.3f} {model.moment}: {count} trials of {shape.label()}, {way}, {changes}\n")
    sys.stdout.write(f"{number} cases: {min(ratios):.3f} to {max(ratios):.3f}\n")


def main(arguments: list[str]) -> int:
    """Measure one stack in this process, each in a process of its own, or random ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("stack", nargs="*", type=int, metavar="WIDTH TRIALS DEPTH")
    parser.add_argument("--random", type=int, metavar="CASES")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    if asked.random:
        random_cases(asked.random, asked.seed)
    elif asked.stack:
        resident_of(*asked.stack)
    else:
        for stack in STACKS:
            subprocess.run([sys.executable, __file__, *map(str, stack)], check=True)
    return 0


def resident_of(width: int, trials: int, depth: int) -> None:
    """Print the resident memory that a stack takes in this process."""
    trained(32, 1, depth)
    idle = resident()
    model = trained(width, trials, depth)
    above = resident() - idle
    where = f"width {width}, {trials} trials, depth {depth}"
    sys.stdout.write(f"{where}: model {model / 2**20:.0f} MiB, resident {above / 2**20:.0f} MiB, {above / model:.2f}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
