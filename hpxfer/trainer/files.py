"""Files of a trainer on the node that trains: they must be those of the run, for which its results stand."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO

from hpxfer.errors import HpxferError
from hpxfer.host.files import reason, write_files
from hpxfer.spec.own import TrainerSpec
from hpxfer.spec.trainer_files import digest_of


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def require_files(trainer: TrainerSpec, sent: Mapping[str, bytes]) -> None:
    """Raise HpxferError if a file of the trainer is not on this node, or is another than the run began with.

    `sent` are files that came with a job: name -> content. Those that are not there are written first.
    """
    folder = Path(trainer.folder or ".")
    for name, digest in (trainer.digests or {}).items():
        path, content = folder / name, sent.get(name)
        if content is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: partial(_write, content)})
        try:
            found = digest_of(path.read_bytes())
        except OSError as error:
            found = reason(error)
        if found != digest:
            raise HpxferError(
                f"trainer.files: {name}: must be the file that the run began with ({digest[:12]}), got {found[:40]} in "
                f"{folder} on {socket.gethostname()}; give every node the same files, and run again after a change"
            )
