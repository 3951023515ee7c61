"""`hpxfer bench accept`: what it lists without a GPU, refuses, repeats, and says at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from hpxfer.bench import accept as acceptance
from hpxfer.bench.accept import Accepted, child_environment, goal_values, output_file, speed_rows, summary
from hpxfer.bench.accept_items import ITEMS, Acceptance
from hpxfer.bench.accept_runner import Ended, Item
from hpxfer.cli import main

STAMP = {"machine": {"gpu": "H200"}, "versions": {"torch": "2.11"}}


def accept(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    sys.argv = ["hpxfer", "bench", "accept", *map(str, arguments)]
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A made-up GPU whose items print a number, or do what the dictionary says."""
    codes: dict[str, str] = {}

    def runnable(item: Acceptance) -> Item:
        code = codes.get(item.name, "") + f'\nprint(\'{{"key": "{item.name}", "tokens_per_s": 2e6}}\')'
        return Item(name=item.name, command=(sys.executable, "-c", code), usual_s=0.1, limit_s=10, needs=item.needs)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(acceptance, "runnable", runnable)
    monkeypatch.setattr(acceptance, "machine_of", lambda device: STAMP["machine"])
    monkeypatch.setattr(acceptance, "versions_of", lambda device: STAMP["versions"])
    return codes


def test_without_a_gpu_every_item_is_listed_with_its_needs(
    no_gpu: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = accept(capsys, "--output", tmp_path)
    assert code == 3
    assert err == "no GPU is here that torch sees: nothing was run\n"
    lines = out.splitlines()
    assert lines[1].split() == ["item", "plan", "seconds", "GPU", "GiB", "depends", "on", "what"]
    assert [line.split()[0] for line in lines[2:]] == [item.name for item in ITEMS]
    assert "pytest -m gpu tests/kernels/test_experts_gpu.py" in out
    assert accept(capsys, "--dry", "--output", tmp_path)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_the_list_is_json_for_a_program(no_gpu: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = accept(capsys, "--json", "--plan", "tune", "--output", tmp_path)
    rows = json.loads(out)
    assert [row["name"] for row in rows] == ["tune-2048", "tune-512"]
    assert rows[0]["needs"] == ["t-experts"]
    assert rows[0]["usual_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "nothing"], "--plan: must be some of correct, "),
        (["--item", "t-expert"], "did you mean 't-experts'?"),
        (["--budget", "0"], "--budget: must be a number of seconds above 0, got 0; e.g. --budget 560"),
        (["--budget", "nan"], "above 0, got nan"),
        (["--done", "missing.jsonl"], "missing.jsonl: cannot be read: No such file or directory"),
        (["--done", "text"], "text:1: must be a JSON line, got "),
        (["--done", "rows.jsonl"], "rows.jsonl:1: must be a line of an acceptance, with `item` or `of`"),
        (["--output", "text/below"], "--output: text/below/accept.jsonl: cannot be written"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no json\nat all\n")
    Path("rows.jsonl").write_text('{"name": "kernels"}\n')
    code, out, err = accept(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("hpxfer: ")
    assert message in err


def test_a_run_keeps_every_number_and_is_not_repeated(
    gpu: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpu["k-rows"] = "import sys; sys.exit(1)"
    given = ("--plan", "correct,kernels", "--output", tmp_path)
    code, out, err = accept(capsys, *given)
    assert code == 1
    assert "k-rows: failed" in err
    assert "11 passed, 1 failed, 0 skipped" in out
    lines = [json.loads(line) for line in (tmp_path / "accept.jsonl").read_text().splitlines()]
    assert all({"date", "machine", "versions", "s"} <= set(line) for line in lines)
    assert all(line["machine"] == STAMP["machine"] for line in lines)
    gpu.clear()
    gpu["env"] = "import sys; sys.exit(1)"  # it passed before, and is not run again
    assert accept(capsys, *given)[0] == 0
    more = [json.loads(line) for line in (tmp_path / "accept.jsonl").read_text().splitlines()][len(lines) :]
    assert {line.get("item", line.get("of")) for line in more} == {"k-rows"}


def test_what_passed_on_another_gpu_is_repeated_unless_it_is_named(
    gpu: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    line = json.dumps({"item": "env", "ok": True, "machine": {"gpu": "A100"}, "versions": {}})
    file.write_text(line + "\n")
    accept(capsys, "--item", "env", "--output", file)
    assert len(file.read_text().splitlines()) == 3
    other = tmp_path / "b.jsonl"
    other.write_text(line + "\n")
    code, _, err = accept(capsys, "--item", "env", "--output", tmp_path / "c.jsonl", "--done", other)
    assert (code, err) == (0, "env: passed in 0 s: passed before\n")


def test_a_failed_test_stops_what_depends_on_it(
    gpu: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpu["t-experts"] = "import sys; sys.exit(1)"
    code, out, _ = accept(capsys, "--output", tmp_path, "--json", "--untested")
    assert code == 1
    states = {item["name"]: item["state"] for item in json.loads(out)["items"]}
    passed = {name for name, state in states.items() if state == "passed"}
    assert passed == {"env", "t-router", "t-init", "t-all-kernels"}


def test_a_skip_is_no_success(gpu: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = accept(capsys, "--plan", "tune", "--output", tmp_path)
    assert code == 3
    assert "t-experts has not passed; run it first, or give --untested" in out
    assert accept(capsys, "--plan", "tune", "--output", tmp_path, "--untested")[0] == 0


def test_the_environment_of_an_item() -> None:
    found = child_environment({"TRITON_INTERPRET": "1", "PYTHONPATH": "/mine", "HOME": "/home"})
    assert (found["CUBLAS_WORKSPACE_CONFIG"], found["TRITON_INTERPRET"], found["HOME"]) == (":4096:8", "0", "/home")
    assert found["PYTHONPATH"].endswith("/mine")


def test_the_output_is_a_file_or_a_folder(tmp_path: Path) -> None:
    assert output_file(tmp_path) == tmp_path / "accept.jsonl"
    assert output_file(tmp_path / "new") == tmp_path / "new" / "accept.jsonl"
    assert output_file(tmp_path / "a.jsonl") == tmp_path / "a.jsonl"


def test_the_last_numbers_stand_beside_their_goals() -> None:
    numbers = [
        {"of": "r-base-32k", "key": "r-base-32k", "tokens_per_s": 1e6},
        {"of": "r-base-32k", "key": "r-base-32k", "tokens_per_s": 1.5e6},
        {"of": "r-base-32k-dense", "key": "r-base-32k-dense", "tokens_per_s": 1.6e6},
        {"of": "r-alone", "key": "r-alone", "tokens_per_s": None},
        {"of": "k-layer-512", "key": "layer-512", "value": 1.7, "unit": "x"},
    ]
    assert goal_values(numbers) == {"base-32k": 1.5, "twin-32k": pytest.approx(0.9375), "layer-512": 1.7}
    ended = (Ended(name="env", state="passed", seconds=3.2), Ended(name="k-rows", state="skipped", reason="no time"))
    text = summary(Accepted(ended=ended, numbers=tuple(numbers)))
    assert "no time" in text
    assert "1 passed, 0 failed, 1 skipped" in text
    memory = {"of": "m-base-32k", "key": "m-base-32k", "allocated_gib": 40.0, "planned_gib": 44.0}
    assert list(speed_rows([*numbers, memory])) == [
        ("r-base-32k", "1.5 M tokens/s", "", ""),
        ("r-base-32k-dense", "1.6 M tokens/s", "", ""),
        ("m-base-32k", "", "40 GiB", "44 GiB"),
    ]
    assert any(line.split()[-2:] == ["1.5", "1.6"] for line in text.splitlines())
