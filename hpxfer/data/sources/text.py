"""text: files of bytes. With the tokenizer `bytes` an id is a byte. With `ascii`, a byte of 128 or more is `?`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.sources.dataset import DataFile, Dataset, file_size
from hpxfer.data.sources.files import matching_files
from hpxfer.data.sources.row import DataSource

FORMAT = "text"


def text_dataset(paths: list[str]) -> Dataset | None:
    """Return the data set of some files of text, or None if there is no file."""
    parts = tuple(DataFile(path=path, num_tokens=file_size(path), dtype="u1") for path in paths)
    return Dataset(format=FORMAT, parts=parts) if parts else None


def load_text(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return all text as one array in memory, uint8 [num_tokens]. Its files may be small and many."""
    text = np.empty(dataset.num_tokens, np.uint8)
    for part, start in zip(dataset.parts, dataset.starts, strict=False):  # starts has one entry more: the end
        text[start : start + part.num_tokens] = part.read(0, part.num_tokens)
    if tokenizer == "ascii":
        text[text >= 128] = ord("?")
    return (text,)


TEXT = DataSource(
    name="text",
    usage="text:PATH-or-glob",
    tokenizers={"bytes": 256, "ascii": 128},
    holds_ids=False,
    open=lambda path: text_dataset(matching_files(path)),
    load=load_text,
)
