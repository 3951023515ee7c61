"""A table from a file outside the package: loaded, explained, checked, and refused in words where it is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import hpxfer
from fixture_types import Capsys

from hpxfer.errors import HpxferError
from hpxfer.registry import load_plugin, read_plugin
from hpxfer.registry.rows import Registry
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.testing.parameterization import ParameterizationSuite

FILE = """
import hpxfer
from hpxfer.scaling import Convention, Row, Table
from hpxfer.scaling.monomial import ZERO, depth, width

SOURCE = "an experiment of mine"
BRANCH = depth**-1
GAMMA = Convention(default=1.0, legal=("between", 0.0, 1.0), doc="the LR of hidden matrices falls as width^-gamma")


def rows(conventions):
    lr = width ** -float(conventions["gamma"])
    hidden = {"init_std": width**-0.5, "lr": lr, "eps": width**-1 * BRANCH, "weight_decay": lr**-1}
    outer = {"eps": width**-1}
    gain = {"eps": width**-1 * BRANCH, "weight_decay": ZERO}
    return (
        Row(role="embedding", **outer, source=SOURCE),
        Row(role="position", **outer, weight_decay=ZERO, source=SOURCE),
        Row(role="norm", **gain, source=SOURCE),
        Row(role="final_norm", **outer, weight_decay=ZERO, source=SOURCE),
        Row(role="hidden_bias", init_std=ZERO, **gain, source=SOURCE),
        *(Row(role=role, **hidden, source=SOURCE) for role in ("attn_q", "attn_k", "attn_v", "dense_in", "dense_gate")),
        *(Row(role=role, **hidden, forward=BRANCH, source=SOURCE) for role in ("attn_out", "dense_out")),
        Row(role="readout", **outer, forward=width**-1, source=SOURCE),
    )


hpxfer.register_parameterization(
    Table(
        name="mine",
        source=SOURCE,
        axes=("width", "depth"),
        rows={"adam": rows},
        conventions={"gamma": GAMMA},
        doc="A dense transformer: width and depth.",
    )
)
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Yield a plug-in file that no process has imported; take its rows out afterwards."""
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    yield path
    module = read_plugin(str(path), Path()).module
    Registry.remove_module(module)
    sys.modules.pop(module, None)


@pytest.fixture
def loaded(file: Path) -> str:
    load_plugin(read_plugin(str(file), Path()))
    return "mine"


class TestMine(ParameterizationSuite):
    @pytest.fixture
    def name(self, loaded: str) -> str:
        return loaded


def test_a_table_from_outside_is_a_table_like_the_others(loaded: str) -> None:
    assert parameterization(loaded, {"gamma": 0.5}).label() == "mine[gamma=0.5]"
    assert PARAMETERIZATIONS.module(loaded) is not None
    with pytest.raises(HpxferError, match="unknown parameterization 'minee'; did you mean 'mine'"):
        parameterization("minee")


def test_explain_shows_it(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    shape = {"width": 64, "depth": 2, "dense_width": 128, "head_dim": 32}
    base, target = tmp_path / "base.json", tmp_path / "target.json"
    base.write_text(json.dumps(shape), encoding="utf-8")
    target.write_text(json.dumps({**shape, "width": 256, "depth": 8, "dense_width": 512}), encoding="utf-8")
    plugin = ("--plugin", file, "--parameterization", "mine")
    code, out, _ = hpxfer(capsys, "explain", *plugin, "--base", base, "--target", target, "--json")
    assert code == 0
    assert json.loads(out)["roles"]["attn_out"] == {
        "init_std": 0.5, "lr": 0.25, "eps": 0.0625, "weight_decay": 4.0, "forward": 0.25
    }  # fmt: skip


@pytest.mark.parametrize(("gamma", "code", "stable"), [("1", 0, "yes"), ("0", 1, "NO")])
def test_check_gives_two_answers_and_an_exit_code(
    file: Path, capsys: Capsys, gamma: str, code: int, stable: str
) -> None:
    asked = ("--parameterization", "mine", "--convention", f"gamma={gamma}", "--axis", "width")
    got, out, _ = hpxfer(
        capsys, "check", "--plugin", file, *asked, "--points", "16,32,64,128", "--seeds", "3", "--steps", "2"
    )
    assert got == code
    follows, size, verdict = out.splitlines()[-3:]
    assert follows.startswith("width: the model follows the table: yes (")
    assert size.startswith(f"width: features keep their size: {stable} (")
    assert verdict.startswith("width: FAILED" if code else "width: passed")


@pytest.mark.slow
def test_json_and_figures_have_both_answers(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    asked = ("--parameterization", "mine", "--axis", "depth", "--seeds", "2", "--steps", "1")
    code, out, _ = hpxfer(capsys, "check", "--plugin", file, *asked, "--json", "--output", tmp_path / "out")
    (axis,) = json.loads(out)["axes"]
    assert (code, axis["follows"], axis["stable"], axis["passed"]) == (0, True, True, True)
    assert {judged["role"] for judged in axis["stability"]} >= {"stream", "attn_out", "dense_out"}
    assert (tmp_path / "out" / "check-depth.png").exists()
    assert json.loads((tmp_path / "out" / "check.json").read_text())["axes"][0]["stable"] is True


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"attn_q", ', '"query", ', "parameterization mine, adam: unknown role 'query'"),
        ('name="mine"', 'name="sp"', "parameterization 'sp' is registered already, by hpxfer; choose another name"),
        ("import hpxfer", "import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ('"attn_v", ', "", "got none for attn_v; add them to its adam column"),
        ("", "", "--axis experts: mine is for dense models"),
    ],
)
def test_a_mistake_in_the_file_or_an_axis_that_it_lacks_is_said_in_words(
    file: Path, capsys: Capsys, old: str, new: str, says: str
) -> None:
    file.write_text(FILE.replace(old, new, 1), encoding="utf-8")
    axis = "width" if old else "experts"
    code, out, err = hpxfer(capsys, "check", "--plugin", file, "--parameterization", "mine", "--axis", axis)
    assert (code, out) == (2, "")
    assert says in err
    assert (f"plugins: {file}:" in err and ": importing it failed: " in err) == bool(new)
