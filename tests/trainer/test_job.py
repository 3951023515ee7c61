"""What a trainer is started with: jobs, placeholders, and the page of the contract; how long it may be silent."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs_markdown import blocks
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer import check, fill, next_attempt, write_config
from hpxfer.trainer.ending import BAD_INPUT, TRY_AGAIN
from hpxfer.trainer.follow import Patience
from hpxfer.trainer.job import CONTRACT, ENVIRONMENT, environment
from hpxfer.trainer.lines import parse_line
from hpxfer.trainer.supervisor import HALF_BYTES, QUICK_S


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x"])
def test_a_config_reads_back_and_holds_plain_data(tmp_path: Path, value: Any) -> None:
    data = {"hps": {"lr": 0.1}, "name": "é", "none": None}
    path = write_config(tmp_path / "t1", data)
    assert json.loads(path.read_text()) == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["config.json"]
    with pytest.raises(HpxferError, match=r"config\.json: must hold plain data"):
        write_config(tmp_path / "t1", {"hps": value})
    assert json.loads(path.read_text()) == data


def test_an_environment_holds_what_a_program_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **dict.fromkeys(("PATH", "HOME", "LC_ALL", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID"), "kept"),
        **dict.fromkeys(("NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"), "kept"),
        **dict.fromkeys(("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "EDITOR", "LD_PRELOAD"), "dropped"),
        **dict.fromkeys(("SLURM_JWT", "CONDA_TOKEN", "PYTHON_KEYRING_PASSWORD", "NVIDIA_API_KEY", "MYPATH"), "dropped"),
    }
    monkeypatch.setattr(os, "environ", given)
    assert set(environment({}).values()) == {"kept"}
    assert len(environment({})) == 9
    assert environment({"HF_TOKEN": "declared"})["HF_TOKEN"] == "declared"


def test_attempts_count_up(tmp_path: Path) -> None:
    assert next_attempt(tmp_path / "gone") == 1
    for name in ("attempt-1", "attempt-9", "attempt-10", "attempt-x", "attempt--3", "attempt-" + "9" * 30):
        (tmp_path / name).mkdir()
    assert next_attempt(tmp_path) == 11


VALUES = {"hp.lr": 0.1, "shape.width": 64, "gpus": 2, "config_json": "/runs/{x}/config.json", "arg.data": "a b; rm"}


def test_a_command_is_filled() -> None:
    argv = ["torchrun", "--nproc-per-node={gpus}", "--lr={hp.lr}x{shape.width}", "{config_json}", "{{}}{{hp.lr}}"]
    filled = ("torchrun", "--nproc-per-node=2", "--lr=0.1x64", "/runs/{x}/config.json", "{}{hp.lr}")
    assert fill(argv, VALUES) == filled
    assert fill(["cat", "{arg.data}"], VALUES) == ("cat", "a b; rm")  # a value stays one element
    argv = ["{config_json}", "{hp.lr}", "{shape.width}", "{arg.data}"]
    check(argv, ["width"], ["lr"], ["data"])
    fill(argv, VALUES)


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_equal(value: float) -> None:
    assert float(fill(["{hp.lr}"], {"hp.lr": value})[0]) == value
    assert float(fill(["{hp.lr}"], {"hp.lr": np.float64(value)})[0]) == value


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ("{hp.lrr}", "did you mean 'hp.lr'?"),
        ("--gpus={gpu}", "did you mean 'gpus'?"),
        ("{shape.depth}", "got '{shape.depth}'"),
        ("{}", "must use known names in braces, got '{}'"),
        ("{hp.lr", "a literal brace must be doubled"),
        ("hp.lr}", "a literal brace must be doubled"),
        ("{hp.lr:.3f}", "must use known names"),
        ("{hp.__class__}", "must use known names"),
    ],
)
def test_a_name_that_is_not_known(element: str, words: str) -> None:
    with pytest.raises(HpxferError) as refused:
        check(["python", element, "{hp.lr}"], ["width"], ["lr"])
    assert str(refused.value).startswith("trainer.command[1]: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(HpxferError) as refused:
        check(["{a}", "{b}{c}"], [], [])
    places = [line.partition(": ")[0] for line in str(refused.value).split("\n")]
    assert places == ["trainer.command[0]", "trainer.command[1]", "trainer.command[1]"]


PAGE = (Path(__file__).parents[2] / "docs" / "any_trainer.md").read_text(encoding="utf-8")
CONTRACT_PART = PAGE[PAGE.index("## The contract") :]


def test_the_lines_of_the_page_are_lines() -> None:
    (example,) = (block for block in blocks(CONTRACT_PART, "json") if '"report"' in block)
    for line in json.loads(example):
        parse_line(json.dumps(line).encode(), trial_id="t1", attempt=1, steps=10)


def test_the_environment_is_that_of_the_page() -> None:
    part = CONTRACT_PART.partition("### The environment\n")[2].partition("\n### ")[0]
    listed = re.search(r"\n\n(`PATH`.*?)\n\n", part, re.DOTALL)
    assert listed is not None
    assert re.findall(r"`([^`]+)`", listed[1]) == list(ENVIRONMENT)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"`contract` | {CONTRACT}," in CONTRACT_PART
    assert f"Exit with {TRY_AGAIN} if" in CONTRACT_PART
    assert f"with {BAD_INPUT} if" in CONTRACT_PART
    assert f"`start_s` | until the first line | {TimeoutsSpec().start_s:g} |" in CONTRACT_PART
    assert f"the last {HALF_BYTES // 1024} KiB" in CONTRACT_PART
    assert f"at most {QUICK_S:g} seconds" in CONTRACT_PART


def test_the_function_of_the_page_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    (example,) = (block for block in blocks(CONTRACT_PART, "python") if "def train" in block)
    exec(example, names)

    class Trial:
        steps = 3
        reported: list[tuple[int, float]] = []  # noqa: RUF012

        def report(self, step: int, loss: float) -> None:
            self.reported.append((step, loss))

    assert names["train"](Trial()) == {"validation": Trial.reported[-1][1]}
    assert [step for step, _ in Trial.reported] == [0, 1, 2]


@pytest.mark.parametrize(
    ("limits", "heard", "enough", "too_much", "said"),
    [
        ({"start_s": 10.0, "silence_s": 1.0}, [], 10.0, 10.1, "start_s, 10 s"),
        ({"silence_s": 1.0}, [5.0], 6.0, 6.1, "silence_s, 1 s"),
        ({"silence_s": 1.0}, [5.0, 6.2], 7.0, 7.3, "silence_s, 1 s"),
        ({"wall_s": 10.0, "silence_s": 100.0}, [9.0], 10.0, 10.1, "wall_s, 10 s"),
        ({"start_s": 1.0, "silence_s": 1.0, "wall_s": 50.0}, None, 49.0, 51.0, "wall_s"),  # it does not speak
    ],
)
def test_when_a_trainer_counts_as_hanging(
    limits: Any, heard: list[float] | None, enough: float, too_much: float, said: str
) -> None:
    patience = Patience(TimeoutsSpec(**limits), 0.0, speaks=heard is not None)
    for now in heard or ():
        patience.heard(now)
    assert patience.why_over(enough) is None
    assert said in str(patience.why_over(too_much))


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=50))
def test_by_default_20_median_gaps_are_no_hang(gaps: list[float]) -> None:
    patience, now = Patience(TimeoutsSpec(), 0.0), 0.0
    patience.heard(now)
    for gap in gaps:
        now += gap
        patience.heard(now)
    middle = sorted(gaps)[len(gaps) // 2]
    assert patience.silence_s >= 900.0
    assert patience.silence_s <= max(900.0, 20 * middle) + 1e-6
    if len(gaps) % 2:
        assert abs(patience.silence_s - max(900.0, 20 * middle)) < 1e-6
