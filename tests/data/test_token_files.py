"""Files of token ids: shards, the formats of other tools, bare ids of two widths, and broken ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpxfer.data import data_ref
from hpxfer.data.readers.ids import pairs_of_uint32
from hpxfer.data.sources import open_dataset
from hpxfer.errors import HpxferError
from hpxfer.spec.data_section import DataSpec
from hpxfer.testing.data_sources import DataSourceSuite

IDS = np.random.default_rng(0).integers(0, 60_000, 700)
LARGE = IDS + 100_000
KNOWN = IDS % 50_000  # ids of GPT-2, which the suite takes as the default


def llama(path: Path, ids: np.ndarray, *, count: int | None = None) -> None:
    """Write a shard as llm.c's data_common.py does for Llama 3."""
    header = struct.pack("<256i", 20240801, 7, len(ids) if count is None else count, *([0] * 253))
    path.write_bytes(header + struct.pack(f"<{len(ids)}I", *ids.tolist()))


def megatron(stem: Path, documents: list[np.ndarray], *, code: int = 4, kind: str = "<i4") -> None:
    """Write NAME.bin and NAME.idx as Megatron-LM's indexed data set does."""
    size = np.dtype(kind).itemsize
    lengths = [len(ids) for ids in documents]
    starts = [sum(lengths[:index]) * size for index in range(len(documents))]
    stem.with_suffix(".bin").write_bytes(b"".join(ids.astype(kind).tobytes() for ids in documents))
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
        + struct.pack(f"<{len(documents)}i", *lengths)
        + struct.pack(f"<{len(documents)}q", *starts)
        + struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1))
    )


def saved(folder: Path, rows: list[list[int]], column: str = "input_ids") -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    datasets.Dataset.from_dict({"name": [str(index) for index in range(len(rows))], column: rows}).save_to_disk(
        str(folder), num_shards=2
    )


def ids_of(source: str) -> np.ndarray:
    found = open_dataset(source)
    assert found is not None
    return np.concatenate([part.read(0, part.num_tokens) for part in found.parts])


class TestLlama(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        llama(tmp_path / "a.bin", KNOWN[:300])
        llama(tmp_path / "b.bin", KNOWN[300:])
        assert np.array_equal(ids_of(f"tokens:{tmp_path}/*.bin"), KNOWN)
        return f"tokens:{tmp_path}/*.bin"


class TestMegatron(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        megatron(tmp_path / "text_document", [KNOWN[:1], KNOWN[1:1], KNOWN[1:500], KNOWN[500:]])
        assert np.array_equal(ids_of(f"tokens:{tmp_path}/*.bin"), KNOWN)
        return f"tokens:{tmp_path}/text_document.bin"


class TestNumpy(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        np.save(tmp_path / "a.npy", KNOWN[:300].astype(np.int32))
        np.save(tmp_path / "b.npy", KNOWN[300:].astype(np.int32))
        assert np.array_equal(ids_of(f"tokens:{tmp_path}/*.npy"), KNOWN)
        return f"tokens:{tmp_path}/*.npy"


class TestDatasets(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        saved(tmp_path / "d[0]", [KNOWN[:5].tolist(), [], KNOWN[5:400].tolist(), KNOWN[400:].tolist()])
        assert np.array_equal(ids_of(f"tokens:{tmp_path}/d[0]"), KNOWN)
        return f"tokens:{tmp_path}/d[0]"


@pytest.mark.parametrize("name", ["uint16", "uint32"])
class TestBareIds:
    """Files as nanoGPT's prepare.py and OLMo's memory map leave them."""

    def test_suite(self, name: str, tmp_path: Path) -> None:
        ids = IDS if name == "uint16" else LARGE
        for suffix in (".bin", ".npy"):
            ids.astype(name).tofile(tmp_path / f"train{suffix}")
            source = f"{name}:{tmp_path}/train{suffix}"
            assert np.array_equal(ids_of(source), ids)
        suite = DataSourceSuite()
        suite.test_the_row_is_registered_and_says_how_it_is_used(source)
        suite.test_a_part_reads_the_tokens_that_it_is_asked_for(source)
        suite.test_the_digest_is_a_function_of_the_data(source)
        suite.test_loading_twice_gives_the_same_ids(source)

    def test_half_an_id_is_refused(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "a.bin").write_bytes(bytes(1001))
        with pytest.raises(HpxferError, match=r"a\.bin: must hold whole ids of \d bytes, got 1001 bytes"):
            open_dataset(f"{name}:{tmp_path}/a.bin")

    def test_a_file_that_states_its_format_is_refused(self, name: str, tmp_path: Path) -> None:
        llama(tmp_path / "a.bin", LARGE)
        np.save(tmp_path / "b.npy", IDS)
        for file, of in (("a.bin", "llm.c"), ("b.npy", "numpy's")):
            with pytest.raises(HpxferError, match=rf"{file}: must hold bare ids, got .* header of {of}; write tokens:"):
                open_dataset(f"{name}:{tmp_path}/{file}")


def test_ids_of_large_vocabularies_are_read(tmp_path: Path) -> None:
    llama(tmp_path / "a.bin", LARGE)
    megatron(tmp_path / "x", [LARGE])
    np.save(tmp_path / "b.npy", LARGE)
    assert all(np.array_equal(ids_of(f"tokens:{tmp_path}/{name}"), LARGE) for name in ("a.bin", "x.bin", "b.npy"))


def test_the_same_ids_in_two_types_are_two_data_sets(tmp_path: Path) -> None:
    llama(tmp_path / "a.bin", IDS)
    IDS.astype("<u4").tofile(tmp_path / "b.bin")
    IDS.astype("<u2").tofile(tmp_path / "c.bin")
    names = (f"tokens:{tmp_path}/a.bin", f"uint32:{tmp_path}/b.bin", f"uint16:{tmp_path}/c.bin")
    found = [open_dataset(name) for name in names]
    assert len({each.digest() for each in found if each is not None}) == 3


def test_shards_of_mixed_types_are_refused(tmp_path: Path) -> None:
    llama(tmp_path / "b.bin", LARGE)
    header = struct.pack("<256i", 20240520, 1, len(IDS), *([0] * 253))
    (tmp_path / "a.bin").write_bytes(header + IDS.astype("<u2").tobytes())
    with pytest.raises(
        HpxferError, match=r"b\.bin: all files .* one format, got tokens_uint32 after tokens in .*a\.bin"
    ):
        open_dataset(f"tokens:{tmp_path}/*.bin")


def test_a_pair_of_megatron_is_named_without_its_ending(tmp_path: Path) -> None:
    megatron(tmp_path / "x_document", [LARGE])
    known = data_ref(DataSpec(source=f"tokens:{tmp_path}/x_document.bin", vocab_size=200_000))
    assert data_ref(DataSpec(source=f"tokens:{tmp_path}/x_document", vocab_size=200_000)) == known
    (tmp_path / "y.bin").write_bytes(b"12")  # no index beside it
    with pytest.raises(HpxferError, match="which no file matches"):
        data_ref(DataSpec(source=f"tokens:{tmp_path}/y", vocab_size=200_000))


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"bin": -4}, r"x\.bin: the index counts 700 tokens, which make a file of 2800 bytes, got 2796"),
        ({"idx": 40}, r"x\.idx: must list 3 sequences, got a shorter file"),
        ({"idx": 5}, r"x\.idx: must be Megatron's index of .*x\.bin, got another file"),
    ],
)
def test_a_truncated_pair_of_megatron_is_refused(tmp_path: Path, cut: dict[str, int], message: str) -> None:
    megatron(tmp_path / "x", [LARGE[:3], LARGE[3:90], LARGE[90:]])
    for suffix, end in cut.items():
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{tmp_path}/x.bin")


def test_the_index_of_megatron_and_floats_are_refused(tmp_path: Path) -> None:
    megatron(tmp_path / "x", [LARGE])
    with pytest.raises(HpxferError, match=r"x\.idx: is Megatron's index; name the file .*x\.bin beside it"):
        open_dataset(f"tokens:{tmp_path}/x.idx")
    megatron(tmp_path / "x", [LARGE], code=7, kind="<f4")
    with pytest.raises(HpxferError, match=r"x\.idx: must hold whole numbers, got Megatron's type 7"):
        open_dataset(f"tokens:{tmp_path}/x.bin")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (IDS.astype(float), "must be one row of whole numbers, little-endian, got an array of float64 of 1 dimension"),
        (IDS.reshape(7, 100), "got an array of int64 of 2 dimensions"),
        (IDS.astype(">i4"), "little-endian, got an array of >i4"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{tmp_path}/a.npy")


def test_a_cut_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IDS)
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(HpxferError, match=r"a\.npy: the header counts 700 tokens"):
        open_dataset(f"tokens:{tmp_path}/a.npy")


def test_folders_of_datasets_that_cannot_be_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    texts = datasets.Dataset.from_dict({"text": ["a", "b"]})
    texts.save_to_disk(str(tmp_path / "texts"))
    with pytest.raises(
        HpxferError, match=r"must have a column input_ids .*got the columns text; .*hpxfer data prepare"
    ):
        open_dataset(f"tokens:{tmp_path}/texts")
    datasets.DatasetDict({"train": texts, "test": texts}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(HpxferError, match=r"must be one split, got a folder of 2: train, test; name one"):
        open_dataset(f"tokens:{tmp_path}/both")
    saved(tmp_path / "cut", [[1, 2, 3]] * 200)
    file = next((tmp_path / "cut").glob("data-00001*.arrow"))
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(HpxferError, match=r"data-00001.*arrow: must be a file of `datasets`, got a broken one"):
        open_dataset(f"tokens:{tmp_path}/cut")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "hello"}\n', "got text or another file of 18 bytes; write token shards first: hpxfer data prepare"),
        (IDS.astype("<u2").tobytes(), "starts with the number .*write uint16: or uint32: instead of tokens:"),
        (b"", "got a file of 0 bytes"),
    ],
)
def test_a_file_without_a_header_names_what_it_may_be(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{tmp_path}/a.bin")


def test_damaged_files_end_in_words(tmp_path: Path) -> None:
    """Found by a fuzzer: numpy's parser raised a TokenError, and Arrow ended the process."""
    np.save(tmp_path / "a.npy", IDS)
    raw = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(raw.replace(b"(700,)", b"\xd5700,)"))
    with pytest.raises(HpxferError, match=r"a\.npy: must be an array of `numpy\.save`, got a broken header"):
        open_dataset(f"tokens:{tmp_path}/a.npy")
    saved(tmp_path / "ids", [[7, 7, 7]] * 40)
    file = next((tmp_path / "ids").glob("*.arrow"))
    whole = file.read_bytes()
    offsets = struct.pack("<4i", 0, 3, 6, 9)
    assert offsets in whole
    file.write_bytes(whole.replace(offsets, struct.pack("<4i", 0, 3, 6000, 9)))
    with pytest.raises(HpxferError, match=r"arrow: must be a file of `datasets`, got a broken one"):
        open_dataset(f"tokens:{tmp_path}/ids")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"magic": 7},
            r"a\.bin: .*must be a file of token ids that states its format.*starts with the number 7; if it holds bare",
        ),
        ({"version": 2}, r"a\.bin: must be a token shard of version 1 .*, got version 2"),
        ({"count": 11}, r"a\.bin: the header counts 11 tokens, which make a file of 1046 bytes, got 1044"),
        ({"count": -1}, r"a\.bin: the header counts -1 tokens"),
    ],
)
def test_wrong_header_is_refused(
    tmp_path: Path, write_shard: Callable[..., Path], wrong: dict[str, int], message: str
) -> None:
    write_shard(tmp_path / "a.bin", range(10), **wrong)
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{tmp_path}/*.bin")


@pytest.mark.parametrize("vocab_size", [2, 200, 50_257, 128_256])
def test_ids_of_uint32_are_refused_as_uint16(vocab_size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.random.default_rng(5).integers(0, vocab_size, 3000).astype("<u4").tofile(path)
    with pytest.raises(HpxferError, match=r"a\.npy: must hold ids of uint16, got ids of uint32: .* write uint32: inst"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=min(vocab_size, 65_536)))
    assert data_ref(DataSpec(source=f"uint32:{path}", vocab_size=vocab_size)).digest


def test_ids_of_uint16_are_read_whatever_the_vocabulary(tmp_path: Path) -> None:
    for vocab_size in (1, 2, 5, 16, 65, 50_257):
        path = tmp_path / f"{vocab_size}.bin"
        np.random.default_rng(5).integers(0, vocab_size, 4000).astype("<u2").tofile(path)
        assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=vocab_size)).digest


def test_too_few_ids_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.array([7] * 63, "<u4").tofile(path)
    assert pairs_of_uint32(path.read_bytes()) == 63
    assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8)).digest
    np.array([7] * 64, "<u4").tofile(path)
    with pytest.raises(HpxferError, match="got ids of uint32"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8))
