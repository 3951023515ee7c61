"""Train a finished trial again for its weights, and hold its losses against the stored ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from hpxfer.errors import HpxferError
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.train.device import setup_for
from hpxfer.train.provenance import provenance
from hpxfer.train.snapshot import Snapshot
from hpxfer.train.trainer import train
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack
from hpxfer.weights.trained import TrialWeights, weights_of

# How far the losses of another machine or another torch may lie from the stored ones, as a share of them.
TOLERANCE = 0.005


def trained_again(trial: Trial, stored: Mapping[str, Any], device: str = "auto") -> TrialWeights:
    """Return the weights of a trial after its training, which is done again.

    `stored` is its row in the store. Raises HpxferError if the losses differ: by a single bit on the same type of
    machine and build of torch, by more than TOLERANCE elsewhere.
    """
    kept: list[Snapshot] = []
    determinism = stored.get("determinism") or None
    events = train(Stack(trials=(trial,)), device, determinism=determinism, at_end=kept.append)
    results = [result for event in events if isinstance(event, Ended) for result in event.results]
    check_losses(trial, stored, results[0], same_machine(stored, device, determinism))
    if not kept:
        raise HpxferError(f"trial {trial.id}: must finish its training, got {results[0].status}; choose another")
    snapshot = kept[0]
    with torch.no_grad():
        return weights_of(trial, 0, snapshot.layout, snapshot.parameters, snapshot.router_bias)


def same_machine(stored: Mapping[str, Any], device: str, determinism: str | None) -> bool:
    """Return whether this machine promises the bits of a stored trial: the same device, torch and strict kernels."""
    own = provenance(setup_for(device, determinism, "auto"))
    versions = [json.loads(found or "{}").get("torch") for found in (stored.get("versions"), own["versions"])]
    names = ("device", "determinism", "backend", "kernel_configs")
    return (
        versions[0] == versions[1]
        and own["determinism"] == "strict"
        and all((stored.get(name) or None) == own[name] for name in names)
    )


def check_losses(trial: Trial, stored: Mapping[str, Any], again: TrialResult, exact: bool) -> None:
    """Raise HpxferError unless the losses are those that are stored."""
    for column in LOSS_COLUMNS.values():
        old, new = stored[column], getattr(again, column)
        near = new is not None and (old == new if exact else math.isclose(old, new, rel_tol=TOLERANCE))
        if not near:
            how = "bit for bit, on the same type of machine" if exact else f"to {TOLERANCE:.1%}, on another machine"
            raise HpxferError(
                f"trial {trial.id}: trained again, {column} must be the stored {old!r} {how}, got {new!r}; its weights "
                "would be others than those that were measured, so none are written"
            )
