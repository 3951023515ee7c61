"""Weights in S3: workers store them there, and the command reads them there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import hpxfer
from s3_server import Server
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.errors import HpxferError
from hpxfer.storage.uri import parse_root
from hpxfer.weights import kept


@pytest.mark.slow
def test_a_run_keeps_weights_in_s3_and_the_command_reads_them(
    s3: str, s3_names: Callable[[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = (("width: [16, 32]", "width: [16]"), ("seeds: 2", "seeds: 1"), ("workers: 2", "workers: 1, keep: last"))
    trials = run(write_tiny(tmp_path, *edits), results=s3).trials
    assert s3_names("tiny/weights") == sorted(kept.name_of(trial_id) for trial_id in trials["trial_id"])
    (tmp_path / "w").mkdir()
    code, _, err = hpxfer(capsys, "weights", f"{s3}/tiny", "--best", "--out", tmp_path / "w", "--format", "safetensors")
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["hpxfer.json", "model.safetensors"]


def test_a_run_that_cannot_keep_weights_says_so_before_it_trains(s3: str, s3_server: Server) -> None:
    folder = parse_root(f"{s3}/tiny/weights")
    with s3_server.forbidding(), pytest.raises(HpxferError, match="weights must be stored here"):
        kept.start(folder)
    kept.end(folder)
