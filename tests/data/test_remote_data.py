"""Shards on object storage: planned from parts, trained from a bounded cache of copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs

from hpxfer.data import data_ref, remote
from hpxfer.data.sources import load_corpus, open_dataset, source_of
from hpxfer.errors import HpxferError
from hpxfer.host.files import cache_folder
from hpxfer.spec.data_section import DataSpec

IDS = np.random.default_rng(3).integers(0, 5000, 4000).astype("<u2")


def put(uri: str, name: str, content: bytes) -> None:
    bucket = uri.removeprefix("s3://").partition("/")[0]
    system, _ = fs.FileSystem.from_uri(f"s3://{bucket}?region=us-east-1")
    with system.open_output_stream(f"{uri.removeprefix('s3://')}/{name}") as stream:
        stream.write(content)


@pytest.fixture
def shards(s3: str, tmp_path: Path) -> str:
    for index, ids in enumerate(np.split(IDS, 4)):
        np.save(tmp_path / "x.npy", ids)
        put(s3, f"train-{index}.npy", (tmp_path / "x.npy").read_bytes())
    put(s3, "notes.txt", b"text")
    return f"{s3}/train-*.npy"


def test_the_same_data_as_on_a_disk(shards: str, tmp_path: Path) -> None:
    for index, ids in enumerate(np.split(IDS, 4)):
        np.save(tmp_path / f"train-{index}.npy", ids)
    here = data_ref(DataSpec(source=f"tokens:{tmp_path}/train-*.npy", vocab_size=5000))
    assert data_ref(DataSpec(source=f"tokens:{shards}", vocab_size=5000)) == here
    assert not cache_folder("data").exists()  # a plan copies nothing
    dataset = open_dataset(f"tokens:{shards}")
    assert dataset is not None
    corpus = load_corpus(source_of("tokens:x"), dataset, "ids", 5000)
    assert np.array_equal(np.concatenate(corpus.parts), IDS)
    assert len([path for path in cache_folder("data").iterdir() if path.suffix == ".npy"]) == 4


def test_the_cache_is_bounded(shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.VARIABLE, "5e-6")  # 5,000 bytes: two shards of 2,128
    copies = [remote.local_copy(shards.replace("*", str(index))) for index in (0, 1, 0, 2)]
    assert [copy.exists() for copy in copies] == [True, False, True, True]
    monkeypatch.setenv(remote.VARIABLE, "1e-6")
    with pytest.raises(HpxferError, match=r"train-3\.npy: must fit into the cache of 1e-06 GB .*set HPXFER_DATA_CACHE"):
        remote.local_copy(shards.replace("*", "3"))
    monkeypatch.setenv(remote.VARIABLE, "much")
    with pytest.raises(HpxferError, match=r"HPXFER_DATA_CACHE_GB: must be a number of gigabytes above 0, got 'much'"):
        remote.local_copy(shards.replace("*", "3"))


def test_a_file_that_is_written_anew_is_fetched_anew(shards: str, tmp_path: Path) -> None:
    name = shards.replace("*", "0")
    first = remote.local_copy(name).read_bytes()
    np.save(tmp_path / "y.npy", np.arange(7, dtype="<u2"))
    put(shards.rpartition("/")[0], "train-0.npy", (tmp_path / "y.npy").read_bytes())
    assert remote.local_copy(name).read_bytes() == (tmp_path / "y.npy").read_bytes() != first


@pytest.mark.parametrize(
    ("name", "message"),
    [("s3://", "data.source: must be s3://BUCKET/PREFIX"), ("s3://bucket", "must name files in a bucket, e.g. s3://")],
)
def test_bad_uris(name: str, message: str) -> None:
    with pytest.raises(HpxferError) as error:
        open_dataset(f"tokens:{name}")
    assert message in str(error.value)


def test_nothing_of_that_name_is_no_data(shards: str) -> None:
    assert open_dataset(f"tokens:{shards.replace('train', 'test')}") is None
