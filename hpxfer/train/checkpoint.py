"""Checkpoint: the whole state of a stack's training in one safetensors file, and back with the same bits.

The header holds the facts as JSON: whose it is, how far, how it was computed, and a hash of all tensors. A run goes on
only where it would have got the same bits itself: same trainer, torch, device, kernels and kind of CPU.

Letters: K trials of the stack, R of them still in the step, N steps done.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hpxfer.errors import HpxferError
from hpxfer.host.machine import cpu_name
from hpxfer.model.flat import Flat
from hpxfer.model.layout import tensors
from hpxfer.stack import Stack
from hpxfer.storage.blobs import shelf_at
from hpxfer.train.checkpoints import FORMAT, BadCheckpoint, Checkpoints, CheckpointSpec, name_of, sealed, unsealed
from hpxfer.train.device import Setup
from hpxfer.train.log import Series
from hpxfer.train.provenance import provenance
from hpxfer.train.snapshot import Snapshot
from hpxfer.trial import TRAINER_VERSION

# Writing takes at most this part of the time: where one file takes long, there are fewer.
WRITE_SHARE = 0.05
_SNAPSHOT = ("parameters", "powers", "alive", "ended", "limit", "step", "router_bias")
_FAILURES = (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standing:
    """Where a training stands: all that its results and its next steps depend on."""

    trials: tuple[str, ...]  # [K] ids
    slots: tuple[int, ...]  # [R] the trials that the snapshot has
    snapshot: Snapshot
    step: int  # steps done
    trial_steps: int  # of all trials together
    wall_s: float  # spent so far
    resumes: int
    ended: NDArray[np.int64]  # [K] the step at which a trial diverged, or beyond the last
    losses: NDArray[np.float64]  # [N, K]
    series: Series


class Keeper:
    """The checkpoints of one stack on its worker. Without a spec, or out of the driver's folder, it keeps none."""

    def __init__(self, spec: CheckpointSpec | None, stack: Stack, setup: Setup) -> None:
        self._spec, self._stack, self._setup = spec, stack, setup
        self._warned = False
        self._due_at = time.monotonic() + (spec.every_s if spec else 0.0)

    def last(self) -> Standing | None:
        """Return where an earlier run of these trials, and maybe of others beside them, got to; None if nowhere."""
        if self._spec is None or not self._spec.is_here():
            return None
        mine = {trial.id for trial in self._stack.trials}
        folder = Checkpoints(self._spec.folder)
        candidates = [found.name for found in folder.candidates(mine)]
        if (problem := folder.problem(name_of(self._stack))) is not None:
            _log.warning("%s: passed over: %s", name_of(self._stack), problem)
        for name in candidates:
            try:
                with folder.shelf.here(name) as path:
                    standing = read(path, self._stack, self._setup)
            except (BadCheckpoint, OSError) as error:
                _log.warning("%s/%s: passed over: %s", folder.shelf.where, name, error)
                continue
            if mine & {standing.trials[slot] for slot in standing.slots}:  # else all of them diverge again, soon
                return standing
        return None

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._spec is not None and time.monotonic() >= self._due_at

    def keep(self, standing: Callable[[], Standing]) -> None:
        """Write a checkpoint in place of the last. Where that fails the training goes on; it is said once."""
        assert self._spec is not None
        began = time.monotonic()
        if self._spec.is_here():
            try:
                shelf_at(self._spec.folder).put(name_of(self._stack), lambda path: write(path, standing(), self._setup))
            except (*_FAILURES, HpxferError) as error:
                if not self._warned:
                    _log.warning("the training goes on without a checkpoint in %s: %s", self._spec.folder, error)
                self._warned = True
        now = time.monotonic()
        self._due_at = now + max(self._spec.every_s, (now - began) / WRITE_SHARE)


def write(path: Path, standing: Standing, setup: Setup) -> None:
    """Write a file; raise what the disk raises."""
    held = _tensors(standing)
    facts = {
        "format": FORMAT,
        "trainer_version": TRAINER_VERSION,
        "how": how(setup),
        "layout": _described(standing.snapshot.layout),
        "trials": standing.trials,
        "slots": standing.slots,
        "step": standing.step,
        "trial_steps": standing.trial_steps,
        "wall_s": standing.wall_s,
        "resumes": standing.resumes,
        "series": [[*key, steps] for key, (steps, _) in standing.series.items()],
        "hash": _hash(held),
    }
    save_file(held, path, metadata=sealed(facts))


def read(path: Path, stack: Stack, setup: Setup) -> Standing:
    """Return what a file holds, in the host's memory; raise BadCheckpoint unless this stack's run may go on from it."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = unsealed(file.metadata() or {})
            layout = Flat(tensors=tensors(stack.shape, stack.setting), num_trials=len(facts["slots"]))
            for name, mine in (("how", how(setup)), ("layout", _described(layout))):
                if facts[name] != mine:
                    raise BadCheckpoint(f"its {name} is {facts[name]}, here it is {mine}")
            held = {name: file.get_tensor(name) for name in file.offset_keys()}
        if _hash(held) != facts["hash"]:
            raise BadCheckpoint("its tensors are damaged")
        return _standing(facts, layout, held)
    except _FAILURES as error:
        raise BadCheckpoint(f"{type(error).__name__}: {error}") from None


def how(setup: Setup) -> dict[str, str | None]:
    """Return what, beside the trials, a training's bits depend on."""
    where = provenance(setup)
    names = ("device", "determinism", "backend", "kernel_configs")
    cpu = None if setup.cuda else f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}"
    return {**{name: where[name] for name in names}, "cpu": cpu, "torch": torch.__version__}


def _tensors(standing: Standing) -> dict[str, Tensor]:
    """Return name -> tensor, all in the host's memory."""
    snapshot = standing.snapshot
    held = {name: getattr(snapshot, name) for name in _SNAPSHOT}
    held |= {f"moments.{index}": one for index, one in enumerate(snapshot.moments)}
    held |= {"losses": torch.from_numpy(standing.losses), "trial_ended": torch.from_numpy(standing.ended)}
    held |= {
        f"series.{index}": torch.tensor(rows, dtype=torch.float64)
        for index, (_, rows) in enumerate(standing.series.values())
    }
    return {name: one.detach().cpu().contiguous() for name, one in held.items()}


def _standing(facts: Mapping[str, Any], layout: Flat, held: Mapping[str, Tensor]) -> Standing:
    moments = sorted(name for name in held if name.startswith("moments."))
    return Standing(
        trials=tuple(facts["trials"]),
        slots=tuple(facts["slots"]),
        snapshot=Snapshot(
            layout=layout,
            moments=tuple(held[name] for name in moments),
            **{name: held[name] for name in _SNAPSHOT},
        ),
        step=facts["step"],
        trial_steps=facts["trial_steps"],
        wall_s=facts["wall_s"],
        resumes=facts["resumes"],
        ended=held["trial_ended"].numpy(),
        losses=held["losses"].numpy(),
        series={
            (metric, layer, role): (list(steps), held[f"series.{index}"].tolist())
            for index, (metric, layer, role, steps) in enumerate(facts["series"])
        },
    )


def _described(layout: Flat) -> list[list[Any]]:
    """Return the layout of a trial's tensors, as JSON gives it back."""
    return [[tensor.name, tensor.layers, list(tensor.size)] for tensor in layout.tensors]


def _hash(held: Mapping[str, Tensor]) -> str:
    """Return a hash of names, dtypes, sizes and bytes. SHA-256: most CPUs have instructions for it."""
    out = hashlib.sha256()
    for name in sorted(held):
        one = held[name]
        out.update(f"{name} {one.dtype} {tuple(one.shape)}\n".encode())
        out.update(one.reshape(-1).view(torch.uint8).numpy().data)
    return out.hexdigest()
