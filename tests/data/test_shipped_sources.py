"""The shipped data sources, and broken ones that the suite must refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpxfer.data.sources import SOURCES, DataFile, Dataset, DataSource, open_dataset
from hpxfer.errors import HpxferError
from hpxfer.testing.data_sources import DataSourceSuite

Write = Callable[..., Path]


class TestText(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        (tmp_path / "a.txt").write_bytes(bytes(range(256)))
        (tmp_path / "b.txt").write_text("some more text")
        return f"text:{tmp_path}/*.txt"


class TestTokens(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path, write_shard: Write) -> str:
        write_shard(tmp_path / "a.bin", np.arange(0, 50_000, 200))
        write_shard(tmp_path / "b.bin", [])
        write_shard(tmp_path / "c.bin", [7, 8, 9])
        return f"tokens:{tmp_path}/*.bin"


class TestBuiltin(DataSourceSuite):
    @pytest.fixture
    def source(self) -> str:
        return "builtin:stdlib"


@dataclass(frozen=True)
class Numbers:
    """A part that counts: its tokens are 0, 1, 2, ... `wrong` breaks it."""

    path: str = "numbers"
    num_tokens: int = 240
    header: bytes = b""
    wrong: str = ""

    def read(self, low: int, high: int) -> NDArray[Any]:
        if self.wrong == "ignores low":
            return np.arange(high - low, dtype=np.uint8)
        if self.wrong == "signed":
            return np.arange(low, high, dtype=np.int64)
        if self.wrong == "random":
            return np.random.default_rng().integers(0, 240, high - low, dtype=np.uint8)
        return np.arange(low, high, dtype=np.uint8)


def numbers(wrong: str = "", **changes: Any) -> DataSource:
    def open_numbers(rest: str) -> Dataset | None:
        return None if rest.startswith("/") else Dataset(format="numbers", parts=(Numbers(wrong=wrong),))

    row = DataSource(name="numbers", usage="numbers:N", tokenizers={"count": 240}, open=open_numbers)
    return replace(row, **changes)


@pytest.fixture
def good() -> Iterator[DataSource]:
    with SOURCES.registered(numbers()) as row:
        yield row


@pytest.mark.usefixtures("good")
class TestNumbers(DataSourceSuite):
    """The twin of the broken ones below."""

    @pytest.fixture
    def source(self) -> str:
        return "numbers:240"


BROKEN = {
    "usage of another": (numbers(usage="text:PATH"), "test_the_row_is_registered_and_says_how_it_is_used"),
    "no tokenizer": (numbers(tokenizers={}), "test_the_row_is_registered_and_says_how_it_is_used"),
    "refuses itself": (numbers(problem=lambda rest: "no"), "test_the_row_is_registered_and_says_how_it_is_used"),
    "data of nothing": (
        numbers(open=lambda rest: Dataset(format="numbers", parts=(Numbers(),))),
        "test_a_path_without_data_is_no_data",
    ),
    "too short": (
        numbers(open=lambda rest: Dataset(format="numbers", parts=(Numbers(num_tokens=9),))),
        "test_parts_add_up",
    ),
    "ignores low": (numbers("ignores low"), "test_a_part_reads_the_tokens_that_it_is_asked_for"),
    "signed ids": (numbers("signed"), "test_a_part_reads_the_tokens_that_it_is_asked_for"),
    "other bytes per token": (
        numbers(open=lambda rest: Dataset(format="numbers", parts=(Numbers(),), token_bytes=2)),
        "test_a_part_reads_the_tokens_that_it_is_asked_for",
    ),
    "random data": (numbers("random"), "test_the_digest_is_a_function_of_the_data"),
    "ids beyond the vocabulary": (
        numbers(tokenizers={"count": 100}, holds_ids=False),
        "test_every_tokenizer_gives_ids_of_its_vocabulary",
    ),
    "loads other ids at each call": (
        numbers(load=lambda dataset, _: (np.random.default_rng().integers(0, 240, 240, dtype=np.uint8),)),
        "test_loading_twice_gives_the_same_ids",
    ),
    "changes ids": (
        numbers(load=lambda dataset, _: (np.zeros(240, np.uint8),)),
        "test_ids_are_those_of_the_parts",
    ),
}


@pytest.mark.parametrize(("row", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_source_is_refused(row: DataSource, test: str) -> None:
    suite: Any = DataSourceSuite()
    with SOURCES.registered(row), pytest.raises(AssertionError):
        getattr(suite, test)("numbers:240")


def test_an_unknown_prefix_is_named_with_the_nearest() -> None:
    with pytest.raises(HpxferError, match=r"data\.source: unknown data source 'tokns'; did you mean 'tokens'\?"):
        open_dataset("tokns:/a.bin")


def test_a_file_of_any_dtype_is_a_part(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"head" + np.arange(10, dtype="<u4").tobytes())
    file = DataFile(path=str(tmp_path / "a"), num_tokens=10, dtype="<u4", header=b"head")
    assert file.read(3, 6).tolist() == file.mapped()[3:6].tolist() == [3, 4, 5]
