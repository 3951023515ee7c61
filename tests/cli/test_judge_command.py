"""`hpxfer judge` as a user calls it: text, JSON, the page, the runs of a tracker, and every kind of bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from command_line import hpxfer
from foreign_runs import foreign_table

from hpxfer.figures.style import INK

LOSS = {"last": "its last point", "tail": "the mean of its last 5% of raw points"}
MAP = ("--map", "value=lr", "--map", "scale=width", "--map", "arm=method")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    foreign_table({"good": 0.0, "plain": -1.0}, seed=1).to_csv(path, index=False)
    return path


def test_the_verdict_is_printed_with_its_control_and_base(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "judge", runs, *MAP, "--control", "plain", "--base", "scale=256")
    assert (code, err) == (0, "")
    assert out.startswith("Use lr 2^-9 tuned at width 256 with good up to width 1024: at most 0.0")
    assert "With plain you would lose" in out
    assert "width | good: transfers (" in out
    assert out.endswith("Next: use the lr tuned at the base up to the largest scale of the table, and not beyond.\n")


def test_without_a_control_the_optimum_did_not_move(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "judge", runs, *MAP, "--full")
    assert code == 0
    assert "width | good: the optimum did not move: no control, no base named (drift " in out
    assert "no base is marked, so the smallest scale is taken, width 256; name it with --base width=256" in out
    assert out.endswith("(--control ARM) and the shape that the HP was tuned at (--base scale=SIZE) would show more.\n")
    data = json.loads(hpxfer(capsys, "judge", runs, *MAP, "--json")[1])
    assert [finding["verdict"] for finding in data["findings"]] == ["stays", "drifts"]
    assert data["findings"][0]["lacking"] == ["no control", "no base named"]
    assert data["files"] == []


def test_the_page_is_written(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "page"
    code, out, _ = hpxfer(capsys, "judge", runs, *MAP, "--control", "plain", "--report", folder)
    assert code == 0
    assert f"  {folder / 'report.html'}" in out
    assert (folder / "transfer.png").read_bytes().startswith(b"\x89PNG")
    assert INK in (folder / "figures" / "transfer-lr-width.svg").read_text()
    (tmp_path / "file").write_text("")
    code, _, err = hpxfer(capsys, "judge", runs, *MAP, "--report", tmp_path / "file")
    assert (code, "choose another folder with --report" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--empty", "zero"), "--empty: unknown choice 'zero'"),
        (("--map", "value"), "--map: must be NAME=VALUE, got 'value'"),
        (("--map", "value=lr", "--map", "value=loss"), "--map: must name value once"),
        ((*MAP, "--control", "sp"), "--control: must be an arm of the table, got 'sp'; legal: good, plain"),
        ((*MAP, "--regret-limit", "loss=much"), "--regret-limit: must be loss=SHARE or octaves=NUMBER"),
        ((*MAP, "--regret-limit", "loss"), "--regret-limit: must be NAME=VALUE, got 'loss'; e.g. --regret-limit loss="),
        ((*MAP, "--unit", ""), "--unit: must be a unit such as nats or bits per byte, got ''"),
        ((*MAP, "--base", ""), "--base: must be NAME=SIZE, got ''; e.g. --base scale=64"),
        ((*MAP, "--base", "scale=large"), "--base: scale: must be a number from 1e-30"),
        ((*MAP, "--duplicates", "first"), "--duplicates: unknown choice 'first'"),
        (("--map", "value=lr", "--map", "arm=lr"), "the rows differ in method"),  # two arms taken as one
    ],
)
def test_a_mistake_is_a_message(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = hpxfer(capsys, "judge", runs, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_named_pipe_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "runs.csv")
    code, _, err = hpxfer(capsys, "judge", tmp_path / "runs.csv")
    assert (code, "must be a regular file, got a named pipe" in err) == (2, True)


def test_a_folder_of_tensorboard_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    frame = foreign_table({"good": 0.0}, seed=1)
    for run in frame.itertuples():
        folder = tmp_path / "logs" / f"w{run.width}_lr{run.lr}_s{run.seed}"
        folder.mkdir(parents=True)
        with (folder / "events.out.tfevents.1").open("wb") as file:
            writer = RecordWriter(file)
            for step in range(40):  # the last 5% of the points are two
                summary = Summary(value=[Summary.Value(tag="val_loss", simple_value=run.loss + (39 - step) / 64)])
                writer.write(Event(wall_time=float(step), step=step, summary=summary).SerializeToString())
    command = ("judge", f"tensorboard:{tmp_path / 'logs'}", "--base", "scale=256")
    names = ("--pattern", r"w(?P<width>\d+)_lr(?P<lr>[^_]+)_s(?P<seed>\d+)")
    losses = {}
    for reduce, more in (("last", ()), ("tail", ("--reduce", "tail"))):
        table = tmp_path / f"{reduce}.csv"
        code, out, _ = hpxfer(capsys, *command, *names, *more, "--save-table", table)
        assert (code, f"  {table}\n" in out) == (0, True)
        assert f"- loss: val_loss, the only held-out loss: {LOSS[reduce]}\n" in out
        losses[reduce] = pd.read_csv(table).sort_values(["width", "lr", "seed"])["loss"].to_numpy()
        again = hpxfer(capsys, "judge", table, "--base", "scale=256")[1].splitlines()
        assert (again[0], again[2:4]) == ((said := out.splitlines())[0], said[2:4])  # the saved table has its verdict
    expected = frame.sort_values(["width", "lr", "seed"])["loss"].to_numpy()
    assert losses["last"] == pytest.approx(expected, abs=1e-6)
    assert losses["tail"] == pytest.approx(expected + 1 / 128, abs=1e-6)
    for more, message in (
        (("--reduce", "min"), "--reduce: unknown choice 'min'; legal: last, tail"),
        (("--metric", "loss"), "--metric: no run has 'loss'; did you mean 'val_loss'?"),
        (("--save-table", tmp_path / "last.csv"), "must not be there yet"),
        (("--save-table", tmp_path / "a.xls"), "--save-table: must end in .csv or .parquet"),
    ):
        code, _, err = hpxfer(capsys, *command, *names, *more)
        assert (code, message in err) == (2, True)
    code, _, err = hpxfer(capsys, "judge", tmp_path / "last.csv", "--metric", "loss")
    assert (code, "--metric: goes with the runs of a tracker" in err) == (2, True)
