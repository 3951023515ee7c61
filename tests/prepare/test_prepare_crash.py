"""A preparation that is killed between any two steps on the disk, as often as it is, ends in the same bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus import documents, jsonl, tokenizer_file
from deaths import contents, die_after, left_by_death, refill

from hpxfer.errors import HpxferError
from hpxfer.prepare.run import prepare_data
from hpxfer.spec.manifest import read_manifest

pytestmark = pytest.mark.slow

# A source and --val-tokens: nothing is held out; documents are; a long text is cut at its end, where several shards are
# closed. Of these validation takes whole ones, and a part of another.
CASES = [("a.jsonl", 0), ("a.jsonl", 800), ("a.jsonl.gz", 800), ("a.txt", 3000)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files into many blocks. What reaches the disk is of no interest here, so nothing waits for it."""
    monkeypatch.setattr("hpxfer.prepare.blocks.BLOCK_BYTES", 2000)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.mark.parametrize(("name", "val_tokens"), CASES)
def test_any_number_of_kills(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, name: str, val_tokens: int
) -> None:
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


def test_several_processes_leave_the_same(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("name", "val_tokens"), CASES[1::2])
def test_a_disk_that_refuses_any_step(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, name: str, val_tokens: int
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
