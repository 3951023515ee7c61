"""`hpxfer judge` and `hpxfer table` as a user calls them: text, JSON, the page, and every kind of bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from command_line import hpxfer
from foreign_runs import foreign_table

from hpxfer.figures.style import INK

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
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


def test_the_table_of_results_is_judged_as_their_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "quickstart.parquet"
    code, out, _ = hpxfer(capsys, "table", "results", PUBLISHED / "quickstart", "--output", table)
    assert (code, out) == (0, f"written:\n  {table}\n")
    judged = hpxfer(capsys, "judge", table, "--control", "sp")[1].splitlines()
    reported = hpxfer(capsys, "report", PUBLISHED / "quickstart", "--format", "text", "--output", tmp_path)[
        1
    ].splitlines()
    assert judged[0] == reported[0]
    assert judged[2:4] == reported[2:4]
    code, _, err = hpxfer(capsys, "table", "results", PUBLISHED / "quickstart", "--output", table)
    assert (code, "must not be there yet" in err) == (2, True)
    code, _, err = hpxfer(capsys, "table", "results", PUBLISHED / "quickstart", "--output", tmp_path / "a.xls")
    assert (code, "must end in .csv or .parquet" in err) == (2, True)
    unknown = ("--output", tmp_path / "other.csv", "--loss", "validaton")
    code, _, err = hpxfer(capsys, "table", "results", PUBLISHED / "quickstart", *unknown)
    assert (code, err) == (2, "hpxfer: loss: unknown loss 'validaton'; did you mean 'validation'?\n")


def test_a_folder_of_tensorboard_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    for seed in (0, 1):
        folder = tmp_path / "logs" / f"w64_lr2^-7_s{seed}"
        folder.mkdir(parents=True)
        with (folder / "events.out.tfevents.1").open("wb") as file:
            writer = RecordWriter(file)
            for step in range(100):
                summary = Summary(value=[Summary.Value(tag="val_loss", simple_value=4.0 - step / 100)])
                writer.write(Event(wall_time=float(step), step=step, summary=summary).SerializeToString())
    table = tmp_path / "runs.csv"
    names = ("--pattern", r"w(?P<width>\d+)_lr(?P<lr>[^_]+)_s(?P<seed>\d+)")
    keys = ("--map", "value=lr", "--map", "scale=width", "--map", "seed=seed")
    code, out, _ = hpxfer(capsys, "table", "tensorboard", tmp_path / "logs", "--output", table, *names, *keys)
    assert code == 0
    assert out.startswith("- loss: val_loss, the only held-out loss: its last point\n")
    frame = pd.read_csv(table)
    assert frame["value"].tolist() == [2.0**-7, 2.0**-7]
    assert frame["loss"].tolist() == pytest.approx([3.01, 3.01])
    assert frame["axis"].tolist() == ["width", "width"]
