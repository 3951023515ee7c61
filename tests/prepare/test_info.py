"""`hpxfer data info`: what a file or folder is, and what it says can be used is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import hpxfer
from corpus import documents, jsonl, tokenizer_file

from hpxfer.data import data_ref, manifest
from hpxfer.errors import HpxferError
from hpxfer.prepare.info import info
from hpxfer.prepare.run import prepare_data
from hpxfer.spec.data_section import DataSpec

IDS = np.random.default_rng(1).integers(0, 50_000, 3000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("data")
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
    (tmp_path / "none.txt").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path, dirs_exist_ok=True))


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
def test_what_it_says_can_be_used_is_used(whole: Path, name: str, what: str, source: str) -> None:
    found = info(str(whole / name))
    assert what in found.what
    assert found.use["source"] == f"{source}:{whole / name}"
    read: dict[str, Any] = {"source": found.use["source"]}
    data_ref(DataSpec(**read, vocab_size=found.use.get("vocab_size")))
    if isinstance(size := found.use.get("vocab_size"), int):
        with pytest.raises(HpxferError, match="the id must be below the vocabulary"):
            data_ref(DataSpec(**read, vocab_size=size - 1))


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("corpus", "a folder of text in jsonl files", "hpxfer data prepare"),
        ("corpus/a.jsonl", "text in .jsonl files", "hpxfer data prepare"),
        ("corpus/b.jsonl.gz", "text in .jsonl.gz files", "hpxfer data prepare"),
        ("noise.bin", "a file of no known format", "hpxfer data prepare"),
        ("none.txt", "an empty file of text", "name a file that holds text"),
    ],
)
def test_what_no_sweep_reads_names_the_command(whole: Path, name: str, what: str, fix: str) -> None:
    found = info(str(whole / name))
    assert (found.what, found.use) == (what, {})
    assert fix in (found.fix or "")


def test_saved_data_sets(folder: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra hf")
    datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4]]}).save_to_disk(str(folder / "ids"))
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(str(folder / "texts"))
    assert info(str(folder / "ids")).facts["tokens"] == 4
    assert "hpxfer data prepare" in (info(str(folder / "texts")).fix or "")
    table = pa.table({"input_ids": [[1, 2], [3]]})
    for name, opened in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with opened(str(folder / name), table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(HpxferError, match=f"{name}: must be read with the folder .* got a file of Arrow"):
            info(str(folder / name))


def test_the_command_prints_text_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "data", "info", folder / "made")
    assert (code, f"source: tokens:{folder / 'made'}" in out) == (0, True)
    code, out, _ = hpxfer(capsys, "data", "info", folder / "gpt.bin", "--json")
    assert json.loads(out)["use"] == {"source": f"uint16:{folder / 'gpt.bin'}", "vocab_size": int(IDS.max()) + 1}
    code, out, err = hpxfer(capsys, "data", "info", folder / "none")
    assert (code, out, "got nothing of that name" in err) == (2, "", True)
    with pytest.raises(HpxferError, match="got a folder without any"):
        info(str(folder / "empty"))


def test_damage_to_a_prepared_folder_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder / "made"
    assert info(str(made)).facts["checked"] == "sizes and digests of all shards"
    shard = made / "train-00000.bin"
    content = shard.read_bytes()
    (made / "train-00007.bin").write_bytes(content)
    (made / "train-00000.documents.npy").unlink()
    found = info(str(made))
    assert found.facts["not in the manifest, not read"] == "train-00007.bin"
    assert found.facts["missing, not needed by a sweep"] == "train-00000.documents.npy"
    assert "damage" not in found.facts
    changed = "was changed: its bytes have another digest than manifest.json states"
    for broken, message in (
        (content[:-1] + bytes([content[-1] ^ 1]), changed),
        (content[:-2], f"must have {len(content)} bytes, got {len(content) - 2}"),
        (None, "is missing"),
    ):
        shard.unlink() if broken is None else shard.write_bytes(broken)
        found = info(str(made))
        assert (found.facts["damage"], found.use) == ([f"train-00000.bin {message}"], {})
        assert found.what.endswith("made, damaged")
    monkeypatch.setattr(manifest, "_MOST_HASHED", 100)
    assert info(str(made)).facts["checked"].startswith("sizes of all shards, and no digests")


def test_a_prepared_folder_without_its_manifest_is_no_data(folder: Path) -> None:
    (folder / "made" / "manifest.json").unlink()
    with pytest.raises(HpxferError, match=r"`hpxfer data prepare` made, with its manifest\.json, or .* got the folder"):
        data_ref(DataSpec(source=f"tokens:{folder}/made"))
    with pytest.raises(HpxferError, match="got a folder without any; files of token ids are named by a glob"):
        info(str(folder / "made"))
    with pytest.raises(HpxferError, match=r"positions where documents start.*; name the folder .*made"):
        info(str(folder / "made" / "train-00000.documents.npy"))


def test_folders_of_text_are_listed_as_prepare_does(folder: Path) -> None:
    corpus = folder / "corpus"
    (corpus / "tokenizer.json").write_text("{}")
    (corpus / ".c.jsonl").write_text("{}")
    assert info(str(corpus)).facts["files"] == 2
    (corpus / "z.txt").write_text("text")
    with pytest.raises(HpxferError, match=r"z\.txt: all files must be of one kind, got text after jsonl"):
        info(str(corpus))


def test_a_source_is_read_as_it_says(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    found = info("uint32:olmo.npy")
    assert found.what == "bare ids of uint32, without a header"
    assert found.use == {"source": f"uint32:{whole}/olmo.npy", "vocab_size": int(IDS.max()) + 70_001}
    assert info("tokens:saved.npy").use["source"] == f"tokens:{whole}/saved.npy"
    assert info("text:plain").facts["bytes"] == 23
    assert info("builtin:stdlib").use == {"source": "builtin:stdlib"}
    for source, message in (
        ("uint16:olmo.npy", "got ids of uint32"),
        ("uint16:nothing.npy", "got nothing of that name"),
        ("npz:nowhere.npz", "got nothing of that name"),
        ("builtin:foo", "unknown built-in data 'foo'; legal: stdlib, or for samples: shapes"),
    ):
        with pytest.raises(HpxferError, match=message):
            info(source)


def test_samples_are_counted_and_measured(tmp_path: Path) -> None:
    y = np.arange(301) % 30
    x = (np.arange(301 * 6) % 251).astype(np.uint8).reshape(301, 2, 3)
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    for given in (f"npz:{tmp_path}/a.npz", f"{tmp_path}/a.npz"):
        found = info(given)
        assert (found.what, found.use["source"]) == ("samples", f"npz:{tmp_path}/a.npz")
        assert {key: found.facts[key] for key in ("training samples", "test samples", "inputs", "classes")} == {
            "training samples": 301,
            "test samples": 4,
            "inputs": "6 (2 x 3)",
            "classes": 30,
        }
        assert found.facts["training samples per class"] == "10 to 11"
        assert found.facts["digest"] == data_ref(DataSpec(source=found.use["source"], inputs=6, classes=30)).digest
    shapes = info("builtin:shapes").facts
    assert (shapes["training samples"], shapes["normalization"]) == ("without end", "(pixel - 80) / 59")
