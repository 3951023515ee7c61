"""The command line: what it prints, its exit codes, and one clear message for every kind of bad input."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Fails, hpxfer
from tiny import write_tiny

from hpxfer.cli.commands import COMMANDS
from hpxfer.driver import run
from hpxfer.scaling.tables import PARAMETERIZATIONS

ONE_WORKER = ("workers: 2", "workers: 1")  # each is a process that imports torch
BAD_INPUTS = (
    *("broken YAML", "no file", "a folder", "unknown key", "wrong type", "impossible shape"),
    *("no data", "short data", "wrong header", "token id", "another family", "no results"),
    *("unknown parameterization", "nothing to explain", "unknown executor", "nonsense address", "results is a file"),
    "address without Ray",
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds tiny.yaml and, in results/, its finished run."""
    folder = tmp_path_factory.mktemp("done")
    sweep = write_tiny(folder, ONE_WORKER)
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(folder / "results")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


@pytest.mark.parametrize("command", COMMANDS.names())
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, command, "--help")
    assert code == 0
    assert f"hpxfer {command}" in out.partition("Example")[2]


def test_a_finished_sweep_runs_nothing_again_and_says_where_everything_is(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = hpxfer(capsys, "run", done / "tiny.yaml", "--results", done / "results")
    assert code == 0
    assert "30 trials, all done" in out
    assert "trials " not in err
    assert out.splitlines()[-1].startswith("Next: ")
    for name in ("trials.parquet", "curves.parquet", "transfer.png", "transfer.svg", "report.html", "recipe.yaml"):
        assert str(done / "results" / "tiny" / name) in out
        assert (done / "results" / "tiny" / name).stat().st_size > 0


def test_json_is_alone_on_stdout(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, results = done / "tiny.yaml", done / "results"
    code, out, _ = hpxfer(capsys, "plan", sweep, "--results", results, "--json")
    assert (code, json.loads(out)["num_done"]) == (0, 30)
    code, out, _ = hpxfer(capsys, "run", sweep, "--results", results, "--json")
    assert (code, json.loads(out)["num_failed"]) == (0, 0)
    assert json.loads(out)["next_step"].startswith("Next: ")
    code, out, _ = hpxfer(capsys, "report", results / "tiny", "--json")
    assert code == 0
    assert {finding["parameterization"] for finding in json.loads(out)["findings"]} == {"completep-moe", "sp"}
    code, out, _ = hpxfer(capsys, "recipe", results / "tiny", "--json", "--output", done / "mine.yaml")
    assert (code, json.loads(out)) == (0, {"recipe": str(done / "mine.yaml")})
    code, out, _ = hpxfer(capsys, "explain", "--list", "--json")
    assert (code, set(json.loads(out))) == (0, set(PARAMETERIZATIONS))


def test_cautions_stand_on_stderr_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "duration: [12]"))
    caution = "completep-moe along duration: completep-moe does not cover duration: it changes by a factor of 2"
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", tmp_path, "--json")
    assert (code, json.loads(out)["cautions"], err) == (0, [caution], f"warning: {caution}\n")
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", tmp_path)
    assert caution in err
    assert caution not in out


def test_explain_writes_the_factors_of_two_shape_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
    base, target = tmp_path / "base.json", tmp_path / "target.json"
    base.write_text(json.dumps(shape), encoding="utf-8")
    target.write_text(json.dumps({**shape, "width": 128, "depth": 4, "expert_width": 256}), encoding="utf-8")
    shapes = ("--optimizer", "adam", "--base", base, "--target", target)
    code, out, _ = hpxfer(capsys, "explain", "--parameterization", "completep-moe", *shapes, "--json")
    roles = json.loads(out)["roles"]
    assert code == 0
    assert roles["expert_out"] == {
        "init_std": 0.25, "lr": 0.125, "eps": 0.125, "weight_decay": 8.0, "forward": 0.5
    }  # fmt: skip
    assert roles["readout"]["forward"] == 0.25
    code, out, _ = hpxfer(capsys, "explain", "--parameterization", "sp", *shapes)
    assert code == 0
    assert "0.5 (width^-0.5)" in out


def test_explain_takes_values_from_a_sweep_or_a_recipe(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "explain", "--sweep", done / "tiny.yaml", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["target"]["width"] == 32
    assert data["values"]["target"]["attn_q"]["lr"] == 2**-9
    assert "names no base value" in err
    code, out, _ = hpxfer(capsys, "explain", "--recipe", done / "results" / "tiny" / "recipe.yaml")
    assert code == 0
    assert "Values at the base" in out


def bad_inputs(folder: Path) -> dict[str, tuple[tuple[object, ...], str]]:
    """Return name -> (arguments, what the message must say)."""
    text, binary, long = folder / "text.txt", folder / "a.bin", folder / "b.bin"
    text.write_bytes(b"x" * 300)
    binary.write_bytes(b"\0" * 2048)
    header = [20240520, 1, 5000] + [0] * 253
    ids = [7] * 4999 + [600]
    long.write_bytes(b"".join(n.to_bytes(4, "little") for n in header) + b"".join(n.to_bytes(2, "little") for n in ids))
    other = folder / "other.yaml"
    other.write_text("hpxfer_recipe: 2\nfamily: mamba\n", encoding="utf-8")

    def sweep(name: str, *edits: tuple[str, str]) -> Path:
        (folder / name).mkdir()
        return write_tiny(folder / name, *edits)

    data = 'data: {source: "builtin:stdlib"}'
    plan = ("plan",)
    return {
        "broken YAML": ((*plan, sweep("broken", ("seeds: 2", "seeds: [2"))), "not valid YAML"),
        "no file": ((*plan, folder / "none.yaml"), "none.yaml: cannot be read: No such file"),
        "a folder": ((*plan, folder), "cannot be read: "),
        "unknown key": ((*plan, sweep("key", ("seeds: 2", "seed: 2"))), "did you mean 'seeds'?"),
        "wrong type": ((*plan, sweep("type", ("context: 16", "context: wide"))), "model.context: must be"),
        "impossible shape": ((*plan, sweep("shape", ("width: [16, 32]", "width: [16, 20]"))), "multiple of head_dim"),
        "no data": (
            (*plan, sweep("data", (data, "data: {source: 'text:none.txt'}"))),
            "tiny.yaml:6: data.source: must",
        ),
        "short data": ((*plan, sweep("short", (data, f"data: {{source: 'text:{text}'}}"))), "300"),
        "wrong header": ((*plan, sweep("head", (data, f"data: {{source: 'tokens:{binary}'}}"))), "a.bin"),
        "token id": ((*plan, sweep("id", (data, f"data: {{source: 'tokens:{long}', vocab_size: 512}}"))), "600"),
        "another family": (("explain", "--recipe", other), "family"),
        "no results": (("report", folder / "nothing"), "`hpxfer run SWEEP.yaml` makes it"),
        "unknown parameterization": (("explain", "--parameterization", "mop"), "unknown parameterization 'mop'"),
        "nothing to explain": (("explain",), "--list shows the names"),
        "unknown executor": (
            ("run", sweep("executor"), "--executor", "slurm"),
            "--executor: unknown executor 'slurm'; legal: local, ray",
        ),
        "nonsense address": (("run", sweep("address"), "--address", "here"), "auto, HOST:PORT or ray://HOST:PORT"),
        "results is a file": (
            ("run", sweep("file"), "--results", text),
            f"hpxfer: {text}: must be the folder that holds results folders, got a file",
        ),
        "address without Ray": (("run", sweep("local"), "--executor", "local", "--address", "auto"), "leave one out"),
    }


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "hpxfer", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.startswith("hpxfer ")


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_one_message_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = bad_inputs(tmp_path)[name]
    monkeypatch.chdir(tmp_path)
    code, out, err = hpxfer(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("hpxfer: ")
    assert "Traceback" not in err
    assert not out or "sweep tiny" in out
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").rglob("*.parquet"))


def test_a_store_of_a_newer_schema_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_tiny(tmp_path)
    store = tmp_path / "results" / "tiny"
    store.mkdir(parents=True)
    schema = pa.schema([("trial_id", pa.string())], metadata={b"hpxfer.schema": b"999"})
    pq.write_table(pa.table({"trial_id": ["x"]}, schema=schema), store / "trials.parquet")
    before = (store / "trials.parquet").read_bytes()
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path / "results")
    assert code == 2
    assert "999" in err
    assert (store / "trials.parquet").read_bytes() == before


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
def test_failed_trials_give_exit_code_1_and_their_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No machine has the memory for the second width; the first is trained all the same."""
    sweep = write_tiny(tmp_path, ("width: [16, 32]", "width: [16, 8388608]"), ONE_WORKER)
    command = ["run", str(sweep), "--results", str(tmp_path / "results"), "--yes"]
    code, _, err = hpxfer(capsys, *command)
    assert code == 2
    assert "memory: one trial of w8388608 d1 E2A1 h8388608 needs" in err
    assert "--no-strict-memory" in err
    assert not (tmp_path / "results").exists()
    module = [sys.executable, "-m", "hpxfer.cli"]
    end = subprocess.run([*module, *command, "--no-strict-memory"], capture_output=True, text=True, timeout=300)
    assert end.returncode == 1
    assert "20 trials failed; the next run tries them again" in end.stderr
    assert "memory" in end.stderr
    trials = pd.read_parquet(tmp_path / "results" / "tiny" / "trials.parquet")
    assert trials["status"].value_counts().to_dict() == {"failed": 20, "finished": 10}


def test_data_that_only_a_digest_stands_in_for_is_missed_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_tiny(tmp_path, ('source: "builtin:stdlib"', f'source: "text:none.txt", digest: {"ab" * 16}'))
    code, _, _ = hpxfer(capsys, "plan", sweep, "--results", tmp_path)
    assert code == 0
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert code == 2
    assert f"{sweep}:6: data.source: must name data on this machine" in err
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_figure_that_cannot_be_written_is_said_so(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = done / "results" / "tiny"
    code, _, err = hpxfer(capsys, "report", results, "--output", results / "sweep.yaml" / "below")
    assert code == 2
    assert "the figure cannot be written: Not a directory; choose another folder with --output" in err


def test_failures_of_cells_that_an_edit_removed_are_not_held_against_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_tiny(tmp_path)
    results = run(sweep, results=tmp_path, executor=Fails(3))
    assert (results.trials["status"] == "failed").sum() == 3
    write_tiny(tmp_path, ("{log2: [-8, -4]}", "{log2: [-7, -4]}"))  # the three were of the first value
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert (code, err) == (0, "")
