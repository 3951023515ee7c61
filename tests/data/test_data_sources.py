"""The files of a data set: what a path or a glob names, on a disk and in storage, and the text of the built-in data."""

from __future__ import annotations

import glob
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from hpxfer.data import data_ref, files
from hpxfer.data.files import local_copy, matching_files
from hpxfer.data.readers.text import stdlib_files
from hpxfer.data.sources import load_corpus, open_dataset
from hpxfer.data.tokens import DataFile
from hpxfer.errors import HpxferError
from hpxfer.host.files import cache_folder
from hpxfer.spec.data_section import DataSpec


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_glob_characters_in_a_literal_name(tmp_path: Path) -> None:
    write(tmp_path, "a[1].txt", "a1.txt")
    assert matching_files(f"{tmp_path}/a[1].txt") == [f"{tmp_path}/a[1].txt"]
    (tmp_path / "a[1].txt").unlink()
    assert matching_files(f"{tmp_path}/a[1].txt") == [f"{tmp_path}/a1.txt"]
    assert open_dataset(f"text:{tmp_path}/*.missing") is open_dataset(f"text:{tmp_path}/missing.txt") is None


def test_what_is_no_file_or_changes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_bytes(b"abc")
    for name, message in (
        ("folder", r"must name files, got the folder .*/folder$"),
        ("fold*", r"must name files, got the folder .*/folder$"),
        ("link", r"link: cannot be read: No such file"),
        ("pipe", r"pipe: must be a regular file"),
    ):
        with pytest.raises(HpxferError, match=message):
            open_dataset(f"text:{tmp_path}/{name}")
    with pytest.raises(HpxferError, match=r"gone: cannot be read: No such file"):
        DataFile(path=str(tmp_path / "gone"), num_tokens=1, dtype="u1").read(0, 1)
    with pytest.raises(HpxferError, match="became shorter while it was read"):
        DataFile(path=str(tmp_path / "a"), num_tokens=4, dtype="u1").read(0, 4)


def test_stdlib_leaves_out_tests_packages_and_what_is_local_in_an_order_of_the_relative_path(tmp_path: Path) -> None:
    kept = ["os.py", "json/decoder.py", "unittest/case.py", "lib2to3/main.py", *(f"m{index}.py" for index in range(9))]
    left_out = [
        *("test/test_os.py", "unittest/test/test_case.py", "lib2to3/tests/data/x.py", "idlelib/idle_test/x.py"),
        *("site-packages/numpy/core.py", "dist-packages/x.py", "json/__pycache__/decoder.py", "LICENSE.txt"),
        *("config-3.11-x86_64-linux-gnu/python-config.py", "_sysconfigdata__linux_x86_64-linux-gnu.py"),
        "sitecustomize.py",
    ]
    found = []
    for root in (tmp_path / "here", tmp_path / "there"):
        write(root, *kept, *left_out)
        found.append([os.path.relpath(path, root) for path in stdlib_files(str(root))])
    assert found[0] == found[1] != sorted(kept)
    assert sorted(found[0]) == sorted(kept)


def test_stdlib_of_this_python() -> None:
    dataset = open_dataset("builtin:stdlib")
    assert dataset is not None
    assert (dataset.format, dataset.num_tokens > 3_000_000) == ("text", True)
    root = Path(sysconfig.get_path("stdlib"))
    found = {Path(part.path).relative_to(root).as_posix() for part in dataset.parts}
    assert {"os.py", "json/decoder.py"} <= found
    assert not any("site-packages" in path or path.startswith("test/") for path in found)


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


def test_a_glob_ends_at_too_many_names_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *TREE)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    monkeypatch.setattr(files, "MAX_NAMES", 50)
    deep = "*/" * 25 + "*"
    for pattern in (*(f"{tmp_path}/{each}" for each in ("**", "**/*.none", "**/**/*.txt", deep)), "/**"):
        with pytest.raises(HpxferError, match=r"^data\.source: must be found among at most 50 names"):
            matching_files(pattern)
    monkeypatch.setattr(files, "MAX_FILES", 1)
    with pytest.raises(HpxferError, match=r"^data\.source: must match at most 1 files, got 2, with "):
        matching_files(f"{tmp_path}/a/b/*")
    assert len(matching_files(f"{tmp_path}/a/b/*.md")) == 1


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


IDS = np.random.default_rng(3).integers(0, 5000, 4000).astype("<u2")


def put(uri: str, path: Path) -> None:
    bucket = uri.removeprefix("s3://").partition("/")[0]
    system, _ = fs.FileSystem.from_uri(f"s3://{bucket}?region=us-east-1")
    with system.open_output_stream(f"{uri.removeprefix('s3://')}/{path.name}") as stream:
        stream.write(path.read_bytes())


@pytest.fixture
def shards(s3: str, tmp_path: Path) -> str:
    for index, ids in enumerate(np.split(IDS, 4)):
        np.save(tmp_path / f"train-{index}.npy", ids)
    (tmp_path / "notes.txt").write_bytes(b"text")
    for path in tmp_path.iterdir():
        if path.is_file():
            put(s3, path)
    return f"{s3}/train-*.npy"


def test_shards_in_a_bucket_are_the_same_data_as_on_a_disk(shards: str, tmp_path: Path) -> None:
    here = data_ref(DataSpec(source=f"tokens:{tmp_path}/train-*.npy", vocab_size=5000))
    assert data_ref(DataSpec(source=f"tokens:{shards}", vocab_size=5000)) == here
    assert open_dataset(f"tokens:{shards.replace('train', 'test')}") is None
    assert not cache_folder("data").exists()  # a plan copies nothing
    dataset = open_dataset(f"tokens:{shards}")
    assert dataset is not None
    corpus = load_corpus("tokens:x", dataset, "ids", 5000)
    assert np.array_equal(np.concatenate(corpus.parts), IDS)
    assert len([path for path in cache_folder("data").iterdir() if path.suffix == ".npy"]) == 4


def test_the_cache_is_bounded_and_a_file_that_is_written_anew_is_fetched_anew(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(files.VARIABLE, "5e-6")  # 5,000 bytes: two shards of 2,128
    copies = [local_copy(shards.replace("*", str(index))) for index in (0, 1, 0, 2)]
    assert [copy.exists() for copy in copies] == [True, False, True, True]
    np.save(tmp_path / "train-0.npy", np.arange(7, dtype="<u2"))
    put(shards.rpartition("/")[0], tmp_path / "train-0.npy")
    assert local_copy(shards.replace("*", "0")).read_bytes() == (tmp_path / "train-0.npy").read_bytes()
    for bound, message in (
        ("1e-6", r"train-3\.npy: must fit into the cache of 1e-06 GB .*see HPXFER_DATA_CACHE_GB"),
        ("much", r"HPXFER_DATA_CACHE_GB: must be a number of gigabytes above 0, got 'much'"),
    ):
        monkeypatch.setenv(files.VARIABLE, bound)
        with pytest.raises(HpxferError, match=message):
            local_copy(shards.replace("*", "3"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("s3://", "data.source: must be s3://BUCKET/PREFIX"), ("s3://bucket", "must name files in a bucket, e.g. s3://")],
)
def test_bad_uris(name: str, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{name}")
