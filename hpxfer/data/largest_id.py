"""The largest token id of a data set: whether the vocabulary that a sweep gives, or leaves out, can be right.

A model is planned with one embedding and one logit per id of the vocabulary. With gpt2's 50304 ids for data of 500 ids,
it is a much larger model than the data needs, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.data.sources import open_dataset, source_of
from hpxfer.data.sources.dataset import Dataset, check_ids, spans
from hpxfer.spec.data_section import DataSpec
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.storage.uri import is_uri

# Planning reads at most so many tokens, 128 MiB of shards: 0.1 s from memory (one core of an AMD EPYC, 2026-11), about
# a second from a slow disk.
MOST_TOKENS = 2**26
PIECE_TOKENS = 2**18
# Data that uses less of its vocabulary was most likely written with another tokenizer: shards of gpt2 ids hold the
# largest id of all, 50256, between their documents.
USED = 0.9


@dataclass(frozen=True, kw_only=True)
class LargestId:
    """The largest id among the tokens that were read."""

    value: int
    num_read: int
    num_tokens: int  # of the whole data set

    def how_read(self) -> str:
        """Return in words how much of the data the id is the largest of."""
        if self.num_read == self.num_tokens:
            return "all its tokens were read"
        return f"{self.num_read} of its {self.num_tokens} tokens were read, spread evenly"


def largest_id(dataset: Dataset, vocab_size: int) -> LargestId:
    """Return the largest id of a data set that holds ids, or of pieces spread evenly if the data set is large.

    Raise HpxferError for an id that is not in the vocabulary.
    """
    value = num_read = 0
    for begin, end in pieces(dataset.num_tokens):
        for index, low, high in spans(dataset.starts, begin, end):
            part = dataset.parts[index]
            ids = part.read(low, high)
            check_ids(ids, vocab_size, part.path, low)
            value, num_read = max(value, int(ids.max())), num_read + len(ids)
    return LargestId(value=value, num_read=num_read, num_tokens=dataset.num_tokens)


def pieces(num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of tokens to read: all of them, or pieces of which the first and the last are the ends."""
    if num_tokens <= MOST_TOKENS:
        yield from ((begin, min(begin + PIECE_TOKENS, num_tokens)) for begin in range(0, num_tokens, PIECE_TOKENS))
        return
    number = MOST_TOKENS // PIECE_TOKENS
    for index in range(number):
        begin = index * (num_tokens - PIECE_TOKENS) // (number - 1)
        yield begin, begin + PIECE_TOKENS


def vocabulary_cautions(spec: DataSpec) -> tuple[str, ...]:
    """Return a caution if the sweep leaves the vocabulary to the default and the ids of the data do not fit to it.

    Nothing is known of data that is not on this machine, and of text the vocabulary is known. Raise HpxferError for
    an id that is not in the vocabulary.
    """
    source = source_of(spec.source)
    dataset = open_dataset(spec.source)
    if not source.holds_ids or dataset is None or is_uri(spec.source.partition(":")[2]):
        return ()  # of data in storage, the digest checks a sample of the ids
    tokenizer, vocab_size = vocabulary(spec)
    held_out = spec.validation and open_dataset(spec.validation, "data.validation")
    if held_out:
        largest_id(held_out, vocab_size)
    found = largest_id(dataset, vocab_size)
    num_ids = source.unpadded.get(tokenizer, vocab_size)
    is_given = spec.tokenizer is not None or spec.vocab_size is not None
    if is_given or source.max_vocab_size is None or USED * num_ids <= found.value + 1 <= num_ids:
        return ()
    size = f"{vocab_size} ids" if num_ids == vocab_size else f"{num_ids} ids, padded to {vocab_size}"
    return (
        f"data.vocab_size: not given, so the vocabulary of {tokenizer} is assumed, {size}, and the largest id of "
        f"{spec.source} is {found.value} ({found.how_read()}); write vocab_size: {found.value + 1}, or more if the "
        f"tokenizer of the data has more ids; tokenizer: {tokenizer} keeps {vocab_size} without this warning",
    )
