"""Runs as somebody else's trainer would leave them. Nothing here shares code with the verdict or its planted tests."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def foreign_loss(log2_lr: float, best: float, level: float, rng: random.Random, noise: float) -> float:
    """Return a loss with a basin that is no parabola: it rises faster above the best LR than below it."""
    off = log2_lr - best
    rise = 0.035 * off**2 / (1 + 0.12 * abs(off)) if off < 0 else 0.035 * off**2 * (1 + 0.15 * off)
    return level + rise + rng.gauss(0.0, noise)


def foreign_table(
    octaves_per_doubling: dict[str, float],
    *,
    seed: int,
    widths: Sequence[int] = (256, 512, 1024),
    log2_lrs: Sequence[int] = tuple(range(-13, -5)),
    seeds: Sequence[int] = (0, 1, 2, 3),
    noise: float = 0.004,
) -> pd.DataFrame:
    """Return a table with an arm per name whose best LR moves by so much per doubling of the width."""
    rng = random.Random(seed)
    start = rng.uniform(-9.4, -8.6)
    rows: list[dict[str, Any]] = []
    for arm, slope in octaves_per_doubling.items():
        for number, width in enumerate(widths):
            for log2_lr in log2_lrs:
                for own in seeds:
                    loss = foreign_loss(log2_lr, start + slope * number, 3.3 - 0.15 * number, rng, noise)
                    rows.append({"method": arm, "width": width, "lr": 2.0**log2_lr, "seed": own, "loss": loss})
    return pd.DataFrame(rows)


def write_events(folder: Path, tag: str, points: Iterable[tuple[int, float]], start: float = 1e6) -> None:
    """Write (step, value) into a new event file of TensorBoard, a second apart, as a trainer's own writer does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"events.out.tfevents.{start:.0f}").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
        for at, (step, value) in enumerate(points):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.write(Event(wall_time=start + at, step=step, summary=summary).SerializeToString())


def step_law_like(seed: int = 3) -> pd.DataFrame:
    """Return a table as a grid over many shapes leaves it: one seed, one arm, LRs rounded in two ways, sizes mixed.

    The best LR falls with the tokens and rises with the batch. Width and depth grow together. Some runs blew up finite.
    """
    rng = random.Random(seed)
    lrs = [2.0 ** (-half / 2) for half in range(12, 26)]
    rows: list[tuple[Any, ...]] = []
    for hidden, layers in ((512, 4), (1024, 8)):
        for tokens in (2e9, 4e9, 8e9):
            for batch in (64, 128, 256):
                steps = round(tokens / (batch * 2048))
                doublings = {2e9: 0, 4e9: 1, 8e9: 2}[tokens]
                best = -9.0 - 0.3 * doublings + 0.4 * {64: -1, 128: 0, 256: 1}[batch] - (0.3 if hidden > 512 else 0)
                for lr in lrs:
                    spelled = f"{lr:.3g}" if rng.random() < 0.5 else f"{lr:.6e}"
                    loss = foreign_loss(math.log2(lr), best, 3.0 - 0.08 * doublings, rng, 0.003)
                    if lr > 2.0**-6.2 and rng.random() < 0.3:
                        loss = 7.0 + rng.random()
                    texts = spelled, batch, f"{tokens:.0f}", steps, f"{loss:.4f}", f"{loss + rng.gauss(0, 0.03):.4f}"
                    rows.append((hidden, layers, *texts))
    return pd.DataFrame(rows, columns=["h", "numl", "lr", "bs", "D", "ti", "loss", "smooth loss"])
