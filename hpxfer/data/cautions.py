"""Cautions: what is most likely wrong with the data of a sweep although a run would end without an error."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hpxfer.data.sources import open_dataset, opened, source_of
from hpxfer.data.tokens import Dataset
from hpxfer.host import is_uri
from hpxfer.spec import DataSpec, is_own, vocabulary

# Data that uses less of its vocabulary was most likely written with another tokenizer: shards of gpt2 ids hold the
# largest id of all, 50256, between their documents.
USED = 0.9


def data_cautions(spec: DataSpec) -> Iterator[str]:
    """Yield what is most likely wrong with the data of a sweep.

    Nothing is known of data that is not on this machine. Raise HpxferError for an id that is not in the vocabulary.
    """
    found = None if is_own(spec) else opened(spec.source)
    if found is not None and not isinstance(found, Dataset):
        if spec.source == spec.validation and not found.num_test:
            yield (
                "data.validation: is data.source, which has no test split, so the validation loss is that of samples on"
                " which the models are trained"
            )
        return
    if found is None:
        return
    held_out = None if spec.validation is None else open_dataset(spec.validation, "data.validation")
    # Of data in storage, the digest checks a sample of the ids.
    holds_ids = source_of(spec.source).holds_ids and not is_uri(spec.source.partition(":")[2])
    if holds_ids:
        yield from _vocabulary_cautions(spec, found, held_out)
    trained = {os.path.realpath(part.path) for part in found.parts}
    shared = [part.path for part in (held_out.parts if held_out else ()) if os.path.realpath(part.path) in trained]
    if shared:
        more = f" and {len(shared) - 1} more files" if shared[1:] else ""
        yield (
            f"data.validation: {shared[0]}{more} is read for training too, so the validation loss is that of tokens on "
            "which the models are trained"
        )
    if spec.documents == "masked" and holds_ids:
        num_read = 0
        for chunk in found.chunks(None):
            if (chunk == spec.eos_id).any():
                return
            num_read += len(chunk)
        yield (
            f"data.eos_id: no token of {spec.source} is {spec.eos_id} ({_read_of(num_read, found)}), so no document "
            "ends and documents: masked masks nothing"
        )


def _vocabulary_cautions(spec: DataSpec, dataset: Dataset, held_out: Dataset | None) -> Iterator[str]:
    """Yield a caution if the sweep leaves the vocabulary to the default and the ids of the data do not fit to it.

    A model is planned with one embedding and one logit per id of the vocabulary. With gpt2's 50304 ids for data of 500
    ids, it is a much larger model than the data needs, and nothing fails.
    """
    source, (tokenizer, vocab_size) = source_of(spec.source), vocabulary(spec)
    if held_out is not None:
        largest_id(held_out, vocab_size)
    largest, num_read = largest_id(dataset, vocab_size)
    num_ids = source.unpadded.get(tokenizer, vocab_size)
    is_given = spec.tokenizer is not None or spec.vocab_size is not None
    if is_given or source.max_vocab_size is None or USED * num_ids <= largest + 1 <= num_ids:
        return
    size = f"{vocab_size} ids" if num_ids == vocab_size else f"{num_ids} ids, padded to {vocab_size}"
    yield (
        f"data.vocab_size: not given, so the vocabulary of {tokenizer} is assumed, {size}, and the largest id of "
        f"{spec.source} is {largest} ({_read_of(num_read, dataset)}); tokenizer: {tokenizer} keeps {vocab_size} "
        "without this warning"
    )


def largest_id(dataset: Dataset, vocab_size: int) -> tuple[int, int]:
    """Return the largest id of a data set, and how many tokens were read for it: all, or pieces spread evenly.

    Raise HpxferError for an id that is not in the vocabulary.
    """
    largest = num_read = 0
    for found in dataset.chunks(vocab_size):
        largest, num_read = max(largest, int(found.max(initial=0))), num_read + len(found)
    return largest, num_read


def _read_of(num_read: int, dataset: Dataset) -> str:
    """Return in words how much of the data was read."""
    if num_read == dataset.num_tokens:
        return "all its tokens were read"
    return f"{num_read} of its {dataset.num_tokens} tokens were read, spread evenly"
