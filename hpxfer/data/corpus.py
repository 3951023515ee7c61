"""Corpus: all tokens of a data set behind one index, in memory (text) or memory-mapped (shards)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hpxfer.data.sources import Source, cumulative, read_piece, spans
from hpxfer.data.tokens import check_ids


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Token ids, [num_tokens] in all. `parts` are uint8 or uint16; `names` says for each where it came from."""

    parts: tuple[NDArray[Any], ...]
    names: tuple[str, ...]
    vocab_size: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each part starts, and at last where the tokens end."""
        return cumulative(len(part) for part in self.parts)

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def rows(self, begins: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the `length` tokens from each of `begins` on, int64 [len(begins), length].

        Raises HpxferError on an id beyond the vocabulary.
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
        # One look at the whole batch; only a bad one is walked again to say where.
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


def load(source: Source, tokenizer: str, vocab_size: int) -> Corpus:
    """Return the tokens of a data set; with tokenizer `ascii`, every byte of 128 and above is `?`."""
    if source.kind == "tokens":
        names = tuple(piece.path for piece in source.pieces)
        return Corpus(
            parts=tuple(_mapped(source, part) for part in range(len(names))), names=names, vocab_size=vocab_size
        )
    text = np.empty(source.num_tokens, source.dtype)
    for piece, start in zip(source.pieces, source.starts, strict=False):  # starts has one entry more: the end
        text[start : start + piece.num_tokens] = read_piece(piece, source.dtype, 0, piece.num_tokens)
    if tokenizer == "ascii":
        text[text >= 128] = ord("?")
    return Corpus(parts=(text,), names=(source.name,), vocab_size=vocab_size)


def _mapped(source: Source, part: int) -> NDArray[Any]:
    piece = source.pieces[part]
    whole = np.memmap(piece.path, source.dtype, mode="r")  # with its header: a map of no bytes is an error
    return whole[len(piece.header) // source.dtype.itemsize :]
