"""From text to token shards, judged by the tokenizer itself and by numpy."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus import documents, jsonl, tokenizer_file
from fixture_types import Folders, Patch

import hpxfer.prepare.blocks
import hpxfer.prepare.tokenize
from hpxfer.data import data_ref
from hpxfer.data.manifest import Manifest, read_manifest
from hpxfer.errors import HpxferError
from hpxfer.prepare import SHARD_TOKENS, run
from hpxfer.prepare.run import prepare_data
from hpxfer.prepare.source import open_source
from hpxfer.prepare.tokenize import load_tokenizer
from hpxfer.spec.data_section import DataSpec

TEXTS = documents(90)
VAL = 2048


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: Folders) -> Path:
    return tokenizer_file(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def small_blocks(monkeypatch: Patch) -> None:
    """Cut files into many blocks, and texts into many parts."""
    monkeypatch.setattr(hpxfer.prepare.blocks, "BLOCK_BYTES", 2000)


def made(source: object, tokenizer: Path, out: Path, **more: Any) -> Manifest:
    return prepare_data(str(source), tokenizer=str(tokenizer), out=out, workers=1, **more)


def ids_of(folder: Path, split: str = "train") -> np.ndarray:
    manifest = read_manifest(folder)
    parts = []
    for shard in manifest.splits[split].shards:
        raw = (folder / shard.file).read_bytes()
        magic, version, count = np.frombuffer(raw, "<i4", count=3)
        kind = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[int(magic), int(version)]
        parts.append(np.frombuffer(raw, kind, offset=1024))
        assert len(parts[-1]) == count == shard.tokens
    return np.concatenate(parts)


def starts_of(folder: Path, split: str = "train") -> list[int]:
    manifest = read_manifest(folder)
    out, before = [], 0
    for shard in manifest.splits[split].shards:
        out += [int(start) + before for start in np.load(folder / shard.documents)]
        before += shard.tokens
    return out


def documents_of(folder: Path, split: str) -> list[tuple[int, ...]]:
    ids, starts = ids_of(folder, split), starts_of(folder, split)
    return [tuple(ids[low:high].tolist()) for low, high in pairwise([*starts, len(ids)])]


def expected(tokenizer: Path, texts: list[str]) -> list[list[int]]:
    import tokenizers

    judge = tokenizers.Tokenizer.from_file(str(tokenizer))
    end = judge.token_to_id("<|endoftext|>")
    return [[*judge.encode(text).ids, end] for text in texts]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_validation_takes_whole_documents_and_exactly_its_tokens(tmp_path: Path, tokenizer: Path) -> None:
    manifest = made(jsonl(tmp_path / "a.jsonl", TEXTS), tokenizer, tmp_path / "out", val_tokens=VAL)
    assert manifest.splits["val"].tokens == VAL + 1
    train, val = (ids_of(tmp_path / "out", split) for split in ("train", "val"))
    whole = [id_ for ids in expected(tokenizer, TEXTS) for id_ in ids]
    assert sorted([*train.tolist(), *val.tolist()]) == sorted(whole)
    known = {tuple(ids) for ids in expected(tokenizer, TEXTS)}
    inside = documents_of(tmp_path / "out", "val")
    # All but the document that the last tokens were cut from.
    assert sum(each in known for each in inside) >= len(inside) - 1
    assert len(inside) > 3


@pytest.mark.parametrize("kind", ["gz", "text"])
def test_validation_is_spread_over_the_source_with_copies_on_one_side(
    tmp_path: Path, tokenizer: Path, kind: str
) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(TEXTS * 3)] * 2
    if kind == "text":
        (tmp_path / "in").mkdir()
        for number, text in enumerate(texts):
            (tmp_path / "in" / f"{number:05}.txt").write_text(text)
    source = tmp_path / "in" if kind == "text" else jsonl(tmp_path / "a.jsonl.gz", texts)
    num_tokens = sum(map(len, expected(tokenizer, texts)))
    made(source, tokenizer, tmp_path / "out", val_tokens=num_tokens // 5)
    documents = {split: documents_of(tmp_path / "out", split) for split in ("train", "val")}
    assert len(set(documents["val"]) & set(documents["train"])) <= 2  # of the document that was cut
    places = {tuple(ids): place for place, ids in enumerate(expected(tokenizer, texts[: len(texts) // 2]))}
    held_out = sorted(places[ids] for ids in set(documents["val"]) & set(places))
    fifths = [sum(place * 5 // len(places) == fifth for place in held_out) for fifth in range(5)]
    assert min(fifths) >= len(held_out) // 20, fifths
    assert len(held_out) > len(places) / 8


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "A.JSONL.GZ"])
def test_the_ids_are_those_of_the_tokenizer_in_blocks_and_compressed(
    tmp_path: Path, tokenizer: Path, name: str
) -> None:
    manifest = made(jsonl(tmp_path / name, TEXTS), tokenizer, tmp_path / "out")
    documents_of = expected(tokenizer, TEXTS)
    assert ids_of(tmp_path / "out").tolist() == [id_ for ids in documents_of for id_ in ids]
    assert starts_of(tmp_path / "out") == np.cumsum([0, *map(len, documents_of)])[:-1].tolist()
    assert (manifest.tokenizer.vocab_size, manifest.padded_vocab_size) == (400, 512)
    assert manifest.splits["train"].digest == data_ref(DataSpec(source=f"tokens:{tmp_path}/out")).digest


@pytest.mark.parametrize("rows", [7, 1000])
def test_parquet_and_saved_data_sets_and_hf_names(tmp_path: Path, tokenizer: Path, rows: int) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    pq.write_table(pa.table({"id": range(len(TEXTS)), "body": TEXTS}), tmp_path / "a.parquet", row_group_size=rows)
    saved = datasets.Dataset.from_dict({"body": TEXTS}, info=datasets.DatasetInfo(license="cc0-1.0"))
    saved.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": saved, "test": saved.select([3])}).save_to_disk(str(tmp_path / "both"))
    whole = [id_ for ids in expected(tokenizer, TEXTS) for id_ in ids]
    sources = (f"{tmp_path}/a.parquet", f"{tmp_path}/one", f"hf:{tmp_path}/one", f"hf:{tmp_path}/both")
    for number, source in enumerate(sources):
        out = tmp_path / f"out{number}"
        manifest = made(source, tokenizer, out, field="body")
        assert ids_of(out).tolist() == whole
        assert manifest.source.license == (None if number == 0 else "cc0-1.0")
    made(f"hf:{tmp_path}/both:test", tokenizer, tmp_path / "test", field="body", license_name="mine")
    assert ids_of(tmp_path / "test").tolist() == expected(tokenizer, [TEXTS[3]])[0]


@pytest.mark.usefixtures("small_blocks")
def test_a_file_of_text_is_one_document(tmp_path: Path, tokenizer: Path, monkeypatch: Patch) -> None:
    """Long lines cross blocks, long texts are cut after lines, and the end stands once."""
    monkeypatch.setattr(hpxfer.prepare.tokenize, "MOST_CHARS", 700)
    texts = ["\n".join(TEXTS[:10]), "x" * 5000 + "\n" + TEXTS[11] + "\n", "", TEXTS[12]]
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_text(text, encoding="utf-8")
    manifest = made(f"{tmp_path}/*.txt", tokenizer, tmp_path / "out")
    import tokenizers

    judge = tokenizers.Tokenizer.from_file(str(tokenizer))
    ids, end = ids_of(tmp_path / "out"), judge.token_to_id("<|endoftext|>")
    parts = np.split(ids, np.flatnonzero(ids == end) + 1)
    decoded = [judge.decode(part[part != end].tolist()) for part in parts if len(part)]
    assert decoded == [text for text in texts if text]
    assert manifest.splits["train"].num_documents == 3
    assert [int(ids[start - 1]) for start in starts_of(tmp_path / "out")[1:]] == [end, end]


@pytest.mark.usefixtures("small_blocks")
def test_the_same_bytes_with_any_number_of_processes(tmp_path: Path, tokenizer: Path) -> None:
    for part in range(3):
        jsonl(tmp_path / "in" / f"{part}.jsonl", TEXTS[part::3])
    made(tmp_path / "in", tokenizer, tmp_path / "one", val_tokens=VAL, shard_tokens=3000)
    prepare_data(
        f"{tmp_path}/in", tokenizer=str(tokenizer), out=tmp_path / "two", workers=2, val_tokens=VAL, shard_tokens=3000
    )
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(list((tmp_path / "one").glob("train-*.bin"))) > 2


def test_a_damaged_state_is_named(tmp_path: Path, tokenizer: Path) -> None:
    source, out = jsonl(tmp_path / "a.jsonl", TEXTS[:9]), tmp_path / "out"
    request = run._request(open_source(str(source), "text"), load_tokenizer(str(tokenizer), None), 0, SHARD_TOKENS)
    out.mkdir()
    for damage in (
        {"shards": [{"file": "../x"}]},
        {"next": None},
        {"shards": 3},
        {"val": {}},
        {"limit": "x"},
        {"no": 1},
    ):
        (out / "preparing.json").write_text(json.dumps({"request": request, **damage}))
        with pytest.raises(
            HpxferError, match=r"preparing\.json: must be the state of a stopped run, got a damaged file"
        ):
            made(source, tokenizer, out)
    (out / "preparing.json").write_text(json.dumps({"request": request}))
    made(source, tokenizer, out)


def test_a_finished_folder_is_left_alone(tmp_path: Path, tokenizer: Path) -> None:
    source, out = jsonl(tmp_path / "a.jsonl", TEXTS), tmp_path / "out"
    first = made(source, tokenizer, out, val_tokens=VAL)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert made(source, tokenizer, out, val_tokens=VAL) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with pytest.raises(HpxferError, match=r"out: was prepared with another val_tokens 2048 \(now 2049\); name another"):
        made(source, tokenizer, out, val_tokens=VAL + 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(HpxferError, match=r"mine: must be an empty folder, .*got thesis\.tex"):
        made(source, tokenizer, tmp_path / "mine")


def test_what_lies_beside_the_data_is_not_read(tmp_path: Path, tokenizer: Path) -> None:
    """A tokenizer, a README and the folder that is made, all in the folder of the JSONL files."""
    jsonl(tmp_path / "in" / "a.jsonl", TEXTS[:3])
    (tmp_path / "in" / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "in" / "README.md").write_text("read me")
    (tmp_path / "in" / ".hidden.jsonl").write_text("{")
    made(tmp_path / "in", tmp_path / "in" / "tokenizer.json", tmp_path / "in" / "made")
    made(tmp_path / "in", tmp_path / "in" / "tokenizer.json", tmp_path / "in" / "made")
    assert ids_of(tmp_path / "in" / "made").tolist() == [id_ for ids in expected(tokenizer, TEXTS[:3]) for id_ in ids]


def test_large_vocabularies_are_uint32(tmp_path: Path) -> None:
    """A word-level tokenizer of 70,000 words: ids beyond uint16."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    words = {f"w{index}": index for index in range(70_000)} | {"<eos>": 70_000}
    big = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    big.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    big.save(str(tmp_path / "tokenizer.json"))
    source = jsonl(tmp_path / "a.jsonl", ["w69999 w1", "w65536"])
    manifest = made(source, tmp_path / "tokenizer.json", tmp_path / "out")
    assert ids_of(tmp_path / "out").tolist() == [69_999, 1, 70_000, 65_536, 70_000]
    assert (manifest.token_bytes, manifest.tokenizer.eos, manifest.padded_vocab_size) == (4, "<eos>", 70_016)
    with pytest.raises(HpxferError, match=r"train-00000\.bin: token 0: the id must be below the vocabulary of 50304"):
        data_ref(DataSpec(source=f"tokens:{tmp_path}/out", tokenizer="gpt2"))


def test_settings_of_the_tokenizer_that_cut_or_pad_are_not_used(tmp_path: Path, tokenizer: Path) -> None:
    import tokenizers

    cutting = tokenizers.Tokenizer.from_file(str(tokenizer))
    cutting.enable_truncation(5)
    cutting.enable_padding(length=500)
    cutting.save(str(tmp_path / "tokenizer.json"))
    made(jsonl(tmp_path / "a.jsonl", TEXTS[:4]), tmp_path / "tokenizer.json", tmp_path / "out")
    assert ids_of(tmp_path / "out").tolist() == [id_ for ids in expected(tokenizer, TEXTS[:4]) for id_ in ids]


def test_the_end_of_a_document_is_what_the_config_says(tmp_path: Path) -> None:
    file = tokenizer_file(tmp_path / "t" / "tokenizer.json", special=("<|endoftext|>", "<|stop|>"))
    (file.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|stop|>"}}))
    source = jsonl(tmp_path / "a.jsonl", TEXTS[:3])
    ends = [made(source, file.parent, tmp_path / "a"), made(source, file, tmp_path / "b", eos="<|endoftext|>")]
    assert [manifest.tokenizer.eos for manifest in ends] == ["<|stop|>", "<|endoftext|>"]
    bare = made(source, file, tmp_path / "c", eos="none")
    assert (bare.tokenizer.eos_id, bare.splits["train"].tokens) == (None, ends[0].splits["train"].tokens - 3)
    assert (tmp_path / "a" / "tokenizer" / "tokenizer_config.json").exists()


def test_documents_of_no_tokens_are_left_out_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["", TEXTS[0], "", TEXTS[1]])
    manifest = made(source, tokenizer, tmp_path / "out")
    assert (manifest.empty_documents, manifest.splits["train"].num_documents) == (2, 2)
    with pytest.raises(HpxferError, match=r"must leave tokens for training, got 0 tokens .*2 documents of no tokens"):
        made(jsonl(tmp_path / "b.jsonl", ["", ""]), tokenizer, tmp_path / "none")
    assert not (tmp_path / "none" / "manifest.json").exists()
    with pytest.raises(HpxferError, match=r"must leave tokens for training beside 1000000 for validation, got \d+ tok"):
        made(source, tokenizer, tmp_path / "much", val_tokens=1_000_000)


def test_half_a_character_becomes_a_question_mark(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "left \\ud800 right"}\n')
    made(tmp_path / "a.jsonl", tokenizer, tmp_path / "out")
    assert ids_of(tmp_path / "out").tolist() == expected(tokenizer, ["left ? right"])[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.jsonl", r"none\.jsonl: must name files of text, .*got nothing of that name"),
        ("empty", r"empty: must hold files of text, .*got a folder without any"),
        ("a.xyz", r"a\.xyz: must be NAME\.jsonl, .*got another name; rename it"),
        ("mixed", r"b\.txt: all files must be of one kind, got text after jsonl in .*a\.jsonl"),
        ("bad.parquet", r"bad\.parquet: must be a Parquet file, got a broken one"),
        ("numbers.parquet", r"numbers\.parquet: text: must be a column of text, got int64; see --field"),
        ("other.parquet", r"other\.parquet: must have the column 'text', got body; see --field"),
        ("cut.jsonl.gz", r"cut\.jsonl\.gz: must be a complete gzip file, got a broken one"),
        ("bytes.parquet", r"bytes\.parquet: text: must be UTF-8 text, got b'\\xe9x'"),
        ("latin.txt", r"latin\.txt:1: must be UTF-8 text, got b'\\xe9"),
    ],
)
def test_bad_sources(tmp_path: Path, tokenizer: Path, source: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.xyz").write_text("x")
    jsonl(tmp_path / "mixed" / "a.jsonl", TEXTS[:1])
    (tmp_path / "mixed" / "b.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"text": pa.array([b"\xe9x"]).view(pa.string())}), tmp_path / "bytes.parquet")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 3)
    whole = jsonl(tmp_path / "cut.jsonl.gz", TEXTS).read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HpxferError, match=message):
        made(tmp_path / source, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_bad_tokenizers(tmp_path: Path, tokenizer: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", TEXTS[:2])
    (tmp_path / "broken.json").write_text('{"a": 1}')
    plain = tokenizer_file(tmp_path / "plain.json", special=())
    for given, eos, message in (
        (tmp_path / "no.json", None, r"--tokenizer: must be a tokenizer\.json, its folder, or a name on the hub, got"),
        (tmp_path / "broken.json", None, r"broken\.json: must be a tokenizer\.json of the package tokenizers"),
        (plain, None, r"--eos: .*names no token that ends a document, .*write --eos none"),
        (tokenizer, "<nope>", r"--eos: must be a token of .*, got '<nope>'; or none"),
    ):
        with pytest.raises(HpxferError, match=message):
            made(source, given, tmp_path / "out", eos=eos)
    assert not (tmp_path / "out").exists()
