"""`hpxfer plan` and `run`: ended midway, asked about, refused, on a full disk, with arms and plug-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from command_line import Fails, hpxfer, started
from fixture_types import Capsys, Folders, Patch
from made_executors import InProcess
from tiny import write_tiny
from waiting import LONG_S, until

from hpxfer.cli import consent
from hpxfer.driver import prepare, run
from hpxfer.plan import hardware
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.storage.lease import LEASE_FILE
from hpxfer.store import Store


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_a_store_from_which_the_next_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    sweep = write_tiny(tmp_path, ("steps: 6", "steps: 300"), ("workers: 2", "workers: 1, stack_size: 2"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path / "results")]
    process = started(command)
    store = tmp_path / "results" / "tiny"
    until(lambda: list(store.glob("trials-*.parquet")) or process.poll() is not None, "no trial is stored")
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code
    assert ("the same command goes on from there" in err) is (number != signal.SIGKILL)
    assert "Traceback" not in err
    assert (store / LEASE_FILE).exists() is (number == signal.SIGKILL)
    num_done = prepare(sweep, results=tmp_path / "results").plan.num_done
    assert 0 < num_done < 30
    rest = Fails(0)
    assert len(run(sweep, results=tmp_path / "results", executor=rest).trials) == 30
    assert rest.num_given == 30 - num_done
    assert not (store / LEASE_FILE).exists()


@pytest.fixture
def made_up(monkeypatch: Patch) -> None:
    """Let every run make its results up."""
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))


@pytest.mark.usefixtures("made_up")
def test_sigterm_ends_a_run_between_two_writes(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    """As a cluster asks a job to end: what has come is stored first, and the exit code says which signal it was."""
    append, before = Store.append, signal.getsignal(signal.SIGTERM)

    def ended(store: Store, pairs: Sequence[Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        append(store, pairs)

    monkeypatch.setattr(Store, "append", ended)
    sweep = write_tiny(tmp_path)
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert (code, "the same command goes on from there" in err) == (143, True)
    assert signal.getsignal(signal.SIGTERM) == before
    assert prepare(sweep, results=tmp_path).plan.num_done == 10  # the base, which begins
    assert not (tmp_path / "tiny" / LEASE_FILE).exists()


def test_a_bug_is_shown_once_and_ends_the_run_with_exit_code_1(
    tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(30, "bug"))
    sweep = write_tiny(tmp_path)
    code, out, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert code == 1
    assert err.count("Traceback: a bug") == 1
    assert "the run stopped at 10 failed trials" in err
    assert "30 trials, 0 done" in out
    assert not (tmp_path / "tiny" / "recipe.yaml").exists()


def ended(*_: object, **__: object) -> bool:
    """Answer as Ctrl-C and Ctrl-D do."""
    raise typer.Abort


@pytest.mark.slow
@pytest.mark.usefixtures("made_up")
def test_what_costs_much_is_asked_about(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.setattr(consent, "ASK_WORKER_HOURS", 0.0)
    sweep = write_tiny(tmp_path)
    arguments = ("run", sweep, "--results", tmp_path)
    code, _, err = hpxfer(capsys, *arguments)
    assert (code, "hours of CPU workers needs consent" in err) == (2, True)
    assert "there is no terminal to ask at; give --yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    code, _, err = hpxfer(capsys, *arguments)
    assert (code, "nothing was run" in err) == (130, True)
    assert not (tmp_path / "tiny").exists()
    monkeypatch.setattr(typer, "confirm", ended)
    code, _, err = hpxfer(capsys, *arguments)
    assert (code, "nothing was run" in err) == (130, True)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    assert hpxfer(capsys, *arguments)[0] == 0
    monkeypatch.setattr(typer, "confirm", None)
    assert hpxfer(capsys, *arguments)[0] == 0  # nothing is left to run, and nothing to ask
    (tmp_path / "new").mkdir()
    assert hpxfer(capsys, *arguments[:3], tmp_path / "new", "--yes")[0] == 0  # the answer to the question


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(("of", "asked"), [("ASK_WORKER_HOURS", True), ("ASK_GPU_HOURS", False)])
def test_hardware_that_is_not_there_is_planned_for_and_not_asked_about(
    of: str, asked: bool, tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(consent, of, 0.0)
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, device: cpu"))
    code, out, err = hpxfer(capsys, "run", sweep, "--results", tmp_path, "--hardware", "h100")
    assert "GPU-hours" in out  # the estimate is of what was named
    assert code == (2 if asked else 0)
    assert ("hours of CPU workers needs consent" in err) is asked


def test_a_run_is_warned_of_the_machine_that_it_stays_on(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.setattr(hardware, "host_bytes", lambda: 2**30)
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 1000000, device: cpu"))
    for command, warned in (("plan", False), ("run", True)):
        arguments = (command, sweep, "--results", tmp_path, "--hardware", "h100", "--no-strict-memory")
        code, _, err = hpxfer(capsys, *arguments, "--max-gpu-hours", 0)
        assert code == 2
        assert ("each of 30 workers has" in err) == warned


@pytest.mark.usefixtures("made_up")
def test_a_file_that_was_passed_over_is_not_among_those_written(tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "trials.parquet").write_text("not Parquet")
    code, out, err = hpxfer(capsys, "run", write_tiny(tmp_path), "--results", tmp_path)
    assert (code, f"warning: {folder / 'trials.parquet'}: " in err) == (0, True)
    written = out.partition("written:\n")[2].split()
    assert str(folder / "trials.parquet") not in written
    stored = [file for file in written if Path(file).name.startswith("trials-")]
    assert sum(len(pd.read_parquet(file)) for file in stored) == 30


@pytest.mark.usefixtures("made_up")
def test_a_figure_that_a_run_cannot_write_names_an_option_of_run(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "tiny" / "transfer.png").mkdir(parents=True)
    code, _, err = hpxfer(capsys, "run", write_tiny(tmp_path), "--results", tmp_path)
    assert code == 2
    assert "the figure cannot be written: Is a directory; choose another folder with --results" in err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_more_gpu_hours_than_allowed_are_refused(tmp_path: Path, capsys: Capsys, command: str) -> None:
    sweep = write_tiny(tmp_path)
    priced = (command, sweep, "--results", tmp_path, "--hardware", "h100", "--price-per-hour", "2")
    code, out, err = hpxfer(capsys, *priced, "--max-gpu-hours", "0")
    assert (code, "--max-gpu-hours: the plan must stay within 0 GPU-hours, got about " in err) == (2, True)
    assert "30 trials" in out
    assert not (tmp_path / "tiny").exists()
    assert hpxfer(capsys, "plan", *priced[1:], "--max-gpu-hours", "1")[0] == 0


OWN = (
    "name: tuned, hps: {multipliers: {router.lr_mult: 0.25, embedding.forward_mult: 2}}",
    "name: sign, balance: {bias: sign}",
)
ARMS = ["completep-moe", "sp", *(f"{{table: {table}, {own}}}" for own in OWN for table in ("completep-moe", "sp"))]


@pytest.fixture(scope="module")
def of_arms(tmp_path_factory: Folders) -> Path:
    """A folder with tiny.yaml, with these arms, and its trials in results/."""
    folder = tmp_path_factory.mktemp("arms")
    sweep = write_tiny(folder, ("[completep-moe, sp]", f"[{', '.join(ARMS)}]"))
    run(sweep, results=folder / "results", executor=InProcess())
    return folder


@pytest.mark.slow
def test_from_file_to_recipe(of_arms: Path, tmp_path: Path, capsys: Capsys) -> None:
    results = of_arms / "results"
    _, out, _ = hpxfer(capsys, "report", results / "tiny", "--json")
    findings = json.loads(out)["findings"]
    tables, own = ("completep-moe", "sp"), ("", " (tuned)", " (sign)")
    names = {table + name for table in tables for name in own}
    assert {finding["parameterization"] for finding in findings} == names
    for label, control in (("completep-moe", "sp"), ("completep-moe (tuned)", "sp (tuned)")):
        (finding,) = (each for each in findings if each["parameterization"] == label)
        assert finding["control"]["parameterization"] == control
    path = tmp_path / "mine.yaml"
    code, _, err = hpxfer(capsys, "recipe", "write", results / "tiny", "--parameterization", "tuned")
    assert (code, "give completep-moe (tuned) or sp (tuned)" in err) == (2, True)
    arm = ("--parameterization", "completep-moe (tuned)")
    code, _, err = hpxfer(capsys, "recipe", "write", results / "tiny", *arm, "--output", path)
    assert code == 0, err
    assert "embedding.forward_mult: 2.0\n    router.lr_mult: 0.25\n" in path.read_text()
    assert hpxfer(capsys, "recipe", "write", results / "tiny", "--output", path)[0] == 0
    assert "multipliers: {}" in path.read_text()


def test_rules_of_balance_side_by_side(of_arms: Path, tmp_path: Path, capsys: Capsys) -> None:
    sweep, results = of_arms / "tiny.yaml", of_arms / "results"
    code, out, err = hpxfer(capsys, "plan", sweep)
    assert code == 0, err
    assert "experts of sp: a bias by the proportional rule, router_bias_lr 0.01\n" in out
    assert "experts of sp (sign): a bias by the sign rule, router_bias_lr 0.01\n" in out
    assert "90 trials, all done" in hpxfer(capsys, "plan", sweep, "--results", results)[1]
    rules = {}
    for arm in ("sp", "sp (sign)"):
        path = tmp_path / f"{arm}.yaml"
        assert hpxfer(capsys, "recipe", "write", results / "tiny", "--parameterization", arm, "--output", path)[0] == 0
        rules[arm] = "bias_rule: sign\n" in path.read_text()
    assert rules == {"sp": False, "sp (sign)": True}
    assert hpxfer(capsys, "run", sweep, "--results", results)[0] == 0  # its files are written
    (figure,) = (results / "tiny" / "figures").glob("balance-*.csv")
    assert {"sp", "sp (sign)"} <= set(figure.read_text().replace('"', "").split(","))


TABLE = """
from dataclasses import replace
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

print("imported", flush=True)
register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="mine"))
"""


def ran(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a plug-in is imported once per process."""
    command = [sys.executable, "-m", "hpxfer.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plug-in, mine.py, and a sweep, tiny.yaml, that uses its table and does not name the plug-in."""
    (tmp_path / "mine.py").write_text(TABLE)
    mine = ("parameterizations: [completep-moe, sp]", "parameterizations: [mine, sp]")
    write_tiny(tmp_path, mine, ("workers: 2", "workers: 1"))  # each is a process that imports torch
    return tmp_path


@pytest.mark.slow
def test_a_table_of_a_plugin_is_planned_trained_and_reported(folder: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.chdir(folder)
    code, _, err = hpxfer(capsys, "plan", "tiny.yaml")
    assert (code, "unknown parameterization 'mine'" in err) == (2, True)
    end = ran(folder, "plan", "tiny.yaml", "--plugin", "mine.py")
    assert (end.returncode, "30 trials" in end.stdout) == (0, True), end.stderr
    end = ran(folder, "run", "tiny.yaml", "--plugin", "mine.py", "--executor", "local", "--json")
    assert end.returncode == 0, end.stderr
    data = json.loads(end.stdout.splitlines()[-1])
    assert (data["num_failed"], {row["parameterization"] for row in data["report"]["findings"]}) == (0, {"mine", "sp"})
    for command in (
        ("report", "results/tiny", "--format", "text"),
        ("recipe", "write", "results/tiny"),
        ("list",),
        ("watch", "results/tiny"),
    ):
        code, out, err = hpxfer(capsys, *command)
        assert (code, "imported" in out) == (0, False), err
    assert "mine" not in PARAMETERIZATIONS


@pytest.mark.slow
def test_explain_and_check_take_a_plugin(folder: Path) -> None:
    end = ran(folder, "explain", "--list", "--json", "--plugin", "mine.py")
    assert end.returncode == 0, end.stderr
    assert "mine" in json.loads(end.stdout.splitlines()[-1])
    end = ran(folder, "explain", "--sweep", "tiny.yaml", "--plugin", folder / "mine.py")
    assert end.returncode == 0, end.stderr
    end = ran(folder, "check", "--parameterization", "nine", "--plugin", "mine.py")
    assert end.returncode == 2
    assert "did you mean 'mine'?" in end.stderr


@pytest.mark.parametrize("command", [("plan", "tiny.yaml"), ("run", "tiny.yaml"), ("explain", "--list"), ("check",)])
def test_a_plugin_that_is_not_there_is_one_message(
    command: tuple[str, ...], folder: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(folder)
    code, _, err = hpxfer(capsys, *command, "--plugin", "other.py")
    assert code == 2
    assert err.startswith("hpxfer: plugins: ")
    assert "other.py: cannot be read" in err
