"""Rules of the section `data`: one whole message a rule."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import parse_sweep


def message_of(edit: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(edit), "s.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            "source: stdlib",
            "7: data.source: must be builtin:stdlib, text:PATH-or-glob, tokens:PATH-or-glob, "
            "uint16:PATH-or-glob or uint32:PATH-or-glob, got 'stdlib'",
        ),
        (
            "source: file:a.txt",
            "7: data.source: must be builtin:stdlib, text:PATH-or-glob, tokens:PATH-or-glob, "
            "uint16:PATH-or-glob or uint32:PATH-or-glob, got 'file:a.txt'",
        ),
        ("source: builtin:wiki", "7: data.source: unknown built-in data 'wiki'; legal: stdlib"),
        ("source: 'text:'", "7: data.source: must name a path after text:, got 'text:'"),
        (
            "source: builtin:stdlib\n  vocab_size: 128",
            "8: data.vocab_size: only for tokens:, uint16: and uint32: data; builtin: data has the "
            "vocabulary of its tokenizer",
        ),
        (
            "source: text:a.txt\n  tokenizer: gpt2",
            "8: data.tokenizer: text: data has no tokenizer 'gpt2'; legal: ascii, bytes",
        ),
        (
            "source: tokens:a\n  tokenizer: gpt2\n  vocab_size: 128",
            "9: data.vocab_size: must give one of tokenizer and vocab_size, got both",
        ),
        (
            "source: tokens:a\n  tokenizer: ascii",
            "8: data.tokenizer: tokens: data has no tokenizer 'ascii'; legal: gpt2, or vocab_size",
        ),
        (
            "source: uint16:a\n  vocab_size: 65537",
            "8: data.vocab_size: uint16: data holds ids below 65536, so it must be at most that, got 65537",
        ),
        (
            "source: uint16:a",
            "6: data.vocab_size: must be given: uint16: data does not say with which vocabulary it was written; give "
            "the number of ids of its tokenizer, e.g. 50304 for GPT-2's",
        ),
        (
            "source: uint16:a\n  tokenizer: gpt2",
            "8: data.tokenizer: uint16: data has no tokenizer 'gpt2'; give vocab_size instead",
        ),
        (
            "source: tokens:a\n  validation: text:b",
            "8: data.validation: must hold token ids, as source does, got text:b",
        ),
        (
            "source: tokens:a\n  validation: b",
            "8: data.validation: must be builtin:stdlib, text:PATH-or-glob, "
            "tokens:PATH-or-glob, uint16:PATH-or-glob or uint32:PATH-or-glob, got 'b'",
        ),
        (
            "source: tokens:a\n  validation_digest: ab",
            "8: data.validation_digest: goes with data.validation, got none",
        ),
        (
            "source: tokens:a\n  validation: tokens:b\n  digest: ab",
            "6: data.validation_digest: must be given with the other digest: both stand in for data, or none does",
        ),
        (
            "source: tokens:a\n  documents: masked",
            "6: data.eos_id: must be given with documents: masked, because a document ends with this token; a folder "
            "that `hpxfer data prepare` made states it",
        ),
        (
            "source: tokens:a\n  documents: masked\n  vocab_size: 300\n  eos_id: 300",
            "10: data.eos_id: must be an id of the vocabulary, at most 299, got 300",
        ),
        (
            "source: text:a\n  documents: masked\n  eos_id: 5000",
            "9: data.eos_id: must be an id of the vocabulary, at most 255, got 5000",
        ),
        (
            "source: tokens:a\n  eos_id: 3",
            "8: data.eos_id: goes with documents: masked, got joined; take one of the two out",
        ),
        ("source: tokens:a\n  epochs: 0", "8: data.epochs: must be greater than or equal to 1, got 0"),
    ],
)
def test_data(data: str, problem: str) -> None:
    assert message_of(("source: builtin:stdlib", data)) == f"s.yaml:{problem}"


@pytest.mark.parametrize(
    "data",
    [
        "source: text:a.txt\n  tokenizer: ascii",
        "source: tokens:a\n  tokenizer: gpt2",
        "source: tokens:a\n  vocab_size: 65536",
    ],
)
def test_legal_data(data: str) -> None:
    parse_sweep(edited(("source: builtin:stdlib", data)))
