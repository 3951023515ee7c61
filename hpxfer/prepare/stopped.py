"""Stopped: what a folder holds of a preparation that has not ended, and whether a command can go on with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host.files import read_text, reason
from hpxfer.prepare.tokenize import FILE, MORE_FILES
from hpxfer.spec.manifest import PROGRESS_FILE

TOKENIZER_FOLDER = "tokenizer"
CHANGED = "times of change"
# Ends the names of the last shards until their state is stored.
LAST = ".last"
_SHARD = re.compile(rf"(train|val)-\d{{5,}}(\.bin|\.documents\.npy)({re.escape(LAST)})?")
# What is said of a key of the request whose values mean something to the user, and of the others.
_OPTIONS = {"field": "--field", "eos": "--eos", "val_tokens": "--val-tokens", "shard_tokens": "--shard-tokens"}
_WORDS = {
    "kind": "files of another kind",
    "files": "other source files",
    "tokenizer": "another tokenizer",
    CHANGED: "source files that were changed since",
}


def stored_state(out: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a stopped run from which this request goes on, or None if it begins.

    What a run of another request left is removed if that had completed no shard. Raises HpxferError if it had, or if
    the folder holds other files.
    """
    path = out / PROGRESS_FILE
    if not path.exists():
        if others := sorted(entry.name for entry in out.iterdir()):
            raise HpxferError(
                f"--out: {out}: must be an empty folder, or one that this command made, got "
                f"{cut(', '.join(others), 200)}; name another"
            )
        return None
    try:
        state = json.loads(read_text(path))
        stored = dict(state["request"])
        has_shards = bool(state["shards"])
    except (OSError, ValueError, KeyError, TypeError):
        raise damaged(out) from None
    found = differences(stored, request)
    if not found:
        return dict(state)
    foreign = [] if has_shards else _start_over(out)
    if has_shards or foreign:
        beside = f" beside {cut(', '.join(foreign), 200)}" if foreign else ""
        may = "take those files out of it" if foreign else "remove the folder, which holds no finished data"
        raise HpxferError(
            f"--out: {out}: must be of the same command, got a preparation that was stopped{beside}, of {found}; "
            f"{may}, or name another folder"
        )
    return None


def shards_in(folder: Path) -> list[Path]:
    """Return the files of a folder that have names of shards."""
    return [path for path in folder.iterdir() if _SHARD.fullmatch(path.name) and path.is_file()]


def differences(stored: dict[str, Any], request: dict[str, Any]) -> str:
    """Return in words how a stored request differs from this one, or nothing if it does not."""
    return ", ".join(
        f"{_OPTIONS[key]} {_value(stored.get(key))} (now {_value(value)})"
        if key in _OPTIONS
        else _WORDS.get(key, f"other {key.replace('_', ' ')}")
        for key, value in request.items()
        if stored.get(key) != value
    )


def _value(value: Any) -> str:
    return "none" if value is None else shown(value)


def damaged(out: Path) -> HpxferError:
    """Return the error for a state that cannot be read."""
    return HpxferError(
        f"{out / PROGRESS_FILE}: must be the state of a stopped run, got a damaged file; name another folder with --out"
    )


def _start_over(out: Path) -> list[str]:
    """Remove what a stopped run wrote to its folder, but for the state. Remove nothing if there are other files.

    Return the names of those.
    """
    folder = out / TOKENIZER_FOLDER
    try:
        shards = shards_in(out)
        copies = [path for path in (folder / name for name in (FILE, *MORE_FILES)) if path.is_file()]
        inside = [] if not folder.is_dir() else list(folder.iterdir())
        known = {*shards, *copies, folder, out / PROGRESS_FILE}
        foreign = sorted(str(path.relative_to(out)) for path in (*out.iterdir(), *inside) if path not in known)
        if not foreign:
            for path in (*shards, *copies):
                path.unlink()
    except OSError as error:
        raise HpxferError(f"--out: {out}: cannot be read: {reason(error)}; name another folder") from None
    return foreign
