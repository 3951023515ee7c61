"""`hpxfer check` as a user types it: text, JSON, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.cli.check_source import chosen, numbers
from hpxfer.errors import HpxferError
from hpxfer.spec import load_sweep

QUICK = ("--seeds", "2", "--steps", "1")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of `hpxfer check`."""
    return hpxfer(capsys, "check", *arguments)


def test_a_pass_is_a_table_and_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--parameterization", "completep", "--axis", "depth", *QUICK)
    assert code == 0
    assert out.startswith("completep (arXiv 2505.01618), adam, gpt: sizes after up to 1 updates, 2 seeds")
    assert "attn_out" in out
    assert "depth: passed (" in out


def test_a_miss_is_exit_code_1_and_files_say_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--parameterization", "sp", "--axis", "dense_ratio", "--output", tmp_path / "out")
    code, out, _ = run(capsys, *asked, *QUICK)
    assert code == 1
    assert "dense_ratio: FAILED (" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"check.txt", "check.json", "check-dense_ratio.png", "check-dense_ratio.svg"}
    assert (tmp_path / "out" / "check.txt").read_text() in out + "\n"
    data = json.loads((tmp_path / "out" / "check.json").read_text())
    assert data["passed"] is False
    assert {"hpxfer", "python", "torch", "finished_at"} <= data["provenance"].keys()


def test_json_is_one_object_with_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--parameterization", "completep", "--axis", "depth", "--json", *QUICK)
    data = json.loads(out)
    assert code == 0
    assert {line["layer"] for line in data["axes"][0]["lines"]} == {None, 0, 1, 2, 3}
    assert data["files"] == []


def test_a_sweep_gives_model_table_and_conventions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_tiny(tmp_path, ("[completep-moe, sp]", "['completep-moe[depth_alpha=0.5]', sp]"))
    code, out, err = run(capsys, "--sweep", path, "--points", "16,24,32,40", *QUICK)
    assert (code in (0, 1), err) == (True, "")
    assert out.startswith("completep-moe[depth_alpha=0.5] (")
    assert "w16 d1 E2A1 h16 to w40 d1 E2A1 h40" in out
    spec = load_sweep(path)
    assert chosen("sp", {}, spec).name == "sp"
    assert dict(chosen(None, {"router_init_exponent": 0.5}, spec).conventions)["depth_alpha"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "check needs --parameterization or --sweep"),
        (("--parameterization", "completepp"), "did you mean 'completep'?"),
        (("--parameterization", "completep-moe", "--axis", "duration"), "no slope along it"),
        (("--parameterization", "completep-moe", "--axis", "width", "--points", "32;64"), "--points: must be numbers"),
        (("--parameterization", "completep-moe", "--convention", "gamma"), "--convention must be KEY=VALUE"),
        (("--parameterization", "completep-moe", "--optimizer", "lion"), "--optimizer must be adamw or sgd"),
        (
            ("--parameterization", "completep-moe", "--axis", "width", "--points", "nan,32,64,128"),
            "--points: must be above 0",
        ),
        (("--parameterization", "mup", "--axis", "dense_ratio", "--points", "-1,1,2,4"), "--points: must be above 0"),
        (("--sweep", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_file_in_the_place_of_the_folder_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    asked = ("--parameterization", "completep", "--axis", "dense_ratio", "--output", tmp_path / "file")
    monkeypatch.setattr("hpxfer.coordinates.checking.check", None)  # before anything is trained
    code, _, err = run(capsys, *asked, *QUICK)
    assert code == 2
    assert "choose another folder with --output" in err


def test_numbers() -> None:
    assert numbers(None) is None
    assert numbers("64, 32,128") == (32.0, 64.0, 128.0)
    with pytest.raises(HpxferError, match="got ''"):
        numbers("")
