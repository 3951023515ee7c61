"""Families: the suite on hpxfer's own and on that of docs/extend.md, which is also trained as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
from docs_markdown import blocks
from safetensors.torch import load_file

from hpxfer.registry import Registry, load_plugin, read_plugin
from hpxfer.testing.families import FamilySuite, expanded, three_trials

GPT = """\
name: suite
model:
  family: gpt
  base: {width: 16, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 1, head_dim: 8}
  context: 16
data: {source: "builtin:stdlib"}
training: {batch_tokens: 64, steps: 6, validation_tokens: 128}
parameterizations: [completep-moe, sp]
axes: {width: [16, 32]}
grid: {lr: {log2: [-8, -6]}}
seeds: 2
"""
MLP = """\
name: suite
model: {family: mlp, base: {width: 16, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 1}, gate: softmax}
data: {source: "builtin:shapes"}
training: {batch_samples: 32, steps: 6, validation_samples: 64}
parameterizations: [mup-i, sp]
axes: {width: [16, 32]}
grid: {lr: {log2: [-8, -6]}}
seeds: 2
"""
DIT = """\
name: suite
model:
  family: dit
  gate: normalized_sigmoid
  ffn: swiglu
  base:
    {width: 16, depth: 2, head_dim: 8, num_experts: 4, num_active: 2, expert_ratio: 1, shared_ratio: 1, num_shared: 1}
  dit: {patch: 4, positions: learned}
data: {source: "builtin:shapes"}
training: {batch_samples: 32, steps: 6, validation_samples: 64}
parameterizations: [complete-mue, sp]
axes: {width: [16, 32]}
grid: {lr: {log2: [-8, -6]}}
seeds: 2
"""


class TestGPT(FamilySuite):
    @pytest.fixture
    def sweep(self) -> str:
        return GPT


class TestDiT(FamilySuite):
    @pytest.fixture
    def sweep(self) -> str:
        return DIT


class TestMLP(FamilySuite):
    @pytest.fixture
    def sweep(self) -> str:
        return MLP


PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
(SOURCE,) = [block for block in blocks(PAGE, "python") if block.startswith("# tiny.py\n")]
(TINY,) = [block for block in blocks(PAGE, "yaml") if block.startswith("name: tiny\n")]


def registered(source: str, folder: Path) -> Iterator[str]:
    """Register the family of a plug-in with this source for the length of a test."""
    (folder / "tiny.py").write_text(source)
    plugin = read_plugin("./tiny.py", folder)
    try:
        load_plugin(plugin)
        yield TINY.replace("plugins: [./tiny.py]\n", "").replace("steps: 40", "steps: 6")
    finally:
        Registry.remove_module(plugin.module)
        sys.modules.pop(plugin.module, None)


class TestTiny(FamilySuite):
    @pytest.fixture
    def sweep(self, tmp_path: Path) -> Iterator[str]:
        yield from registered(SOURCE, tmp_path)


WRONG = {
    "test_parameters_have_the_roles_of_the_row": ('"embedding", "dense_in", ', '"embedding", '),
    "test_every_forward_multiplier_has_an_effect": ("down * down_mult", "down"),
    "test_every_parameter_learns": ("h_KTD + batched", "h_KTD + 0 * batched"),
    "test_a_stack_may_take_the_numbers_of_another": ("return self.factors", "return {}"),
    "test_the_memory_is_no_more_than_the_row_says": ("Memory(parts=", "Memory(parts={}) or Memory(parts="),
    "test_a_trial_has_the_same_bits_in_any_stack": (
        "        losses = head",
        "        h_KTD = h_KTD + h_KTD.mean(0)\n        losses = head",
    ),
    "test_a_stored_sweep_has_the_same_trials_without_the_code": (
        "    context: Count",
        "    def base_init(self, inputs=None):\n        return super().base_init(3)\n\n    context: Count",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_suite_finds_a_wrong_family(name: str, tmp_path: Path) -> None:
    old, new = WRONG[name]
    assert SOURCE.count(old) == 1
    for sweep in registered(SOURCE.replace(old, new), tmp_path):
        # Another batch than that of the right family: a plan asks a row once for the memory of a setting.
        expansion = expanded(sweep.replace("batch_tokens: 64", "batch_tokens: 128"))
        of_trials = "trials" in signature(getattr(FamilySuite, name)).parameters
        with pytest.raises((AssertionError, RuntimeError)):
            getattr(FamilySuite(), name)(three_trials(expansion) if of_trials else expansion)


@pytest.mark.slow
def test_a_family_of_a_plug_in_is_planned_trained_judged_and_written(tmp_path: Path) -> None:
    def hpxfer(*arguments: str, fails: bool = False) -> str:
        command = [sys.executable, "-m", "hpxfer", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stdout + done.stderr

    (tmp_path / "tiny.py").write_text(SOURCE)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert "42 to run" in hpxfer("plan", "tiny.yaml")
    assert "trials 24/24 done" in hpxfer("run", "tiny.yaml", "--set", "grid.lr.log2=[-9, -6]")
    assert "24 done, 18 to run" in hpxfer("plan", "tiny.yaml")  # what is stored is not trained again
    assert "trials 18/18 done" in hpxfer("run", "tiny.yaml")
    assert "42 trials, all done" in hpxfer("plan", "tiny.yaml")
    report, recipe = hpxfer("report", "results/tiny"), (tmp_path / "results" / "tiny" / "recipe.yaml").read_text()
    assert "probability" in report
    assert "family: tiny" in recipe
    assert "activation: tanh" in recipe
    hpxfer("recipe", "write", "results/tiny", "--output", "again.yaml")  # without the code
    assert (tmp_path / "again.yaml").read_text() == recipe
    assert "need its code" in hpxfer("weights", "results/tiny", "--best", "--out", "w", fails=True)
    hpxfer("weights", "results/tiny", "--best", "--out", "w", "--plugin", "tiny.py")
    names = set(load_file(tmp_path / "w" / "model.safetensors"))
    assert len([name for name in names if "up" in name]) == 2
    assert "must be gpt or dit or mlp for a check" in hpxfer("check", "--sweep", "tiny.yaml", fails=True)
    (tmp_path / "target.json").write_text('{"width": 64, "depth": 2, "dense_width": 128}')
    export = ["recipe", "export", "again.yaml", "--to", "json", "--shape", "target.json", "--plugin", "tiny.py"]
    assert "must be of the family gpt or user" in hpxfer(*export, fails=True)
    explained = hpxfer("explain", "--recipe", "again.yaml", "--target", "target.json", "--plugin", "tiny.py")
    assert "dense_out" in explained
    assert "attn_q" not in explained
