"""The shipped gates, broken ones that the suite must refuse, and a gate and a data source of a plug-in in training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpxfer.data import data_ref
from hpxfer.errors import HpxferError
from hpxfer.model.gates import GATES, Gate, require_sound
from hpxfer.plan.packing import (
    Packer,
)
from hpxfer.registry import Registry, load_plugin, read_plugin, registry
from hpxfer.spec import parse_sweep
from hpxfer.testing.data_sources import DataSourceSuite
from hpxfer.testing.gates import GateSuite
from hpxfer.train.trainer import train
from hpxfer.trial import Expansion
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult

SIGMOID, SOFTMAX = GATES.get("sigmoid"), GATES.get("softmax")


class TestShippedGates(GateSuite):
    @pytest.fixture(params=GATES.names())
    def gate(self, request: pytest.FixtureRequest) -> Gate:
        return GATES.get(request.param)


BROKEN = {
    "no formula": (replace(SIGMOID, formula=""), "has_a_name_and_a_formula"),
    "half precision": (replace(SIGMOID, scores=lambda x, _: x.bfloat16().sigmoid()), "shapes_and_dtypes"),
    "overflow": (replace(SIGMOID, scores=lambda x, _: x.exp()), "extreme_logits_give_finite_numbers"),
    "negative": (replace(SIGMOID, scores=lambda x, _: x.tanh()), "scores_and_weights_are_not_negative"),
    "falling": (replace(SIGMOID, scores=lambda x, _: (-x).sigmoid()), "a_larger_logit_has_no_smaller_score"),
    "claims a sum over the active": (replace(SIGMOID, sums_to_one_over="active"), "weights_sum_to_one_as_the_row_says"),
    "hides its sum over all": (replace(SOFTMAX, sums_to_one_over=None), "weights_sum_to_one_as_the_row_says"),
    "forgets the route scale": (
        replace(SOFTMAX, scores=lambda x, _: x.softmax(-1)),
        "weights_sum_to_one_as_the_row_says",
    ),
    "reads other trials": (
        replace(SIGMOID, scores=lambda x, _: x.softmax(0)),
        "a_trial_has_the_same_bits_in_any_stack",
    ),
    "reads other tokens": (replace(SIGMOID, scores=lambda x, _: x.softmax(1)), "a_token_does_not_depend_on_the_others"),
    "a gradient of its own": (
        replace(SIGMOID, scores=lambda x, _: x.sigmoid() + (x - x.detach()).abs() - x + x.detach()),
        "gradients_are_those_of_the_weights",
    ),
    "another score in the kernel": (replace(SOFTMAX, score_in_kernel="softmax"), "the_kernel_chooses_by_the_scores"),
    "no gradient": (
        replace(SIGMOID, name="stuck", scores=lambda x, _: x.detach().sigmoid()),
        "the_router_of_a_model_learns",
    ),
}


@pytest.mark.parametrize(("gate", "test"), BROKEN.values(), ids=BROKEN)
def test_a_broken_gate_is_refused(gate: Gate, test: str) -> None:
    suite: Any = GateSuite()
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(suite, f"test_{test}")(gate)


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        (
            replace(SOFTMAX, score_in_kernel="sofmax"),
            "must be None or one of sigmoid, softmax, scaled_softmax, got 'sofm",
        ),
        (replace(SOFTMAX, score_in_kernel="softmax"), "is 'softmax', but scores computes something else; leave"),
    ],
)
def test_a_score_in_the_kernel_that_is_another_is_refused(gate: Gate, says: str) -> None:
    with pytest.raises(HpxferError, match=f"gate {gate.name}: score_in_kernel {says}"):
        require_sound(gate)


def test_shipped_gates_are_sound() -> None:
    for name in GATES.names():
        require_sound(GATES.get(name))


PLUGIN = '''
"""A gate of squared sigmoids, .npy files, signed gradients and a decay by the root."""
import glob

import numpy as np

from hpxfer.data.sources import DataFile, Dataset, DataSource, register_data_source
from hpxfer.model.gates import Gate, register_gate

register_gate(
    Gate(
        name="squared_sigmoid",
        formula="sigmoid(router logit)^2",
        sums_to_one_over=None,
        scores=lambda logits, route_scale: logits.sigmoid() * logits.sigmoid(),
    )
)


def open_npy(pattern):
    files = []
    for path in sorted(glob.glob(pattern)):
        ids = np.load(path, mmap_mode="r")
        with open(path, "rb") as file:
            header = file.read(ids.offset)
        files.append(DataFile(path=path, num_tokens=len(ids), dtype=ids.dtype.str, header=header))
    return Dataset(format="npy", parts=tuple(files), token_bytes=4) if files else None


register_data_source(DataSource(name="npy", usage="npy:GLOB", tokenizers={"mine": 64}, open=open_npy))
'''
SWEEP = """
name: plugged
model:
  family: gpt
  base: {{width: 16, depth: 1, num_experts: 4, num_active: 2, expert_ratio: 1, head_dim: 16}}
  context: 16
  gate: {gate}
data: {{source: "{source}"}}
training:
  batch_tokens: 64
  steps: 12
  validation_tokens: 64
parameterizations: [sp]
axes: {{width: [16]}}
grid: {{lr: [0.01]}}
seeds: 2
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "mine.py").write_text(PLUGIN)
    module = load_plugin(read_plugin("mine.py", tmp_path))
    yield module.__name__
    Registry.remove_module(module.__name__)
    del sys.modules[module.__name__]


@pytest.fixture
def source(plugin: str, tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        # Runs of equal tokens: a model can learn them.
        np.save(tmp_path / f"{name}.npy", np.repeat(rng.integers(0, 64, 400, dtype=np.uint32), 4))
    return f"npy:{tmp_path}/*.npy"


class TestTheGate(GateSuite):
    @pytest.fixture
    def gate(self, plugin: str) -> Gate:
        return GATES.get("squared_sigmoid")


class TestTheDataSource(DataSourceSuite):
    pass


def trained(source: str, gate: str) -> tuple[TrialResult, ...]:
    spec = parse_sweep(SWEEP.format(source=source, gate=gate))
    (stack,) = Packer().pack(Expansion(spec, data_ref(spec.data)).trials())
    *_, end = train(stack, "cpu")
    assert isinstance(end, Ended)
    return end.results


@pytest.mark.usefixtures("plugin")
def test_what_a_plugin_registers_trains(source: str) -> None:
    plain, own = trained(source, "sigmoid"), trained(source, "squared_sigmoid")
    for result in own:
        (losses,) = (curve.values for curve in result.curves if curve.metric == "train_loss_nats")
        assert result.status == "finished"
        assert losses[-1] < losses[0]
    assert [result.validation_loss_nats for result in own] != [result.validation_loss_nats for result in plain]


@pytest.mark.slow
def test_a_sweep_of_a_plugins_rows_runs_and_its_results_need_no_code(source: str, tmp_path: Path) -> None:
    """Driver and workers import the plug-in that the sweep names. The commands that read results import nothing."""
    text = SWEEP.format(source=source, gate="squared_sigmoid").replace("[0.01]", "[0.001, 0.004, 0.016]")
    (tmp_path / "sweep.yaml").write_text(f"plugins: [./mine.py]\n{text}")
    run = ("run", "sweep.yaml", "--executor", "local")
    for command in (run, ("report", "results/plugged"), ("recipe", "write", "results/plugged"), ("list",)):
        end = subprocess.run(
            [sys.executable, "-m", "hpxfer.cli", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert end.returncode == 0, f"{command}: {end.stderr}"
        if command[0] != "run":
            (tmp_path / "mine.py").unlink(missing_ok=True)


def test_a_plugin_that_is_gone_leaves_no_row(plugin: str) -> None:
    assert registry("gate").module("squared_sigmoid") == plugin
    Registry.remove_module(plugin)
    for kind, name in (("gate", "squared_sigmoid"), ("data source", "npy")):
        assert name not in registry(kind)
