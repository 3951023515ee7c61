"""A user's mistake in a check of an own module is one message with the rule, what was got, where, and a fix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checked_models import MLP_ROLES, class_loss, mlp, mlp_recipe, samples
from torch import nn

import hpxfer
from hpxfer.coordinates.own.load import load_own
from hpxfer.coordinates.own.path import given_path, grown_path
from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import Shape

BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=16, head_dim=8, kv_heads=2, num_heads=4)


def check(**changes: Any) -> Any:
    parts: dict[str, Any] = {"build": mlp, "batch": samples, "loss_fn": class_loss, "recipe": mlp_recipe(), **changes}
    four = [parts.pop(name) for name in ("build", "batch", "loss_fn", "recipe")]
    return hpxfer.check_module(*four, **{"roles": MLP_ROLES, "sites": {"last": "readout"}, "steps": 1, **parts})


def raising(*given: Any) -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"build": raising}, r"build at w32 .*seed 0: .*got KeyError: .lost. .*own_faults.py:\d+\); mend"),
        ({"build": lambda shape: "model"}, r"build at .*must return a torch.nn.Module, got str; return"),
        (
            {"build": lambda shape: mlp(shape).requires_grad_(False)},
            r"build at .*parameters to train, got none; unfreeze",
        ),
        ({"build": lambda shape: mlp(shape).to("meta")}, r"build at .*must have memory, got meta ones: first.weight"),
        (
            {"batch": lambda shape: tuple(each.to("meta") for each in samples(shape))},
            r"loss_fn at .*must not raise, got .*; (the batch must lie on the model's device|mend)",
        ),
        (
            {"loss_fn": lambda model, batch: class_loss(model, batch) * float("nan")},
            r"finite number before training, got nan",
        ),
        (
            {"loss_fn": lambda model, batch: model(batch[0])},
            r"must return one number, got a tensor of size \(12, 5\); take its mean",
        ),
        ({"loss_fn": lambda model, batch: 1.0}, r"must return a scalar tensor, got float"),
        (
            {"loss_fn": lambda model, batch: class_loss(model, batch).detach()},
            r"got a loss without a gradient; do not detach it",
        ),
        ({"optimizer": raising}, r"optimizer at .*KeyError"),
        ({"optimizer": lambda model, shape: None}, r"must return a torch.optim.Optimizer, got NoneType"),
        (
            {"optimizer": lambda model, shape: torch.optim.AdamW(mlp(shape).parameters())},
            r"must hold parameters of the model that it is given, got only others",
        ),
        ({"batch": 3}, r"batch: must be a function batch\(shape\), got 3; define it"),
        ({"rolls": {}}, r"check_module: unexpected keyword argument 'rolls'"),
        ({"by_hand": "readout"}, r"by_hand: must be a list"),
        ({"roles": {**MLP_ROLES, "middle.weight": "dense_inn"}}, r"did you mean 'dense_in'"),
        ({"axis": "widht"}, r"--axis: must be width or depth, got 'widht'; did you mean 'width'"),
        ({"points": (32, 64)}, r"at least 4 values, got 2"),
        ({"shapes": "32"}, r"shapes: must be a list of shapes"),
        ({"shapes": [{"width": 32, "depth": 1}]}, r"shapes\[0\]: must have experts .* or a dense FFN"),
    ],
)
def test_a_mistake_is_one_message(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError, match=says):
        check(**changes)


def test_a_blow_up_after_the_first_update_is_a_finding() -> None:
    """The wide models diverge under this LR. That is what the check is for, and no mistake of the user."""

    report = check(optimizer=lambda model, shape: torch.optim.SGD(model.parameters(), lr=1e38), steps=2)
    assert not report.passed
    assert "diverged" in report.table()


def test_a_model_that_hooks_do_not_see_is_said() -> None:
    def by_functions(model: nn.Module, batch: Any) -> torch.Tensor:
        x = batch[0] @ model.first.weight.T
        return (x @ model.middle.weight.T @ model.last.weight.T).square().mean()

    with pytest.raises(HpxferError, match="hooks must see the modules of the model, got no call of any"):
        check(loss_fn=by_functions)


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A folder with the package `shop`, whose module `model` a test writes."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


GOOD = "def build(shape): ...\ndef batch(shape): ...\ndef loss_fn(model, batch): ...\n"


def test_the_functions_and_the_recipe_of_a_module_are_found(package: Path) -> None:
    (package / "shop" / "model.py").write_text(f"{GOOD}roles = {{'a': 'norm'}}\nrecipe = 'mine.yaml'\n")
    path = list(sys.path)
    found, recipe = load_own("shop.model:build", package)
    assert (found.name, found.roles, recipe) == ("shop.model:build", {"a": "norm"}, "mine.yaml")
    assert found.optimizer is None
    assert sys.path == path


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("shop.model", GOOD, "--module: must name a Python module and a function in it, e.g."),
        ("../shop/model:build", GOOD, "must name"),
        ("shop.modle:build", GOOD, "no Python module is called shop.modle in"),
        ("shop.model:biuld", GOOD, "got no biuld; did you mean 'build'"),
        ("shop.model:build", "def build(shape): ...\n", r"must define batch\(shape\), got no batch"),
        ("shop.model:build", f"{GOOD}import not_there\n", "must be importable, got ModuleNotFoundError"),
        ("shop.model:build", f"{GOOD}1 / 0\n", "must be importable, got ZeroDivisionError"),
        ("shop.model:build", "raise SystemExit(3)\n", "must be importable, got SystemExit"),
        ("shop.model:build", f"{GOOD}optimizer = 3\n", "optimizer: must be a function"),
    ],
)
def test_a_module_that_is_no_good_is_said(package: Path, name: str, source: str, says: str) -> None:
    (package / "shop" / "model.py").write_text(source)
    with pytest.raises(HpxferError, match=says):
        load_own(name, package)


def test_shapes_grow_with_all_that_follows_the_width() -> None:
    path = grown_path(BASE, "width", None)
    assert path.scales == (32, 64, 128, 256)
    last = path.shapes[-1]
    assert (last.expert_width, last.num_heads, last.kv_heads, last.head_dim) == (128, 32, 16, 8)
    assert grown_path(BASE, "depth", None).shapes[-1].depth == 16
    with pytest.raises(HpxferError, match="expert_width must be a whole number, got 16"):
        grown_path(BASE, "width", (32, 33, 64, 128))


def test_listed_shapes_are_sorted_and_must_differ() -> None:
    listed = [{"width": width, "depth": 1, "dense_width": 8} for width in (16, 8, 64, 32)]
    path = given_path("width", listed, None, None)
    assert path.scales == (8, 16, 32, 64)
    assert path.given[0] is listed[1]
    with pytest.raises(HpxferError, match="width of its own, got one twice"):
        given_path("width", [*listed, listed[0]], None, None)
    with pytest.raises(HpxferError, match="leave one out"):
        given_path("width", listed, None, (1, 2, 3, 4))
    with pytest.raises(HpxferError, match="did you mean 'width'"):
        given_path("widht", listed, None, None)
