"""Find checkpoints with legacy ids, and give them today's ids. The tensors stay as they are."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hpxfer.storage.folder import StorageFolder
from hpxfer.train.checkpoints import FORMAT, SUFFIX, BadCheckpoint, read_header, sealed, whole_facts
from hpxfer.trial.stack import stack_id

# The format of checkpoints that hold legacy ids.
LEGACY_FORMAT = 1


def legacy_checkpoints(files: StorageFolder) -> dict[str, tuple[str, ...]]:
    """Return name -> ids of the trials of each whole checkpoint with legacy ids."""
    found = {}
    for name in sorted(files.stamps()):
        if name.endswith(SUFFIX):
            with suppress(BadCheckpoint, OSError), files.open(name) as file:
                facts = whole_facts(read_header(file)["__metadata__"])
                if facts["format"] == LEGACY_FORMAT:
                    found[name] = tuple(facts["trials"])
    return found


def rekey_checkpoint(files: StorageFolder, name: str, ids: Mapping[str, str]) -> str:
    """Write a checkpoint again with today's ids, under the name that its stack has now, and return that name.

    The old file is removed last. A kill in between leaves both, and the next run of the command removes the old one.
    """
    with files.local_copy(name) as path, open(path, "rb") as file:
        header = read_header(file)
        facts = whole_facts(header["__metadata__"])
        trials = [ids.get(trial_id, trial_id) for trial_id in facts["trials"]]
        new = stack_id(trials) + SUFFIX
        header["__metadata__"] = sealed({**facts, "format": FORMAT, "trials": trials})
        files.put(new, lambda target: _write(target, header, file))
    if new != name:
        files.remove(name)
    return new


def _write(path: Path, header: Mapping[str, Any], tensors: IO[bytes]) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        shutil.copyfileobj(tensors, out)
