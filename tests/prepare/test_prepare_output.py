"""What `hpxfer data prepare` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from corpus import jsonl, tokenizer_file


def test_the_output_counts_files_and_ends_with_all(tmp_path: Path) -> None:
    tokenizer = tokenizer_file(tmp_path / "tokenizer.json")
    source, out = jsonl(tmp_path / "a.jsonl", ["one text", ""]), tmp_path / "out"
    given = [sys.executable, "-m", "hpxfer", "data", "prepare", str(source), "--tokenizer", str(tokenizer)]
    done = subprocess.run([*given, "--out", str(out), "--workers", "1"], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{out}: complete, from 1 file"
    assert " tokens of 1 document, digest " in lines[1]
    *_, last, warned = done.stderr.splitlines()
    assert " 100%  " in last
    assert last.endswith(" tokens, 1 shard")
    assert warned == f"warning: {source}: 1 document of no tokens was left out"
    again = subprocess.run([*given, "--out", str(out), "--workers", "1"], check=True, capture_output=True, text=True)
    assert again.stdout == done.stdout
    assert "%" not in again.stderr
