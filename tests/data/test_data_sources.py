"""The files of a data set."""

from __future__ import annotations

import glob
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data.sources import DataFile, files, open_dataset
from hpxfer.data.sources.builtin import stdlib_files
from hpxfer.data.sources.dataset import cumulative, spans
from hpxfer.data.sources.files import matching_files
from hpxfer.errors import HpxferError


def names(source: str) -> list[str]:
    dataset = open_dataset(source)
    assert dataset is not None
    return [os.path.basename(part.path) for part in dataset.parts]


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_glob_is_sorted_and_passes_over_folders(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a.txt", "c.txt/inside", "note.md")
    assert names(f"text:{tmp_path}/*.txt") == ["a.txt", "b.txt"]


def test_two_stars_recurse(tmp_path: Path) -> None:
    write(tmp_path, "z.txt", "d/e/f.txt", "d/g.txt")
    assert names(f"text:{tmp_path}/**/*.txt") == ["f.txt", "g.txt", "z.txt"]


def test_two_stars_twice_name_a_file_once(tmp_path: Path) -> None:
    write(tmp_path, "d/e/f.txt")
    assert names(f"text:{tmp_path}/**/**/*.txt") == ["f.txt"]


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
    with pytest.raises(HpxferError, match=r"must hold tokens, got 2 empty file\(s\) at text:.*name other files"):
        open_dataset(f"text:{tmp_path}/*.txt")


@pytest.mark.parametrize("pattern", ["folder", "fold*"])
def test_folder_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HpxferError, match=r"must name files, got the folder .*/folder; for all below it: .*/\*\*/\*"):
        open_dataset(f"text:{tmp_path}/{pattern}")


def test_dangling_link_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(HpxferError, match=r"a\.txt: cannot be read: No such file"):
        open_dataset(f"text:{tmp_path}/a.txt")


def test_file_that_vanishes_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"gone: cannot be read: No such file"):
        DataFile(path=str(tmp_path / "gone"), num_tokens=1, dtype="u1").read(0, 1)


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HpxferError, match=r"pipe: must be a regular file"):
        open_dataset(f"text:{tmp_path}/pipe")


def test_reading_skips_the_header_and_stops(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"head" + np.arange(10, dtype="<u2").tobytes())
    file = DataFile(path=str(tmp_path / "a"), num_tokens=10, dtype="<u2", header=b"head")
    assert file.read(3, 6).tolist() == [3, 4, 5]


def test_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(HpxferError, match="became shorter while it was read; start again"):
        DataFile(path=str(tmp_path / "a"), num_tokens=4, dtype="u1").read(0, 4)


def test_stdlib_leaves_out_tests_packages_and_what_is_local(tmp_path: Path) -> None:
    kept = ["os.py", "json/decoder.py", "unittest/case.py", "lib2to3/main.py"]
    left_out = [
        "test/test_os.py",
        "unittest/test/test_case.py",
        "lib2to3/tests/data/x.py",
        "idlelib/idle_test/x.py",
        "site-packages/numpy/core.py",
        "dist-packages/x.py",
        "json/__pycache__/decoder.py",
        "config-3.11-x86_64-linux-gnu/python-config.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "sitecustomize.py",
        "LICENSE.txt",
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


def test_matching_files_of_a_literal_path(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    assert matching_files(str(tmp_path / "a.txt")) == [str(tmp_path / "a.txt")]


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


def test_a_glob_ends_at_too_many_names_whether_they_match_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *TREE)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    monkeypatch.setattr(files, "MAX_NAMES", 50)
    for pattern in ("**", "**/*.none", "**/**/*.txt", "*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*"):
        with pytest.raises(HpxferError, match=r"^data\.source: must be found among at most 50 names"):
            matching_files(f"{tmp_path}/{pattern}")


def test_a_glob_of_the_whole_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_NAMES", 1000)
    with pytest.raises(HpxferError, match=r"^data\.source: must be found among at most 1000 names"):
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
