"""`hpxfer judge`, `predict`, `export` and `report --reference` as a user calls them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from command_line import Fails, hpxfer
from fixture_types import Capsys, Folders, Patch
from foreign_runs import foreign_table, write_events
from recipe_data import data
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.figures.style import INK
from hpxfer.spec.yaml_file import write_yaml

LOSS = {"last": "its last point", "tail": "the mean of its last 5% of raw points"}
MAP = ("--map", "value=lr", "--map", "scale=width", "--map", "arm=method")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    foreign_table({"good": 0.0, "plain": -1.0}, seed=1).to_csv(path, index=False)
    return path


def test_the_verdict_is_printed_with_its_control_and_base(runs: Path, capsys: Capsys) -> None:
    code, out, err = hpxfer(capsys, "judge", runs, *MAP, "--control", "plain", "--base", "scale=256")
    assert (code, err) == (0, "")
    assert out.startswith("Use lr 2^-9 tuned at width 256 with good up to width 1024: at most 0.0")
    assert "With plain you would lose" in out
    assert "width | good: transfers (" in out
    assert out.endswith("Next: use the lr tuned at the base up to the largest scale of the table, and not beyond.\n")


def test_without_a_control_the_optimum_did_not_move(runs: Path, capsys: Capsys) -> None:
    code, out, _ = hpxfer(capsys, "judge", runs, *MAP, "--full")
    assert (code, "width | good: the optimum did not move: no control, no base named (drift " in out) == (0, True)
    assert "no base is marked, so the smallest scale is taken, width 256; name it with --base width=256" in out
    assert out.endswith("(--control ARM) and the shape that the HP was tuned at (--base scale=SIZE) would show more.\n")
    data = json.loads(hpxfer(capsys, "judge", runs, *MAP, "--json")[1])
    assert [finding["verdict"] for finding in data["findings"]] == ["stays", "drifts"]
    assert data["findings"][0]["lacking"] == ["no control", "no base named"]
    assert data["files"] == []


def test_the_page_is_written(runs: Path, tmp_path: Path, capsys: Capsys) -> None:
    folder = tmp_path / "page"
    code, out, _ = hpxfer(capsys, "judge", runs, *MAP, "--control", "plain", "--report", folder)
    assert (code, f"  {folder / 'report.html'}" in out) == (0, True)
    assert (folder / "transfer.png").read_bytes().startswith(b"\x89PNG")
    assert INK in (folder / "figures" / "transfer-lr-width.svg").read_text()


def test_a_folder_of_tensorboard_is_judged(tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    frame = foreign_table({"good": 0.0}, seed=1)
    for each in frame.itertuples():
        folder = tmp_path / "logs" / f"w{each.width}_lr{each.lr}_s{each.seed}"
        write_events(folder, "val_loss", ((step, each.loss + (39 - step) / 64) for step in range(40)))  # 5% are two
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


TRANSFER = Path(__file__).parents[2] / "results" / "published" / "transfer"
WIDE = {"width": 512, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 512, "head_dim": 32}
Predict = Callable[..., tuple[int, str, str]]


@pytest.fixture
def predict(tmp_path: Path, capsys: Capsys) -> Predict:
    """Return a call of `hpxfer recipe predict` with a shape or a text as the target file."""

    def call(*arguments: object, target: object = WIDE, results: Path = TRANSFER) -> tuple[int, str, str]:
        path = tmp_path / "shape.json"
        path.write_text(target if isinstance(target, str) else json.dumps(target), encoding="utf-8")
        code, out, err = hpxfer(capsys, "recipe", "predict", results, "--target", path, *arguments)
        return code, out, err

    return call


def test_the_answer_goes_to_stdout_and_cautions_to_stderr(predict: Predict) -> None:
    code, out, err = predict()
    assert (code, out.startswith("Expect a validation loss of ")) == (0, True)
    assert err.startswith("warning: the target w512 d2 E4A1 h512 b512 t300 is beyond what was measured")


def test_what_cannot_be_said_is_an_answer(predict: Predict) -> None:
    code, out, _ = predict("--tokens", 307200, "--json")
    found = json.loads(out)
    assert (code, found["loss"], found["tokens"]) == (0, None, 307200)
    assert "steps 300 (got 600)" in found["why_no_loss"]
    assert found["hps"]["rows"]


def test_options_choose_the_arm_and_the_base(predict: Predict) -> None:
    assert json.loads(predict("--parameterization", "sp", "--json")[1])["parameterization"] == "sp"
    assert json.loads(predict("--base", "w64", "--json")[1])["sweep"] == "transfer from width 64"


SHAPE = {"width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> Call:
    """Return a call of `hpxfer recipe export` in a folder with a recipe and a shape."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(write_yaml(data()), encoding="utf-8")

    def export(*arguments: object, shape: object = SHAPE, recipe: str = "recipe.yaml") -> tuple[int, str, str]:
        (tmp_path / "shape.json").write_text(json.dumps(shape), encoding="utf-8")
        code, out, err = hpxfer(capsys, "recipe", "export", recipe, "--shape", "shape.json", *arguments)
        assert "Traceback" not in err
        return code, out, err

    return export


def test_files_are_listed(call: Call, tmp_path: Path) -> None:
    code, out, err = call("--to", "json")
    assert (code, err) == (0, "")
    assert out == "written:\n  hpxfer-export/hpxfer.json\n"
    assert json.loads((tmp_path / "hpxfer-export" / "hpxfer.json").read_text())["target"] == "json"


def test_partial_lists_the_calls(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("--to", "megatron", "--partial", "--output", "conf")
    assert code == 0
    assert out.startswith("not held; the training script must do it:\n  forward multipliers attn_out 0.466667")
    assert "recipe.init_(model, hpxfer.export.read_roles('hpxfer.json'), shape)" in out
    assert out.endswith("written:\n  conf/hpxfer_megatron.py\n  conf/hpxfer.json\n")
    assert (tmp_path / "conf" / "hpxfer_megatron.py").exists()


def test_json_for_a_program(call: Call) -> None:
    code, out, _ = call("--to", "olmo-core", "--partial", "--json")
    found = json.loads(out)
    assert (code, found["target"]) == (0, "olmo-core")
    assert found["files"] == ["hpxfer-export/hpxfer_olmo_core.py", "hpxfer-export/hpxfer.json"]
    assert {"what", "call"} == set(found["not_held"][0])


def test_names_of_a_model(call: Call, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("wte.weight 128x64\nhead.weight 128x64 readout\n", encoding="utf-8")
    code, out, _ = call("--to", "torch", "--names", "names.txt")
    assert (code, "hpxfer_torch.py" in out) == (0, True)
    (tmp_path / "names.txt").write_text("strange.thing\n", encoding="utf-8")
    code, _, err = call("--to", "torch", "--names", "names.txt")
    assert code == 2
    assert "names.txt: every parameter must have a role, got none for strange.thing; write the role behind" in err


def test_a_range_and_a_table_that_does_not_cover_the_shape_are_warned_of(call: Call) -> None:
    assert "completep-moe holds kappa fixed" in call("--to", "json", shape={**SHAPE, "num_active": 4})[2]
    code, _, err = call("--to", "json", shape={**SHAPE, "width": 512, "expert_width": 1024})
    assert code == 0
    assert err.startswith("warning: the target w512 d3 E8A2 h1024 is beyond what was measured: width 512")


@pytest.fixture(scope="module")
def results(tmp_path_factory: Folders) -> Path:
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder / "results", executor=Fails(0))
    return folder / "results" / "tiny"


def test_a_curve_and_an_arm_are_references(results: Path, tmp_path: Path, capsys: Capsys) -> None:
    curves = tmp_path / "gpt2.csv"
    curves.write_text("name,step,loss\ngpt2,1,4.0\ngpt2,10,3.9\n")
    given = ("--output", tmp_path, "--format", "json", "--reference", "sp", "--reference-curves", curves)
    code, _, err = hpxfer(capsys, "report", results, *given)
    assert code == 0, err
    (sweep,) = json.loads((tmp_path / "report.json").read_text())["sweeps"]
    rows = sweep["analysis"]["steps_to_loss"]["rows"]
    assert {row["reference"].split(" ")[0] for row in rows} == {"sp", "gpt2"}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("name,step,loss\na,1,x\n", "--reference-curves curves.csv", "line 2: column loss: must be a number > 0"),
        ("", "--reference-curves curves.csv", "curves.csv: line 1: must have the columns"),
        (None, "--reference-curves curves.csv", "curves.csv: must be a CSV file, cannot be read: "),  # a pipe
        ("", "--reference w48", "reference: must be a shape of the sweep, got 'w48'"),
    ],
)
def test_a_reference_that_is_none_ends_in_one_message(
    text: str | None, options: str, message: str, results: Path, tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("curves.csv") if text is None else Path("curves.csv").write_text(text)
    code, _, err = hpxfer(capsys, "report", results, "--output", "out", *options.split())
    assert (code, "Traceback" in err) == (2, False)
    assert message in err.replace("\n", " ")
    assert not Path("out").exists()
