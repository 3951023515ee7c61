"""Files of a trainer on the node that trains: they must be those of the run, for which its results stand."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host.files import write_files
from hpxfer.spec.own import TrainerSpec
from hpxfer.spec.trainer_files import digest_of

# Of files that were read: path -> (size, time of the last change, digest).
_Known = dict[Path, tuple[int, int, str]]
_KNOWN: _Known = {}


def require_files(trainer: TrainerSpec, sent: Mapping[str, bytes], known: _Known = _KNOWN) -> None:
    """Raise HpxferError if a file of the trainer is not on this node, or is another than the run began with.

    `sent` are files that came with a job: name -> content. Those that are not there are written first. `known` spares a
    trial the reading of files that have not changed since the one before.
    """
    folder = Path(trainer.folder or ".")
    for name, digest in (trainer.digests or {}).items():
        path = folder / name
        if name in sent and not path.exists():
            _write(path, sent[name])
        if (found := _digest(path, known)) != digest:
            got = "no such file" if found is None else f"another one ({found[:12]})"
            raise HpxferError(
                f"trainer.files: {name}: must be the file that the run began with ({digest[:12]}), got {got} in "
                f"{folder} on {socket.gethostname()}; give every node the same files, and run again after a change"
            )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: lambda file: file.write(content)})


def _digest(path: Path, known: _Known) -> str | None:
    try:
        state = os.stat(path)
        size, changed, digest = known.get(path, (-1, -1, ""))
        if (size, changed) != (state.st_size, state.st_mtime_ns):
            digest = digest_of(path.read_bytes())
            known[path] = state.st_size, state.st_mtime_ns, digest
    except OSError:
        return None
    return digest
