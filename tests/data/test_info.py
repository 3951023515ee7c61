"""`hpxfer data info`: what a file or folder is, and what it says can be used is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from corpus import documents, jsonl, tokenizer_file

from hpxfer.data import data_ref, manifest
from hpxfer.data.info import DataInfo
from hpxfer.data.info import info as info_with
from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.prepare.source import open_source
from hpxfer.spec.data_section import DataSpec

IDS = np.random.default_rng(1).integers(0, 50_000, 3000)


def info(path: str) -> DataInfo:
    return info_with(path, open_source)


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
    (folder / "none.txt").touch()
    assert info(str(folder / "none.txt")).use == {}
    with pytest.raises(HpxferError, match=message):
        info(str(folder / name))


def test_the_command_prints_text_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "data", "info", folder / "made")
    assert code == 0
    assert f"source: tokens:{folder / 'made'}" in out
    code, out, _ = hpxfer(capsys, "data", "info", folder / "gpt.bin", "--json")
    assert json.loads(out)["use"] == {"source": f"uint16:{folder / 'gpt.bin'}", "vocab_size": int(IDS.max()) + 1}
    code, out, err = hpxfer(capsys, "data", "info", folder / "none")
    assert (code, out) == (2, "")
    assert "got nothing of that name" in err


def test_damage_to_a_prepared_folder_is_named(folder: Path) -> None:
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
    for broken, message in (
        (
            content[:-1] + bytes([content[-1] ^ 1]),
            "was changed: its bytes have another digest than manifest.json states",
        ),
        (content[:-2], f"must have {len(content)} bytes, got {len(content) - 2}"),
        (None, "is missing"),
    ):
        shard.unlink() if broken is None else shard.write_bytes(broken)
        found = info(str(made))
        assert (found.facts["damage"], found.use) == ([f"train-00000.bin {message}"], {})
        assert found.what.endswith("made, damaged")


def test_a_large_folder_is_compared_by_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_MOST_HASHED", 100)
    assert info(str(folder / "made")).facts["checked"].startswith("sizes of all shards, and no digests")


def test_a_prepared_folder_without_its_manifest_is_not_finished(folder: Path) -> None:
    (folder / "made" / "manifest.json").unlink()
    for read in (info, lambda path: data_ref(DataSpec(source=f"tokens:{path}"))):
        with pytest.raises(HpxferError, match=r"must have the manifest\.json .* writes last"):
            read(str(folder / "made"))
    with pytest.raises(HpxferError, match=r"positions where documents start.*; name the folder .*made"):
        info(str(folder / "made" / "train-00000.documents.npy"))


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("train_0.bin", "val_0.bin"), r"\*train\*\.bin"),
        (("a.npy", "b.npy"), r"\*\.npy"),
        (("a.bin", ".b"), r"\*\.bin"),
    ],
)
def test_a_folder_of_token_files_names_those_of_training(names: tuple[str, ...], pattern: str, folder: Path) -> None:
    for name in names:
        (folder / "empty" / name).write_bytes(b"\0\1")
    with pytest.raises(HpxferError, match=f"name them: '.*empty/{pattern}'"):
        info(str(folder / "empty"))


def test_folders_of_text_are_listed_as_prepare_does(folder: Path) -> None:
    corpus = folder / "corpus"
    (corpus / "tokenizer.json").write_text("{}")
    (corpus / ".c.jsonl").write_text("{}")
    assert info(str(corpus)).facts["files"] == 2
    (corpus / "z.txt").write_text("text")
    with pytest.raises(HpxferError, match=r"z\.txt: all files must be of one kind, got text after jsonl"):
        info(str(corpus))


def test_a_source_is_read_as_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = info("uint32:olmo.npy")
    assert found.what == "bare ids of uint32, without a header"
    assert found.use == {"source": f"uint32:{folder}/olmo.npy", "vocab_size": int(IDS.max()) + 70_001}
    assert info("tokens:saved.npy").use["source"] == f"tokens:{folder}/saved.npy"
    assert info("text:plain").facts["bytes"] == 23
    assert info("builtin:stdlib").use == {"source": "builtin:stdlib"}
    with pytest.raises(HpxferError, match="got ids of uint32"):
        info("uint16:olmo.npy")
    with pytest.raises(HpxferError, match="got nothing of that name"):
        info("uint16:nothing.npy")


def test_files_of_arrow_name_their_folder(folder: Path) -> None:
    import pyarrow as pa

    table = pa.table({"input_ids": [[1, 2], [3]]})
    for name, opened in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with opened(str(folder / name), table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(HpxferError, match=f"{name}: must be read with the folder .* got a file of Arrow"):
            info(str(folder / name))


@pytest.mark.parametrize("kind", ["<i2", "<i4", "<i8"])
def test_a_negative_id_is_called_one(kind: str, folder: Path) -> None:
    np.save(folder / "signed.npy", np.array([4, 5, -1], kind))
    with pytest.raises(HpxferError, match=r"token 2: the id must be at least 0 and below .* got -1"):
        data_ref(DataSpec(source=f"tokens:{folder}/signed.npy", vocab_size=100))


def test_a_folder_of_text_is_no_folder_of_tokens(folder: Path) -> None:
    with pytest.raises(HpxferError, match=r"got the folder .*corpus; .*for text in it, first: hpxfer data prepare"):
        data_ref(DataSpec(source=f"tokens:{folder}/corpus"))
