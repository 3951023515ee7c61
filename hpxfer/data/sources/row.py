"""DataSource: the row of one kind of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hpxfer.data.sources.dataset import Dataset


def read_all(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return the token ids of each part, read into memory."""
    return tuple(part.read(0, part.num_tokens) for part in dataset.parts)


def any_rest(rest: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One kind of data, named `NAME:REST` in a sweep."""

    name: str
    """The prefix, without its colon."""
    usage: str
    """How a sweep names such data, e.g. `text:PATH-or-glob`."""
    tokenizers: Mapping[str, int]
    """Tokenizer -> size of its vocabulary. The first is the default. With none, a sweep must give `vocab_size`."""
    unpadded: Mapping[str, int] = field(default_factory=dict)
    """Tokenizer -> its number of ids, where `tokenizers` has a larger number that suits the hardware."""
    max_vocab_size: int | None = None
    """A sweep may give `vocab_size` up to this instead of a tokenizer. None: it may not."""
    holds_ids: bool = True
    """Whether the parts hold token ids, which must be below the vocabulary. False: `load` makes ids of what they hold.
    """
    is_path: bool = True
    """Whether the rest is a path, which starts at the folder of the sweep file if it is relative."""
    problem: Callable[[str], str | None] = any_rest
    """(rest) -> what is wrong with it, or None. It must not touch the data: it runs where a sweep is only planned."""
    open: Callable[[str], Dataset | None]
    """(rest) -> the data set on this machine, or None if there is none."""
    load: Callable[[Dataset, str], tuple[NDArray[Any], ...]] = read_all
    """(data set, tokenizer) -> the token ids of all parts, unsigned, in memory or memory-mapped."""
    mismatch_fix: str = "copy the sweep's data to it"
    """What to do if another machine has other data under the same name."""
