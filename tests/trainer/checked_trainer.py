"""A small torch training in the function form, with a switch for each fault that a check of trainers looks for."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hpxfer.driver import prepare
from hpxfer.store.trainer_checks import TrainerChecks
from hpxfer.trainer.check_trials import Evidence, check_trials, evaluate
from hpxfer.trainer.job import CONTRACT, config_of
from hpxfer.trainer.user_trial import UserTrial
from hpxfer.trial import Trial
from hpxfer.trial.result import TrialResult

VOCAB, FLOOR = 64, 2e-3
_CALLS = count()  # of trainings that do not repeat, in this process
ROLES = {"embed.weight": "embedding", "*.up.weight": "dense_in", "*.down.weight": "dense_out", "head.weight": "readout"}
SITES = {"blocks.[0-9]": "dense_out", "head": "readout"}
SWEEP = """
name: checked
trainer: {{function: "checked_trainer:train", files: [checked_trainer.py], folder: {folder}, args: {{fault: {fault}}}}}
model:
  family: user
  own: {{d_model: 32, n_layer: 2, d_ff: 64}}
  dims: {{width: d_model, depth: n_layer, dense_width: d_ff, head_dim: 16}}
training: {{steps: 40, batch_tokens: 64, schedule: {{decay: cosine, warmup: 8, final_fraction: 0.05}}}}
parameterizations: [completep, sp]
axes: {{size: {{shapes: [{{own: {{d_model: 128, n_layer: 2, d_ff: 256}}}}], scale: d_model}}}}
grid: {{lr: {{log2: [-9, -5]}}}}
seeds: 2
"""


class FFN(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, d_model: int, n_layer: int, d_ff: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d_model)
        self.blocks = nn.ModuleList(FFN(d_model, d_ff) for _ in range(n_layer))
        self.head = nn.Linear(d_model, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def train(trial: UserTrial) -> dict[str, float]:
    """Train the model by the recipe, but for the fault that `args` names."""
    fault = trial.args["fault"]
    seed = 0 if fault == "seed ignored" else trial.seed
    draws = torch.Generator().manual_seed(seed)
    model = Model(**trial.shape)
    assert trial.recipe is not None
    sites = {name: key for name, key in SITES.items() if (fault, key) != ("multiplier missing", "readout")}
    others = [key for key in trial.recipe.forward_multipliers() if key not in sites.values()]
    trial.recipe.attach(model, sites, by_hand=others)
    trial.recipe.init_(model, ROLES, generator=draws)
    if fault == "init overwritten":
        for block in model.blocks:
            nn.init.kaiming_uniform_(block.up.weight, a=math.sqrt(5), generator=draws)
    groups = trial.recipe.param_groups(model, ROLES)
    if fault == "groups not applied":
        numbers = {name: trial.hps[name] for name in ("lr", "eps", "weight_decay")}
        optimizer = torch.optim.AdamW(model.parameters(), betas=(trial.hps["beta1"], trial.hps["beta2"]), **numbers)
    else:
        optimizer = torch.optim.AdamW(groups)
    if fault == "HP not wired":
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["peak_lr"] = 0.005
    peaks = [group["lr"] for group in optimizer.param_groups]
    trial.watch(model, optimizer, ROLES, sites=SITES)
    for step in range(trial.steps):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * _factor(step, trial)
            if fault == "schedule with a floor":
                group["lr"] = max(group["lr"], FLOOR)
        tokens = torch.randint(VOCAB, (8, 9), generator=draws)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), (tokens[:, 1:] // 2).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        noise = 0.5 * (next(_CALLS) % 2) if fault == "does not repeat" and step == trial.steps - 1 else 0.0
        trial.report(step, loss.item() + noise, tokens=64 * (step + 1))
    return {"validation": loss.item() + noise}


def _factor(step: int, trial: UserTrial) -> float:
    warmup = trial.schedule["warmup_steps"]
    if step < warmup:
        return (step + 1) / warmup
    share = (step - warmup) / max(1, trial.steps - 1 - warmup)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2


def sweep_file(folder: Path, fault: str = "none") -> Path:
    """Write the sweep of this trainer with a fault, and return its file."""
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.format(folder=json.dumps(str(Path(__file__).parent)), fault=json.dumps(fault)))
    return path


def checks_of(folder: Path, fault: str = "none") -> TrainerChecks:
    """Run the short trials of the trainer in this process, and return what they show."""
    prepared = prepare(sweep_file(folder, fault), results=folder / "results")
    trials = check_trials(prepared.expansion)
    return evaluate({name: _run(trial, prepared.spec.trainer, folder / "runs") for name, trial in trials.items()})


def _run(trial: Trial, trainer: Any, runs: Path) -> Evidence:
    attempt = runs / trial.id / "attempt-1"
    attempt.mkdir(parents=True)
    config = {
        **config_of(trial, trainer, sweep="checked", gpus=0, nodes=1),
        "check": True,
        "contract": CONTRACT,
        "trial": trial.id,
        "attempt": 1,
        "report_file": str(attempt / "reports.jsonl"),
        "checkpoint_dir": str(attempt / "ckpt"),
        "resume": None,
    }
    user = UserTrial.of(json.loads(json.dumps(config)))
    returned = train(user)
    user.result(returned)
    result = TrialResult(trial_id=trial.id, status="finished", validation_loss_nats=returned["validation"])
    return Evidence(trial, result, runs)
