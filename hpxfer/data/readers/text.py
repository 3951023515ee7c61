"""text: files of bytes. With the tokenizer `bytes` an id is a byte. With `ascii`, a byte of 128 or more is `?`.

builtin:stdlib is the standard library of this Python, as text. It needs no download, so that examples run anywhere.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.files import file_size, matching_files
from hpxfer.data.sources import DataSource
from hpxfer.data.tokens import DataFile, Dataset
from hpxfer.errors import shown

STDLIB = "stdlib"
# Tests are long and repetitive. Packages are not part of the library.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
# These belong to one build or one machine: with them, equal Pythons on two machines would have different data.
_LOCAL_FOLDER, _LOCAL_FILES = "config-", ("_sysconfigdata", "sitecustomize", "usercustomize")


def _dataset(paths: list[str]) -> Dataset | None:
    parts = tuple(DataFile(path=path, num_tokens=file_size(path), dtype="u1") for path in paths)
    return Dataset(format="text", parts=parts) if parts else None


def _load(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return all text as one array in memory, uint8 [num_tokens]. Its files may be small and many."""
    text = np.empty(dataset.num_tokens, np.uint8)
    for part, start in zip(dataset.parts, dataset.starts, strict=False):  # starts has one entry more: the end
        text[start : start + part.num_tokens] = part.read(0, part.num_tokens)
    if tokenizer == "ascii":
        text[text >= 128] = ord("?")
    return (text,)


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


TEXT = DataSource(
    name="text",
    usage="text:PATH-or-glob",
    tokenizers={"bytes": 256, "ascii": 128},
    holds_ids=False,
    open=lambda path: _dataset(matching_files(path)),
    load=_load,
)
BUILTIN = DataSource(
    name="builtin",
    usage="builtin:stdlib",
    tokenizers={"ascii": 128, "bytes": 256},
    holds_ids=False,
    is_path=False,
    problem=lambda name: None if name == STDLIB else f"unknown built-in data {shown(name)}; legal: {STDLIB}",
    open=lambda name: _dataset(stdlib_files(sysconfig.get_path("stdlib"))),
    load=_load,
    mismatch_fix="run the same Python on all",
)
