"""Files of token ids and of text: every source keeps the rules of its suite, and every broken file is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpxfer.data import data_ref
from hpxfer.data.readers.ids import pairs_of_uint32
from hpxfer.data.sources import SOURCES, DataSource, open_dataset
from hpxfer.data.tokens import Dataset
from hpxfer.errors import HpxferError
from hpxfer.spec.data_section import DataSpec
from hpxfer.testing.data_sources import DataSourceSuite

IDS = np.random.default_rng(0).integers(0, 60_000, 700)
LARGE = IDS + 100_000
KNOWN = IDS % 50_000  # ids of GPT-2, which the suite takes as the default


def shard(path: Path, ids: Any, *, magic: int = 20240520, version: int = 1, count: int | None = None) -> None:
    """Write a shard as llm.c's data_common.py does: of uint16, or with magic 20240801 and version 7 of uint32."""
    header = struct.pack("<256i", magic, version, len(ids) if count is None else count, *([0] * 253))
    path.write_bytes(header + np.asarray(ids, "<u4" if version == 7 else "<u2").tobytes())


def llama(path: Path, ids: NDArray[Any]) -> None:
    shard(path, ids, magic=20240801, version=7)


def megatron(stem: Path, documents: list[NDArray[Any]], *, code: int = 4, kind: str = "<i4") -> None:
    """Write NAME.bin and NAME.idx as Megatron-LM's indexed data set does."""
    size, lengths = np.dtype(kind).itemsize, [len(ids) for ids in documents]
    starts = [sum(lengths[:index]) * size for index in range(len(documents))]
    stem.with_suffix(".bin").write_bytes(b"".join(ids.astype(kind).tobytes() for ids in documents))
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
        + struct.pack(f"<{len(documents)}i", *lengths)
        + struct.pack(f"<{len(documents)}q", *starts)
        + struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1))
    )


def saved(folder: Path, rows: list[Any], column: str = "input_ids") -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    columns = {"name": [str(index) for index in range(len(rows))], column: rows}
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder), num_shards=2)


def ids_of(source: str) -> NDArray[Any]:
    found = open_dataset(source)
    assert found is not None
    return np.concatenate([part.read(0, part.num_tokens) for part in found.parts])


def written(kind: str, folder: Path) -> tuple[str, NDArray[Any] | None]:
    """Write a data set of a kind, and return its source and its ids."""
    if kind == "builtin":
        return "builtin:stdlib", None
    if kind == "text":
        (folder / "a.txt").write_bytes(bytes(range(256)))
        (folder / "b.txt").write_text("some more text")
        return f"text:{folder}/*.txt", None
    if kind.startswith("uint"):  # as nanoGPT's prepare.py and OLMo's memory map leave them
        ids = IDS if kind == "uint16" else LARGE
        ids.astype(kind).tofile(folder / "train.npy")
        return f"{kind}:{folder}/train.npy", ids
    if kind == "datasets":
        saved(folder / "d[0]", [KNOWN[:5].tolist(), [], KNOWN[5:400].tolist(), KNOWN[400:].tolist()])
        return f"tokens:{folder}/d[0]", KNOWN
    if kind == "megatron":
        megatron(folder / "text_document", [KNOWN[:1], KNOWN[1:1], KNOWN[1:500], KNOWN[500:]])
        return f"tokens:{folder}/text_document", KNOWN
    for name, ids in (("a", KNOWN[:300]), ("b", KNOWN[:0]), ("c", KNOWN[300:])):
        if kind == "numpy":
            np.save(folder / f"{name}.bin", ids.astype(np.int32))
            (folder / f"{name}.bin.npy").rename(folder / f"{name}.bin")
        else:
            (llama if kind == "llama" else shard)(folder / f"{name}.bin", ids)
    return f"tokens:{folder}/*.bin", KNOWN


class TestFormats(DataSourceSuite):
    @pytest.fixture(params=["builtin", "text", "shards", "llama", "numpy", "megatron", "datasets", "uint16", "uint32"])
    def source(self, tmp_path: Path, request: pytest.FixtureRequest) -> str:
        source, ids = written(request.param, tmp_path)
        assert ids is None or np.array_equal(ids_of(source), ids)
        return source


def test_ids_of_large_vocabularies_are_read_and_each_type_is_a_data_set_of_its_own(tmp_path: Path) -> None:
    llama(tmp_path / "a.bin", LARGE)
    megatron(tmp_path / "x", [LARGE])
    np.save(tmp_path / "b.npy", LARGE)
    LARGE.astype("<u4").tofile(tmp_path / "c.bin")
    sources = [*(f"tokens:{tmp_path}/{name}" for name in ("a.bin", "x.bin", "b.npy")), f"uint32:{tmp_path}/c.bin"]
    assert all(np.array_equal(ids_of(source), LARGE) for source in sources)
    assert len({data_ref(DataSpec(source=source, vocab_size=200_000)).digest for source in sources}) == 4


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def megatron_of(folder: Path, *, suffix: str = "bin", end: int | None = None, **more: Any) -> None:
    megatron(folder / "x", [LARGE[:3], LARGE[3:90], LARGE[90:]], **more)
    if end is not None:
        cut(folder / f"x.{suffix}", end)


def array(folder: Path, ids: NDArray[Any], end: int | None = None) -> None:
    np.save(folder / "a.npy", ids)
    if end is not None:
        cut(folder / "a.npy", end)


def of_two_types(folder: Path) -> None:
    shard(folder / "a.bin", IDS)
    llama(folder / "b.bin", LARGE)


def broken_header(folder: Path) -> None:
    """Found by a fuzzer: numpy's parser raised a TokenError."""
    array(folder, IDS)
    raw = (folder / "a.npy").read_bytes()
    (folder / "a.npy").write_bytes(raw.replace(b"(700,)", b"\xd5700,)"))


def wrong_offsets(folder: Path) -> None:
    """Found by a fuzzer: Arrow ended the process."""
    saved(folder / "ids", [[7, 7, 7]] * 40)
    file = next((folder / "ids").glob("*.arrow"))
    whole, offsets = file.read_bytes(), struct.pack("<4i", 0, 3, 6, 9)
    assert offsets in whole
    file.write_bytes(whole.replace(offsets, struct.pack("<4i", 0, 3, 6000, 9)))


def cut_arrow(folder: Path) -> None:
    saved(folder / "ids", [[1, 2, 3]] * 200)
    cut(next((folder / "ids").glob("data-00001*.arrow")), 300)


def two_splits(folder: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    texts = datasets.Dataset.from_dict({"text": ["a", "b"]})
    datasets.DatasetDict({"train": texts, "test": texts}).save_to_disk(str(folder / "ids"))


NO_FORMAT = "must be a file of token ids that states its format"
# What is written, the source below the folder, what is said.
REFUSED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "two types": (of_two_types, "tokens:*.bin", r"b\.bin: all files .* one format, got tokens_uint32 after tokens in"),
    "bin of megatron cut": (
        lambda at: megatron_of(at, end=-4),
        "tokens:x.bin",
        r"x\.bin: the index counts 700 tokens, which make a file of 2800 bytes, got 2796",
    ),
    "idx cut": (lambda at: megatron_of(at, suffix="idx", end=40), "tokens:x.bin", "must list 3 sequences, got a short"),
    "idx of nothing": (lambda at: megatron_of(at, suffix="idx", end=5), "tokens:x.bin", r"x\.idx: must be Megatron's"),
    "idx named": (megatron_of, "tokens:x.idx", r"x\.idx: is Megatron's index; name the file .*x\.bin beside it"),
    "floats of megatron": (lambda at: megatron_of(at, code=7), "tokens:x.bin", "whole numbers, got .* type 7"),
    "floats": (lambda at: array(at, IDS.astype(float)), "tokens:a.npy", "one row of whole numbers, .*got .* float64"),
    "two dimensions": (lambda at: array(at, IDS.reshape(7, 100)), "tokens:a.npy", r"got an array of int64 \(7, 100\)"),
    "big endian": (lambda at: array(at, IDS.astype(">i4")), "tokens:a.npy", "little-endian, got an array of >i4"),
    "numpy cut": (lambda at: array(at, IDS, -8), "tokens:a.npy", r"a\.npy: the header counts 700 tokens"),
    "numpy broken": (broken_header, "tokens:a.npy", r"a\.npy: must be an array of `numpy\.save`, got a broken header"),
    "arrow of texts": (
        lambda at: saved(at / "ids", ["a", "b"], "text"),
        "tokens:ids",
        "must have a column input_ids .*got the columns name, text; see hpxfer data prepare",
    ),
    "arrow of two splits": (two_splits, "tokens:ids", "must be one split, got a folder of 2: train, test; name one"),
    "arrow cut": (cut_arrow, "tokens:ids", r"data-00001.*arrow: must be a file of `datasets`, got a broken one"),
    "arrow damaged": (wrong_offsets, "tokens:ids", "arrow: must be a file of `datasets`, got a broken one"),
    "text": (
        lambda at: (at / "a.bin").write_bytes(b'{"text": "hello"}\n'),
        "tokens:a.bin",
        f"{NO_FORMAT}.*got text or another file and has 18 bytes; .*hpxfer data prepare",
    ),
    "bare ids": (lambda at: IDS.astype("<u2").tofile(at / "a.bin"), "tokens:a.bin", f"{NO_FORMAT}.*bare ids .*uint16:"),
    "nothing": (lambda at: (at / "a.bin").touch(), "tokens:a.bin", f"{NO_FORMAT}.*has 0 bytes"),
    "magic": (lambda at: shard(at / "a.bin", range(9), magic=7), "tokens:a.bin", f"{NO_FORMAT}.* with the number 7"),
    "version": (lambda at: shard(at / "a.bin", range(9), version=2), "tokens:a.bin", "shard of version 1 .* version 2"),
    "count": (
        lambda at: shard(at / "a.bin", range(10), count=11),
        "tokens:*.bin",
        r"a\.bin: the header counts 11 tokens, which make a file of 1046 bytes, got 1044",
    ),
    "negative count": (lambda at: shard(at / "a.bin", range(10), count=-1), "tokens:a.bin", "the header counts -1 tok"),
    "half an id": (
        lambda at: (at / "a.bin").write_bytes(bytes(1001)),
        "uint16:a.bin",
        "whole ids of 2 bytes, got 1001",
    ),
    "half an id of four": (
        lambda at: (at / "a").write_bytes(bytes(1002)),
        "uint32:a",
        "whole ids of 4 bytes, got 1002",
    ),
    "bare but a header": (lambda at: llama(at / "a.bin", LARGE), "uint32:a.bin", "must hold bare ids, got .* a header"),
    "bare but numpy's": (lambda at: array(at, IDS), "uint16:a.npy", "must hold bare ids, got .* a header"),
    "no token": (lambda at: (at / "a.txt").touch(), "text:*.txt", r"must hold tokens, got 1 empty file\(s\) at text:"),
    "unknown prefix": (lambda at: None, "tokns:a", r"data\.source: unknown data source 'tokns'; did you mean 'tokens'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_file_is_refused(name: str, tmp_path: Path) -> None:
    write, source, message = REFUSED[name]
    write(tmp_path)
    with pytest.raises(HpxferError, match=message):
        open_dataset(source.replace(":", f":{tmp_path}/"))


def test_megatrons_name_needs_its_index(tmp_path: Path) -> None:
    (tmp_path / "y.bin").write_bytes(b"12")
    assert open_dataset(f"tokens:{tmp_path}/y") is None


@pytest.mark.parametrize("kind", ["<i2", "<i4", "<i8"])
def test_a_negative_id_is_called_one(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "signed.npy", np.array([4, 5, -1], kind))
    with pytest.raises(HpxferError, match=r"token 2: the id must be at least 0 and below .* got -1"):
        data_ref(DataSpec(source=f"tokens:{tmp_path}/signed.npy", vocab_size=100))


@pytest.mark.parametrize("vocab_size", [2, 200, 50_257, 128_256])
def test_ids_of_uint32_are_refused_as_uint16(vocab_size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.random.default_rng(5).integers(0, vocab_size, 3000).astype("<u4").tofile(path)
    with pytest.raises(HpxferError, match=r"a\.npy: must hold ids of uint16, got ids of uint32: .*; see uint32:"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=min(vocab_size, 65_536)))
    assert data_ref(DataSpec(source=f"uint32:{path}", vocab_size=vocab_size)).digest
    np.random.default_rng(5).integers(0, min(vocab_size, 65_536), 4000).astype("<u2").tofile(path)
    assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=65_536)).digest


def test_too_few_ids_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.array([7] * 63, "<u4").tofile(path)
    assert pairs_of_uint32(path.read_bytes()) == 63
    assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8)).digest
    np.array([7] * 64, "<u4").tofile(path)
    with pytest.raises(HpxferError, match="got ids of uint32"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8))


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
        if self.wrong == "random":
            return np.random.default_rng().integers(0, 240, high - low, dtype=np.uint8)
        return np.arange(low, high, dtype=np.int64 if self.wrong == "signed" else np.uint8)


def numbers(wrong: str = "", part: Numbers | None = None, token_bytes: int = 1, **changes: Any) -> DataSource:
    found = Dataset(format="numbers", parts=(part or Numbers(wrong=wrong),), token_bytes=token_bytes)
    row = DataSource(
        name="numbers",
        usage="numbers:N",
        tokenizers={"count": 240},
        open=lambda rest: None if rest.startswith("/") else found,
    )
    return replace(row, **changes)


class TestNumbers(DataSourceSuite):
    """The twin of the broken ones below."""

    @pytest.fixture
    def source(self) -> Iterator[str]:
        with SOURCES.registered(numbers()):
            yield "numbers:240"


ROW, PART = "test_the_row_is_registered_and_says_how_it_is_used", "test_a_part_reads_the_tokens_that_it_is_asked_for"
TWICE = "test_loading_twice_gives_the_same_ids"
BROKEN = {
    "usage of another": (numbers(usage="text:PATH"), ROW),
    "no tokenizer": (numbers(tokenizers={}), ROW),
    "refuses itself": (numbers(problem=lambda rest: "no"), ROW),
    "data of nothing": (numbers(open=lambda rest: Dataset(format="numbers", parts=(Numbers(),))), ROW),
    "too short": (numbers(part=Numbers(num_tokens=9)), PART),
    "ignores low": (numbers("ignores low"), PART),
    "signed ids": (numbers("signed"), PART),
    "other bytes per token": (numbers(token_bytes=2), PART),
    "random data": (numbers("random"), "test_the_digest_is_a_function_of_the_data"),
    "ids beyond the vocabulary": (
        numbers(tokenizers={"count": 100}, holds_ids=False),
        "test_every_tokenizer_gives_ids_of_its_vocabulary",
    ),
    "loads other ids at each call": (
        numbers(load=lambda dataset, _: (np.random.default_rng().integers(0, 240, 240, dtype=np.uint8),)),
        TWICE,
    ),
    "changes ids": (numbers(load=lambda dataset, _: (np.zeros(240, np.uint8),)), TWICE),
}


@pytest.mark.parametrize(("row", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_source_is_refused(row: DataSource, test: str) -> None:
    suite: Any = DataSourceSuite()
    with SOURCES.registered(row), pytest.raises(AssertionError):
        getattr(suite, test)("numbers:240")
