"""A table from a file outside the package: loaded, explained, checked, and refused in words where it is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import hpxfer

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
        Row(role="attn_q", **hidden, source=SOURCE),
        Row(role="attn_k", **hidden, source=SOURCE),
        Row(role="attn_v", **hidden, source=SOURCE),
        Row(role="attn_out", **hidden, forward=BRANCH, source=SOURCE),
        Row(role="dense_in", **hidden, source=SOURCE),
        Row(role="dense_gate", **hidden, source=SOURCE),
        Row(role="dense_out", **hidden, forward=BRANCH, source=SOURCE),
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
    module = read_plugin(str(path), Path()).plugin.module
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


def test_explain_shows_it(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("gamma", "code", "answers"),
    [
        (
            "1",
            0,
            ("width: the model follows the table: yes (", "width: features keep their size: yes (", "width: passed"),
        ),
        (
            "0",
            1,
            ("width: the model follows the table: yes (", "width: features keep their size: NO (", "width: FAILED"),
        ),
    ],
)
def test_check_gives_two_answers_and_an_exit_code(
    file: Path, capsys: pytest.CaptureFixture[str], gamma: str, code: int, answers: tuple[str, ...]
) -> None:
    asked = (
        "--parameterization",
        "mine",
        "--convention",
        f"gamma={gamma}",
        "--axis",
        "width",
    )
    got, out, _ = hpxfer(capsys, "check", "--plugin", file, *asked, "--seeds", "4", "--steps", "2")
    assert got == code
    lines = out.splitlines()
    assert [line.startswith(answer) for line, answer in zip(lines[-3:], answers, strict=True)] == [True] * 3


@pytest.mark.slow
def test_json_and_figures_have_both_answers(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        ('role="attn_q"', 'role="query"', "parameterization mine, adam: unknown role 'query'"),
        ('role="attn_q"', 'role="attn_k"', "a role must have one row, got two for attn_k"),
        ("forward=width**-1", "forward=0.5", "readout: forward must be a monomial such as width**-1, got 0.5"),
        ('name="mine"', 'name="sp"', "parameterization 'sp' is registered already, by hpxfer; choose another name"),
        ("import hpxfer", "import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_mistake_in_the_file_is_said_in_words(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    file.write_text(FILE.replace(old, new, 1), encoding="utf-8")
    code, out, err = hpxfer(capsys, "check", "--plugin", file, "--parameterization", "mine", "--axis", "width")
    assert (code, out) == (2, "")
    assert f"plugins: {file}:" in err
    assert ": importing it failed: " in err
    assert says in err


def test_a_role_without_a_row_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE.replace('        Row(role="attn_v", **hidden, source=SOURCE),\n', ""), encoding="utf-8")
    code, _, err = hpxfer(capsys, "check", "--plugin", file, "--parameterization", "mine", "--axis", "width")
    assert code == 2
    assert "got none for attn_v; add them to its adam column" in err


def test_an_axis_for_experts_needs_expert_rows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "check", "--plugin", file, "--parameterization", "mine", "--axis", "experts")
    assert code == 2
    assert "--axis experts: mine is for dense models" in err
