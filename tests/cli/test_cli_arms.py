"""A sweep of arms with HPs of their own from the command line, read arm by arm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.cli import main

OWN = (
    "name: tuned, hps: {multipliers: {router.lr_mult: 0.25, embedding.forward_mult: 2}}",
    "name: sign, balance: {bias: sign}",
)
ARMS = ["completep-moe", "sp", *(f"{{table: {table}, {own}}}" for own in OWN for table in ("completep-moe", "sp"))]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.yaml, with these arms, and its finished run in results/."""
    folder = tmp_path_factory.mktemp("done")
    arms = ("[completep-moe, sp]", f"[{', '.join(ARMS)}]")
    sweep = write_tiny(folder, ("workers: 2", "workers: 1"), arms)  # each is a process that imports torch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hpxfer", "run", str(sweep), "--results", str(folder / "results")])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return folder


@pytest.mark.slow
def test_from_file_to_recipe(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = done / "results"
    _, out, _ = hpxfer(capsys, "report", results / "tiny", "--json")
    findings = json.loads(out)["findings"]
    tables, own = ("completep-moe", "sp"), ("", " (tuned)", " (sign)")
    names = {table + name for table in tables for name in own}
    assert {finding["parameterization"] for finding in findings} == names
    for label, control in (("completep-moe", "sp"), ("completep-moe (tuned)", "sp (tuned)")):
        (finding,) = (each for each in findings if each["parameterization"] == label)
        assert finding["control"]["parameterization"] == control
    path = tmp_path / "mine.yaml"
    code, _, err = hpxfer(capsys, "recipe", results / "tiny", "--parameterization", "tuned")
    assert (code, "give completep-moe (tuned) or sp (tuned)" in err) == (2, True)
    arm = ("--parameterization", "completep-moe (tuned)")
    code, _, err = hpxfer(capsys, "recipe", results / "tiny", *arm, "--output", path)
    assert code == 0, err
    assert "embedding.forward_mult: 2.0\n    router.lr_mult: 0.25\n" in path.read_text()
    assert hpxfer(capsys, "recipe", results / "tiny", "--output", path)[0] == 0
    assert "multipliers: {}" in path.read_text()


def test_rules_of_balance_side_by_side(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, results = done / "tiny.yaml", done / "results"
    code, out, err = hpxfer(capsys, "plan", sweep)
    assert code == 0, err
    assert "experts of sp: a bias by the proportional rule, router_bias_lr 0.01\n" in out
    assert "experts of sp (sign): a bias by the sign rule, router_bias_lr 0.01\n" in out
    assert "90 trials, all done" in hpxfer(capsys, "plan", sweep, "--results", results)[1]
    rules = {}
    for arm in ("sp", "sp (sign)"):
        path = tmp_path / f"{arm}.yaml"
        assert hpxfer(capsys, "recipe", results / "tiny", "--parameterization", arm, "--output", path)[0] == 0
        rules[arm] = "bias_rule: sign\n" in path.read_text()
    assert rules == {"sp": False, "sp (sign)": True}
    (figure,) = (results / "tiny" / "figures").glob("balance-*.csv")
    assert {"sp", "sp (sign)"} <= set(figure.read_text().replace('"', "").split(","))
