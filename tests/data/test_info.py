"""`hpxfer data info`: what a file or folder is, and what it says can be used is used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from corpus import documents, jsonl, tokenizer_file

from hpxfer.data import data_ref
from hpxfer.data.info import DataInfo
from hpxfer.data.info import info as info_with
from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.prepare.source import open_source
from hpxfer.spec.data_section import DataSpec

IDS = np.random.default_rng(1).integers(0, 50_000, 3000)


def info(path: str) -> DataInfo:
    return info_with(path, open_source)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jsonl(tmp_path / "corpus" / "a.jsonl", documents(20))
    jsonl(tmp_path / "corpus" / "b.jsonl.gz", documents(5))
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    given = str(tmp_path / "corpus" / "a.jsonl")
    prepare_data(given, tokenizer=str(tokenizer), out=tmp_path / "made", val_tokens=64, workers=1)
    IDS.astype("<u2").tofile(tmp_path / "gpt.bin")
    (IDS + 70_000).astype("<u4").tofile(tmp_path / "olmo.npy")
    np.save(tmp_path / "saved.npy", IDS.astype(np.uint16))
    (tmp_path / "plain").write_text("a text without a suffix")
    (tmp_path / "noise.bin").write_bytes(np.random.default_rng(2).bytes(40_001))
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what", "source"),
    [
        ("made", "a folder that `hpxfer data prepare` made", "tokens"),
        ("made/train-00000.bin", "token shards of uint16", "tokens"),
        ("saved.npy", "token ids (npy of 16 bits)", "tokens"),
        ("gpt.bin", "most likely bare ids of uint16, without a header", "uint16"),
        ("olmo.npy", "most likely bare ids of uint32, without a header", "uint32"),
        ("plain", "text", "text"),
    ],
)
def test_what_it_says_can_be_used_is_used(folder: Path, name: str, what: str, source: str) -> None:
    found = info(str(folder / name))
    assert what in found.what
    assert found.use["source"] == f"{source}:{folder / name}"
    size = found.use.get("vocab_size")
    read = {"source": found.use["source"]}
    data_ref(DataSpec.model_validate({**read, "vocab_size": size}))
    if isinstance(size, int):
        with pytest.raises(HpxferError, match="the id must be below the vocabulary"):
            data_ref(DataSpec.model_validate({**read, "vocab_size": size - 1}))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("corpus", "a folder of text in jsonl files"),
        ("corpus/a.jsonl", "text in .jsonl files"),
        ("corpus/b.jsonl.gz", "text in .jsonl.gz files"),
        ("noise.bin", "a file of no known format"),
    ],
)
def test_what_no_sweep_reads_names_the_command(folder: Path, name: str, what: str) -> None:
    found = info(str(folder / name))
    assert (found.what, found.use) == (what, {})
    assert found.fix is not None
    assert "hpxfer data prepare" in found.fix


def test_saved_data_sets(folder: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4]]}).save_to_disk(str(folder / "ids"))
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(folder / "texts"))
    assert info(str(folder / "ids")).facts["tokens"] == 4
    assert "hpxfer data prepare" in (info(str(folder / "texts")).fix or "")


@pytest.mark.parametrize(
    ("name", "message"), [("none", "got nothing of that name"), ("empty", "got a folder without any")]
)
def test_nothing_is_named(folder: Path, name: str, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        info(str(folder / name))


def test_the_command_prints_text_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "data", "info", folder / "made")
    assert code == 0
    assert f"source: tokens:{folder / 'made'}" in out
    code, out, _ = hpxfer(capsys, "data", "info", folder / "gpt.bin", "--json")
    assert json.loads(out)["use"]["source"] == f"uint16:{folder / 'gpt.bin'}"
    code, out, err = hpxfer(capsys, "data", "info", folder / "none")
    assert (code, out) == (2, "")
    assert "got nothing of that name" in err


def test_a_folder_of_text_is_no_folder_of_tokens(folder: Path) -> None:
    with pytest.raises(HpxferError, match=r"got the folder .*corpus; .*prepare it first: hpxfer data prepare"):
        data_ref(DataSpec(source=f"tokens:{folder}/corpus"))
