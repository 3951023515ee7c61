"""The table of commands: its order, shell completion and the version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import shellingham
from command_line import hpxfer
from tiny import write_tiny

from hpxfer import __version__
from hpxfer.cli.commands import COMMANDS

LONG = "x" * 50_000


def completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return what bash is offered after a line."""
    with monkeypatch.context() as patch:
        patch.setenv("_HPXFER_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return hpxfer(capsys)[1].splitlines()


def test_help_lists_the_commands_in_the_order_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "--help")
    assert code == 0
    lines = out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == [*COMMANDS]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert hpxfer(capsys, "--version") == (0, f"hpxfer {__version__}\n", "")


def test_an_unknown_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "recip")
    assert code == 2
    assert "Did you mean 'recipe'" in err


@pytest.mark.parametrize(("shell", "word"), [("bash", "COMPREPLY="), ("zsh", "#compdef"), ("fish", "complete ")])
def test_completion_prints_the_script_of_the_shell(
    shell: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))
    code, out, _ = hpxfer(capsys, "--show-completion")
    assert code == 0
    assert word in out
    assert f"_HPXFER_COMPLETE=complete_{shell}" in out


def test_commands_and_options_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", LONG),
        ("plan", "q.yaml", "--results", LONG),
        ("plan", "q.yaml", "--hardware", LONG),
        ("plan", "q.yaml", f"--{LONG}"),
        ("plan", "q.yaml", "--max-gpu-hours", LONG),
        ("list", LONG),
        ("init", LONG),
        ("report", LONG),
        ("watch", LONG, "--once"),
        ("recipe", LONG),
        ("check", "--sweep", LONG),
        ("check", "--parameterization", LONG),
        ("check", "--parameterization", "sp", "--axis", LONG),
        ("explain", "--parameterization", "sp", "--base", LONG, "--target", LONG),
        ("explain", "--recipe", LONG),
        ("explain", "--list", "--plugin", LONG),
        ("explain", "--list", "--plugin", f"{LONG}.py"),
        ("stop", LONG),
        (LONG,),
        (f"--{LONG}",),
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_no_message_repeats_a_long_text_whole(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path).rename("q.yaml")
    code, out, err = hpxfer(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err
    assert len(err) < 2500
