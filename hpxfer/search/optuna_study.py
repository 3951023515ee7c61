"""Study: the file `optuna.db` beside the results, which `optuna-dashboard sqlite:///PATH` opens.

It records which points were asked and what they gave, a study an arm. A search goes on from it, but needs it for
nothing: what the store holds is found again without it, so a file that is gone or damaged is made anew. No sampler is
ever run on it: some keep pickles in their study, and a file that travels must not be able to run code.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from hpxfer.spec.samplers import quiet

STUDY_FILE = "optuna.db"
TRIALS = "hpxfer_trials"  # attribute of an optuna trial: seed -> hpxfer's trial id
BATCH = "batch"
NO_LOSS = "seeds_without_loss"  # those that diverged
_BUSY_S = 10.0  # for which another process, such as a dashboard, may hold the file


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A point that was asked, as the file has it."""

    batch: int
    params: Mapping[str, float]
    trial_ids: Mapping[int, str]  # by seed


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A point as it is to stand in the file: running without an end, failed where a seed diverged."""

    recorded: Recorded
    ended: bool
    loss: float | None  # mean over seeds in nats; None if not ended or diverged
    no_loss: tuple[int, ...] = ()


@dataclass(eq=False)
class StudyFile:
    """The file. `problem` says why it could not be used, `written` what is in it already, by study."""

    path: Path
    problem: str | None = None
    damaged: bool = False
    _written: dict[str, dict[frozenset[str], tuple[int, bool]]] = field(default_factory=dict)
    _described: set[str] = field(default_factory=set)
    _storage: RDBStorage | None = None

    def read(self, names: Sequence[str]) -> dict[str, list[Recorded]]:
        """Return study -> the points recorded in it, in the order asked; nothing where the file cannot be read."""
        if not self.path.exists():
            return {}
        try:
            with quiet():
                storage = _storage(self.path, write=False)
                there = set(optuna.get_all_study_names(storage)) & set(names)
                found = {name: self._trials(storage, name) for name in names if name in there}
                storage.remove_session()
        except _BROKEN as error:
            self.problem = f"{self.path}: cannot be read ({_said(error)}); the search goes on from the store"
            self.damaged = not _is_busy(error)
            return {}
        return {name: [one for trial in trials if (one := _recorded(trial))] for name, trials in found.items()}

    def _trials(self, storage: RDBStorage, name: str) -> list[FrozenTrial]:
        trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
        self._written[name] = {}
        for trial in trials:
            if one := _recorded(trial):
                key = frozenset(one.trial_ids.values())
                self._written[name][key] = (trial._trial_id, trial.state.is_finished())
        return trials

    def write(
        self,
        studies: Mapping[str, Sequence[Entry]],
        box: Mapping[str, BaseDistribution],
        about: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Bring the file up to `studies`. A failure is told in `problem` and tried again with the next write."""
        if not any(self._is_new(name, entry) for name, entries in studies.items() for entry in entries):
            return
        try:
            self._set_aside()
            with quiet():
                storage = self._storage = self._storage or _storage(self.path, write=True)
                for name, entries in studies.items():
                    self._write_study(storage, name, entries, box, about.get(name, {}))
                storage.remove_session()
            self.problem = None
        except _BROKEN as error:
            self.damaged = not _is_busy(error)
            self.problem = f"{self.path}: cannot be written ({_said(error)}); nothing depends on it"

    def _is_new(self, name: str, entry: Entry) -> bool:
        known = self._written.get(name, {}).get(_key(entry))
        return known is None or known[1] < entry.ended

    def _set_aside(self) -> None:
        """Move a damaged file out of the way, under a name that is free."""
        if self.damaged and self.path.exists():
            number = 1
            while (aside := self.path.with_name(f"optuna-damaged-{number}.db")).exists():
                number += 1
            os.replace(self.path, aside)
        self.damaged = False
        if not self.path.exists():
            self._written.clear()
            self._described.clear()
            self._storage = None

    def _write_study(
        self,
        storage: RDBStorage,
        name: str,
        entries: Sequence[Entry],
        box: Mapping[str, BaseDistribution],
        about: Mapping[str, Any],
    ) -> None:
        if not any(self._is_new(name, entry) for entry in entries):
            return
        study = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
        if name not in self._described:
            self._described.add(name)
            for key, value in about.items():
                study.set_user_attr(key, value)
        written = self._written.setdefault(name, {})
        for entry in entries:
            known = written.get(_key(entry))
            if known is None:
                made = _running(entry.recorded, box)
                known = (storage.create_new_trial(study._study_id, template_trial=made), False)
            if entry.ended and not known[1]:
                if entry.no_loss:
                    storage.set_trial_user_attr(known[0], NO_LOSS, list(entry.no_loss))
                state = TrialState.FAIL if entry.loss is None else TrialState.COMPLETE
                storage.set_trial_state_values(known[0], state, None if entry.loss is None else [entry.loss])
            written[_key(entry)] = (known[0], entry.ended)


# What optuna, SQLAlchemy and the file system raise for a file that is no study, or not one of this version.
_BROKEN = (OptunaError, SQLAlchemyError, sqlite3.Error, OSError, RuntimeError, KeyError, ValueError, AssertionError)


def _key(entry: Entry) -> frozenset[str]:
    return frozenset(entry.recorded.trial_ids.values())


def _recorded(trial: FrozenTrial) -> Recorded | None:
    """Return what the file says of a point; None of a trial that somebody else put there."""
    ids, batch = trial.user_attrs.get(TRIALS), trial.user_attrs.get(BATCH)
    if not isinstance(ids, dict) or not isinstance(batch, int) or not trial.params:
        return None
    if not all(key.isdecimal() and isinstance(value, str) for key, value in ids.items()):
        return None
    if not all(isinstance(value, float) and math.isfinite(value) for value in trial.params.values()):
        return None
    return Recorded(batch=batch, params=trial.params, trial_ids={int(key): value for key, value in ids.items()})


def _running(one: Recorded, box: Mapping[str, BaseDistribution]) -> FrozenTrial:
    return create_trial(
        state=TrialState.RUNNING,
        params=dict(one.params),
        distributions=dict(box),
        user_attrs={TRIALS: {str(seed): trial_id for seed, trial_id in one.trial_ids.items()}, BATCH: one.batch},
    )


def _is_busy(error: BaseException) -> bool:
    """Return whether the file could not be had now, though nothing is wrong with it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, sqlite3.OperationalError | OSError):
            return True
        seen = getattr(seen, "orig", None) or seen.__cause__
    return False


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _storage(path: Path, *, write: bool) -> RDBStorage:
    """Return the file as optuna's storage. Read-only, nothing is made or changed, not even beside it."""

    def connect() -> sqlite3.Connection:
        mode = "rwc" if write else "ro"
        made = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_S)
        made.execute("PRAGMA synchronous=OFF")  # whole after a kill; after a power cut it may have to be made anew
        return made

    # The address names a file, so that SQLAlchemy treats it as one; `creator` opens the one that is meant. Without a
    # pool it is closed after every use.
    return RDBStorage(
        "sqlite:///optuna.db",
        engine_kwargs={"creator": connect, "poolclass": NullPool},
        skip_table_creation=not write,
        skip_compatibility_check=write,  # reading it came first, and looked
    )
