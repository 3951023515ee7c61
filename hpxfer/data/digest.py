"""The digest of a data set: its identity. Moving or renaming files does not change it."""

from __future__ import annotations

import hashlib

from hpxfer.data.sources.dataset import Dataset, check_ids, spans

NUM_BLOCKS = 64
BLOCK_BYTES = 64 * 1024


def blocks(num_tokens: int, token_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of tokens that the digest covers: all, or 64 blocks of 64 KiB spaced evenly over the data.

    The first block starts at the first token, and the last block ends at the last token.
    """
    block = BLOCK_BYTES // token_bytes
    if num_tokens <= NUM_BLOCKS * block:
        return [(0, num_tokens)]
    starts = [index * (num_tokens - block) // (NUM_BLOCKS - 1) for index in range(NUM_BLOCKS)]
    return [(start, start + block) for start in starts]


def digest(dataset: Dataset, vocab_size: int | None = None) -> str:
    """Return the digest of a data set, 32 hex digits. It reads at most 4 MiB of tokens.

    The digest is the 16-byte blake2b of these bytes, in this order:
    1. the format (`text` or `tokens`; built-in data is text), a space, the number of files in decimal, a newline;
    2. for each file, its number of tokens in decimal, a newline, and its header: 1024 bytes for a token shard, none
       for text;
    3. the tokens in the ranges of `blocks`, which index the tokens of all files in order.

    The digest covers the order of the files, not their paths. It does not cover the tokenizer, which is a separate part
    of a trial's identity. If `vocab_size` is given, raise HpxferError for a token read here that is not below it.
    """
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{dataset.format} {len(dataset.parts)}\n".encode())
    for part in dataset.parts:
        state.update(f"{part.num_tokens}\n".encode() + part.header)
    for begin, end in blocks(dataset.num_tokens, dataset.token_bytes):
        for index, low, high in spans(dataset.starts, begin, end):
            part = dataset.parts[index]
            ids = part.read(low, high)
            if vocab_size is not None:
                check_ids(ids, vocab_size, part.path, low)
            state.update(ids.tobytes())
    return state.hexdigest()
