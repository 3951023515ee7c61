"""The section `data` of a sweep file: its keys, which kind of source it names, and the vocabulary. No data is touched.

The text below a field documents its key.
"""

from __future__ import annotations

from typing import Any, Literal

from hpxfer.registry import registry
from hpxfer.spec.fields import Count, CountOrNone, Section, Seq


class PointData(Section):
    """The training data of one point. A bare name is short for `{source: NAME}`."""

    source: str
    """The data, named as in `data.source` and with the same vocabulary."""
    digest: str | None = None
    """Its digest. It stands in for data that is not on this machine, and is compared with data that is."""


class DataSpec(Section):
    """Where the tokens or samples come from. A relative path starts at the folder of the sweep file."""

    source: str
    """`builtin:stdlib`, `text:PATH`, `tokens:PATH`, `uint16:PATH` or `uint32:PATH`. A path may be a glob such as
    `data/*.bin`. `tokens:` also reads a folder that `hpxfer data prepare` or `datasets` made.

    For a family that reads samples: `builtin:shapes`, `builtin:teacher/polynomial`, `builtin:teacher/network`,
    `builtin:teacher/few`, `idx:FOLDER`, `cifar:FOLDER`, `npz:FILE` or `images:FOLDER`."""
    tokenizer: str | None = None
    """The vocabulary: ascii (128 ids), bytes (256) or gpt2 (50257, padded to 50304).

    The default is ascii for `builtin:`, bytes for `text:` and gpt2 for `tokens:`. `tokens:` data is never ascii or
    bytes, the others are never gpt2."""
    vocab_size: Count | None = None
    """Token ids only: the size of another tokenizer's vocabulary. It replaces tokenizer. `uint16:` and `uint32:` need
    it. A folder that `hpxfer data prepare` made states it.

    Without both, `hpxfer plan` reads the largest id of the data and warns if gpt2 cannot have written it."""
    digest: str | None = None
    """The digest of the data. It stands in for data that is not on this machine, and is compared with data that is."""
    validation: str | None = None
    """The held-out data, named as in `source`, with the same vocabulary or the same form of samples. Its first
    validation_tokens or validation_samples are read. The default for tokens is the validation split of a folder that
    `hpxfer data prepare` made, else the end of `source`. For samples it is the test split of `source`, else the end of
    the training split."""
    validation_digest: str | None = None
    """The digest of `validation`, as `digest` is that of `source`."""
    epochs: Count = 1
    """How often a run may read the data. Each epoch has an order of its own. It is a limit and changes no number."""
    documents: Literal["joined", "masked"] = "joined"
    """joined: a window goes on across the ends of documents. masked: a token attends to its own document only, and
    positions start again at 0 with each document. A document ends with the token eos_id."""
    eos_id: CountOrNone | None = None
    """The id of the token that ends a document. Goes with documents `masked`. A folder that `hpxfer data prepare` made
    states it."""
    inputs: Count | None = None
    """Samples only: the features of a sample. Samples on this machine state it, as they state classes and targets."""
    classes: Count | None = None
    """Samples only: the number of classes, where the target of a sample is its class."""
    targets: Count | None = None
    """Samples only: the real targets of a sample, where it has no class."""
    only: Seq[CountOrNone] | None = None
    """Samples only: the classes that are read, as numbers from 0. They are numbered anew in this order. The default is
    all."""


OWN_DATA = "user:"  # how the source starts that a user's own trainer reads by itself


def is_own(data: DataSpec) -> bool:
    """Return whether a user's own trainer reads the data, of which only the name is known."""
    return data.source.startswith(OWN_DATA)


TOKENS, SAMPLES = "data source", "sample source"
# What a family reads -> the kind of its sources.
KIND_OF = {"tokens": TOKENS, "samples": SAMPLES}


def source_kind(name: str) -> str:
    """Return the kind of extension that reads a source. One of an unknown name counts as tokens."""
    prefix, _, rest = name.partition(":")
    samples = registry(SAMPLES)
    if prefix not in samples:
        return TOKENS
    # Both kinds have `builtin:`, with names of their own.
    of_samples = prefix not in registry(TOKENS) or samples.get(prefix).problem(rest) is None
    return SAMPLES if of_samples else TOKENS


def source_row(name: str) -> Any | None:
    """Return the row that reads a source, or None if its prefix is unknown. It says `is_path` of both kinds."""
    rows, prefix = registry(source_kind(name)), name.partition(":")[0]
    return rows.get(prefix) if prefix in rows else None


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
