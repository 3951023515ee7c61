"""Kept: the weights that a run stored beside its results, or else those of the trial trained again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpxfer.trial import Trial
from hpxfer.weights.files import read_own
from hpxfer.weights.retrain import trained_again
from hpxfer.weights.trained import TrialWeights

FOLDER, SUFFIX = "weights", ".safetensors"  # below the results


def weights_from(results: Path, trial: Trial, stored: Mapping[Any, Any], device: str = "auto") -> TrialWeights:
    """Return the weights of a finished trial of a results folder. `stored` is its row in the store."""
    path = results / FOLDER / f"{trial.id}{SUFFIX}"
    return read_own(path, trial) if path.is_file() else trained_again(trial, stored, device)
