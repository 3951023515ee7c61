"""A sweep with variants from the command line, read arm by arm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.cli import main

VARIANTS = """\
variants:
  default: {}
  tuned: {hps: {multipliers: {router.lr_mult: 0.25, embedding.forward_mult: 2}}}
  sign: {balance: {bias: sign}}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.yaml, with variants, and its finished run in results/."""
    folder = tmp_path_factory.mktemp("done")
    sweep = write_tiny(folder, ("workers: 2", "workers: 1"))  # each is a process that imports torch
    sweep.write_text(sweep.read_text() + VARIANTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hpxfer", "run", str(sweep), "--results", str(folder / "results")])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return folder


def test_from_file_to_recipe(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = done / "results"
    _, out, _ = hpxfer(capsys, "report", results / "tiny", "--json")
    findings = json.loads(out)["findings"]
    tables, variants = ("completep-moe", "sp"), ("", " (tuned)", " (sign)")
    names = {table + variant for table in tables for variant in variants}
    assert {finding["parameterization"] for finding in findings} == names
    for label, control in (("completep-moe", "sp"), ("completep-moe (tuned)", "sp (tuned)")):
        (finding,) = (each for each in findings if each["parameterization"] == label)
        assert finding["control"]["parameterization"] == control
    path = tmp_path / "mine.yaml"
    for arm in (("--variant", "tuned"), ("--parameterization", "completep-moe (tuned)")):
        code, _, err = hpxfer(capsys, "recipe", results / "tiny", *arm, "--output", path)
        assert code == 0, err
        assert "embedding.forward_mult: 2.0\n    router.lr_mult: 0.25\n" in path.read_text()
    assert hpxfer(capsys, "recipe", results / "tiny", "--output", path)[0] == 0
    assert "multipliers: {}" in path.read_text()


def test_rules_of_balance_side_by_side(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, results = done / "tiny.yaml", done / "results"
    code, out, err = hpxfer(capsys, "plan", sweep)
    assert code == 0, err
    assert "experts under default: a bias by the proportional rule, router_bias_lr 0.01\n" in out
    assert "experts under sign: a bias by the sign rule, router_bias_lr 0.01\n" in out
    assert "90 trials, all done" in hpxfer(capsys, "plan", sweep, "--results", results)[1]
    rules = {}
    for variant in ("default", "sign"):
        path = tmp_path / f"{variant}.yaml"
        assert hpxfer(capsys, "recipe", results / "tiny", "--variant", variant, "--output", path)[0] == 0
        rules[variant] = "bias_rule: sign\n" in path.read_text()
    assert rules == {"default": False, "sign": True}
    (figure,) = (results / "tiny" / "figures").glob("balance-*.csv")
    assert {"sp", "sp (sign)"} <= set(figure.read_text().replace('"', "").split(","))
