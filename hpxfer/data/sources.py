"""Sources: what a sweep's `data.source` may name, as PREFIX:REST. A row reads tokens or samples.

To add a source, write one file that holds a `DataSource` or a `SampleSource` and add its line here, or call
`register_data_source` or `register_sample_source` in a plug-in. `hpxfer.testing.data_sources.DataSourceSuite` and
`hpxfer.testing.sample_sources.SampleSourceSuite` hold a source to the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hpxfer.data.samples import Facts, Samples
from hpxfer.data.tokens import Corpus, DataFile, Dataset, Part
from hpxfer.errors import HpxferError
from hpxfer.host import is_uri
from hpxfer.registry import Registry
from hpxfer.spec import SAMPLES, source_kind


def on_disk(rest: str) -> str | None:
    """Return what is wrong with the path of samples, or None."""
    return f"must name samples on a disk, got the URI {rest}" if is_uri(rest) else None


def read_all(dataset: Dataset, tokenizer: str) -> tuple[NDArray[Any], ...]:
    """Return the token ids of each part, read into memory."""
    return tuple(part.read(0, part.num_tokens) for part in dataset.parts)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of data, named `NAME:REST` in a sweep."""

    name: str
    """The prefix, without its colon."""
    usage: str
    """How a sweep names such data, e.g. `text:PATH-or-glob`."""
    is_path: bool = True
    """Whether the rest is a path, which starts at the folder of the sweep file if it is relative."""
    problem: Callable[[str], str | None] = lambda rest: None
    """(rest) -> what is wrong with it, or None. It must not touch the data: it runs where a sweep is only planned."""
    mismatch_fix: str = "copy the sweep's data to it"
    """What to do if another machine has other data under the same name."""


@dataclass(frozen=True, kw_only=True)
class SampleSource(Source):
    """One kind of samples. A path is no glob."""

    problem: Callable[[str], str | None] = on_disk
    open: Callable[[str], Samples | None]
    """(rest) -> the samples on this machine, or None if there are none. It need not read them."""


@dataclass(frozen=True, kw_only=True)
class DataSource(Source):
    """One kind of tokens."""

    tokenizers: Mapping[str, int]
    """Tokenizer -> size of its vocabulary. The first is the default. With none, a sweep must give `vocab_size`."""
    unpadded: Mapping[str, int] = field(default_factory=dict)
    """Tokenizer -> its number of ids, where `tokenizers` has a larger number that suits the hardware."""
    max_vocab_size: int | None = None
    """A sweep may give `vocab_size` up to this instead of a tokenizer. None: it may not."""
    holds_ids: bool = True
    """Whether the parts hold token ids, which must be below the vocabulary. False: `load` makes ids of what they hold.
    """
    open: Callable[[str], Dataset | None]
    """(rest) -> the data set on this machine, or None if there is none."""
    load: Callable[[Dataset, str], tuple[NDArray[Any], ...]] = read_all
    """(data set, tokenizer) -> the token ids of all parts, unsigned, in memory or memory-mapped."""
    stated: Callable[[str], Mapping[str, Any]] = lambda rest: {}
    """(rest) -> what the data on this machine states of the other keys of a sweep's `data`."""


SOURCES: Registry[DataSource] = Registry(
    "data source",
    {
        "builtin": "hpxfer.data.readers.text:BUILTIN",
        "text": "hpxfer.data.readers.text:TEXT",
        "tokens": "hpxfer.data.readers.ids:TOKENS",
        "uint16": "hpxfer.data.readers.ids:UINT16",
        "uint32": "hpxfer.data.readers.ids:UINT32",
    },
)
SAMPLE_SOURCES: Registry[SampleSource] = Registry(
    "sample source",
    {
        "builtin": "hpxfer.data.made.makers:BUILTIN",
        "idx": "hpxfer.data.readers.idx:IDX",
        "cifar": "hpxfer.data.readers.cifar:CIFAR",
        "npz": "hpxfer.data.readers.npz:NPZ",
        "images": "hpxfer.data.readers.images:IMAGES",
    },
)
register_data_source, register_sample_source = SOURCES.register, SAMPLE_SOURCES.register


def source_of(name: str) -> DataSource:
    """Return the data source of a name such as `text:PATH`. Raise HpxferError if its prefix is unknown."""
    return SOURCES.get(name.partition(":")[0], "data.source")


def row_of(name: str) -> Source:
    """Return the row that reads a source, of tokens or samples. Raise HpxferError if its prefix is unknown."""
    return SAMPLE_SOURCES.get(name.partition(":")[0]) if source_kind(name) == SAMPLES else source_of(name)


def opened(name: str, key: str = "data.source", only: tuple[int, ...] = ()) -> Dataset | Samples | None:
    """Return the tokens or samples that a sweep names, under `key`, or None if they are not on this machine.

    Raise HpxferError if their files exist and cannot be used.
    """
    return open_samples(name, only) if source_kind(name) == SAMPLES else open_dataset(name, key)


def open_dataset(name: str, key: str = "data.source") -> Dataset | None:
    """Return the tokens that a sweep names. See `opened`."""
    dataset = source_of(name).open(name.partition(":")[2])
    if dataset is not None and not dataset.num_tokens:
        raise HpxferError(f"{key}: must hold tokens, got {len(dataset.parts)} empty file(s) at {name}")
    return dataset


def open_samples(name: str, only: tuple[int, ...] = ()) -> Samples | None:
    """Return the samples that a sweep names, of the classes in `only`. See `opened`."""
    kind, _, rest = name.partition(":")
    found = SAMPLE_SOURCES.get(kind, "data.source").open(rest)
    if found is None or not only:
        return found
    if max(only) >= found.facts.num_classes:
        got = f"{max(only)} of {found.facts.targets} in {name}"
        raise HpxferError(f"data.only: must name classes from 0 to the number of classes less one, got {got}")
    return found.only(only)


def load_corpus(name: str, dataset: Dataset, tokenizer: str, vocab_size: int) -> Corpus:
    """Return the token ids of the data set of a source."""
    parts = source_of(name).load(dataset, tokenizer)
    names = tuple(part.path for part in dataset.parts)
    if len(parts) != len(names):  # joined, e.g. text
        names = (name.partition(":")[0],) * len(parts)
    return Corpus(parts=parts, names=names, vocab_size=vocab_size)


__all__ = ["DataFile", "DataSource", "Dataset", "Facts", "Part", "SampleSource", "Samples", "register_data_source"]
