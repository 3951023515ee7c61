"""The tokenizer beside a model of `transformers`, where hpxfer has all of it: bytes, and ASCII.

An id is a byte. With `ascii`, a byte of 128 or more is `?`. Of other tokenizers the data holds only ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIZES = {"bytes": 256, "ascii": 128}


def write_tokenizer(name: str, context: int, out: Path) -> bool:
    """Write the files that `AutoTokenizer.from_pretrained` reads. Return False if hpxfer has no such tokenizer."""
    if name not in SIZES:
        return False
    spelled = byte_letters()[: SIZES[name]]
    unknown = "?" if name == "ascii" else None
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    file: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(spelled)},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    for path, content in (("tokenizer.json", file), ("tokenizer_config.json", config)):
        (out / path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return True


def byte_letters() -> list[str]:
    """Return the letter that stands for each byte in the files of byte-level tokenizers.

    A byte that is a visible letter stands for itself. The others have the letters from U+0100 on, in order.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
