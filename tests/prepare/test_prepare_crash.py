"""A preparation that is killed between any two steps, or ended by a signal, goes on to the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import started
from corpus import documents, jsonl, tokenizer_file
from deaths import contents, die_after, left_by_death, refill
from fixture_types import Folders, Patch
from waiting import LONG_S, until

from hpxfer.data.manifest import Manifest, read_manifest
from hpxfer.errors import HpxferError
from hpxfer.prepare.run import Progress, prepare_data

# A source and --val-tokens: nothing is held out; documents are; a long text is cut at its end, where several shards are
# closed. Of these validation takes whole ones, and a part of another.
CASES = [("a.jsonl", 0), ("a.jsonl", 800), ("a.jsonl.gz", 800), ("a.txt", 3000)]


@pytest.fixture
def small_blocks(monkeypatch: Patch) -> None:
    """Cut files into many blocks. What reaches the disk is of no interest here, so nothing waits for it."""
    monkeypatch.setattr("hpxfer.prepare.blocks.BLOCK_BYTES", 2000)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: Folders) -> Path:
    return tokenizer_file(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def prepares(tmp_path: Path, tokenizer: Path, name: str, val_tokens: int) -> Callable[..., None]:
    """Return what prepares a small corpus into a folder."""
    source = tmp_path / name
    if name == "a.txt":
        source.write_text("\n".join(documents(24)), encoding="utf-8")
    else:
        jsonl(source, documents(24))

    def prepare(out: Path, **more: Any) -> None:
        options = {"val_tokens": val_tokens, "shard_tokens": 1000, "workers": 1, **more}
        prepare_data(str(source), tokenizer=str(tokenizer), out=out, **options)

    return prepare


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "val_tokens"), CASES)
def test_any_number_of_kills(tmp_path: Path, tokenizer: Path, monkeypatch: Patch, name: str, val_tokens: int) -> None:
    """Every folder that a kill can leave is gone on from, and so is every folder that a kill of that run leaves."""
    prepare = prepares(tmp_path, tokenizer, name, val_tokens)
    prepare(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    waiting: list[dict[str, bytes]] = [{}]
    known = {frozenset(waiting[0].items())}
    while waiting:
        out = tmp_path / f"out-{len(known)}-{len(waiting)}"
        refill(out, found := waiting.pop())
        if "manifest.json" in found:
            assert found.keys() - whole.keys() <= {"preparing.json"}
            assert {**found, **whole} == found
        elif "preparing.json" in found:
            with pytest.raises(HpxferError, match="has not ended; run the same command again"):
                read_manifest(out)
        left = left_by_death(out, monkeypatch, lambda out=out: prepare(out))
        assert contents(out) == whole, sorted(found)
        for each in left:
            if (key := frozenset(each.items())) not in known:
                known.add(key)
                waiting.append(each)
    assert len(known) > 40


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_several_processes_leave_the_same(tmp_path: Path, tokenizer: Path, monkeypatch: Patch) -> None:
    """So whatever is true of one process's kills is true of theirs, and either goes on from the other's folder."""
    prepare = prepares(tmp_path, tokenizer, "a.jsonl", 800)
    one, two = (
        left_by_death(
            tmp_path / f"out-{workers}",
            monkeypatch,
            lambda workers=workers: prepare(tmp_path / f"out-{workers}", workers=workers),
        )
        for workers in (1, 2)
    )
    assert one == two


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "val_tokens"), CASES[1::2])
def test_a_disk_that_refuses_any_step(
    tmp_path: Path, tokenizer: Path, monkeypatch: Patch, name: str, val_tokens: int
) -> None:
    prepare = prepares(tmp_path, tokenizer, name, val_tokens)
    prepare(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    num_steps, died = 0, True
    while died:
        out = tmp_path / f"out-{num_steps}"
        full, refused = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), []

        def act(out: Path = out, refused: list[str] = refused) -> None:
            try:
                prepare(out)
            except HpxferError as error:
                refused.append(str(error))

        died = die_after(num_steps, monkeypatch, act, full)
        assert all(os.strerror(errno.ENOSPC) in message for message in refused)
        prepare(out)
        assert contents(out) == whole
        num_steps += 1
    assert num_steps > 20


SHARDS: dict[str, Any] = {"shard_tokens": 1000, "workers": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: Folders) -> tuple[Path, Path, Manifest]:
    """Return documents, a tokenizer, and what a preparation of them gives that nothing ends."""
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = tokenizer_file(folder / "tokenizer.json")
    texts = documents(60)
    for part in range(12):
        jsonl(folder / "in" / f"{part:02}.jsonl", texts * (1 if part == 0 else 40))
    whole = prepare_data(f"{folder}/in", out=folder / "whole", tokenizer=str(tokenizer), **SHARDS)
    return folder / "in", tokenizer, whole


@pytest.mark.slow
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
        until(lambda: process.poll() is not None or (out / "train-00000.bin").exists(), "no shard")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
    finally:
        process.send_signal(number)
    # Only when no process holds the pipes any more do they end.
    _, errors = process.communicate(timeout=LONG_S)
    assert process.returncode == code
    until(lambda: all(_has_ended(child) for child in children), "a process is left")
    assert not (out / "manifest.json").exists()
    if code > 0:
        assert errors.splitlines()[-1] == f"{out}: stopped; the same command goes on from the last complete shard"
    assert prepare_data(str(documents_in), out=out, tokenizer=str(tokenizer), **SHARDS) == whole


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["notes.txt", "tokenizer/mine.json", "train-1.bin"])
def test_foreign_files_are_never_removed(tmp_path: Path, name: str) -> None:
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    source, out = jsonl(tmp_path / "a.jsonl", documents(5)), tmp_path / "out"
    with pytest.raises(HpxferError, match="must have the field 'body'"):
        prepare_data(str(source), tokenizer=str(tokenizer), out=out, field="body", workers=1)
    (out / name).write_text("mine")
    prepare_data(str(source), tokenizer=str(tokenizer), out=out, workers=1)
    assert (out / name).read_text() == "mine"


@pytest.mark.slow
def test_the_shards_of_another_command_stay(tmp_path: Path, monkeypatch: Patch) -> None:
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
        r"that was stopped, with another shard_tokens 1000 \(now 2000\), times of change '.*; "
        "remove the folder, which holds no finished data, or name another one"
    )
    with pytest.raises(HpxferError, match=message):
        prepare_data(str(source), shard_tokens=2000, **options)
    assert sorted(out.rglob("*")) == before
