"""The files of a user's own trainer: where they lie, and the digests by which a change of them is known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from hpxfer.errors import HpxferError, shown
from hpxfer.host import read_bytes
from hpxfer.spec.own import TrainerSpec
from hpxfer.spec.sweep import SweepSpec

SWEEP_FILE = "sweep.yaml"  # of a results folder, beside its trials
MAX_FILES = 10_000
MAX_BYTES = 2**30  # of all files together; code is smaller


def in_folder(spec: SweepSpec, folder: Path) -> SweepSpec:
    """Return the sweep with the folder of its own trainer as an absolute path. `folder` is that of the sweep file."""
    return spec if spec.trainer is None else _with(spec, folder=str(folder / (spec.trainer.folder or "")))


def digested(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with the digests of its trainer's files.

    Where no file of a sweep that was run before is on this machine, its digests stand for them. Raise HpxferError if a
    file cannot be read, or a name matches none.
    """
    trainer = spec.trainer
    if trainer is None or not trainer.files:
        return spec
    folder = Path(trainer.folder or ".")
    matches = list(_matches(folder, trainer))
    if trainer.digests is not None and not any(found for _, found in matches):
        return spec
    digests: dict[str, str] = {}
    size = 0
    for name, paths in matches:
        if not paths:
            raise HpxferError(f"trainer.files: {shown(name)} must name files below {folder}, got none")
        for path in paths:
            content = read_bytes(path)
            size += len(content)
            if size > MAX_BYTES or len(digests) >= MAX_FILES:
                raise HpxferError(f"trainer.files: {shown(name)}: must be at most {MAX_FILES} files of 1 GiB together")
            digests[path.relative_to(folder).as_posix()] = digest_of(content)
    return _with(spec, digests=dict(sorted(digests.items())))


def digest_of(content: bytes) -> str:
    """Return the digest by which a change of a file is known."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _matches(folder: Path, trainer: TrainerSpec) -> Iterator[tuple[str, list[Path]]]:
    """Yield each name with the files that it matches.

    A glob passes over what is no code of the user's: hidden folders such as .git, compiled Python, and results folders,
    which change with every run.
    """
    is_results = lru_cache(maxsize=None)(lambda path: (path / SWEEP_FILE).is_file() and any(path.glob("trials*")))

    def is_code(path: Path) -> bool:
        folders = path.relative_to(folder).parents[:-1]
        passed = any(each.name.startswith(".") or each.name == "__pycache__" for each in folders)
        return not passed and not any(is_results(folder / each) for each in folders)

    for name in trainer.files or ():
        is_glob = any(mark in name for mark in "*?[")
        try:
            found = sorted(path for path in folder.glob(name) if path.is_file() and (not is_glob or is_code(path)))
        except (IndexError, ValueError, NotImplementedError, OSError) as error:
            raise HpxferError(f"trainer.files: {shown(name)}: {error}") from None
        yield name, found


def _with(spec: SweepSpec, **changes: object) -> SweepSpec:
    assert spec.trainer is not None
    return spec.model_copy(update={"trainer": spec.trainer.model_copy(update=changes)})
