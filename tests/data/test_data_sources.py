"""The files of a data set, and the shipped sources of data with broken ones that their suite must refuse."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import examples
from numpy.typing import NDArray

from hpxfer.data import files
from hpxfer.data.files import matching_files
from hpxfer.data.readers.text import stdlib_files
from hpxfer.data.sources import SOURCES, DataFile, Dataset, DataSource, open_dataset
from hpxfer.data.tokens import cumulative, spans
from hpxfer.errors import HpxferError
from hpxfer.testing.data_sources import DataSourceSuite


def names(source: str) -> list[str]:
    dataset = open_dataset(source)
    assert dataset is not None
    return [os.path.basename(part.path) for part in dataset.parts]


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_glob_characters_in_a_literal_name(tmp_path: Path) -> None:
    write(tmp_path, "a[1].txt", "a1.txt")
    assert names(f"text:{tmp_path}/a[1].txt") == ["a[1].txt"]
    (tmp_path / "a[1].txt").unlink()
    assert names(f"text:{tmp_path}/a[1].txt") == ["a1.txt"]


@pytest.mark.parametrize("pattern", ["missing.txt", "*.missing"])
def test_no_file_is_no_source(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, "a.txt")
    assert open_dataset(f"text:{tmp_path}/{pattern}") is None


def test_empty_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").touch()
    with pytest.raises(HpxferError, match=r"must hold tokens, got 2 empty file\(s\) at text:"):
        open_dataset(f"text:{tmp_path}/*.txt")


@pytest.mark.parametrize("pattern", ["folder", "fold*"])
def test_folder_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HpxferError, match=r"must name files, got the folder .*/folder; for all below it: .*/\*\*/\*"):
        open_dataset(f"text:{tmp_path}/{pattern}")


def test_what_is_no_file_or_changes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(HpxferError, match=r"link: cannot be read: No such file"):
        open_dataset(f"text:{tmp_path}/link")
    with pytest.raises(HpxferError, match=r"pipe: must be a regular file"):
        open_dataset(f"text:{tmp_path}/pipe")
    with pytest.raises(HpxferError, match=r"gone: cannot be read: No such file"):
        DataFile(path=str(tmp_path / "gone"), num_tokens=1, dtype="u1").read(0, 1)
    with pytest.raises(HpxferError, match="became shorter while it was read"):
        DataFile(path=str(tmp_path / "a"), num_tokens=4, dtype="u1").read(0, 4)


def test_stdlib_leaves_out_tests_packages_and_what_is_local(tmp_path: Path) -> None:
    kept = ["os.py", "json/decoder.py", "unittest/case.py", "lib2to3/main.py"]
    left_out = [
        *("test/test_os.py", "unittest/test/test_case.py", "lib2to3/tests/data/x.py", "idlelib/idle_test/x.py"),
        *("site-packages/numpy/core.py", "dist-packages/x.py", "json/__pycache__/decoder.py", "LICENSE.txt"),
        *("config-3.11-x86_64-linux-gnu/python-config.py", "_sysconfigdata__linux_x86_64-linux-gnu.py"),
        "sitecustomize.py",
    ]
    write(tmp_path, *kept, *left_out)
    assert sorted(stdlib_files(str(tmp_path))) == sorted(str(tmp_path / name) for name in kept)


def test_stdlib_order_is_a_hash_of_the_relative_path(tmp_path: Path) -> None:
    modules = [f"m{index}.py" for index in range(20)]
    write(tmp_path, *(f"{root}/{module}" for root in ("here", "there") for module in modules))
    here, there = (
        [os.path.basename(path) for path in stdlib_files(str(tmp_path / root))] for root in ("here", "there")
    )
    assert here == there
    assert here != sorted(modules)
    assert sorted(here) == sorted(modules)


def test_stdlib_of_this_python() -> None:
    dataset = open_dataset("builtin:stdlib")
    assert dataset is not None
    assert dataset.format == "text"
    assert dataset.num_tokens > 3_000_000
    root = Path(sysconfig.get_path("stdlib"))
    found = {Path(part.path).relative_to(root).as_posix() for part in dataset.parts}
    assert {"os.py", "json/decoder.py"} <= found
    assert not any("site-packages" in path or path.startswith("test/") for path in found)


@settings(deadline=None, max_examples=examples(50))
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), data=st.data())
def test_spans_make_up_the_range(counts: list[int], data: st.DataObject) -> None:
    starts = cumulative(iter(counts))
    begin = data.draw(st.integers(0, starts[-1]))
    end = data.draw(st.integers(begin, starts[-1]))
    found = list(spans(starts, begin, end))
    assert [starts[part] + token for part, low, high in found for token in range(low, high)] == list(range(begin, end))
    assert all(0 <= low < high <= counts[part] for part, low, high in found)


def test_span_beyond_the_data_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="tokens 2 to 5 of 4"):
        list(spans((0, 4), 2, 5))


TREE = ("a/b/c.txt", "a/b/d.md", "a/.h/e.txt", ".f.txt", "g.txt", "a/g.txt", "a/[x]/h.txt", "ab/b/i.txt")
PARTS = st.sampled_from(["**", "*", "a", "b", "*.txt", "?", "[ab]", "a*", ".*", "g.txt", "[[]x]", "missing", ".h"])


@given(parts=st.lists(PARTS, min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_glob_matches_what_python_matches(parts: list[str], tmp_path: Path) -> None:
    write(tmp_path, *TREE)
    pattern = os.path.join(tmp_path, *parts)
    expected = sorted({path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path)})
    if expected or not glob.glob(pattern, recursive=True):
        assert matching_files(pattern) == expected
    else:
        with pytest.raises(HpxferError, match="must name files, got the folder"):
            matching_files(pattern)


def test_a_relative_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *TREE)
    monkeypatch.chdir(tmp_path)
    for pattern in ("*.txt", "**/*.txt", "a/*", "**"):
        found = glob.glob(pattern, recursive=True)
        assert matching_files(pattern) == sorted(path for path in found if not os.path.isdir(path))


def test_a_glob_ends_at_too_many_names_if_they_match_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *TREE)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    monkeypatch.setattr(files, "MAX_NAMES", 50)
    for pattern in ("**", "**/*.none", "**/**/*.txt", "*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*"):
        with pytest.raises(HpxferError, match=r"^data\.source: must be found among at most 50 names"):
            matching_files(f"{tmp_path}/{pattern}")
    with pytest.raises(HpxferError, match=r"^data\.source: must be found among at most 50 names"):
        open_dataset("text:/**")


def test_a_glob_matches_only_so_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt", "b.txt", "c.txt")
    monkeypatch.setattr(files, "MAX_FILES", 2)
    with pytest.raises(HpxferError, match=r"^data\.source: must match at most 2 files, got 3, with .*; name a folder"):
        matching_files(f"{tmp_path}/*")
    assert len(matching_files(f"{tmp_path}/[ab].txt")) == 2


@pytest.mark.parametrize(
    "path", ["x" * 4000, "*" * 4000, "[" * 4000, "**/" * 1300, "*/" * 2000, "./" * 2000, "a/../" * 800]
)
def test_no_path_is_too_strange(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a/b.txt")
    monkeypatch.chdir(tmp_path)
    assert [os.path.basename(file) for file in matching_files(f"{path}/b.txt")] in ([], ["b.txt"])


@pytest.mark.parametrize("path", ["a\0b", "x" * 50_000, "*" * 50_000])
def test_what_no_path_can_be(path: str) -> None:
    with pytest.raises(HpxferError, match=r"must be a path of at most 4096 characters, .* got '.{1,80} of"):
        matching_files(path)


class TestText(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        (tmp_path / "a.txt").write_bytes(bytes(range(256)))
        (tmp_path / "b.txt").write_text("some more text")
        return f"text:{tmp_path}/*.txt"


class TestTokens(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path, write_shard: Callable[..., Path]) -> str:
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
        "test_the_row_is_registered_and_says_how_it_is_used",
    ),
    "too short": (
        numbers(open=lambda rest: Dataset(format="numbers", parts=(Numbers(num_tokens=9),))),
        "test_a_part_reads_the_tokens_that_it_is_asked_for",
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
        "test_loading_twice_gives_the_same_ids",
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
    assert file.read(3, 6).tolist() == file.mapped()[0][3:6].tolist() == [3, 4, 5]
