"""`hpxfer check`, of tables and of a module of the user's own: text, JSON, files and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checked_models import mlp_recipe
from command_line import hpxfer
from fixture_types import Capsys, Patch
from tiny import write_tiny

from hpxfer.errors import HpxferError
from hpxfer.prediction.explain import of_sweep
from hpxfer.spec import SweepSpec, load_sweep

QUICK = ("--seeds", "2", "--steps", "1")


def run(capsys: Capsys, *arguments: object) -> tuple[int, str, str]:
    return hpxfer(capsys, "check", *arguments)


def test_a_pass_is_exit_code_0_and_a_table_or_one_object(capsys: Capsys) -> None:
    asked = ("--parameterization", "completep", "--axis", "depth", *QUICK)
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert out.startswith("completep (arXiv 2505.01618), adam, gpt: sizes after up to 1 updates, 2 seeds")
    assert "attn_out" in out
    assert "depth: passed" in out
    data = json.loads(run(capsys, *asked, "--json")[1])
    assert {line["layer"] for line in data["axes"][0]["lines"]} == {None, 0, 1, 2, 3}
    assert data["files"] == []


def test_a_miss_is_exit_code_1_and_files_say_why(capsys: Capsys, tmp_path: Path) -> None:
    asked = ("--parameterization", "sp", "--axis", "dense_ratio", "--output", tmp_path / "out")
    code, out, _ = run(capsys, *asked, *QUICK)
    assert (code, "dense_ratio: FAILED" in out) == (1, True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"check.txt", "check.json", "check-dense_ratio.png", "check-dense_ratio.svg"}
    assert (tmp_path / "out" / "check.txt").read_text() in out + "\n"
    data = json.loads((tmp_path / "out" / "check.json").read_text())
    assert data["passed"] is False
    assert {"hpxfer", "python", "torch", "finished_at"} <= data["provenance"].keys()


def test_a_sweep_gives_model_table_and_conventions(capsys: Capsys, tmp_path: Path) -> None:
    path = write_tiny(tmp_path, ("[completep-moe, sp]", "['completep-moe[depth_alpha=0.5]', sp]"))
    code, out, err = run(capsys, "--sweep", path, "--points", "16,24,32,40", *QUICK)
    assert (code in (0, 1), err) == (True, "")
    assert out.startswith("completep-moe[depth_alpha=0.5] (")
    assert "w16 d1 E2A1 h16 to w40 d1 E2A1 h40" in out
    spec = load_sweep(path)
    assert of_sweep(spec, "sp", {})[0].name == "sp"
    assert dict(of_sweep(spec, None, {"router_init_exponent": 0.5})[0].conventions)["depth_alpha"] == 0.5


def test_an_arm_is_checked_at_its_own_hps(capsys: Capsys, monkeypatch: Patch, tmp_path: Path) -> None:
    arm = "{table: completep-moe, name: small, hps: {multipliers: {router.init_mult: 0.25}}}"
    path = write_tiny(tmp_path, ("[completep-moe, sp]", f"[completep-moe, {arm}]"))
    given: list[dict[str, float]] = []

    def check(choice: object, *, sweep: SweepSpec, **asked: object) -> None:
        given.append(sweep.hps.multipliers)
        raise HpxferError("enough")

    monkeypatch.setattr("hpxfer.coordinates.checking.check", check)
    for label in ("completep-moe (small)", "completep-moe"):
        assert run(capsys, "--sweep", path, "--parameterization", label)[0] == 2
    assert given == [{"router.init_mult": 0.25}, {}]


def test_a_file_in_the_place_of_the_folder_is_said(capsys: Capsys, monkeypatch: Patch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    asked = ("--parameterization", "completep", "--axis", "dense_ratio", "--output", tmp_path / "file")
    monkeypatch.setattr("hpxfer.coordinates.checking.check", pytest.fail)  # before anything is trained
    code, _, err = run(capsys, *asked, *QUICK)
    assert (code, "choose another folder with --output" in err) == (2, True)


SOURCE = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 5)
    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))

def build(shape):
    return Net(shape.width)

def batch(shape):
    return torch.randn(12, 12), torch.randint(0, 5, (12,))

def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

roles = {"first.weight": "embedding", "middle.weight": "dense_in", "last.weight": "readout", "*.bias": "hidden_bias"}
sites = {"last": "readout"}
"""
OWN_OPTIMIZER = """
def optimizer(model, shape):
    return torch.optim.AdamW(model.parameters(), lr=2**-6, eps=1e-12)
"""
SHAPE = '{"width": 32, "depth": 1, "dense_width": 32, "head_dim": 8}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """The current folder, with the user's package `shop` and a recipe."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "model.py").write_text(SOURCE)
    (tmp_path / "recipe.yaml").write_text(mlp_recipe().dump())
    (tmp_path / "base.json").write_text(SHAPE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def check_module(capsys: Capsys, *arguments: object) -> tuple[int, str, str]:
    return hpxfer(capsys, "check", "--module", "shop.model:build", *arguments)


@pytest.mark.usefixtures("folder")
def test_a_module_that_passes_is_a_table_and_exit_code_0(capsys: Capsys) -> None:
    code, out, err = check_module(capsys, "--recipe", "recipe.yaml", "--seeds", "2", "--steps", "2")
    assert (code, err) == (0, "")
    assert out.startswith("mup (arXiv 2203.03466), adam, shop.model:build: sizes after up to 2 updates, 2 seeds")
    assert "width: width 32, 64, 128, 256" in out
    assert "width: passed" in out
    assert "no proof that the HPs transfer" in out


def test_a_wiring_of_ones_own_that_is_wrong_is_exit_code_1_and_files_say_why(capsys: Capsys, folder: Path) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE + OWN_OPTIMIZER)
    code, out, _ = check_module(capsys, "--recipe", "recipe.yaml", "--output", "out", "--seeds", "2", "--steps", "2")
    assert (code, "width: FAILED" in out) == (1, True)
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {"check.txt", "check.json", "check-width.png", "check-width.svg"}
    data = json.loads((folder / "out" / "check.json").read_text())
    missed = {(row["role"], row["quantity"]) for row in data["axes"][0]["judged"] if row["verdict"] == "miss"}
    assert ("dense_in", "first step") in missed


@pytest.mark.usefixtures("folder")
def test_options_make_the_recipe_too(capsys: Capsys) -> None:
    asked = ("--parameterization", "mup", "--base", "base.json", "--hp", "lr=0.015", "--hp", "readout.init_mult=0.02")
    code, out, _ = check_module(capsys, *asked, "--points", "32,64,128,256", "--json", "--seeds", "2", "--steps", "2")
    data = json.loads(out)
    assert (code, data["passed"], data["architecture"]) == (0, True, "shop.model:build")


def test_the_module_may_name_its_recipe(capsys: Capsys, folder: Path) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE + "recipe = 'recipe.yaml'\n")
    assert check_module(capsys, "--seeds", "1", "--steps", "1")[1].startswith("mup (")
    del sys.modules["shop.model"]
    (folder / "shop" / "model.py").write_text(SOURCE + "recipe = 3\n")
    assert "shop.model.recipe: must be a Recipe or the path of one, got 3" in check_module(capsys)[2]


def test_an_error_in_the_users_code_is_one_message(capsys: Capsys, folder: Path) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE.replace("Net(shape.width)", "Net(shape.widht)"))
    code, _, err = check_module(capsys, "--recipe", "recipe.yaml", "--seeds", "2", "--steps", "2")
    assert (code, "build at w32 d1 D32, seed 0: " in err) == (2, True)
    assert "AttributeError" in err
    assert "model.py:12" in err.replace("\n", "")
    assert "Traceback" not in err
