"""Rekey: write today's ids into a results folder or URI whose files hold legacy ids.

In place, the old files are first copied to `before-rekey/`. Then the checkpoints are written again, then the curves,
then the trials. Every file is replaced as a whole, and each state in between reads as the same results. So a kill at
any moment loses nothing, and the same command continues. For a new folder, the copy is made beside it and renamed at
the end.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import prove_writable, reason, remove_half_written
from hpxfer.rekey.checkpoints import legacy_checkpoints, rekey_checkpoint
from hpxfer.results import Results
from hpxfer.search import make_search
from hpxfer.search.export import FILE as STUDY_FILE
from hpxfer.search.stored import outcomes_of
from hpxfer.storage.folder import MARKER, StorageFolder, folder_at
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.storage.uri import is_uri, parse_root
from hpxfer.store import SWEEP_FILE, Store
from hpxfer.store.legacy import legacy_id
from hpxfer.store.location import ResultsLocation, location_at
from hpxfer.store.parts import list_parts
from hpxfer.store.sweep_file import load_stored
from hpxfer.trial import TRAINER_VERSION

BACKUP = "before-rekey"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Rekeyed:
    """What was done. If `files` and `checkpoints` are empty, there was nothing to do."""

    where: str  # the results with today's ids
    files: tuple[str, ...] = ()  # written again
    checkpoints: tuple[str, ...] = ()  # their names now
    problems: tuple[str, ...] = ()  # files that could not be read and were left as they are
    unproven: tuple[str, ...] = ()  # ids that were kept, because their rows do not prove them
    backup: str | None = None  # where the old files are

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)


def rekey(
    results: str | Path, to: str | Path | None = None, *, on_wait: Callable[[str], None] | None = None
) -> Rekeyed:
    """Write today's ids into a results folder or URI, or into a copy of it in the new folder `to`.

    Raises HpxferError if `results` is none or cannot be read, if a driver is at work there, or if `to` holds something
    else.
    """
    location = location_at(results)
    if not location.folder.is_dir() or not (location.folder / SWEEP_FILE).exists():
        raise HpxferError(
            f"{location.where}: must be a results folder or URI with {SWEEP_FILE}, got none; name the folder of a "
            "sweep that was run, e.g. results/quickstart"
        )
    _check_readable(location)
    if not location.is_remote and (problem := _not_writable(location.folder)):
        if to is None:
            raise HpxferError(
                f"{location.where}: cannot be written: {problem}; give a new folder with --to, and a copy with today's "
                f"ids is made there"
            )
        if location.lease_storage.read() is None:
            return _into(location, to)
    with leased(location.lease_storage, location.where, on_wait=on_wait) as lease:
        location.begin(lease.check)
        with lease.writing():
            remove_half_written(location.folder)
        if to is not None:
            return _into(location, to)
        store = Store.open(location.folder, write=True)
        if not location.is_remote:
            store.guard = lease.check
        done = _rekey(location, store, writing=lease.writing, backs_up=True)
        location.push(lease.check)
        return done


def refuse_legacy_ids(location: ResultsLocation) -> None:
    """Raise HpxferError, which names the command, if results or checkpoints at a location hold legacy ids."""
    if holds_legacy_ids(location):
        raise HpxferError(f"{how_to_rekey(location.where)}; then run again")


def holds_legacy_ids(location: ResultsLocation) -> bool:
    """Return whether results or checkpoints at a location hold legacy ids."""
    store = Store.open(location.folder, write=False)
    return bool(store.old_files() or legacy_checkpoints(folder_at(parse_root(location.where) / CHECKPOINTS)))


def how_to_rekey(where: str) -> str:
    """Return the sentence that names the command for results with legacy ids."""
    return f"{where}: has trial ids of an older hpxfer; `hpxfer rekey {where}` rewrites them and trains nothing"


def _rekey(
    location: ResultsLocation,
    store: Store,
    *,
    writing: Callable[[], AbstractContextManager[None]] = nullcontext,
    backs_up: bool,
) -> Rekeyed:
    """Rekey a folder. `writing` is entered for every write beside the store's own, which ask its guard."""
    root = parse_root(location.where)
    files = folder_at(root / CHECKPOINTS)
    old, checkpoints = store.old_files(), legacy_checkpoints(files)
    if not old and not checkpoints:
        return Rekeyed(where=location.where, problems=_problems(store))
    unproven = store.unproven_ids()
    # The study file is for dashboards alone. The next run writes it again.
    study = [location.folder / STUDY_FILE] if (location.folder / STUDY_FILE).exists() else []
    if backs_up:
        backup = folder_at(root / BACKUP)
        with writing():
            backup.make()
        for path in [*study, *old]:
            with writing():
                _back_up(backup, path, path.name)
        for name in checkpoints:
            with files.local_copy(name) as path, writing():
                _back_up(backup, path, name)
    ids, renamed = _ids_of_sweep(location.folder, store) if checkpoints else {}, []
    for name in checkpoints:
        with writing():
            renamed.append(rekey_checkpoint(files, name, ids))
    for path in study:
        with writing():
            path.unlink()
            folder_at(root).remove(path.name)
    for path in old:
        store.rekey(path)
    return Rekeyed(
        where=location.where,
        files=tuple(path.name for path in old),
        checkpoints=tuple(renamed),
        problems=_problems(store),
        unproven=tuple(unproven),
        backup=str(root / BACKUP) if backs_up else None,
    )


def _check_readable(location: ResultsLocation) -> None:
    """Raise HpxferError, which names the files that cannot be read, if there is nothing that can be rekeyed."""
    load_stored(location.folder)
    store = Store.open(location.folder, write=False)
    if len(store.read_trials(["trial_id"])) or legacy_checkpoints(folder_at(parse_root(location.where) / CHECKPOINTS)):
        return
    raise HpxferError(
        f"{location.where}: must hold trials*.parquet that can be read, got none; nothing was changed; restore the "
        "folder from a copy, or run the sweep again with another --results" + "".join(f"\n{p}" for p in store.problems)
    )


def _problems(store: Store) -> tuple[str, ...]:
    """Return which files of the store cannot be read. Files of others, and what a crash leaves, are not among them."""
    store.read_trials(["trial_id"])
    listing = list_parts(store.folder)
    harmless = [*listing.unknown_files, *(part.curves for part in listing.parts if part.trials is None)]
    return tuple(text for text in store.problems if not text.startswith(tuple(f"{path}: " for path in harmless)))


def _not_writable(folder: Path) -> str | None:
    """Return why the system refuses to write to a folder, or None if it does not refuse."""
    try:
        prove_writable(folder)
    except OSError as error:
        return reason(error)
    return None


def _ids_of_sweep(folder: Path, store: Store) -> dict[str, str]:
    """Return legacy id -> today's id of the trials that are still to be trained. Checkpoints belong to these."""
    spec = load_stored(folder)
    trials = store.read_trials().to_pandas()
    expansion = Results(folder=folder, spec=spec, trials=trials, problems=()).expansion
    search = make_search(expansion, lambda: trials)
    asked = search.ask(outcomes_of(trials, spec.judge.loss), ())
    return {legacy_id(trial, TRAINER_VERSION): trial.id for trial in asked} | store.todays_ids()


def _back_up(backup: StorageFolder, path: Path, name: str) -> None:
    """Copy a file to the backup. If the backup has a different file of that name, the copy's name gets a number."""
    stamps, number, stem, suffix = backup.stamps(), 1, *os.path.splitext(name)
    while name in stamps:
        with backup.local_copy(name) as old:
            if filecmp.cmp(old, path, shallow=False):
                return
        number += 1
        name = f"{stem}.{number}{suffix}"
    backup.put(name, lambda target: shutil.copyfile(path, target))


def _into(location: ResultsLocation, to: str | Path) -> Rekeyed:
    """Make a copy of the results with today's ids in a new folder."""
    if is_uri(to):
        raise HpxferError(f"--to {to}: must be a folder, got a URI; give a folder, or leave it out to rekey in place")
    target = Path(to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if _is_copy(target, location):
            return Rekeyed(where=str(target))
        raise HpxferError(f"--to {to}: must be a new or an empty folder, got one with something else; name another")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.rekey")
        shutil.rmtree(partial, ignore_errors=True)
        _copy(location, partial)
        copy = location_at(partial)
        done = _rekey(copy, Store.open(partial, write=True), backs_up=False)
        os.replace(partial, target)
    except OSError as error:
        raise HpxferError(f"--to {to}: cannot be written: {reason(error)}; name another folder") from None
    problems = tuple(text.replace(str(partial), str(target)) for text in done.problems)
    return Rekeyed(**{**vars(done), "where": str(target), "problems": problems})


def _copy(location: ResultsLocation, target: Path) -> None:
    """Copy results without the lease, half-written files and an earlier backup."""
    skipped = shutil.ignore_patterns("*.tmp", LEASE_FILE, BACKUP, STUDY_FILE, MARKER)
    shutil.copytree(location.folder, target, ignore=skipped)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(folder.stat().st_mode | stat.S_IRWXU)  # the copy of a folder that cannot be written is written
    if location.is_remote:
        files = folder_at(parse_root(location.where) / CHECKPOINTS)
        for name in files.stamps():
            if name != MARKER and not name.endswith(".tmp"):
                (target / CHECKPOINTS).mkdir(exist_ok=True)
                with files.local_copy(name) as path:
                    shutil.copyfile(path, target / CHECKPOINTS / name)


def _is_copy(target: Path, location: ResultsLocation) -> bool:
    """Return whether a folder already holds all trials of the results, with today's ids."""
    with suppress(HpxferError):
        copy = location_at(target)
        return not holds_legacy_ids(copy) and _ids(location.folder) <= _ids(target)
    return False


def _ids(folder: Path) -> set[str]:
    ids: Sequence[str] = Store.open(folder, write=False).read_trials(["trial_id"])["trial_id"].to_pylist()
    return set(ids)
