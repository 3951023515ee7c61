"""The pages "Any trainer" and "Extend", followed word by word: their files, commands, sweeps and numbers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import hpxfer
from docs_markdown import blocks
from tiny import write_tiny

from hpxfer import all_figures, analyze, run
from hpxfer.cli.init import examples
from hpxfer.registry import KINDS, load_plugin, read_plugin, registry
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.spec.yaml_file import parse_yaml, read_yaml, write_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "any_trainer.md").read_text(encoding="utf-8")
TOUR = PAGE.partition("## From your train.py to a verdict\n")[2].partition("\n## ")[0]
(SCRIPT,) = blocks(TOUR, "python")
(SWEEP,) = blocks(TOUR, "yaml")
COMMANDS = [line for block in blocks(TOUR, "sh") for line in block.splitlines()]
# A smaller grid, so that the test takes seconds.
SMALLER = ("axes.width=[32, 64]", "grid.lr.log2=[-8, -5]", "seeds=1")
SMALLER += ("training.steps=60", "training.final_window_steps=10")


@pytest.mark.slow
def test_the_tour_is_walked_in_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    Path("train.py").write_text(SCRIPT)
    Path("sweep.yaml").write_text(SWEEP)
    assert [line.split()[1] for line in COMMANDS] == ["plan", "check", "run", "recipe"]
    smaller = [part for override in SMALLER for part in ("--set", override)]
    for line in COMMANDS:
        words = shlex.split(line, comments=True)[1:]
        has_set = "sweep.yaml" in words and words[0] != "check"
        code, out, err = hpxfer(capsys, *words, *(smaller if has_set else ()))
        assert code == 0, out + err
    results = load_results(tmp_path / "results" / "mine")
    assert set(results.trials["status"]) <= {"finished", "diverged"}
    assert len(results.trials) == 2 * 2 * 4
    assert (tmp_path / "results" / "mine" / "report.html").exists()
    assert (tmp_path / "results" / "mine" / "recipe.yaml").exists()


def test_the_arms_of_the_script_train_alike_at_the_base(tmp_path: Path) -> None:
    """The rule changes nothing at the base: both arms have the same losses, to the bit."""
    source = SCRIPT.replace("json.load(open(sys.argv[1]))", "CONFIG")
    assert source != SCRIPT
    found = []
    for power in (0, 1):
        config = {
            "shape": {"width": 32},
            "base_shape": {"width": 32},
            "hps": {"lr": 2**-6},
            "args": {"power": power},
            "seed": 0,
            "steps": 300,
            "report_file": str(tmp_path / f"{power}.jsonl"),
        }
        exec(compile(source, "script", "exec"), {"CONFIG": config})
        found.append([json.loads(line) for line in (tmp_path / f"{power}.jsonl").read_text().splitlines()])
    assert found[0] == found[1]
    assert [line["step"] for line in found[0]] == list(range(300))
    assert found[0][-1]["loss"] < found[0][0]["loss"]


def test_the_sweep_and_the_script_are_those_of_the_example() -> None:
    """The verdict that the page shows was measured with the example: same grid, seeds, steps and network."""
    page = parse_yaml(SWEEP, "page").data
    example = parse_yaml(examples()["own_numpy"].read_text(), "example").data
    for key in ("training", "axes", "grid", "seeds", "judge", "model"):
        assert page[key] == example[key]
    assert page["trainer"]["arms"] == example["trainer"]["arms"]
    function = examples()["own_numpy"].with_name("train.py").read_text()
    for line in ("error = k @ w[2]", "mean[i], square[i] = 0.9", "dk = error @", "x = rng.normal"):
        (of_page,) = (each.strip() for each in SCRIPT.splitlines() if each.strip().startswith(line))
        assert of_page in function
    named = [line.split("`")[1].split() for line in PAGE.splitlines() if line.startswith("| `hpxfer init ")]
    assert {words[2] for words in named} == {name for name in examples() if name.startswith("own_")}


EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
FILES = {
    found.group(1): block for block in blocks(EXTEND, "python") if (found := re.match(r"# (?!test_)(\w+\.py)\n", block))
}
REGISTERS = {
    "gates.py": ("gate", "softplus"),
    "tables.py": ("parameterization", "mine"),
    "my_statistics.py": ("statistic", "spread"),
    "lines.py": ("logger", "lines"),
    "tiny.py": ("family", "tiny"),
}
SWEEPS = list(blocks(EXTEND, "yaml"))


def registered() -> set[tuple[str, str]]:
    """Return (kind, name) of every row that is not hpxfer's."""
    return {(kind, name) for kind in KINDS for name in registry(kind) if registry(kind).module(name) is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the files of the page. What they register is taken out again."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before, modules = registered(), set(sys.modules)
    yield tmp_path
    for kind, name in registered() - before:
        registry(kind).remove(name)
    for module in set(sys.modules) - modules:
        if module.startswith("hpxfer_plugin_"):
            del sys.modules[module]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_plug_in_of_the_page_registers_one_row(folder: Path, name: str) -> None:
    before = registered()
    load_plugin(read_plugin(f"./{name}", folder))
    assert registered() - before == {REGISTERS[name]}
    if name == "my_statistics.py":
        results = load_results(ROOT / "results" / "published" / "quickstart")
        analysis = analyze(results)
        spread = analysis.found("spread").frame["spread_nats"]
        assert len(spread) == 6  # two parameterizations at three widths
        assert (spread > 0).all()
        figures, _ = all_figures(results, analysis)
        assert "spread" in {figure.name for figure in figures}


def test_the_kinds_the_plug_ins_and_the_sweeps_of_the_page_are_all_there_are(folder: Path) -> None:
    walks = re.findall(r"^## Walk through: an? (.+)$", EXTEND, re.MULTILINE)
    rows = re.findall(
        r"^\| ([a-z ]+) \| [^`]", EXTEND.partition("## The other kinds")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert {*walks, *rows} - {"to add"} == set(KINDS)
    assert set(FILES) == set(REGISTERS)
    data = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data
    (whole,) = [text for text in SWEEPS if "name" in parse_yaml(text, "extend.md").data]
    (folder / "tiny.yaml").write_text(whole)
    assert load_sweep(folder / "tiny.yaml").model.family == "tiny"
    for text in SWEEPS:  # parts of a sweep
        if text == whole:
            continue
        part = parse_yaml(text, "extend.md").data
        (folder / "sweep.yaml").write_text(
            write_yaml({**data, **part, "model": {**data["model"], **part.get("model", {})}})
        )
        spec = load_sweep(folder / "sweep.yaml")
        assert spec.plugins
    assert (spec.model.gate, spec.resources.loggers) == ("softplus", ("lines", "tensorboard"))


@pytest.mark.slow
def test_the_logger_of_the_page_shows_every_trial(folder: Path) -> None:
    logged = ("workers: 2}", "workers: 2, loggers: [lines]}\nplugins: [./lines.py]")
    results = run(write_tiny(folder, logged, ("seeds: 2", "seeds: 1")), results=folder)
    lines = [json.loads(line) for line in (folder / "tiny" / "lines.jsonl").read_text().splitlines()]
    assert len({name for name, *_ in lines}) == len(results.trials)
    ends = [values["status"] for _, step, values in lines if step == 6]
    assert ends == ["finished"] * len(results.trials)
    assert any("train_loss_nats" in values for _, _, values in lines)
    registry("logger").remove("lines")
    assert len(load_results(folder / "tiny").trials) == len(results.trials)  # without the code


def test_the_shapes_of_the_page_are_explained_under_its_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    shape = {"width": 32, "depth": 2, "head_dim": 32, "num_experts": 4, "num_active": 1, "expert_width": 32}
    Path("base.json").write_text(json.dumps(shape))
    Path("target.json").write_text(json.dumps({**shape, "width": 128, "expert_width": 128}))
    (command,) = re.findall(r"^hpxfer (explain .+)$", EXTEND, re.MULTILINE)
    code, out, _ = hpxfer(capsys, *command.split())
    assert code == 0
    assert "width^-0.5" in out


@pytest.mark.slow
def test_the_suite_of_the_page_passes(folder: Path) -> None:
    (block,) = [block for block in blocks(EXTEND, "python") if block.startswith("# test_gates.py")]
    (folder / "test_gates.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b([5-9]|\d\d) passed", done.stdout)
