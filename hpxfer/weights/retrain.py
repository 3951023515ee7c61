"""Train a finished trial again for its weights, and hold its losses against the stored ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from hpxfer.errors import HpxferError
from hpxfer.store.losses import LOSS_NUMBERS
from hpxfer.train.device import Setup, setup_for
from hpxfer.train.provenance import provenance
from hpxfer.train.snapshot import Moment
from hpxfer.train.trainer import train
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack
from hpxfer.weights.trained import TrialWeights, weights_of

# How far the losses of another machine or another torch may lie from the stored ones, as a share of them.
TOLERANCE = 0.005


def trained_again(
    trial: Trial, stored: Mapping[Any, Any], device: str = "auto", step: int | None = None
) -> TrialWeights:
    """Return the weights of a trial after its training, which is done again, or after an earlier step of it.

    `stored` is its row in the store. A trial of a CPU is trained on a CPU unless `device` says otherwise. Raises
    HpxferError if the losses differ: by a single bit on the same type of machine and build of torch, by more than
    TOLERANCE elsewhere.
    """
    kept: list[TrialWeights] = []

    def keep(moment: Moment) -> None:
        if step in (None, moment.step):
            found = moment.snapshot
            with torch.no_grad():
                kept.append(weights_of(trial, moment.rows[trial.id], found.layout, found.parameters, found.router_bias))

    on_cpu = device == "auto" and stored.get("device") == "cpu"
    setup = setup_for("cpu" if on_cpu else device, _text(stored.get("determinism")), "auto")
    events = train(
        Stack(trials=(trial,)),
        setup.device.type,
        determinism=setup.determinism,
        keep=keep,
        keep_at=() if step is None else (step,),
    )
    results = [result for event in events if isinstance(event, Ended) for result in event.results]
    check_losses(trial, stored, results[0], is_exact=promises_bits(stored, setup))
    return kept[0]


def promises_bits(stored: Mapping[Any, Any], setup: Setup) -> bool:
    """Return whether a training here has the bits of a stored one: strict, on the same device, torch and kernels.

    A result that does not name its CPU was trained on this one if it was trained on this machine.
    """
    own = provenance(setup)
    torch_of = [json.loads(_text(found) or "{}").get("torch") for found in (stored.get("versions"), own["versions"])]
    names = ["device", "determinism", "backend", "kernel_configs"]
    names += ["cpu"] if _text(stored.get("cpu")) else ["host"]
    return (
        own["determinism"] == "strict"
        and torch_of[0] == torch_of[1]
        and all(_text(stored.get(name)) == own[name] for name in names)
    )


def _text(value: Any) -> str | None:
    """Return a text of a table. What is missing may be spelled as a NaN there."""
    return value if isinstance(value, str) else None


def check_losses(trial: Trial, stored: Mapping[Any, Any], again: TrialResult, *, is_exact: bool) -> None:
    """Raise HpxferError unless the losses are those that are stored."""
    for column in LOSS_NUMBERS:
        old, new = stored.get(column), getattr(again, column)
        if new is None and (old is None or math.isnan(old)):
            continue  # the data has no such loss
        near = (
            old is not None
            and new is not None
            and (old == new if is_exact else math.isclose(old, new, rel_tol=TOLERANCE))
        )
        if not near:
            how = "bit for bit, on the same type of machine" if is_exact else f"to {TOLERANCE:.1%}, on another machine"
            got = again.status if new is None else repr(new)
            raise HpxferError(
                f"trial {trial.id}: {column}, trained again, must be the stored {old!r} {how}, got {got}; no weights "
                "are written, as they would not be those that were measured; train where the sweep was trained, or set "
                "resources.keep: last and run the sweep in a new folder"
            )
