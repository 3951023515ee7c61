"""Vocabulary: which tokenizer a sweep's data has, and how many ids. Touches no data."""

from __future__ import annotations

from hpxfer.spec.sweep import DataSpec

DEFAULT_TOKENIZER = {"builtin": "ascii", "text": "bytes", "tokens": "gpt2"}
VOCAB_SIZE = {"ascii": 128, "bytes": 256, "gpt2": 50304}  # gpt2: 50257, padded to whole tiles of 128
ANY_IDS = "ids"  # the tokenizer of shards that give only a vocab_size


def vocabulary(spec: DataSpec) -> tuple[str, int]:
    """Return (tokenizer, size of the vocabulary) of checked `data`."""
    if spec.vocab_size is not None:
        return ANY_IDS, spec.vocab_size
    tokenizer = spec.tokenizer or DEFAULT_TOKENIZER[spec.source.partition(":")[0]]
    return tokenizer, VOCAB_SIZE[tokenizer]
