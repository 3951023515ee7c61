"""Cautions: what is most likely wrong with the data of a sweep although a run would end without an error."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hpxfer.data.info import pieces, vocabulary_cautions
from hpxfer.data.samples import open_samples
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.data.sources.dataset import Dataset, spans
from hpxfer.spec.data_section import DataSpec, is_own
from hpxfer.spec.source_kind import SAMPLES, source_kind
from hpxfer.storage.uri import is_uri


def data_cautions(spec: DataSpec) -> Iterator[str]:
    """Yield what the user should know before a run. Nothing is known of data that is not on this machine.

    Raise HpxferError for an id that is not in the vocabulary.
    """
    if is_own(spec):
        return
    if source_kind(spec.source) == SAMPLES:
        if spec.source == spec.validation and (found := open_samples(spec.source)) is not None and not found.num_test:
            yield (
                "data.validation: is data.source, which has no test split, so the validation loss is that of samples on"
                " which the models are trained; hold out other samples"
            )
        return
    yield from vocabulary_cautions(spec)
    dataset = open_dataset(spec.source)
    if dataset is None:
        return
    if spec.validation is not None and (shared := _shared(dataset, open_dataset(spec.validation, "data.validation"))):
        more = f" and {len(shared) - 1} more files" if shared[1:] else ""
        yield (
            f"data.validation: {shared[0]}{more} is read for training too, "
            "so the validation loss is that of tokens on which the models are trained; hold out other files"
        )
    if spec.documents == "masked" and spec.eos_id is not None and not is_uri(spec.source.partition(":")[2]):
        most = _without(dataset, spec.eos_id) if source_of(spec.source).holds_ids else 0
        if most:
            read = "all its tokens" if most == dataset.num_tokens else f"{most} of its {dataset.num_tokens} tokens"
            yield (
                f"data.eos_id: no token of {spec.source} is {spec.eos_id} ({read} were read), so no document ends and "
                "documents: masked masks nothing; give the id that ends the documents of this data"
            )


def _shared(dataset: Dataset, held_out: Dataset | None) -> list[str]:
    """Return the files that are in both."""
    trained = {os.path.realpath(part.path) for part in dataset.parts}
    return [part.path for part in (held_out.parts if held_out else ()) if os.path.realpath(part.path) in trained]


def _without(dataset: Dataset, token: int) -> int:
    """Return how many tokens were read without finding this one, or 0 if it was found."""
    num_read = 0
    for begin, end in pieces(dataset.num_tokens):
        for index, low, high in spans(dataset.starts, begin, end):
            if (dataset.parts[index].read(low, high) == token).any():
                return 0
            num_read += high - low
    return num_read
