"""The trainer of a submitted sweep: its declared files travel with the request, and are unpacked on the cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from hpxfer.driver.own_code import SENT, commit_of
from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import cache_folder, read_bytes, write_files
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.trainer_files import digested
from hpxfer.storage.uri import parse_root

FOLDER = "trainer"  # below the results folder of the sweep


def trainer_files(spec: SweepSpec) -> dict[str, str]:
    """Return name -> content (Latin-1 for bytes) of the files of a sweep's own trainer, and what git says of them.

    The spec has their digests. Without a trainer of its own a sweep has no files. Raise HpxferError if a trainer
    declares none.
    """
    trainer = spec.trainer
    if trainer is None:
        return {}
    if not trainer.files or not trainer.digests:
        raise HpxferError(
            "trainer.files: must name the files that a job takes along, got none; name what the cluster lacks, e.g. "
            "[train.py, src/**/*.py]"
        )
    folder = Path(trainer.folder or ".")
    found = {name: read_bytes(folder / name).decode("latin-1") for name in trainer.digests}
    return {**found, SENT: json.dumps(commit_of(trainer.folder))}


def with_trainer_files(text: str, files: Mapping[str, str], root: str, name: str) -> str:
    """Return the sweep with the files of its trainer on this machine, below the results folder of the sweep.

    `root` holds that folder. If it is a URI, the files are written to this machine's cache. The same files always get
    the same folder. Raise HpxferError if a name leads out of it, or a file is not the one that was submitted.
    """
    spec = parse_sweep(text, "the sweep of the job", trusted=False)
    if spec.trainer is None:
        return text
    digests = spec.trainer.digests or {}
    if files.keys() != {*digests, SENT}:
        raise HpxferError(f"trainer.files: must be the files of the sweep, got {shown(sorted(files))}")
    above = found / name if isinstance(found := parse_root(root), Path) else cache_folder("jobs")
    folder = above / FOLDER / hashlib.blake2b(json.dumps(digests).encode(), digest_size=16).hexdigest()
    for each, content in files.items():
        path = folder / checked_name(each)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files({path: partial(_write, content.encode("latin-1"))})
    here = digested(spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"folder": str(folder)})}))
    assert here.trainer is not None
    if here.trainer.digests != digests:
        differ = sorted(set(digests.items()) ^ set((here.trainer.digests or {}).items()))
        raise HpxferError(
            f"trainer.files: {differ[0][0]}: must be the file that was submitted, got another in {folder}; submit again"
        )
    return dump_sweep(here)


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def checked_name(name: str) -> PurePosixPath:
    """Return the name of a file as a path below a folder. Raise HpxferError if it leads anywhere else."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        raise HpxferError(f"trainer.files: must be relative paths below one folder, got {shown(name)}")
    return path
