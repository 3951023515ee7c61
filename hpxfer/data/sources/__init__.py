"""Data sources: what a sweep's `data.source` may name, as PREFIX:REST. One file per prefix.

To add a data source, write one file that holds a `DataSource` and add its line here, or call `register_data_source` in
a plug-in. `hpxfer.testing.data_sources.DataSourceSuite` holds a source to the rules.
"""

from __future__ import annotations

from hpxfer.data.sources.dataset import DataFile, Dataset, Part
from hpxfer.data.sources.row import DataSource
from hpxfer.errors import HpxferError
from hpxfer.registry import Registry

SOURCES: Registry[DataSource] = Registry(
    "data source",
    {
        "builtin": "hpxfer.data.sources.builtin:BUILTIN",
        "text": "hpxfer.data.sources.text:TEXT",
        "tokens": "hpxfer.data.sources.tokens:TOKENS",
        "uint16": "hpxfer.data.sources.tokens:UINT16",
        "uint32": "hpxfer.data.sources.tokens:UINT32",
    },
)
register_data_source = SOURCES.register


def source_of(name: str) -> DataSource:
    """Return the data source of a name such as `text:PATH`. Raise HpxferError if its prefix is unknown."""
    return SOURCES.get(name.partition(":")[0], "data.source")


def open_dataset(name: str, key: str = "data.source") -> Dataset | None:
    """Return the data set that a sweep names, under `key`, or None if no file of it is on this machine.

    Raise HpxferError if its files exist and cannot be used: folders, unreadable or malformed files, no token in all.
    """
    dataset = source_of(name).open(name.partition(":")[2])
    if dataset is not None and not dataset.num_tokens:
        got = f"{len(dataset.parts)} empty file(s) at {name}"
        raise HpxferError(f"{key}: must hold tokens, got {got}; name other files")
    return dataset


__all__ = [
    "SOURCES",
    "DataFile",
    "DataSource",
    "Dataset",
    "Part",
    "open_dataset",
    "register_data_source",
    "source_of",
]
