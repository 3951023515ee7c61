"""builtin: the standard library of this Python, as text. It needs no download, so that examples run anywhere."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

from hpxfer.data.sources.dataset import Dataset
from hpxfer.data.sources.row import DataSource
from hpxfer.data.sources.text import load_text, text_dataset
from hpxfer.errors import shown

STDLIB = "stdlib"
# Tests are long and repetitive. Packages are not part of the library.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
# These belong to one build or one machine: with them, equal Pythons on two machines would have different data.
_LOCAL_FOLDER, _LOCAL_FILES = "config-", ("_sysconfigdata", "sitecustomize", "usercustomize")


def stdlib_files(root: str) -> list[str]:
    """Return the Python files of a standard library, without tests and without files of one build or machine.

    They are ordered by a hash of the path below `root`, so that the held-out tail is a sample of all modules.
    """
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [
            name for name in subfolders if name not in _SKIPPED_FOLDERS and not name.startswith(_LOCAL_FOLDER)
        ]
        found += [Path(folder, name) for name in files if name.endswith(".py") and not name.startswith(_LOCAL_FILES)]

    def key(path: Path) -> bytes:
        return hashlib.blake2b(path.relative_to(root).as_posix().encode(), digest_size=16).digest()

    return [str(path) for path in sorted(found, key=key)]


def _open(name: str) -> Dataset | None:
    return text_dataset(stdlib_files(sysconfig.get_path("stdlib")))


def _problem(name: str) -> str | None:
    return None if name == STDLIB else f"unknown built-in data {shown(name)}; legal: {STDLIB}"


BUILTIN = DataSource(
    name="builtin",
    usage="builtin:stdlib",
    tokenizers={"ascii": 128, "bytes": 256},
    holds_ids=False,
    is_path=False,
    problem=_problem,
    open=_open,
    load=load_text,
    mismatch_fix="run the same Python on all",
)
