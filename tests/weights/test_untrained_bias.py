"""Weights of a model whose router bias is drawn: a reader's own forward pass needs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from safetensors import safe_open
from safetensors.numpy import load_file
from sweep_text import SAMPLES, edited

from hpxfer.data.batches import open_data
from hpxfer.driver import run
from hpxfer.results import load_results

OPTIONS = "num_active: 2, expert_width: 16}}\n  mlp: {{activation: relu, input_activation: relu, router_bias: {}}}"


@pytest.mark.first
@pytest.mark.parametrize("bias", ["none", "learned", "fixed", "schedule"])
def test_the_stored_loss_follows_from_the_file(bias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = edited(
        ("num_active: 4, expert_width: 16}", OPTIONS.format(bias)),
        ("shapes: [{width: 64, expert_width: 32}]", "values: [32]"),
        ("steps: 200", "steps: 20"),
        ("seeds: 2", "seeds: 1\nresources: {executor: local, keep: last}"),
        ("[mup-i, sp]", "[mup-i]"),
        ("lr: [0.01]", "lr: [0.5]"),
        ("validation_samples: 1024", "validation_samples: 128"),
        text=SAMPLES,
    )
    (tmp_path / "s.yaml").write_text(text)
    run(tmp_path / "s.yaml", results=tmp_path / "results")
    results = load_results(tmp_path / "results" / "small")
    code, _, err = hpxfer(capsys, "weights", tmp_path / "results" / "small", "--best", "--out", tmp_path / "w")
    assert code == 0, err
    w = load_file(tmp_path / "w" / "model.safetensors")
    with safe_open(tmp_path / "w" / "model.safetensors", framework="np") as file:
        forward = {role: row["forward"] for role, row in json.loads(file.metadata()["hpxfer"])["roles"].items()}
    assert ("untrained_bias" in w) == (bias in ("fixed", "schedule"))
    (trial,) = results.expansion.trials()
    losses = []
    for inputs, classes in open_data(trial.setting).validation_batches():
        h = np.maximum(inputs @ w["input"] * forward["embedding"], 0)
        logits = h @ w["router.0"] * forward["router"] + w.get("router_logit_bias.0", 0)
        logits = logits + (w["untrained_bias"][0] if "untrained_bias" in w else 0)
        gates = 1 / (1 + np.exp(-logits))
        gates[gates < np.sort(gates, 1)[:, -2:-1]] = 0
        hidden = np.maximum(np.einsum("pn,ehn->peh", h, w["expert_in.0"]), 0)
        out = np.einsum("pe,peh,ehn->pn", gates, hidden, w["expert_out.0"]) * forward["expert_out"]
        f = out @ w["readout"] * forward["readout"]
        losses += (np.log(np.exp(f).sum(1)) - f[np.arange(len(f)), classes]).tolist()
    assert np.mean(losses) == pytest.approx(results.trials["validation_loss_nats"].item(), rel=1e-5)
