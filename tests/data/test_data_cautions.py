"""Data that is compared with what it should be: vocabularies by their ids, prepared folders by their manifests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from corpus import documents, jsonl, tokenizer_file
from tiny import write_tiny

from hpxfer.data import data_cautions, data_ref, tokens
from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.spec.data_section import DataSpec, PointData

Write = Callable[..., Path]


def said(source: str, **keys: object) -> tuple[str, ...]:
    return tuple(data_cautions(DataSpec.model_validate({"source": source, **keys})))


def test_small_ids_without_a_vocabulary(tmp_path: Path, write_shard: Write) -> None:
    source = f"tokens:{write_shard(tmp_path / 'a.bin', np.arange(500) % 318)}"
    (line,) = said(source)
    assert line == (
        "data.vocab_size: not given, so the vocabulary of gpt2 is assumed, 50257 ids, padded to 50304, and the largest "
        f"id of {source} is 317 (all its tokens were read); tokenizer: gpt2 keeps 50304 without this warning"
    )
    assert said(source, vocab_size=318) == said(source, vocab_size=50304) == said(source, tokenizer="gpt2") == ()
    # From 50257 on another tokenizer wrote the data, although the padded vocabulary holds the id.
    for largest, number in ((0, 1), (32_000, 1), (45_230, 1), (45_231, 0), (50_256, 0), (50_257, 1), (50_303, 1)):
        write_shard(tmp_path / "b.bin", [largest, 0])
        assert len(said(f"tokens:{tmp_path}/[ab].bin")) == number


def test_a_large_data_set_is_sampled(tmp_path: Path, write_shard: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 64)
    monkeypatch.setattr(tokens, "CHUNK_TOKENS", 16)
    assert tokens.spread(64, 16, 4) == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert tokens.spread(50, 16, 4) == [(0, 16), (16, 32), (32, 48), (48, 50)]
    assert tokens.spread(1000, 16, 4) == [(0, 16), (328, 344), (656, 672), (984, 1000)]
    ids = np.zeros(1000, int)
    ids[[20, 330]] = 60_000, 7
    path = write_shard(tmp_path / "a.bin", ids)
    (line,) = said(f"tokens:{path}")
    assert "is 7 (64 of its 1000 tokens were read, spread evenly)" in line


def test_text_has_the_vocabulary_of_its_tokenizer_and_nothing_is_known_of_data_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100)
    assert said(f"text:{tmp_path}/a.txt") == said("builtin:stdlib") == ()
    assert said("tokens:/nowhere/*.bin", digest="abc") == ()


@pytest.mark.parametrize("keys", [{}, {"tokenizer": "gpt2"}, {"vocab_size": 50_304}])
def test_an_id_outside_the_vocabulary_is_an_error_wherever_it_stands(
    keys: dict[str, object], tmp_path: Path, write_shard: Write
) -> None:
    """The digest covers 2 million tokens of these 4 million, and not the one with the large id."""
    ids = np.zeros(2**22, "<u2")
    ids[60_000] = 50_304
    path = write_shard(tmp_path / "a.bin", ids)
    with pytest.raises(HpxferError, match=r"a\.bin: token 60000: the id must be below the vocabulary of 50304"):
        said(f"tokens:{path}", **keys)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_the_commands_warn_and_refuse(
    command: str, tmp_path: Path, write_shard: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_shard(tmp_path / "a.bin", np.arange(1000) % 500)
    source = ('{source: "builtin:stdlib"}', f'{{source: "tokens:{path}"}}')
    within = ("--results", tmp_path / "r", "--hardware", "h200", "--max-gpu-hours", "0")  # so that nothing trains
    _, _, err = hpxfer(capsys, command, write_tiny(tmp_path, source), *within)
    assert "warning: data.vocab_size: not given, so the vocabulary of gpt2 is assumed" in err
    ids = np.zeros(2**22, "<u2")
    ids[60_000] = 600
    write_shard(path, ids)
    given = (source[0], f'{{source: "tokens:{path}", vocab_size: 500}}')
    code, _, err = hpxfer(capsys, command, write_tiny(tmp_path, given), *within)
    assert (code, err.count("\n")) == (2, 1)
    assert "token 60000: the id must be below the vocabulary of 500, got 600" in err


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


def test_a_shard_that_is_another_or_missing_is_named_with_the_manifest(folder: Path) -> None:
    shutil.copy(folder / "val-00000.bin", folder / "train-00000.bin")
    with pytest.raises(HpxferError, match=r"train-00000\.bin: must have \d+ tokens, as manifest\.json beside it says"):
        data_ref(spec(folder))
    (folder / "train-00000.bin").unlink()
    with pytest.raises(HpxferError, match=r"train-00000\.bin: must be in the folder, because its manifest\.json names"):
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
