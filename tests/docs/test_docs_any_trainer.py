"""The page "Any trainer", followed word by word in an empty folder: its files, its commands, its verdict's numbers."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from docs_markdown import blocks

from hpxfer.cli.init import examples
from hpxfer.results import load_results
from hpxfer.spec.yaml_file import parse_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "any_trainer.md").read_text(encoding="utf-8")
TOUR = PAGE.partition("## Examples\n")[0]
BEFORE, AFTER = blocks(TOUR, "python")
(SWEEP,) = blocks(TOUR, "yaml")
COMMANDS = [line for block in blocks(TOUR, "sh") for line in block.splitlines()]
# A smaller grid, so that the test takes seconds.
SMALLER = (
    "axes.width=[32, 64]",
    "grid.lr.log2=[-8, -5]",
    "seeds=1",
    "training.steps=60",
    "training.final_window_steps=10",
)


def test_the_tour_names_its_commands() -> None:
    assert [line.split()[1] for line in COMMANDS] == ["plan", "run", "report", "check", "recipe"]


@pytest.mark.slow
def test_the_tour_is_walked_in_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    Path("train.py").write_text(AFTER)
    Path("sweep.yaml").write_text(SWEEP)
    smaller = [part for override in SMALLER for part in ("--set", override)]
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        has_set = "sweep.yaml" in words and words[0] != "check"
        code, out, err = hpxfer(capsys, *words, *(smaller if has_set else ()))
        # A verdict that is decided needs no sweep that would decide it.
        assert code == 0 or "--write-followup" in words, out + err
    results = load_results(tmp_path / "results" / "mine")
    assert set(results.trials["status"]) <= {"finished", "diverged"}
    assert len(results.trials) == 2 * 2 * 4
    assert (tmp_path / "results" / "mine" / "report.html").exists()
    assert (tmp_path / "results" / "mine" / "recipe.yaml").exists()


def test_the_script_before_and_after_trains_alike_at_the_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is added changes nothing at the base: the last loss is that of the script before, to the bit."""
    exec(compile(BEFORE, "before", "exec"), {})
    before = float(capsys.readouterr().out)
    source = AFTER.replace("json.load(open(sys.argv[1]))", "CONFIG")
    assert source != AFTER
    for power in (0, 1):
        lines: list[str] = []
        config = {
            "shape": {"width": 32},
            "base_shape": {"width": 32},
            "hps": {"lr": 2**-6},
            "args": {"power": power},
            "seed": 0,
            "steps": 300,
            "report_file": str(tmp_path / f"{power}.jsonl"),
        }
        exec(compile(source, "after", "exec"), {"CONFIG": config})
        lines = (tmp_path / f"{power}.jsonl").read_text().splitlines()
        assert ast.literal_eval(lines[-1]) == {"type": "report", "step": 299, "loss": before}
        assert np.isfinite(before)


def test_the_sweep_and_the_script_are_those_of_the_example() -> None:
    """The verdict that the page shows was measured with the example: same grid, seeds, steps and network."""
    page = parse_yaml(SWEEP, "page").data
    example = parse_yaml(examples()["own_numpy"].read_text(), "example").data
    for key in ("training", "axes", "grid", "seeds", "judge", "model"):
        assert page[key] == example[key]
    assert page["trainer"]["arms"] == example["trainer"]["arms"]
    function = examples()["own_numpy"].with_name("train.py").read_text()
    for line in ("error = k @ w[2]", "mean[i], square[i] = 0.9", "dk = error @", "x = rng.normal"):
        (of_page,) = (each.strip() for each in AFTER.splitlines() if each.strip().startswith(line))
        assert of_page in function


def test_the_examples_that_the_page_names_exist() -> None:
    named = [line.split("`")[1].split() for line in PAGE.splitlines() if line.startswith("| `hpxfer init ")]
    assert {words[2] for words in named} == {name for name in examples() if name.startswith("own_")}
