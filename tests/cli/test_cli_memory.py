"""A shape that does not fit into memory even alone: `plan` and `run` refuse it before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer import HpxferError, run

NEED = "memory: one trial of w8388608 d1 E2A1 h8388608 needs"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write_tiny(tmp_path, ("width: [16, 32]", "width: [16, 8388608]"))


def test_a_plan_names_the_shape_and_exits_with_2(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", sweep.parent, "--json")
    assert code == 2
    assert NEED in err
    (line,) = json.loads(out)["unfit"]
    assert line.startswith(NEED)
    code, _, err = hpxfer(capsys, "plan", sweep, "--results", sweep.parent, "--no-strict-memory")
    assert code == 0
    assert f"warning: {NEED}" in err


def test_a_named_gpu_is_judged_by_its_own_memory(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "plan", sweep, "--results", sweep.parent, "--hardware", "h100")
    assert code == 2
    assert "a stack's share of the GPU has" in err


def test_python_refuses_it_as_well(sweep: Path) -> None:
    with pytest.raises(HpxferError, match="one trial of each shape must fit"):
        run(sweep, results=sweep.parent / "results")
    assert not (sweep.parent / "results").exists()
