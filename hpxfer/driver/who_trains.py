"""Who trains the trials of a sweep: hpxfer's stacked trainer, or one of the user's own. The driver asks only here."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.executors import Trains, TrainStack
from hpxfer.kernels.size_limits import has_pipeline
from hpxfer.kernels.usable import DEBUGGING_AID, NOT_INSTALLED, interpreted, refusal
from hpxfer.plan import FLOAT_BYTES, Device
from hpxfer.spec import SweepSpec
from hpxfer.store import Store
from hpxfer.trainer import OwnTrainer


@dataclass(frozen=True)
class StackedTrainer:
    """The trainer of hpxfer, which trains stacks of trials. `OwnTrainer` answers the same questions."""

    spec: SweepSpec
    writes_checkpoints = False  # of its own, so that the driver keeps none

    def require_sweep(self, *, reuses: bool) -> None:
        """Raise HpxferError for what the sweep says; its schema has checked it. `reuses`: trials of other folders."""

    def require_device(self, device: Device, address: str | None) -> None:
        """Raise HpxferError if it cannot train on a device, of this machine or of the cluster at `address`.

        What the nodes of a cluster have installed is unknown here. Their workers check it.
        """
        if text := self._refusal(device, address):
            raise HpxferError(text)

    def on_cuda(self, device: Device) -> bool:
        """Return whether it trains on GPUs."""
        return device.cuda

    def cautions(self, store: Store, device: Device, vocab_size: int, address: str | None) -> Iterator[str]:
        """Yield what the user should know before a run. The precision of the sweep must be decided."""
        spec = self.spec
        if device.cuda and spec.resources.kernels == "torch" and spec.training.determinism != "strict":
            yield f"resources.kernels: torch is {DEBUGGING_AID}; give auto to train"
        elif text := self._refusal(device, address) or self._of_vocabulary(device, vocab_size):
            yield text
        if spec.training.determinism == "fast" and not device.cuda:
            yield "training.determinism: on a CPU, fast runs the same code as strict, with the same bits in every stack"

    def require_same_code(self, store: Store) -> None:
        """Raise HpxferError if it is another under the same name. Its version is part of each trial's identity."""

    def training(self, folder: Path, **how: Any) -> Trains:
        """Return what trains stacks, with the folder on this disk. `how` are fields of `TrainStack`."""
        resources = self.spec.resources
        return TrainStack(
            resources.device,
            determinism=self.spec.training.determinism,
            kernels=resources.kernels,
            points=bool(resources.loggers),
            curves=resources.curves == "all" or bool(resources.loggers),
            **how,
        )

    def _refusal(self, device: Device, address: str | None) -> str | None:
        """Return why a device cannot have the kernels that the sweep asks for, or None."""
        strict = (self.spec.training.determinism or ("fast" if device.cuda else "strict")) == "strict"
        missing = None
        if not device.cuda:
            missing = None if interpreted() else "the device is cpu"
        elif address is None and importlib.util.find_spec("triton") is None:
            missing = NOT_INSTALLED
        return refusal(self.spec.resources.kernels, cuda=device.cuda, strict=strict, missing=missing)

    def _of_vocabulary(self, device: Device, vocab_size: int) -> str | None:
        """Return the caution about a vocabulary whose readout is slow in the strict kernels of a GPU, or None."""
        spec, size = self.spec, FLOAT_BYTES[self.spec.precision]
        if not device.cuda or spec.training.determinism != "strict" or has_pipeline(vocab_size, size):
            return None
        larger = next(number for number in itertools.count(vocab_size) if has_pipeline(number, size))
        return (
            f"data: the readout of a vocabulary of {vocab_size} is slow with determinism: strict in {spec.precision} "
            f"on a GPU: its rows are no whole 8-byte copies; pad the vocabulary to {larger}, or give determinism: fast"
        )


Trainer = StackedTrainer | OwnTrainer


def who_trains(spec: SweepSpec) -> Trainer:
    """Return the trainer of a sweep."""
    return StackedTrainer(spec) if spec.trainer is None else OwnTrainer(spec, spec.trainer)
