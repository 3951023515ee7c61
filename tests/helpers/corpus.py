"""A small corpus and a tokenizer, trained in the test: what a user has before `hpxfer data prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    "attention balance capacity depth expert forward gradient head init jitter kernel layer "
    "moment norm optimum peak query router scale token update value width zero"
)


def documents(number: int, *, words: int = 60) -> list[str]:
    """Return texts of different lengths, each a fixed function of its number."""
    out, names = [], WORDS.split()
    for index in range(number):
        picks = [(index * 7919 + place * place * 104_729 + place) % 1009 for place in range(words + index % 37)]
        text = " ".join(names[pick % len(names)] + str(pick % 11) for pick in picks)
        out.append(f"{text}\nend of {index}, naïve ✓.")
    return out


def tokenizer_file(path: Path, *, vocab_size: int = 400, special: tuple[str, ...] = ("<|endoftext|>",)) -> Path:
    """Train a byte-level BPE on the corpus and write its tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    pre = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = pre, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(special), initial_alphabet=pre.alphabet(), show_progress=False
    )
    made.train_from_iterator(documents(40), trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def jsonl(path: Path, texts: list[str], **more: Any) -> Path:
    """Write texts as JSONL, compressed as the name says."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    with pa.output_stream(str(path), compression=codec) as stream:
        for index, text in enumerate(texts):
            stream.write(json.dumps({"text": text, "id": index, **more}).encode() + b"\n")
    return path
