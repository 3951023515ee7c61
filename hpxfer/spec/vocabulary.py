"""Vocabulary: which tokenizer a sweep's data has, and how many ids, or what its samples are. It touches no data."""

from __future__ import annotations

from typing import Any

from hpxfer.registry import registry
from hpxfer.spec.data_section import DataSpec, is_own

ANY_IDS = "ids"  # the tokenizer of data for which a sweep gives only a vocab_size
NO_TOKENIZER = "none"  # that of samples


def vocabulary(spec: DataSpec) -> tuple[str, int]:
    """Return (tokenizer, size of the vocabulary) of checked `data`. The classes of samples are their vocabulary."""
    if spec.inputs is not None or is_own(spec):
        return NO_TOKENIZER, spec.classes or 0
    if spec.vocab_size is not None:
        return ANY_IDS, spec.vocab_size
    tokenizers = registry("data source").get(spec.source.partition(":")[0]).tokenizers
    tokenizer = spec.tokenizer or next(iter(tokenizers))
    return tokenizer, tokenizers[tokenizer]


def data_sizes(spec: DataSpec) -> dict[str, Any]:
    """Return what checked `data` says of every token or sample, as the fields of a `DataRef`."""
    tokenizer, vocab_size = vocabulary(spec)
    return {
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "num_inputs": spec.inputs or 0,
        "num_targets": spec.targets or 0,
    }
