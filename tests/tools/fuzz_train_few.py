"""A script of the fuzz: train a few trials of each shape of a small sweep, in this process.

    python fuzz_train_few.py sweep.yaml

It raises where a result is none: a trial that failed, a loss that is not finite, or an error that is no share.
"""

from __future__ import annotations

import math
import sys
from itertools import islice
from typing import Any

from hpxfer.errors import HpxferError

_MOST = 3e7  # parameters times samples times steps


def train_few(path: str) -> None:
    """Train at most four trials of each shape, in one stack."""
    from hpxfer.driver.prepared import prepare
    from hpxfer.model.cost import count_params
    from hpxfer.train.trainer import train
    from hpxfer.trial.stack import Stack

    expansion = prepare(path).expansion
    groups: dict[Any, list[Any]] = {}
    for trial in islice(expansion.trials(), 500):
        groups.setdefault((trial.shape, trial.setting.of_stack), []).append(trial)
    for (shape, setting), trials in groups.items():
        if count_params(shape, setting).total * setting.batch_tokens * setting.steps * len(trials[:4]) > _MOST:
            sys.stdout.write("too large to train here\n")
            continue
        *_, ended = train(Stack(trials=tuple(trials[:4])), "cpu")
        for result in ended.results:
            _require_sound(result)
    sys.stdout.write(f"{len(groups)} stacks are sound\n")


def _require_sound(result: Any) -> None:
    """Raise AssertionError unless a trial diverged, or has numbers that a model can have."""
    if result.status == "diverged":
        return
    assert result.status == "finished", (result.status, result.error)
    losses = (result.validation_loss_nats, result.final_window_loss_nats)
    assert all(loss is not None and math.isfinite(loss) and loss >= 0 for loss in losses), losses
    error, top5 = result.validation_error, result.validation_top5_error
    assert error is None or 0 <= (top5 or 0) <= error <= 1, (error, top5)


if __name__ == "__main__":
    try:
        train_few(sys.argv[1])
    except HpxferError as error:
        sys.stderr.write(f"hpxfer: {error}\n")
        sys.exit(2)
