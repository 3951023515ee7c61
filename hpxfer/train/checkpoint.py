"""Checkpoint: the whole state of a stack's training in one safetensors file. Reading it gives the same bits.

The header holds facts as JSON: the trials, the steps done, how they were computed, and a hash of all tensors. A run
continues only from a checkpoint that has the bits it would have computed itself: same trainer, torch, device, kernels
and kind of CPU.

Letters: K trials of the stack, R of them still in training, N steps done.
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

from hpxfer.errors import HpxferError, shown
from hpxfer.model.families import FAMILIES
from hpxfer.model.flat import FlatLayout
from hpxfer.spec import moe_blocks
from hpxfer.storage import objects_at
from hpxfer.train.checkpoints import (
    DAMAGED,
    FORMAT,
    BadCheckpoint,
    Checkpoints,
    CheckpointSpec,
    WorkerFacts,
    are_sound,
    name_of,
    sealed,
    unsealed,
)
from hpxfer.train.device import Setup, provenance
from hpxfer.train.log import Series
from hpxfer.train.optimizers import OPTIMIZERS
from hpxfer.train.ranks import ALONE, Ranks
from hpxfer.train.snapshot import Snapshot
from hpxfer.trial import TRAINER_VERSION, Stack

# Writing takes at most this fraction of the time. Where a file takes long, fewer are written.
WRITE_SHARE = 0.05
_SNAPSHOT_FIELDS = ("parameters", "powers", "alive", "ended", "limit", "step", "router_bias", "last_load")
_FAILURES = (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError)

_Size = tuple[torch.dtype, tuple[int, ...]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A training between two steps: everything that its results and its next steps depend on."""

    trials: tuple[str, ...]  # [K] ids
    live: tuple[int, ...]  # [R] positions in `trials` of those that the snapshot holds
    snapshot: Snapshot
    step: int  # steps done
    trial_steps: int  # steps of all trials together
    wall_s: float  # seconds spent so far
    resumes: int
    ended: NDArray[np.int64]  # [K] the step at which a trial diverged, or beyond the last
    losses: NDArray[np.float64]  # [N, K]
    series: Series


class Checkpointer:
    """Reads and writes the checkpoints of one stack on its worker. It writes none without a spec.

    It writes none either where the worker cannot see the driver's folder. Of several ranks the first one writes, and
    all read the same file.
    """

    def __init__(self, spec: CheckpointSpec | None, stack: Stack, setup: Setup, ranks: Ranks = ALONE) -> None:
        self._spec, self._stack, self._setup, self._ranks = spec, stack, setup, ranks
        self._warned = False
        self._due_at = time.monotonic() + (spec.every_s if spec else 0.0)

    def last(self, *, with_curves: bool = True) -> Checkpoint | None:
        """Return the furthest usable checkpoint that holds these trials, and possibly others; None if there is none.

        A run `with_curves` cannot go on from a checkpoint of a run without them.
        """
        if self._spec is None or not self._ranks.all(self._spec.is_here()):
            return None
        own = {trial.id for trial in self._stack.trials}
        folder = Checkpoints(self._spec.folder)
        candidates: list[str] = []
        if self._ranks.is_first:
            candidates = [found.name for found in folder.candidates(own)]
            if (problem := folder.problem(name_of(self._stack))) is not None:
                _log.warning("%s: not used: %s", name_of(self._stack), problem)
        for name in self._ranks.names(candidates):
            checkpoint = self._read(folder, name)
            # A checkpoint in which all of them have diverged saves nothing: they diverge again soon.
            usable = (
                checkpoint is not None
                and own & {checkpoint.trials[index] for index in checkpoint.live}
                and (checkpoint.series or not with_curves)
            )
            if self._ranks.all(bool(usable)):
                return checkpoint
        return None

    def _read(self, folder: Checkpoints, name: str) -> Checkpoint | None:
        """Return the checkpoint of this name. If it is no use here, say so and return None."""
        try:
            with folder.files.local_copy(name) as path:
                return read(path, self._stack, self._setup)
        except (BadCheckpoint, OSError) as error:
            _log.warning("%s/%s: not used: %s", folder.files.where, name, error)
            return None

    @property
    def is_on(self) -> bool:
        """Whether the run has checkpoints."""
        return self._spec is not None

    @property
    def due(self) -> bool:
        """Whether it is time to write a checkpoint."""
        return self._spec is not None and time.monotonic() >= self._due_at

    def save(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Write a checkpoint in place of the last one. If that fails, warn once; the training goes on."""
        assert self._spec is not None
        began = time.monotonic()
        made = checkpoint() if self._ranks.world > 1 else None  # by all ranks, of which none has all moments
        if self._ranks.is_first and self._spec.is_here():
            try:
                objects_at(self._spec.folder).put(
                    name_of(self._stack), lambda path: write(path, made or checkpoint(), self._setup)
                )
            except (*_FAILURES, HpxferError) as error:
                if not self._warned:
                    _log.warning("the training goes on without a checkpoint in %s: %s", self._spec.folder, error)
                self._warned = True
        now = time.monotonic()
        self._due_at = now + max(self._spec.every_s, (now - began) / WRITE_SHARE)


def write(path: Path, checkpoint: Checkpoint, setup: Setup) -> None:
    """Write a checkpoint to a file. Errors of the disk pass through."""
    tensors = _tensors(checkpoint)
    facts = {
        "format": FORMAT,
        "trainer_version": TRAINER_VERSION,
        "how": how(setup),
        "layout": _described(checkpoint.snapshot.layout),
        "trials": checkpoint.trials,
        "slots": checkpoint.live,
        "step": checkpoint.step,
        "trial_steps": checkpoint.trial_steps,
        "wall_s": checkpoint.wall_s,
        "resumes": checkpoint.resumes,
        "series": [[*key, steps] for key, (steps, _) in checkpoint.series.items()],
        "hash": _hash(tensors),
    }
    save_file(tensors, path, metadata=sealed(facts))


def read(path: Path, stack: Stack, setup: Setup) -> Checkpoint:
    """Return the checkpoint in a file, in the host's memory. Raise BadCheckpoint if this stack cannot continue it."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = unsealed(file.metadata() or {})
            if not (are_sound(facts, WorkerFacts) and facts["step"] < stack.setting.steps):
                raise BadCheckpoint(DAMAGED)
            parameters = FAMILIES.get(stack.setting.family).parameters(stack.shape, stack.setting)
            layout = FlatLayout(parameters=parameters, num_trials=len(facts["slots"]))
            for name, own in (("how", how(setup)), ("layout", _described(layout))):
                if facts[name] != own:
                    raise BadCheckpoint(f"its {name} is {shown(facts[name])}, here it is {shown(own)}")
            tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        if _hash(tensors) != facts["hash"]:
            raise BadCheckpoint("its tensors are damaged")
        sizes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        rule = OPTIMIZERS.get(stack.setting.optimizer)
        # The other trials of the checkpoint may have momentum where none of this stack has.
        counts = {rule.moments_of(True), rule.moments_of(stack.has_momentum)}
        expected = [_sizes(facts, layout, stack, num_moments=count) for count in counts]
        if sizes not in expected or tensors["step"].item() != facts["step"]:
            raise BadCheckpoint("its tensors are not those of its facts")
        return _checkpoint(facts, layout, tensors)
    except _FAILURES as error:
        raise BadCheckpoint(f"{type(error).__name__}: {error}") from None


def how(setup: Setup) -> dict[str, str | None]:
    """Return what the bits of a training depend on beside its trials."""
    found = provenance(setup)
    names = ("device", "cpu", "determinism", "backend", "kernel_configs")
    return {**{name: found[name] for name in names}, "torch": torch.__version__}


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return name -> tensor, all in the host's memory."""
    snapshot = checkpoint.snapshot
    out = {name: getattr(snapshot, name) for name in _SNAPSHOT_FIELDS}
    out |= {f"moments.{index}": moment for index, moment in enumerate(snapshot.moments)}
    out |= {"losses": torch.from_numpy(checkpoint.losses), "trial_ended": torch.from_numpy(checkpoint.ended)}
    out |= {
        f"series.{index}": torch.tensor(rows, dtype=torch.float64)
        for index, (_, rows) in enumerate(checkpoint.series.values())
    }
    return {name: tensor.detach().cpu().contiguous() for name, tensor in out.items()}


def _sizes(facts: Mapping[str, Any], layout: FlatLayout, stack: Stack, *, num_moments: int) -> Mapping[str, _Size]:
    """Return name -> type and size of the tensors of a checkpoint with these facts."""
    num_steps, num_trials, num_live = facts["step"], len(facts["trials"]), len(facts["slots"])
    flat = (torch.float32, (layout.numel,))
    router_bias: tuple[int, ...] = (len(moe_blocks(stack.shape, stack.setting)), num_live, stack.shape.num_experts)
    loads = router_bias[0] if stack.setting.balance.load == "last_step" else 0
    return {
        "parameters": flat,
        **{f"moments.{index}": flat for index in range(num_moments)},
        "powers": (torch.float64, (2, num_live)),
        "alive": (torch.bool, (num_live,)),
        "ended": (torch.int64, (num_live,)),
        "limit": (torch.float64, (num_live,)),
        "step": (torch.int64, (1,)),
        "router_bias": (torch.float32, router_bias),
        "last_load": (torch.int64, (loads, *router_bias[1:])),
        "losses": (torch.float64, (num_steps, num_trials)),
        "trial_ended": (torch.int64, (num_trials,)),
        **{
            f"series.{index}": (torch.float64, (len(steps), num_trials))
            for index, (*_, steps) in enumerate(facts["series"])
        },
    }


def _checkpoint(facts: Mapping[str, Any], layout: FlatLayout, tensors: Mapping[str, Tensor]) -> Checkpoint:
    moments = sorted(name for name in tensors if name.startswith("moments."))
    return Checkpoint(
        trials=tuple(facts["trials"]),
        live=tuple(facts["slots"]),
        snapshot=Snapshot(
            layout=layout,
            moments=tuple(tensors[name] for name in moments),
            **{name: tensors[name] for name in _SNAPSHOT_FIELDS},
        ),
        step=facts["step"],
        trial_steps=facts["trial_steps"],
        wall_s=facts["wall_s"],
        resumes=facts["resumes"],
        ended=tensors["trial_ended"].numpy(),
        losses=tensors["losses"].numpy(),
        series={
            (metric, layer, role): (list(steps), tensors[f"series.{index}"].tolist())
            for index, (metric, layer, role, steps) in enumerate(facts["series"])
        },
    )


def _described(layout: FlatLayout) -> list[list[Any]]:
    """Return the layout of a trial's parameters, as JSON returns it."""
    return [[spec.name, spec.layers, list(spec.size)] for spec in layout.parameters]


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, dtypes, sizes and bytes. It is SHA-256, for which most CPUs have instructions."""
    out = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        out.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        out.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return out.hexdigest()
