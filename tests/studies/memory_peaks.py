"""Hold the model of memory against this machine's CPU: `python tests/studies/memory_peaks.py`.

It prints, for a few stacks, the model's bytes, the peak of the resident memory above a process that trained a tiny
stack, and their ratio. `hpxfer.plan.footprint.CPU_ALLOCATOR` comes from it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))

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
    """Return the peak of this process's resident memory in bytes. On Linux, `getrusage` includes who started it."""
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024


def main(stack: list[int]) -> None:
    """Measure one stack in this process, or without one each of them in a process of its own."""
    if not stack:
        for one in STACKS:
            subprocess.run([sys.executable, __file__, *map(str, one)], check=True)
        return
    trained(32, 1, stack[2])
    idle = resident()
    model = trained(*stack)
    above = resident() - idle
    where = "width {}, {} trials, depth {}".format(*stack)
    sys.stdout.write(f"{where}: model {model / 2**20:.0f} MiB, resident {above / 2**20:.0f} MiB, {above / model:.2f}\n")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
