"""`hpxfer export` as a user calls it: text, JSON, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import hpxfer
from recipe_data import data

from hpxfer.spec.yaml_file import write_yaml

SHAPE = {"width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a call of `hpxfer export` in a folder with a recipe and a shape."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(write_yaml(data()), encoding="utf-8")

    def export(*arguments: object, shape: object = SHAPE, recipe: str = "recipe.yaml") -> tuple[int, str, str]:
        (tmp_path / "shape.json").write_text(json.dumps(shape), encoding="utf-8")
        code, out, err = hpxfer(capsys, "export", recipe, "--shape", "shape.json", *arguments)
        assert "Traceback" not in err
        return code, out, err

    return export


def test_files_are_listed(call: Call, tmp_path: Path) -> None:
    code, out, err = call("--to", "json")
    assert (code, err) == (0, "")
    assert out == "written:\n  hpxfer-export/hpxfer.json\n"
    assert json.loads((tmp_path / "hpxfer-export" / "hpxfer.json").read_text())["target"] == "json"


def test_what_the_trainer_cannot_hold_is_refused_and_nothing_is_written(call: Call, tmp_path: Path) -> None:
    code, out, err = call("--to", "megatron")
    assert (code, out) == (2, "")
    assert "megatron cannot hold forward multipliers attn_out 0.466667" in err
    assert "--partial writes the rest, and lists these calls" in err
    assert not (tmp_path / "hpxfer-export").exists()


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
    assert code == 0
    assert "hpxfer_torch.py" in out
    (tmp_path / "names.txt").write_text("strange.thing\n", encoding="utf-8")
    code, _, err = call("--to", "torch", "--names", "names.txt")
    assert code == 2
    assert "names.txt: every parameter must have a role, got none for strange.thing; write the role behind" in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--to", "megatorn"), "--to: unknown export target 'megatorn'; did you mean 'megatron'?"),
        ((), "Missing option '--to'"),
        (("--to", "torch"), "--names: must be given for torch"),
        (("--to", "json", "--names", "none.txt"), "none.txt: cannot be read"),
        (("--to", "json", "--output", "shape.json"), "shape.json: cannot be written"),
    ],
)
def test_options_without_sense_are_refused(call: Call, arguments: tuple[str, ...], why: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2
    assert why in " ".join(err.split())


def test_a_shape_or_a_recipe_that_is_none(call: Call, tmp_path: Path) -> None:
    assert "shape.json: dpeth: unknown key; did you mean 'depth'?" in call("--to", "json", shape={"dpeth": 2})[2]
    assert "completep-moe holds kappa fixed" in call("--to", "json", shape={**SHAPE, "num_active": 4})[2]
    (tmp_path / "table.yaml").write_text(write_yaml(data(parameterization={"name": "nowhere"})), encoding="utf-8")
    code, _, err = call("--to", "json", recipe="table.yaml")
    assert code == 2
    assert "table.yaml" in err
    assert "unknown parameterization 'nowhere'" in err


def test_a_range_is_warned_of(call: Call) -> None:
    code, _, err = call("--to", "json", shape={**SHAPE, "width": 512, "expert_width": 1024})
    assert code == 0
    assert err.startswith("warning: the target w512 d3 E8A2 h1024 is beyond what was measured: width 512")
