"""The digest of a data set: its identity, which a move or a rename of the files leaves alone."""

from __future__ import annotations

import hashlib

from hpxfer.data.sources import Source, read_piece, spans
from hpxfer.data.tokens import check_ids

NUM_BLOCKS = 64
BLOCK_BYTES = 64 * 1024


def blocks(num_tokens: int, token_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of tokens that are digested: everything, or 64 blocks of 64 KiB spaced evenly over the data.

    The first block starts at the first token, the last one ends at the last.
    """
    block = BLOCK_BYTES // token_bytes
    if num_tokens <= NUM_BLOCKS * block:
        return [(0, num_tokens)]
    starts = [index * (num_tokens - block) // (NUM_BLOCKS - 1) for index in range(NUM_BLOCKS)]
    return [(start, start + block) for start in starts]


def digest(source: Source, vocab_size: int) -> str:
    """Return the digest of a data set, 32 hex digits, reading at most 4 MiB of tokens.

    It is the 16-byte blake2b of, one after the other:
    1. `text` or `tokens` (built-in data is text), a space, the number of files in decimal, a newline;
    2. for each file in order, its number of tokens in decimal, a newline, and the bytes of its header: 1024 for a
       token shard, none for text;
    3. the bytes of the tokens in the ranges of `blocks`, the tokens of all files being one row.

    Paths are not in it, the order of the files is. The tokenizer is not in it: it stands beside the digest in a
    trial's identity. The token ids that are read on the way must be below `vocab_size`, else HpxferError.
    """
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{source.kind} {len(source.pieces)}\n".encode())
    for piece in source.pieces:
        state.update(f"{piece.num_tokens}\n".encode() + piece.header)
    for begin, end in blocks(source.num_tokens, source.dtype.itemsize):
        for part, low, high in spans(source.starts, begin, end):
            piece = source.pieces[part]
            ids = read_piece(piece, source.dtype, low, high)
            if source.kind == "tokens":
                check_ids(ids, vocab_size, piece.path, low)
            state.update(ids.tobytes())
    return state.hexdigest()
