"""Checkpoints as the driver sees them: whose they are, which trials go on together, what can go. Knows no torch.

    <results>/checkpoints/<stack's id>.safetensors    the last checkpoint of a stack
    <results>/checkpoints/driver                      what the driver drew: a worker that reads it is at its folder

A file's facts are JSON in its header, with a hash of their own: they are believed without reading the tensors, which
the worker checks. What is damaged, of another format or another trainer counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from hpxfer.errors import HpxferError
from hpxfer.storage.folder import StorageFolder, folder_at
from hpxfer.storage.uri import Uri
from hpxfer.trial import TRAINER_VERSION, Trial
from hpxfer.trial.stack import Stack

# Raised when a file's facts or tensors change their meaning. Format 1 had legacy ids: `hpxfer rekey` makes it format 2.
FORMAT = 2
SUFFIX = ".safetensors"
MARKER = "driver"
_NAME = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
# What a worker that was killed while it wrote leaves behind: under our name, and under the library's own before that.
_HALF_WRITTEN = re.compile(r".*\.tmp|\.tmp.*")
# A header far larger than any of ours is not one.
_MOST_HEADER_BYTES = 2**26
_DAMAGED = "damaged, or not a checkpoint of hpxfer"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointSpec:
    """Where a worker keeps checkpoints, and how often."""

    folder: str  # or URI
    every_s: float
    marker: str

    def is_here(self) -> bool:
        """Return whether the folder is this run's, and not one of the same name on another machine."""
        try:
            with folder_at(self.folder).open(MARKER) as file:
                return file.read() == self.marker.encode()
        except (OSError, HpxferError):
            return False


@dataclass(frozen=True, kw_only=True)
class Found:
    """A usable checkpoint, by its header."""

    name: str
    trials: tuple[str, ...]  # ids
    step: int  # steps done
    facts: Mapping[str, Any]


class BadCheckpoint(Exception):
    """Why a checkpoint cannot be used; `useless`: not by anybody, ever."""

    def __init__(self, why: str, *, useless: bool = True) -> None:
        super().__init__(why)
        self.useless = useless


def sealed(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as a file's metadata, with a hash of them."""
    text = json.dumps(facts, sort_keys=True)
    return {"facts": text, "check": _check(text)}


def unsealed(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that metadata holds; raise BadCheckpoint unless they are whole and today's."""
    facts = whole_facts(metadata)
    for name, version in (("format", FORMAT), ("trainer_version", TRAINER_VERSION)):
        if facts[name] != version:
            raise BadCheckpoint(f"its {name} is {facts[name]}, this one's {version}", useless=facts[name] < version)
    return facts


def whole_facts(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that metadata holds, of whatever format; raise BadCheckpoint unless they are whole."""
    text = metadata.get("facts")
    if not isinstance(text, str) or metadata.get("check") != _check(text):
        raise BadCheckpoint(_DAMAGED)
    facts: dict[str, Any] = json.loads(text)
    return facts


def read_facts(file: IO[bytes]) -> dict[str, Any]:
    """Return the facts of a file; raise BadCheckpoint unless they are whole and today's."""
    with _damage():
        return unsealed(read_header(file)["__metadata__"])


def read_header(file: IO[bytes]) -> dict[str, Any]:
    """Return the JSON header of a file, and leave the file at the start of its tensors; raise BadCheckpoint if none."""
    with _damage():
        size = struct.unpack("<Q", file.read(8))[0]
        if size > _MOST_HEADER_BYTES:
            raise ValueError("no header")
        header: dict[str, Any] = json.loads(file.read(size))
        return header


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadCheckpoint(_DAMAGED) from None


class Checkpoints:
    """The checkpoints of one results folder, or below one URI. A header is read once for each state of its file."""

    def __init__(self, folder: Path | Uri | str) -> None:
        self._folder = folder
        self._read: dict[str, tuple[Any, Found | BadCheckpoint]] = {}

    @cached_property
    def files(self) -> StorageFolder:
        """Where they lie. Raises HpxferError if that is storage that cannot be reached."""
        return folder_at(self._folder)

    def start(self, every_s: float) -> CheckpointSpec | None:
        """Return what workers need, for one run of the driver; None where there is nowhere to write.

        From now on workers of earlier runs that are still there write no more; what they left half-written goes.
        """
        marker = secrets.token_hex(16)
        try:
            files = self.files
            files.make()
            files.put(MARKER, lambda path: path.write_bytes(marker.encode()))
            self._sweep(files)
        except (OSError, HpxferError) as error:
            _log.warning("training without checkpoints: %s: %s", self._folder, error)
            return None
        return CheckpointSpec(folder=files.where, every_s=every_s, marker=marker)

    def find(self, trial_ids: Collection[str]) -> str | None:
        """Return the name of the checkpoint from which a stack of these trials goes on, the furthest; None if none."""
        return next((one.name for one in self.candidates(trial_ids)), None)

    def candidates(self, trial_ids: Collection[str]) -> list[Found]:
        """Return all checkpoints that hold these trials, the furthest first."""
        return [one for one in self.found() if set(trial_ids) <= set(one.trials)]

    def found(self) -> list[Found]:
        """Return all usable checkpoints, the furthest first."""
        try:
            looked = self._look(self.files)
        except (OSError, HpxferError) as error:
            _log.warning("%s: its checkpoints cannot be listed: %s", self._folder, error)
            return []
        usable = [one for one in looked.values() if isinstance(one, Found)]
        return sorted(usable, key=lambda one: (-one.step, one.name))

    def problem(self, name: str) -> BadCheckpoint | None:
        """Return why a checkpoint cannot be used, as far as was seen by the last look."""
        _, looked = self._read.get(name, (None, None))
        return looked if isinstance(looked, BadCheckpoint) else None

    def groups(self, trials: Iterable[Trial]) -> list[tuple[Trial, ...]]:
        """Return the trials that share a checkpoint, a group each; no trial is in two."""
        found = self.found()
        held = {trial_id for one in found for trial_id in one.trials}
        left = {trial.id: trial for trial in trials if trial.id in held}
        groups = [tuple(left.pop(trial_id) for trial_id in one.trials if trial_id in left) for one in found]
        return [group for group in groups if group]

    def going_on(self, trials: Iterable[Trial]) -> tuple[list[Stack], list[Trial]]:
        """Return the stacks that go on from a checkpoint, and the trials that have none and can be packed at will."""
        trials = list(trials)
        stacks = [Stack(trials=group) for group in self.groups(trials)]
        ids = {trial.id for stack in stacks for trial in stack.trials}
        return stacks, [trial for trial in trials if trial.id not in ids]

    def clear(self, done_ids: Collection[str]) -> None:
        """Remove the checkpoints of which every trial is done."""
        done = done_ids if isinstance(done_ids, set | frozenset | Mapping) else set(done_ids)
        for one in self.found():
            if all(trial_id in done for trial_id in one.trials):
                self._remove(one.name)

    def end(self, done_ids: Collection[str]) -> None:
        """Remove what no run needs: checkpoints of done trials, what is half-written, the marker, an empty folder."""
        self.clear(done_ids)
        self._remove(MARKER)
        with suppress(OSError, HpxferError):
            self._sweep(self.files)
            self.files.unmake()

    def _look(self, files: StorageFolder) -> dict[str, Found | BadCheckpoint]:
        """Return name -> what the header of each checkpoint says."""
        stamps = {name: stamp for name, stamp in files.stamps().items() if _NAME.fullmatch(name)}
        self._read = {name: old for name, old in self._read.items() if old[0] == stamps.get(name)}
        for name in sorted(stamps.keys() - self._read.keys()):
            self._read[name] = stamps[name], _looked(files, name)
        return {name: one for name, (_, one) in self._read.items()}

    def _sweep(self, files: StorageFolder) -> None:
        """Remove half-written files, and whole ones that nobody can use any more."""
        for name in files.stamps():
            if _HALF_WRITTEN.fullmatch(name):
                self._remove(name)
        for name, one in self._look(files).items():
            if isinstance(one, BadCheckpoint):
                _log.warning("%s/%s: passed over: %s", self._folder, name, one)
                if one.useless:
                    self._remove(name)

    def _remove(self, name: str) -> None:
        with suppress(OSError, HpxferError):
            self.files.remove(name)


def name_of(stack: Stack) -> str:
    """Return how the checkpoint of a stack is called."""
    return stack.id + SUFFIX


def _looked(files: StorageFolder, name: str) -> Found | BadCheckpoint:
    try:
        with files.open(name) as file:
            facts = read_facts(file)
    except BadCheckpoint as error:
        return error
    except OSError as error:
        return BadCheckpoint(f"cannot be read: {error}", useless=False)
    return Found(name=name, trials=tuple(facts["trials"]), step=facts["step"], facts=facts)


def _check(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
