"""A preparation that a signal ends leaves no process, and goes on from its last shard."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import started
from corpus import documents, jsonl, tokenizer_file

from hpxfer.errors import HpxferError
from hpxfer.prepare.run import Progress, prepare_data
from hpxfer.spec.manifest import Manifest

pytestmark = pytest.mark.slow

WAIT_S = 300.0  # a loaded machine is slow


def wait_for(what: str, done: object) -> None:
    assert callable(done)
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, f"waited {WAIT_S:g} s for {what}"
        time.sleep(0.02)


SHARDS: dict[str, Any] = {"shard_tokens": 1000, "workers": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Manifest]:
    """Return documents, a tokenizer, and what a preparation of them gives that nothing ends."""
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = tokenizer_file(folder / "tokenizer.json")
    texts = documents(60)
    for part in range(12):
        jsonl(folder / "in" / f"{part:02}.jsonl", texts * (1 if part == 0 else 40))
    whole = prepare_data(f"{folder}/in", out=folder / "whole", tokenizer=str(tokenizer), **SHARDS)
    return folder / "in", tokenizer, whole


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_no_process_outlives_a_signal(
    corpus: tuple[Path, Path, Manifest], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Files of a few seconds each keep both processes at work when the signal comes."""
    documents_in, tokenizer, whole = corpus
    out = tmp_path / "out"
    given = [sys.executable, "-m", "hpxfer", "data", "prepare", str(documents_in), "--tokenizer", str(tokenizer)]
    given += ["--out", str(out), "--workers", "2", "--shard-tokens", "1000"]
    process = started(given)
    try:
        wait_for("a shard", lambda: process.poll() is not None or (out / "train-00000.bin").exists())
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
    finally:
        process.send_signal(number)
    # Only when no process holds the pipes any more do they end.
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    wait_for("the end of all processes", lambda: all(_has_ended(child) for child in children))
    assert not (out / "manifest.json").exists()
    if code > 0:
        assert errors.splitlines()[-1] == f"{out}: stopped; the same command goes on from the last complete shard"
    assert prepare_data(str(documents_in), out=out, tokenizer=str(tokenizer), **SHARDS) == whole


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_corrected_command_begins_in_the_folder_of_a_failed_one(tmp_path: Path) -> None:
    """Another field, a repaired line, fewer tokens of validation, and another tokenizer: nothing was done before."""
    tokenizer = tokenizer_file(tmp_path / "t" / "tokenizer.json")
    (tokenizer.parent / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    other = tokenizer_file(tmp_path / "other.json", vocab_size=300)
    source, out = jsonl(tmp_path / "a.jsonl", documents(20)), tmp_path / "out"
    good = source.read_bytes()

    def made(given: Path, folder: Path = out, **more: Any) -> Manifest:
        return prepare_data(str(source), tokenizer=str(given), out=folder, workers=1, **more)

    with pytest.raises(HpxferError, match="must have the field 'body'"):
        made(tokenizer.parent, field="body")
    with pytest.raises(HpxferError, match="must leave tokens for training beside"):
        made(tokenizer.parent, val_tokens=10**6)
    source.write_bytes(good + b"{\n")
    with pytest.raises(HpxferError, match=r"a\.jsonl:21: must be JSON"):
        made(tokenizer.parent)
    source.write_bytes(good)
    (out / "train-00007.bin").write_bytes(b"of a run that was killed while it wrote the last shards")
    (out / "val-00000.documents.npy").write_bytes(b"")
    assert made(other) == made(other, tmp_path / "whole")
    assert sorted(path.name for path in out.rglob("*")) == sorted(path.name for path in (tmp_path / "whole").rglob("*"))


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer/mine.json", "train-1.bin"])
def test_foreign_files_are_never_removed(tmp_path: Path, name: str) -> None:
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    source, out = jsonl(tmp_path / "a.jsonl", documents(5)), tmp_path / "out"
    with pytest.raises(HpxferError, match="must have the field 'body'"):
        prepare_data(str(source), tokenizer=str(tokenizer), out=out, field="body", workers=1)
    (out / name).write_text("mine")
    before = sorted(path for path in out.rglob("*"))
    message = (
        rf"stopped beside {re.escape(name)}, of --field 'body' \(now 'text'\); take those files out of it, or name"
    )
    with pytest.raises(HpxferError, match=message):
        prepare_data(str(source), tokenizer=str(tokenizer), out=out, workers=1)
    assert sorted(path for path in out.rglob("*")) == before
    assert (out / name).read_text() == "mine"


def test_the_shards_of_another_command_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpxfer.prepare.blocks.BLOCK_BYTES", 2000)
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    source, out = jsonl(tmp_path / "a.jsonl", documents(40)), tmp_path / "out"
    options: dict[str, Any] = {"tokenizer": str(tokenizer), "out": out, "workers": 1}

    def stop(progress: Progress) -> None:
        if progress.num_shards:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_data(str(source), shard_tokens=1000, on_progress=stop, **options)
    before = sorted(out.rglob("*"))
    os.utime(source, ns=(1, 1))
    message = (
        r"that was stopped, of --shard-tokens 1000 \(now 2000\), source files that were changed since; .*"
        "remove the folder, which holds no finished data, or name another folder"
    )
    with pytest.raises(HpxferError, match=message):
        prepare_data(str(source), shard_tokens=2000, **options)
    assert sorted(out.rglob("*")) == before
