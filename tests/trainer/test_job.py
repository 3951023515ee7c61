"""Jobs: their config files, their environments and their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpxfer.errors import HpxferError
from hpxfer.trainer import Job, next_attempt, write_config
from hpxfer.trainer.job import environment


def test_a_config_reads_back(tmp_path: Path) -> None:
    data = {"hps": {"lr": 0.1}, "name": "é", "none": None}
    path = write_config(tmp_path / "t1", data)
    assert json.loads(path.read_text()) == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x"])
def test_a_config_holds_plain_data(tmp_path: Path, value: Any) -> None:
    write_config(tmp_path, {"old": 1})
    with pytest.raises(HpxferError, match=r"config\.json: must hold plain data"):
        write_config(tmp_path, {"hps": value})
    assert json.loads((tmp_path / "config.json").read_text()) == {"old": 1}


def test_an_environment_holds_what_a_program_needs_and_no_secret() -> None:
    given = {
        **dict.fromkeys(("PATH", "HOME", "LC_ALL", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID"), "kept"),
        **dict.fromkeys(("NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"), "kept"),
        **dict.fromkeys(("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "EDITOR", "LD_PRELOAD"), "dropped"),
        **dict.fromkeys(("SLURM_JWT", "CONDA_TOKEN", "PYTHON_KEYRING_PASSWORD", "NVIDIA_API_KEY", "MYPATH"), "dropped"),
    }
    assert set(environment({}, given).values()) == {"kept"}
    assert len(environment({}, given)) == 9
    assert environment({"HF_TOKEN": "declared"}, given)["HF_TOKEN"] == "declared"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0", "a b", "-rf", "a" * 129, "é", 3])
def test_an_id_is_the_name_of_a_folder(tmp_path: Path, name: Any) -> None:
    with pytest.raises(HpxferError, match="trial id: must be letters"):
        Job(argv=("true",), folder=tmp_path, trial_id=name, steps=1, config={}, cwd=tmp_path)


@pytest.mark.parametrize("argv", [(), ("a\0b",), (3,)])
def test_a_command_is_texts(tmp_path: Path, argv: Any) -> None:
    with pytest.raises(HpxferError, match="command: must be a list of texts"):
        Job(argv=argv, folder=tmp_path, trial_id="t", steps=1, config={}, cwd=tmp_path)


def test_a_pattern_is_a_regular_expression(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match="nan_exit: must be regular expressions, got"):
        Job(argv=("true",), folder=tmp_path, trial_id="t", steps=1, config={}, cwd=tmp_path, nan_exit=("(",))


def test_attempts_count_up(tmp_path: Path) -> None:
    assert next_attempt(tmp_path / "gone") == 1
    for name in ("attempt-1", "attempt-9", "attempt-10", "attempt-x", "attempt--3", "attempt-" + "9" * 30):
        (tmp_path / name).mkdir()
    assert next_attempt(tmp_path) == 11
