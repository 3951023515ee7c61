"""Prepare: from text and a tokenizer to a folder of token shards. It needs the package `tokenizers` (extra `hf`)."""

# A shard has at least so many tokens, but for the last one.
SHARD_TOKENS = 100_000_000
