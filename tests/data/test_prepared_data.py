"""A prepared folder is compared with its manifest, and the data of a sweep with itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus import documents, jsonl, tokenizer_file

from hpxfer.data import data_cautions, data_ref
from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.spec.data_section import DataSpec, PointData

Write = Callable[..., Path]


def made(root: Path, name: str, vocab_size: int = 400) -> Path:
    corpus = jsonl(root / "a.jsonl", documents(30))
    tokenizer = tokenizer_file(root / f"{vocab_size}.json", vocab_size=vocab_size)
    prepare_data(str(corpus), tokenizer=str(tokenizer), out=root / name, val_tokens=64, workers=1)
    return root / name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("prepared"), "made")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "made"))


def spec(source: Path | str, **keys: object) -> DataSpec:
    return DataSpec.model_validate({"source": f"tokens:{source}", "vocab_size": 512, **keys})


def test_a_missing_shard_is_named_with_the_manifest(folder: Path) -> None:
    (folder / "train-00000.bin").unlink()
    with pytest.raises(HpxferError, match=r"train-00000\.bin: must be in the folder, because its manifest\.json names"):
        data_ref(spec(folder))


def test_another_shard_under_the_name_is_refused(folder: Path) -> None:
    shutil.copy(folder / "val-00000.bin", folder / "train-00000.bin")
    with pytest.raises(HpxferError, match=r"train-00000\.bin: must have \d+ tokens, as manifest\.json beside it says"):
        data_ref(spec(folder))


@pytest.mark.parametrize("name", ["", "/train-*.bin"])
def test_changed_tokens_are_refused(name: str, folder: Path) -> None:
    assert data_ref(spec(f"{folder}{name}")).digest
    content = bytearray((folder / "train-00000.bin").read_bytes())
    content[-2] ^= 1
    (folder / "train-00000.bin").write_bytes(content)
    with pytest.raises(
        HpxferError, match=r"data\.source: the shards in .* must be as they were prepared, with the dig"
    ):
        data_ref(spec(f"{folder}{name}"))
    both = "/*.bin"  # no split of the manifest, so nothing is known of it
    assert data_ref(spec(f"{folder}{both}")).digest


def test_data_of_two_tokenizers_is_refused(folder: Path, tmp_path: Path) -> None:
    other = made(tmp_path, "other", 420)
    match = r"data\.validation: must be prepared with the tokenizer of data\.source, got .*420\.json .* and .*400\.json"
    with pytest.raises(HpxferError, match=match):
        data_ref(spec(folder, validation=f"tokens:{other}/val-*.bin"))
    with pytest.raises(HpxferError, match=r"axes\.moe\[1\]\.data\.source: must be prepared with the tokenizer"):
        data_ref(spec(folder), [("axes.moe[1].data", PointData(source=f"tokens:{other}"))])
    assert data_ref(spec(folder, validation=f"tokens:{folder}/val-*.bin")).validation_digest


def test_validation_on_training_data_is_said(folder: Path) -> None:
    (line,) = data_cautions(spec(folder, validation=f"tokens:{folder}"))
    assert f"{folder}/train-00000.bin is read for training too" in line
    assert "so the validation loss is that of tokens on which the models are trained" in line
    assert not list(data_cautions(spec(folder, validation=f"tokens:{folder}/val-*.bin")))


def test_masking_that_masks_nothing_is_said(tmp_path: Path, write_shard: Write) -> None:
    path = write_shard(tmp_path / "a.bin", [1, 2, 3] * 100)
    (line,) = data_cautions(spec(path, documents="masked", eos_id=7))
    assert f"no token of tokens:{path} is 7 (all its tokens were read), so no document ends" in line
    assert not list(data_cautions(spec(path, documents="masked", eos_id=3)))
