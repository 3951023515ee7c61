"""A preparation that a signal ends leaves no process, and goes on from its last shard."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from corpus import documents, jsonl, tokenizer_file

from hpxfer.prepare.run import prepare_data

WAIT_S = 60.0


def wait_for(what: str, done: object) -> None:
    assert callable(done)
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, f"waited {WAIT_S:g} s for {what}"
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_no_process_outlives_a_signal(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Files of a few seconds each keep both processes at work when the signal comes."""
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    texts = documents(60)
    for part in range(12):
        jsonl(tmp_path / "in" / f"{part:02}.jsonl", texts * (1 if part == 0 else 40))
    out = tmp_path / "out"
    given = [sys.executable, "-m", "hpxfer", "data", "prepare", f"{tmp_path}/in", "--tokenizer", str(tokenizer)]
    given += ["--out", str(out), "--workers", "2", "--shard-tokens", "1000"]
    process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    options = {"tokenizer": str(tokenizer), "shard_tokens": 1000, "workers": 1}
    goes_on = prepare_data(f"{tmp_path}/in", out=out, **options)  # type: ignore[arg-type]
    assert goes_on == prepare_data(f"{tmp_path}/in", out=tmp_path / "whole", **options)  # type: ignore[arg-type]


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
