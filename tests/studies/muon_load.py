"""What Muon does to experts that see few tokens: `PYTHONPATH=tests/helpers python tests/studies/muon_load.py`.

An orthogonalized step has full size however small the gradient is. Two measurements, in an MoE of width 32:

    load       16 experts, one active. The RMS of an expert's update over the LR, by how many tokens chose it
    absence    4 of 8 experts get no tokens for 60 steps, and return. The loss before, on return and at the end, where
               they take no step meanwhile (as the trainer has it), and where their old momentum keeps moving them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from record import head, keep

from hpxfer.data import data_ref
from hpxfer.scaling.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack, Trial, setting_of

LR, ADAMW_LR = 0.04, 0.016
BINS = (0, 1, 2, 8, 32, 128, 2**20)  # tokens of an expert
AWAY = 60  # steps without tokens
_SWEEP = """\
name: muon-load
model:
  family: gpt
  base: {{width: 32, depth: 2, num_experts: {experts}, num_active: 1, expert_ratio: 1, head_dim: 16}}
  context: 64
  norm: rmsnorm
  tied_embeddings: false
  norm_gains: false
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: {tokens}, steps: {steps}, validation_tokens: 4096, optimizer: muon}}
parameterizations: [completep-moe]
axes: {{width: [32]}}
hps: {{adamw_lr: 0.016}}
grid: {{lr: [0.04]}}
"""


def state_of(experts: int, tokens: int, steps: int, seed: int) -> TrainState:
    """Return the state of one trial of Muon."""
    spec = parse_sweep(_SWEEP.format(experts=experts, tokens=tokens, steps=steps), "muon-load")
    trial = Trial(
        id="muon-load",
        setting=setting_of(spec, data_ref(spec.data)),
        shape=spec.base_shape,
        base=spec.base_shape,
        parameterization=None,
        hps=HPs(lr=LR, adamw_lr=ADAMW_LR, eps=1e-8, momentum=0.95),
        seed=seed,
    )
    return TrainState(Stack(trials=(trial,)), torch.device("cpu"))


def by_load(steps: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield for each number of tokens the RMS of the update of expert_in over the LR, after 10 steps."""
    found: dict[int, list[float]] = {}
    for seed in range(seeds):
        state = state_of(16, 512, steps, seed)
        for step in range(steps):
            before = [copy.clone() for copy in state.weights["expert_in"]]
            output, grads = state.forward_backward(step)
            state.update(output, grads)
            for layer, (old, new) in enumerate(zip(before, state.weights["expert_in"], strict=True)):
                for expert, moved in enumerate((new - old)[0].detach().square().mean((1, 2)).sqrt().tolist()):
                    tokens = round(float(output.load_LKE[layer, 0, expert]))
                    if step >= 10:
                        place = sum(tokens >= low for low in BINS) - 1
                        found.setdefault(place, []).append(moved / LR)
    for place, values in sorted(found.items()):
        rms = sum(value**2 for value in values) ** 0.5 / len(values) ** 0.5
        yield {
            "tokens": f"{BINS[place]} to {BINS[place + 1] - 1}",
            "updates": len(values),
            "rms_over_lr": round(rms, 4),
        }


def absence(seed: int, *, masked: bool) -> dict[str, Any]:
    """Return the losses where half of the experts are away for a while. Without the mask they see 1e-30."""
    state, losses = state_of(8, 1024, 60 + 2 * AWAY, seed), []
    for step in range(60 + 2 * AWAY):
        away = 60 <= step < 60 + AWAY
        if away:
            state.router_bias[..., 4:] = -1e6  # the gates choose by this, and weigh without it
        if step == 60 + AWAY:
            state.router_bias.zero_()
        output, grads = state.forward_backward(step)
        if away and not masked:
            for name in ("expert_in", "expert_out"):
                for grad in grads[name]:
                    grad[:, 4:] += 1e-30
        losses.append(float(output.losses_KT.detach().mean()))
        state.update(output, grads)
    back = 60 + AWAY
    found = {"before": losses[55:60], "on_return": losses[back : back + 1], "end": losses[-20:]}
    return {"seed": seed, "masked": masked, **{name: round(sum(of) / len(of), 3) for name, of in found.items()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python tests/studies/muon_load.py", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="append the numbers to muon_load.jsonl in this folder")
    asked = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(asked)
    load = list(by_load(given.steps, given.seeds))
    away = [absence(seed, masked=masked) for seed in range(given.seeds) for masked in (True, False)]
    for row in (*load, *away):
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in row.items()) + "\n")
    keep({**head("muon_load", asked, "torch"), "load": load, "absence": away}, given.output, "muon_load")
    return 0


if __name__ == "__main__":
    sys.exit(main())
