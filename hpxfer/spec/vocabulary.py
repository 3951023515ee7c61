"""Vocabulary: which tokenizer a sweep's data has, and how many ids. It touches no data."""

from __future__ import annotations

from hpxfer.registry import registry
from hpxfer.spec.data_section import DataSpec

ANY_IDS = "ids"  # the tokenizer of data for which a sweep gives only a vocab_size


def vocabulary(spec: DataSpec) -> tuple[str, int]:
    """Return (tokenizer, size of the vocabulary) of checked `data`."""
    if spec.vocab_size is not None:
        return ANY_IDS, spec.vocab_size
    tokenizers = registry("data source").get(spec.source.partition(":")[0]).tokenizers
    tokenizer = spec.tokenizer or next(iter(tokenizers))
    return tokenizer, tokenizers[tokenizer]
