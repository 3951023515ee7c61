"""Trials small enough to train in a test, and what of their results is a number of the trial itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpxfer.data.sources import open_dataset
from hpxfer.scaling.evaluate import BaseInit, parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

BASE = Shape(width=16, depth=2, num_experts=4, num_active=1, expert_width=16, head_dim=8)
# Every ratio differs from 1; kappa and head_dim stay.
JOINT = Shape(width=32, depth=3, num_experts=8, num_active=2, expert_width=64, head_dim=8)
VOCAB = 128
HPS = HPs(lr=2.0**-6, eps=1e-12, weight_decay=0.1)

SETTING = Setting(
    family="gpt",
    context=16,
    gate="sigmoid",
    ffn="gelu",
    moe_every=1,
    dense_first=0,
    attention_scale="1/d_head",
    tied_embeddings=False,
    norm_gains=False,
    biases=False,
    init=BaseInit(embedding_std=0.5, position_std=0.5),
    data_source="text:unused",
    data_digest="unused",
    tokenizer="ascii",
    vocab_size=VOCAB,
    batch_tokens=64,
    steps=6,
    optimizer="adamw",
    decay="constant",
    warmup_steps=2,
    decay_steps=0,
    final_fraction=0.0,
    final_window_steps=2,
    validation_tokens=128,
    gradient_clip=None,
    precision="float32",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread: on tensors this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text_setting(folder: Path) -> Setting:
    """Return SETTING with data: random words of a few letters, written to `folder`."""
    rng = np.random.default_rng(0)
    words = [rng.integers(97, 123, size=rng.integers(1, 7), dtype=np.uint8).tobytes() for _ in range(40)]
    path = folder / "words.txt"
    path.write_bytes(b" ".join(words[i] for i in rng.integers(0, len(words), size=8000)))
    source = f"text:{path}"
    dataset = open_dataset(source)
    assert dataset is not None
    return replace(SETTING, data_source=source, data_digest=dataset.digest())


def trial(
    setting: Setting, shape: Shape = BASE, name: str = "sp", *, seed: int = 0, hps: HPs = HPS, **changed: Any
) -> Trial:
    """Return a trial with base shape BASE; `changed` are HPs."""
    return Trial(
        id=f"{shape.label()} {name} seed{seed} {sorted(changed.items())}",
        setting=setting,
        shape=shape,
        base=BASE,
        parameterization=parameterization(name),
        hps=replace(hps, **changed),
        seed=seed,
    )


def trained(*trials: Trial, device: str = "cpu") -> tuple[TrialResult, ...]:
    """Return the results of one stack."""
    *_, ended = train(Stack(trials=trials), device)
    assert isinstance(ended, Ended)
    return ended.results


def numbers(result: TrialResult) -> dict[str, Any]:
    """Return what a trial's spec alone determines: all but time, place and company."""
    names = (
        "trial_id",
        "status",
        "final_window_loss_nats",
        "validation_loss_nats",
        "diverged_step",
        "last_finite_loss_nats",
        "curves",
    )
    return {name: getattr(result, name) for name in names}


def random_like(reference: torch.Tensor, seed: int, std: float = 1.0) -> torch.Tensor:
    """Return normal numbers of the same size and dtype."""
    generator = torch.Generator().manual_seed(seed)
    return std * torch.randn(reference.shape, generator=generator).to(reference.dtype)
