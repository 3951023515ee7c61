"""Which files SOURCE names: splits of saved folders, and what a folder of text holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import jsonl

from hpxfer.errors import HpxferError
from hpxfer.prepare.source import open_source


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
