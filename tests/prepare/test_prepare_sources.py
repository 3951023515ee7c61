"""Which files SOURCE names, which documents validation takes, and what the command prints."""

from __future__ import annotations

import gzip
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from corpus import jsonl, tokenizer_file
from fixture_types import Folders, Patch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.prepare.source import open_source
from hpxfer.prepare.tokenize import key_of, load_tokenizer
from hpxfer.prepare.writer import HeldOut


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Folders) -> Path:
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
        ("two", "two/train"),
        ("bare:a", "bare/a"),
        ("one", "one"),
        ("one:train", "one"),
        ("named:validation", "named"),
    ],
)
def test_the_part_after_a_saved_folder_is_its_split(saved: Path, source: str, folder: str) -> None:
    found = open_source(f"hf:{saved}/{source}", "text")
    assert {Path(path).parent for path, _ in found.files} == {saved / folder}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("two:nope", r"two:nope: must name a split of .*two, held_out, train, got 'nope'$"),
        ("two:", r"must name a split of .*, held_out, train, got ''"),
        ("bare", r"must name a split of .*bare, a, b, got 'train'"),
        ("two:nope:train", r"for a saved folder, which has no config"),
        ("one:validation", r"must be one split, as datasets saved it \(train\), got 'validation'"),
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
def tokenizer(tmp_path_factory: Folders) -> str:
    return str(tokenizer_file(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("a.jsonl", b"[1]", r":502: must be a JSON object per line, .*, got list"),
        ("a.jsonl", b'{"body": "x", "id": 1}', r":502: must have the field 'text', got body, id; see --field"),
        ("a.jsonl", b'{"text": 3}', r":502: text: must be text, got 3; see --field"),
        ("a.jsonl", b"{", r":502: must be JSON, one value per line, got '\{' \("),
        ("a.jsonl", b'{"text": "\xe9t"}', r":502: must be UTF-8 text, got b'\\xe9t\"\}' at byte 11 of the line"),
        ("a.txt", b"caf\xe9 au", r":502: must be UTF-8 text, got b'\\xe9 au' at byte 4 of the line"),
    ],
)
def test_a_bad_line_is_named_in_any_block(
    tmp_path: Path, tokenizer: str, monkeypatch: Patch, suffix: str, name: str, bad: bytes, message: str
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
    with pytest.raises(HpxferError, match=rf"the folder must hold a tokenizer\.json, got {tmp_path} without one"):
        load_tokenizer(str(tmp_path), None)


def test_the_output_counts_files_and_ends_with_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    source, out = jsonl(tmp_path / "a.jsonl", ["one text", ""]), tmp_path / "out"
    given = ("data", "prepare", source, "--tokenizer", tokenizer, "--out", out, "--workers", "1")
    code, stdout, stderr = hpxfer(capsys, *given)
    first, second, *_ = stdout.splitlines()
    assert (code, first) == (0, f"{out}: complete, from 1 file")
    assert " tokens of 1 document, digest " in second
    *_, last, warned = stderr.splitlines()
    assert " 100%  " in last
    assert last.endswith(" tokens, 1 shard")
    assert warned == f"warning: {source}: 1 document of no tokens was left out"
    code, again, stderr = hpxfer(capsys, *given)
    assert (code, again, "%" in stderr) == (0, stdout, False)


DOCUMENTS = st.lists(st.integers(1, 40), min_size=0, max_size=60)  # a document by its length: equal ones are copies


def document(length: int) -> NDArray[np.uint16]:
    return np.full(length, length, np.uint16)


def smallest(lengths: list[int], wanted: int) -> list[int]:
    """Return what is to be held out: whole groups of copies in the order of their hashes, while there is room."""
    ranked = sorted((key_of(document(each)), each) for each in lengths if each <= wanted)
    kept, size = set(), 0
    for (_, each), group in groupby(ranked):
        size += each * len(list(group))
        if size > wanted:
            break
        kept.add(each)
    return [each for each in lengths if each in kept]


@given(lengths=DOCUMENTS, wanted=st.integers(1, 200), cut=st.integers(0, 60))
def test_the_smallest_hashes_are_held_out_and_nothing_is_lost(lengths: list[int], wanted: int, cut: int) -> None:
    held_out, trained = HeldOut(wanted), []
    for number, each in enumerate(lengths):
        if number == cut:  # stopped, and restored from what was stored
            stored, held_out = held_out, HeldOut(wanted, held_out.limit)
            for ids in stored.documents():
                assert not list(held_out.add(ids, key_of(ids)))
        ids = document(each)
        if held_out.takes(ids, key_of(ids)):
            trained += [len(back) for back in held_out.add(ids, key_of(ids))]
        else:
            trained.append(each)
    trained += [len(back) for back in held_out.surplus()]
    found = [len(ids) for ids in held_out.documents()]
    assert found == smallest(lengths, wanted)
    assert held_out.size == sum(found) <= wanted
    assert sorted(trained + found) == sorted(lengths)


def test_without_validation_nothing_is_held_out() -> None:
    assert not HeldOut(0).takes(document(1), 0)
