"""`hpxfer check --module` as a user types it: a file of their own, a recipe, text, JSON, files and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checked_models import mlp_recipe
from command_line import hpxfer

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
QUICK = ("--seeds", "2", "--steps", "2")
SHAPE = '{"width": 32, "depth": 1, "dense_width": 32, "head_dim": 8}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return hpxfer(capsys, "check", "--module", "shop.model:build", *arguments)


@pytest.mark.usefixtures("folder")
def test_a_pass_is_a_table_and_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--recipe", "recipe.yaml", *QUICK)
    assert (code, err) == (0, "")
    assert out.startswith("mup (arXiv 2203.03466), adam, shop.model:build: sizes after up to 2 updates, 2 seeds")
    assert "width: width 32, 64, 128, 256" in out
    assert "width: passed (" in out
    assert "no proof that the HPs transfer" in out


def test_a_wiring_of_ones_own_that_is_wrong_is_exit_code_1_and_files_say_why(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE + OWN_OPTIMIZER)
    code, out, _ = run(capsys, "--recipe", "recipe.yaml", "--output", "out", *QUICK)
    assert code == 1
    assert "width: FAILED (" in out
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {"check.txt", "check.json", "check-width.png", "check-width.svg"}
    data = json.loads((folder / "out" / "check.json").read_text())
    missed = {(row["role"], row["quantity"]) for row in data["axes"][0]["judged"] if row["verdict"] == "miss"}
    assert ("dense_in", "first step") in missed


@pytest.mark.usefixtures("folder")
def test_options_make_the_recipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--parameterization", "mup", "--base", "base.json", "--hp", "lr=0.015", "--hp", "readout.init_mult=0.02")
    code, out, _ = run(capsys, *asked, "--points", "32,64,128,256", "--json", *QUICK)
    data = json.loads(out)
    assert (code, data["passed"], data["architecture"]) == (0, True, "shop.model:build")


def test_the_module_may_name_its_recipe(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE + "recipe = 'recipe.yaml'\n")
    assert run(capsys, "--seeds", "1", "--steps", "1")[1].startswith("mup (")
    del sys.modules["shop.model"]
    (folder / "shop" / "model.py").write_text(SOURCE + "recipe = 3\n")
    assert "shop.model.recipe: must be a Recipe or the path of one, got 3" in run(capsys)[2]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--module: needs a recipe, got none; give --recipe FILE"),
        (("--recipe", "nowhere.yaml"), "nowhere.yaml"),
        (("--recipe", "recipe.yaml", "--hp", "lr=1"), "--hp: the recipe says these; leave them out"),
        (("--parameterization", "mup"), "needs --recipe, or --parameterization, --base and --hp; got no --base"),
        (("--hp", "lr=1"), "got no --parameterization"),
        (("--parameterization", "mup", "--base", "base.json"), "hps: must give lr"),
        (("--parameterization", "mup", "--base", "base.json", "--hp", "lr"), "--hp must be NAME=NUMBER"),
        (("--parameterization", "mup", "--base", "base.json", "--hp", "lr=1", "--hp", "lr=2"), "--hp lr stands twice"),
        (("--parameterization", "mup", "--base", "base.json", "--hp", "lr=1", "--gate", "none"), "--gate"),
        (("--recipe", "recipe.yaml", "--sweep", "a.yaml"), "--sweep: --module brings a model of its own"),
        (("--recipe", "recipe.yaml", "--top-k", "2"), "--top-k: --module brings a model of its own"),
        (("--recipe", "recipe.yaml", "--axis", "width", "--axis", "depth"), "one axis at a time"),
        (("--recipe", "recipe.yaml", "--axis", "experts"), "--axis: must be width or depth"),
        (("--recipe", "recipe.yaml", "--seeds", "0"), "--seeds: must be from 1"),
    ],
)
def test_bad_input_is_one_message(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_an_error_in_the_users_code_is_one_message(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "shop" / "model.py").write_text(SOURCE.replace("Net(shape.width)", "Net(shape.widht)"))
    code, _, err = run(capsys, "--recipe", "recipe.yaml", *QUICK)
    assert code == 2
    assert "build at w32 d1 D32, seed 0: " in err
    assert "AttributeError" in err
    assert "model.py:12" in err.replace("\n", "")
    assert "Traceback" not in err


def test_its_options_need_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "check", "--parameterization", "mup", "--hp", "lr=1")
    assert code == 2
    assert "--hp: belongs to --module, got none" in err
