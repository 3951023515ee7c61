"""The command line: what it prints, its exit codes, and one clear message for every kind of bad input."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import shellingham
from command_line import Fails, hpxfer
from fixture_types import Capsys, Folders, Patch
from made_executors import InProcess
from tiny import write_tiny

from hpxfer import HpxferError, __version__
from hpxfer.cli.app import COMMANDS
from hpxfer.driver import run
from hpxfer.scaling.tables import PARAMETERIZATIONS


@pytest.fixture(scope="module")
def done(tmp_path_factory: Folders) -> Path:
    """A folder that holds tiny.yaml and, in results/, its trials; no command has seen them."""
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder / "results", executor=InProcess())
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, capsys: Capsys) -> None:
    code, out, _ = hpxfer(capsys, command, "--help")
    assert code == 0
    assert ("hpxfer recipe explain" if command == "explain" else f"hpxfer {command}") in out.partition("Example")[2]


def test_a_finished_sweep_runs_nothing_again_and_says_where_everything_is(done: Path, capsys: Capsys) -> None:
    code, out, err = hpxfer(capsys, "run", done / "tiny.yaml", "--results", done / "results")
    assert (code, "30 trials, all done" in out) == (0, True)
    assert "trials " not in err
    assert out.splitlines()[-1].startswith("Next: ")
    for name in ("trials.parquet", "curves.parquet", "transfer.png", "transfer.svg", "report.html", "recipe.yaml"):
        assert str(done / "results" / "tiny" / name) in out
        assert (done / "results" / "tiny" / name).stat().st_size > 0


def test_json_is_alone_on_stdout(done: Path, capsys: Capsys) -> None:
    sweep, results = done / "tiny.yaml", done / "results"

    def said(*command: object) -> Any:
        code, out, _ = hpxfer(capsys, *command, "--json")
        assert code == 0
        return json.loads(out)

    assert said("plan", sweep, "--results", results)["num_done"] == 30
    ran = said("run", sweep, "--results", results)
    assert (ran["num_failed"], ran["next_step"][:6]) == (0, "Next: ")
    found = said("report", results / "tiny")["findings"]
    assert {finding["parameterization"] for finding in found} == {"completep-moe", "sp"}
    assert said("recipe", "write", results / "tiny", "--output", done / "mine.yaml") == {
        "recipe": str(done / "mine.yaml")
    }
    assert set(said("explain", "--list")) == set(PARAMETERIZATIONS)
    assert said("explain", "--sweep", sweep)["values"]["target"]["attn_q"]["lr"] == 2**-9
    assert "Values at the base" in hpxfer(capsys, "explain", "--recipe", done / "mine.yaml")[1]


def test_output_that_cannot_go_anywhere_is_one_message(done: Path, capsys: Capsys) -> None:
    """The package runs as a module, whose stdout is a full disk; and a figure has a file for its folder."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "hpxfer", "explain", "--list"]
        end = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    message = "hpxfer: stdout: cannot be written: No space left on device; make room, or send it elsewhere\n"
    assert (end.returncode, end.stderr) == (2, message)
    results = done / "results" / "tiny"
    code, _, err = hpxfer(capsys, "report", results, "--output", results / "sweep.yaml" / "below")
    assert code == 2
    assert "the figure cannot be written: Not a directory; choose another folder with --output" in err


def test_cautions_stand_on_stderr_and_in_json(tmp_path: Path, capsys: Capsys) -> None:
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "duration: [12]"))
    caution = "completep-moe along duration: completep-moe does not cover duration: it changes by a factor of 2"
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", tmp_path, "--json")
    assert (code, json.loads(out)["cautions"], err) == (0, [caution], f"warning: {caution}\n")
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", tmp_path)
    assert caution in err
    assert caution not in out


@pytest.mark.slow
def test_a_port_that_is_not_ray_is_said_so_within_20_s(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--address", address]
        end = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert end.returncode == 2
    assert f" {address}" in end.stderr
    assert "within 15 s" in end.stderr


@pytest.mark.slow
def test_failed_trials_give_exit_code_1_and_their_error(tmp_path: Path, capsys: Capsys) -> None:
    """No machine has the memory for the second width; the first is trained all the same."""
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "width: [16, 8388608]"), ("workers: 2", "workers: 1"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path), "--yes"]
    end = subprocess.run([*command, "--no-strict-memory"], capture_output=True, text=True, timeout=300)
    assert end.returncode == 1
    assert "20 trials failed; the next run tries them again" in end.stderr
    assert "memory" in end.stderr
    trials = pd.read_parquet(tmp_path / "tiny" / "trials.parquet")
    assert trials["status"].value_counts().to_dict() == {"failed": 20, "finished": 10}


def test_failures_of_cells_that_an_edit_removed_are_not_held_against_the_sweep(tmp_path: Path, capsys: Capsys) -> None:
    sweep = write_tiny(tmp_path)
    results = run(sweep, results=tmp_path, executor=Fails(3))
    assert (results.trials["status"] == "failed").sum() == 3
    write_tiny(tmp_path, ("{log2: [-8, -4]}", "{log2: [-7, -4]}"))  # the three were of the first value
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert (code, err) == (0, "")


def completed(capsys: Capsys, monkeypatch: Patch, line: str) -> list[str]:
    """Return what bash is offered after a line."""
    with monkeypatch.context() as patch:
        patch.setenv("_HPXFER_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return hpxfer(capsys)[1].splitlines()


def test_help_lists_the_commands_in_the_order_of_the_table(capsys: Capsys) -> None:
    code, out, _ = hpxfer(capsys, "--help")
    assert code == 0
    lines = out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == [*COMMANDS]


def test_the_version_is_printed(capsys: Capsys) -> None:
    assert hpxfer(capsys, "--version") == (0, f"hpxfer {__version__}\n", "")


def test_an_unknown_command_gets_the_nearest(capsys: Capsys) -> None:
    code, _, err = hpxfer(capsys, "recip")
    assert (code, "Did you mean 'recipe'" in err) == (2, True)


@pytest.mark.parametrize(("shell", "word"), [("bash", "COMPREPLY="), ("zsh", "#compdef"), ("fish", "complete ")])
def test_completion_prints_the_script_of_the_shell(shell: str, word: str, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))
    code, out, _ = hpxfer(capsys, "--show-completion")
    assert (code, word in out) == (0, True)
    assert f"_HPXFER_COMPLETE=complete_{shell}" in out


def test_commands_and_options_are_completed(capsys: Capsys, monkeypatch: Patch) -> None:
    assert completed(capsys, monkeypatch, "hpxfer re") == ["report", "recipe"]
    assert completed(capsys, monkeypatch, "hpxfer run --max") == ["--max-gpu-hours"]
    assert completed(capsys, monkeypatch, "hpxfer bench --r") == ["--row"]
    assert completed(capsys, monkeypatch, "hpxfer init st") == ["staged_grid"]
    assert set(completed(capsys, monkeypatch, "hpxfer plan --")) >= {"--results", "--trials", "--hardware", "--json"}


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['hpxfer', '--help']\nfrom hpxfer.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(end.stdout.splitlines()[-1].split())
    assert "typer" in loaded
    assert loaded.isdisjoint({"torch", "ray", "pandas", "numpy", "pydantic", "matplotlib", "pyarrow", "scipy"})


NEED = "memory: one trial of w8388608 d1 E2A1 h8388608 needs"


def test_a_plan_names_a_shape_that_does_not_fit_and_exits_with_2(tmp_path: Path, capsys: Capsys) -> None:
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "width: [16, 8388608]"))
    plan = ("plan", sweep, "--results", tmp_path / "results")
    code, out, err = hpxfer(capsys, *plan, "--json")
    assert (code, NEED in err) == (2, True)
    (line,) = json.loads(out)["unfit"]
    assert line.startswith(NEED)
    code, _, err = hpxfer(capsys, *plan, "--no-strict-memory")
    assert (code, f"warning: {NEED}" in err) == (0, True)
    code, _, err = hpxfer(capsys, *plan, "--hardware", "h100")
    assert (code, "a stack's share of the GPU has" in err) == (2, True)
    with pytest.raises(HpxferError, match="one trial of each shape must fit"):
        run(sweep, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()
