"""Corpus: all token ids of a data set behind one index, in memory (text) or memory-mapped (shards)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hpxfer.data.sources import Dataset, DataSource
from hpxfer.data.sources.dataset import check_ids, cumulative, spans


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Token ids, [num_tokens] in all. `parts` are unsigned integers. `names` says where each part comes from."""

    parts: tuple[NDArray[Any], ...]
    names: tuple[str, ...]
    vocab_size: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each part starts, and finally where the tokens end."""
        return cumulative(len(part) for part in self.parts)

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def rows(self, begins: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the `length` tokens from each of `begins` on, int64 [len(begins), length].

        Raise HpxferError if an id is not in the vocabulary.
        """
        out = np.empty((len(begins), length), np.int64)
        starts = np.array(self.starts)
        part_of = np.searchsorted(starts, begins, side="right") - 1
        whole = begins + length <= starts[np.minimum(part_of + 1, len(self.parts))]
        for part in np.unique(part_of[whole]).tolist():
            rows = np.flatnonzero(whole & (part_of == part))
            windows = sliding_window_view(self.parts[part], length)
            out[rows] = windows[begins[rows] - self.starts[part]]
        for index in np.flatnonzero(~whole).tolist():
            self._join(out[index], int(begins[index]))
        # One check of the whole batch. Only a bad batch is read again, to find the position.
        if out.max(initial=0) >= self.vocab_size:
            self._check_rows(begins, length)
        return out

    def _join(self, row: NDArray[np.int64], begin: int) -> None:
        """Write the tokens from `begin` on, which come from several parts, to `row`."""
        for part, low, high in spans(self.starts, begin, begin + len(row)):
            at = self.starts[part] + low - begin
            row[at : at + high - low] = self.parts[part][low:high]

    def _check_rows(self, begins: NDArray[np.int64], length: int) -> None:
        for begin in begins.tolist():
            for part, low, high in spans(self.starts, begin, begin + length):
                check_ids(self.parts[part][low:high], self.vocab_size, self.names[part], low)


def load_corpus(source: DataSource, dataset: Dataset, tokenizer: str, vocab_size: int) -> Corpus:
    """Return the token ids of a data set."""
    parts = source.load(dataset, tokenizer)
    names = tuple(part.path for part in dataset.parts)
    if len(parts) != len(names):  # joined, e.g. text
        names = (source.name,) * len(parts)
    return Corpus(parts=parts, names=names, vocab_size=vocab_size)
