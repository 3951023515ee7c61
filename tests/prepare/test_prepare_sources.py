"""Which files SOURCE names: splits of saved folders, and what a folder of text holds."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from corpus import jsonl, tokenizer_file

from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.prepare.source import open_source
from hpxfer.prepare.tokenize import load_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that `datasets` saved: two with splits, one of them without train, and two without."""
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    root = tmp_path_factory.mktemp("saved")
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    for name, splits in (("two", ("held_out", "train")), ("bare", ("a", "b"))):
        datasets.DatasetDict(dict.fromkeys(splits, rows)).save_to_disk(str(root / name))
    rows.save_to_disk(str(root / "one"))
    named = datasets.Dataset.from_dict({"text": ["a"]}, split="validation")
    named.save_to_disk(str(root / "named"))
    return root


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("two:held_out", "two/held_out"),
        ("two:train", "two/train"),
        ("two", "two/train"),
        ("bare:a", "bare/a"),
        ("one", "one"),
        ("one:train", "one"),
        ("named:validation", "named"),
        ("named", "named"),
    ],
)
def test_the_part_after_a_saved_folder_is_its_split(saved: Path, source: str, folder: str) -> None:
    found = open_source(f"hf:{saved}/{source}", "text")
    assert {Path(path).parent for path, _ in found.files} == {saved / folder}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("two:nope", r"two:nope: must name a split of .*two, held_out, train, got 'nope'; write hf:.*two:SPLIT$"),
        ("two:Train", r"must name a split of .*, held_out, train, got 'Train'"),
        ("two:", r"must name a split of .*, held_out, train, got ''"),
        ("bare", r"must name a split of .*bare, a, b, got 'train'"),
        ("two:nope:train", r"for a saved folder, which has no config, got two parts .*; leave out 'nope'"),
        ("one:one:train", r"for a saved folder, which has no config, got two parts"),
        ("one:validation", r"must be one split, as datasets saved it \(train\), got 'validation'; .* no other splits"),
        ("named:train", r"must be one split, as datasets saved it \(validation\), got 'train'"),
    ],
)
def test_another_split_of_a_saved_folder_is_refused(saved: Path, source: str, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        open_source(f"hf:{saved}/{source}", "text")


def test_a_folder_is_read_with_its_subfolders_but_for_hidden_ones(tmp_path: Path) -> None:
    for name in ("a.jsonl", "more/deep/b.jsonl", ".git/c.jsonl", "more/.cache/d.jsonl", "more/.e.jsonl"):
        jsonl(tmp_path / ".corpus" / name, ["x"])
    found = open_source(str(tmp_path / ".corpus"), "text")
    assert [Path(path).name for path, _ in found.files] == ["a.jsonl", "b.jsonl"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer_file(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("a.jsonl", b"[1]", r":502: must be a JSON object per line, got list; write lines as \{"),
        ("a.jsonl", b"{", r":502: must be JSON, one value per line, got '\{' .*; write one object per line, or take"),
        (
            "a.jsonl",
            b'{"text": "\xe9t"}',
            r":502: must be UTF-8 text, got b'\\xe9t\"\}' at byte 11 of the line",
        ),
        ("a.txt", b"caf\xe9 au", r":502: must be UTF-8 text, got b'\\xe9 au' at byte 4 of the line; convert the file"),
    ],
)
def test_a_bad_line_is_named_in_any_block(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, suffix: str, name: str, bad: bytes, message: str
) -> None:
    monkeypatch.setattr("hpxfer.prepare.blocks.BLOCK_BYTES", 2000)
    content = b'{"text": "fine"}\n' * 500 + b"\n" + bad + b'\n{"text": "fine"}\n'
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(HpxferError, match=re.escape(str(path)) + message):
        prepare_data(str(path), tokenizer=tokenizer, out=tmp_path / "out", workers=1)


@pytest.mark.parametrize("name", ["empty.txt", "empty.txt.gz"])
def test_an_empty_file_of_text_is_an_empty_document(tmp_path: Path, tokenizer: str, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith(".gz") else b"")
    with pytest.raises(
        HpxferError, match=rf"{name}: must leave tokens for training, got 0 .* 1 document of no"
    ) as found:
        prepare_data(f"{tmp_path}/{name}", tokenizer=tokenizer, out=tmp_path / "none", workers=1)
    assert "--val-tokens" not in str(found.value)
    (tmp_path / "full.txt").write_text("some text")
    manifest = prepare_data(f"{tmp_path}/*.txt*", tokenizer=tokenizer, out=tmp_path / "out", workers=1)
    assert (manifest.empty_documents, manifest.splits["train"].num_documents) == (1, 1)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=rf"the folder must hold a tokenizer\.json, got {tmp_path} without one; name"):
        load_tokenizer(str(tmp_path), None)
