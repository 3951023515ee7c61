"""sweep.yaml: the sweep as run, with the digest of its data. Loading results re-expands it without the data.

A run writes the file again from the user's own sweep file, so a run repairs a damaged one. No result is lost by that.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host import read_bytes, write_files
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep

SWEEP_FILE = "sweep.yaml"
# The last key that every stored sweep has. A file without it was cut off.
_LAST_KEY = "resources"
REPAIR = "`hpxfer run SWEEP.yaml`, with your own file of this sweep, writes it again and keeps every result"


def load_stored(folder: Path) -> SweepSpec:
    """Return the sweep of a results folder. Its plug-ins are not imported.

    Raise HpxferError if the folder has no sweep.yaml, or a damaged one. The message says how to repair it.
    """
    path = folder / SWEEP_FILE
    if not path.exists():
        raise HpxferError(
            f"{folder}: must be a results folder with {SWEEP_FILE} and trials*.parquet, got no {SWEEP_FILE}; "
            "`hpxfer run SWEEP.yaml` makes it"
        )
    with _repairable(path):
        spec = _whole(path)
    if spec.data.digest is None:
        raise HpxferError(f"{path}: data.digest: must be given, as in the file that a run leaves; {REPAIR}")
    return spec


def require_whole(path: Path) -> None:
    """Raise HpxferError, which says how to repair it, if a file is the damaged sweep.yaml of a results folder."""
    if path.name == SWEEP_FILE and any(path.parent.glob("trials*.parquet")):
        with _repairable(path):
            _whole(path)


def stored_sweep(folder: Path) -> SweepSpec | None:
    """Return the sweep that a results folder holds, or None if it holds none that can be read. Nothing is imported."""
    with suppress(HpxferError):
        return load_stored(folder)
    return None


def damage(folder: Path) -> str | None:
    """Return why the stored sweep of a folder cannot be read and how to repair it, or None if nothing is wrong."""
    try:
        if (folder / SWEEP_FILE).exists():
            load_stored(folder)
    except HpxferError as error:
        return str(error)
    return None


def _whole(path: Path) -> SweepSpec:
    """Return a stored sweep. What is left of one that was cut off may be a legal sweep, but another one."""
    spec = load_sweep(path, trusted=False)
    if spec.data.digest is not None and _LAST_KEY not in spec.model_fields_set:
        raise HpxferError("its end is missing")
    return spec


@contextmanager
def _repairable(path: Path) -> Iterator[None]:
    """Make an error about the content of a stored sweep say that the file is damaged, and how to repair it."""
    try:
        yield
    except HpxferError as error:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise  # what is wrong is not the content
        what = str(error).splitlines()[0].removeprefix(f"{path}:").strip()
        what = re.sub(r"^\d+:", lambda line: f"line {line[0]}", what)
        raise HpxferError(f"{path}: the stored sweep is damaged, or of another hpxfer: {what}; {REPAIR}") from None


def save_sweep(folder: Path, spec: SweepSpec, digest: str) -> None:
    """Write the sweep into the folder. A different sweep.yaml is kept beside it, under a name with its hash."""
    path, data = folder / SWEEP_FILE, spec.data.model_copy(update={"digest": digest})
    contents = {path: dump_sweep(spec.model_copy(update={"data": data})).encode()}
    if path.exists():
        if (old := read_bytes(path)) == contents[path]:
            return
        name = hashlib.blake2b(old).hexdigest()
        beside = (folder / f"sweep-{name[:length]}.yaml" for length in (8, len(name)))
        contents = {next(each for each in beside if not each.exists() or read_bytes(each) == old): old, **contents}
    write_files({path: lambda file, content=content: file.write(content) for path, content in contents.items()})  # type: ignore[misc]
