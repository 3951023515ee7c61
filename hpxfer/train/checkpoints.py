"""Checkpoints: the folder as the driver uses it, by headers only, each fact of which is checked. It needs no torch.

    <results>/checkpoints/<stack's id>.safetensors    the last checkpoint of a stack
    <results>/checkpoints/driver                      the driver's marker

The facts of a file are JSON in its header, with a hash of their own. The driver reads those that it needs. The worker
checks the others and the tensors. A file that is damaged or forged, or of another format or trainer, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from hpxfer.errors import HpxferError
from hpxfer.host import Uri
from hpxfer.storage import MARKER, Objects, marked, objects_at, sees
from hpxfer.trial import TRAINER_VERSION, Stack, Trial

# Facts: what the header of a checkpoint says of it, and whether a training can have written that.
#
# The hash of a header proves only that it is whole. Whoever writes a header can hash it, so each fact is checked.

# No training has so many steps, trials or resumptions. Numbers above are no whole numbers of a tensor or a table.
_Count = Annotated[int, Field(ge=0, lt=2**62)]


def _distinct(values: list[Any]) -> list[Any]:
    if not 0 < len(values) == len(frozenset(values)):
        raise ValueError("none, or one twice")
    return values


def _ascending(steps: list[int]) -> list[int]:
    if steps != sorted(set(steps)):
        raise ValueError("in another order")
    return steps


class DriverFacts(BaseModel):
    """Facts of a checkpoint of any format, as far as a driver reads them."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: _Count
    trainer_version: _Count
    trials: Annotated[list[str], AfterValidator(_distinct)]
    step: _Count


class WorkerFacts(DriverFacts):
    """Facts of today's format, of a training that a worker goes on with."""

    slots: Annotated[list[_Count], AfterValidator(_distinct)]
    trial_steps: _Count
    wall_s: Annotated[float, Field(ge=0)]
    resumes: _Count
    # Metric, layer, role and steps.
    series: list[
        Annotated[
            tuple[str, _Count | None, str | None, Annotated[list[_Count], AfterValidator(_ascending)]], Strict(False)
        ]
    ]
    how: dict[str, Any]
    layout: list[Any]
    hash: str

    @model_validator(mode="after")
    def _of_one_training(self) -> WorkerFacts:
        keys = [key for *key, _ in map(list, self.series)]
        if any(key in keys[:index] for index, key in enumerate(keys)):
            raise ValueError("a series twice")
        if max(self.slots) >= len(self.trials) or any(step >= self.step for *_, steps in self.series for step in steps):
            raise ValueError("beyond the trials or the steps")
        return self


def are_sound(facts: object, kind: type[DriverFacts]) -> bool:
    """Return whether facts can be those of a training."""
    try:
        kind.model_validate(facts)
    except ValidationError:
        return False
    return True


# Raise it when the facts or tensors of a file change their meaning. A file of another format is not used.
FORMAT = 2
SUFFIX = ".safetensors"
_NAME = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
# A worker that is killed while it writes leaves such files: under hpxfer's name, or earlier under the library's.
_HALF_WRITTEN = re.compile(r".*\.tmp|\.tmp.*")
# A larger header is not one of a checkpoint.
_MOST_HEADER_BYTES = 2**26
DAMAGED = "damaged, or not a checkpoint of hpxfer"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointSpec:
    """Where a worker writes checkpoints, and how often."""

    folder: str  # or URI
    every_s: float
    marker: str  # the random token that the driver wrote

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's folder."""
        return sees(self.folder, self.marker)


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A usable checkpoint, as its header describes it."""

    name: str
    trials: tuple[str, ...]  # ids
    step: int  # steps done
    facts: Mapping[str, Any]


class BadCheckpoint(Exception):
    """A checkpoint cannot be used. If `useless`, no run of any version can use it."""

    def __init__(self, why: str, *, useless: bool = True) -> None:
        super().__init__(why)
        self.useless = useless


def sealed(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as the metadata of a file, with their hash."""
    text = json.dumps(facts, sort_keys=True)
    return {"facts": text, "check": _check(text)}


def unsealed(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts in metadata. Raise BadCheckpoint unless they are whole and of this version."""
    text = metadata.get("facts")
    if not isinstance(text, str) or metadata.get("check") != _check(text):
        raise BadCheckpoint(DAMAGED)
    facts: dict[str, Any] = json.loads(text)
    if not are_sound(facts, DriverFacts):
        raise BadCheckpoint(DAMAGED)
    for name, version in (("format", FORMAT), ("trainer_version", TRAINER_VERSION)):
        if facts[name] != version:
            raise BadCheckpoint(
                f"its {name} is {facts[name]}, that of this hpxfer is {version}", useless=facts[name] < version
            )
    return facts


def read_facts(file: IO[bytes]) -> dict[str, Any]:
    """Return the facts of a file. Raise BadCheckpoint unless they are whole and of this version."""
    with _damage():
        size = struct.unpack("<Q", file.read(8))[0]
        if size > _MOST_HEADER_BYTES:
            raise ValueError("no header")
        return unsealed(json.loads(bytes(file.read(size)))["__metadata__"])


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadCheckpoint(DAMAGED) from None


class Checkpoints:
    """The checkpoints of one results folder or URI. A header is read again only when its file has changed."""

    def __init__(self, folder: Path | Uri | str) -> None:
        self._folder = folder
        self._read: dict[str, tuple[Any, FoundCheckpoint | BadCheckpoint]] = {}

    @cached_property
    def files(self) -> Objects:
        """The folder that holds them. Raises HpxferError if its storage cannot be reached."""
        return objects_at(self._folder)

    def start(self, every_s: float) -> CheckpointSpec | None:
        """Return what workers need in this run of the driver, or None if the folder cannot be written.

        From now on the workers of earlier runs write no more. Files that they left half-written are removed.
        """
        try:
            files = self.files
            marker = marked(files)
            self._sweep(files)
        except (OSError, HpxferError) as error:
            _log.warning("training without checkpoints: %s: %s", self._folder, error)
            return None
        return CheckpointSpec(folder=files.where, every_s=every_s, marker=marker)

    def candidates(self, trial_ids: Collection[str]) -> list[FoundCheckpoint]:
        """Return all checkpoints that hold these trials, the furthest first."""
        return [checkpoint for checkpoint in self.usable() if set(trial_ids) <= set(checkpoint.trials)]

    def usable(self) -> list[FoundCheckpoint]:
        """Return all usable checkpoints, the furthest first."""
        try:
            headers = self._headers(self.files)
        except (OSError, HpxferError) as error:
            _log.warning("%s: its checkpoints cannot be listed: %s", self._folder, error)
            return []
        usable = [header for header in headers.values() if isinstance(header, FoundCheckpoint)]
        return sorted(usable, key=lambda checkpoint: (-checkpoint.step, checkpoint.name))

    def problem(self, name: str) -> BadCheckpoint | None:
        """Return why a checkpoint cannot be used, as of the last reading of its header. None if it can."""
        _, header = self._read.get(name, (None, None))
        return header if isinstance(header, BadCheckpoint) else None

    def groups(self, trials: Iterable[Trial]) -> list[tuple[Trial, ...]]:
        """Return one group of trials per checkpoint that they share. No trial is in two groups."""
        usable = self.usable()
        held = {trial_id for checkpoint in usable for trial_id in checkpoint.trials}
        left = {trial.id: trial for trial in trials if trial.id in held}
        groups = []
        for checkpoint in usable:
            group = [left[trial_id] for trial_id in checkpoint.trials if trial_id in left]
            # No stack trained trials of several shapes, so such a checkpoint is forged.
            if len({(trial.shape, trial.setting.of_stack) for trial in group}) == 1:
                groups.append(tuple(left.pop(trial.id) for trial in group))
        return groups

    def resumable(self, trials: Iterable[Trial]) -> tuple[list[Stack], list[Trial]]:
        """Return the stacks that continue from a checkpoint, and the trials that have none and can be packed freely."""
        trials = list(trials)
        stacks = [Stack(trials=group) for group in self.groups(trials)]
        ids = {trial.id for stack in stacks for trial in stack.trials}
        return stacks, [trial for trial in trials if trial.id not in ids]

    def clear(self, done_ids: Collection[str]) -> None:
        """Remove the checkpoints of which every trial is done."""
        done = done_ids if isinstance(done_ids, set | frozenset | Mapping) else set(done_ids)
        for checkpoint in self.usable():
            if all(trial_id in done for trial_id in checkpoint.trials):
                self._remove(checkpoint.name)

    def end(self, done_ids: Collection[str]) -> None:
        """Remove what no run needs: checkpoints of done trials, half-written files, the marker, and an empty folder."""
        self.clear(done_ids)
        self._remove(MARKER)
        with suppress(OSError, HpxferError):
            self._sweep(self.files)

    def _headers(self, files: Objects) -> dict[str, FoundCheckpoint | BadCheckpoint]:
        """Return name -> header of each checkpoint, or why it cannot be used."""
        stamps = {name: stamp for name, stamp in files.stamps().items() if _NAME.fullmatch(name)}
        self._read = {name: old for name, old in self._read.items() if old[0] == stamps.get(name)}
        for name in sorted(stamps.keys() - self._read.keys()):
            self._read[name] = stamps[name], _header(files, name)
        return {name: header for name, (_, header) in self._read.items()}

    def _sweep(self, files: Objects) -> None:
        """Remove half-written files, and checkpoints that no run of any version can use."""
        for name in files.stamps():
            if _HALF_WRITTEN.fullmatch(name):
                self._remove(name)
        for name, header in self._headers(files).items():
            if isinstance(header, BadCheckpoint):
                _log.warning("%s/%s: not used: %s", self._folder, name, header)
                if header.useless:
                    self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError, HpxferError):
            self.files.remove(name)


def name_of(stack: Stack) -> str:
    """Return the file name of a stack's checkpoint."""
    return stack.id + SUFFIX


def _header(files: Objects, name: str) -> FoundCheckpoint | BadCheckpoint:
    try:
        with files.open(name) as file:
            facts = read_facts(file)
    except BadCheckpoint as error:
        return error
    except OSError as error:
        return BadCheckpoint(f"cannot be read: {error}", useless=False)
    return FoundCheckpoint(name=name, trials=tuple(facts["trials"]), step=facts["step"], facts=facts)


def _check(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
