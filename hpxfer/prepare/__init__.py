"""Prepare: from text and a tokenizer to a folder of token shards. It needs the package `tokenizers` (extra `hf`)."""
