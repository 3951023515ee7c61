"""Keep: a worker stores the weights of its trials beside the results. A reader finds them there."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from hpxfer.errors import HpxferError
from hpxfer.host import Uri
from hpxfer.storage import objects_at
from hpxfer.store import LOSS_NUMBERS
from hpxfer.train.snapshot import Moment
from hpxfer.trial import Stack, Trial
from hpxfer.weights.files import read_facts, read_own, write_own
from hpxfer.weights.kept import KeepSpec, name_of
from hpxfer.weights.trained import TrialWeights, weights_of

_log = logging.getLogger(__name__)


class Keeper:
    """Stores the weights of the trials of a stack, on its worker.

    It stores none where the worker cannot see the driver's folder. If it cannot write, it warns once, and the training
    goes on.
    """

    def __init__(self, spec: KeepSpec, stack: Stack) -> None:
        self._spec, self._trials = spec, {trial.id: trial for trial in stack.trials}
        self._warned = False

    def __call__(self, moment: Moment) -> None:
        """Store the weights of all trials that are alive."""
        try:
            if not self._spec.is_here():
                raise OSError("this worker does not see the folder of the driver")
            files = objects_at(self._spec.folder)
            for trial_id, row in moment.rows.items():
                trial, found = self._trials[trial_id], moment.snapshot
                with torch.no_grad():
                    weights = weights_of(trial, row, found.layout, found.parameters, found.router_bias)
                losses = losses_of(vars(moment.results[trial_id]))
                files.put(name_of(trial_id), lambda path, w=weights, found=losses: write_own(w, path, found))  # type: ignore[misc]
        except (OSError, SafetensorError, HpxferError, RuntimeError) as error:
            if not self._warned:
                _log.warning("weights are not kept in %s: %s", self._spec.folder, error)
            self._warned = True


def losses_of(numbers: Mapping[Any, Any]) -> dict[str, float]:
    """Return the losses that a result or a stored row has, by column."""
    found = {column: numbers.get(column) for column in LOSS_NUMBERS}
    return {name: float(loss) for name, loss in found.items() if loss is not None and not math.isnan(loss)}


def weights_from(folder: Path | Uri, trial: Trial, stored: Mapping[Any, Any]) -> TrialWeights:
    """Return the weights of a finished trial that a run kept in this folder. `stored` is its row in the store.

    A file with other losses than the stored ones is of a result that was never stored. Raises HpxferError if the
    weights were not kept.
    """
    files, name = objects_at(folder), name_of(trial.id)
    if name in files.stamps():
        with files.local_copy(name) as path:
            if read_facts(path).get("losses") == losses_of(stored):
                return read_own(path, trial)
    raise HpxferError(
        f"{folder}: the weights of trial {trial.id} were not kept; set resources.keep: last and run the sweep in a new "
        "folder"
    )
