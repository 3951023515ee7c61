"""sweep.yaml: the sweep as run, with the digest of its data. Loading results re-expands it without the data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from hpxfer.host.files import write_files
from hpxfer.spec import SweepSpec, dump_sweep

SWEEP_FILE = "sweep.yaml"


def save_sweep(folder: Path, spec: SweepSpec, digest: str) -> None:
    """Write the sweep into the folder. A different sweep.yaml is kept beside it, under a name with its hash."""
    data = spec.data.model_copy(update={"digest": digest})
    new = dump_sweep(spec.model_copy(update={"data": data})).encode()
    path = folder / SWEEP_FILE
    old = path.read_bytes() if path.exists() else None
    if old == new:
        return
    writers = {path: _writer(new)}
    if old is not None:
        writers = {_free_path(folder, old): _writer(old), **writers}
    write_files(writers)


def _writer(content: bytes) -> Callable[[IO[bytes]], int]:
    return lambda file: file.write(content)


def _free_path(folder: Path, old: bytes) -> Path:
    """Return where to keep an old sweep: under a free name, or under that of a file with the same bytes."""
    name = hashlib.blake2b(old).hexdigest()
    candidates = (folder / f"sweep-{name[:length]}.yaml" for length in (8, len(name)))
    return next(path for path in candidates if not path.exists() or path.read_bytes() == old)
