"""`hpxfer limit` as a user calls it: network files, sweep files, text, JSON, and every kind of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import hpxfer
from fixture_types import Capsys, Patch

from hpxfer.cli import limit as command
from hpxfer.limit import Batch, Given, Network, solve
from hpxfer.limit.of_trials import limit_of_sweep
from hpxfer.spec import load_sweep

ROOT = Path(__file__).parents[2]
INPUTS = ROOT / "tests" / "golden" / "inputs"
SMALL = ("--sites", 256, "--seeds", 2)
LINEAR = {"input_activation": "linear", "activation": "linear", "loss": "squared_error"}
ONE = {"width": 64, "num_experts": 3, "num_active": 3, "expert_ratio": 1}
IN_I: dict[str, Any] = {  # the smallest question that has an answer
    "regime": "I",
    "parameterization": "mup",
    "model": {"base": ONE, "mlp": {**LINEAR, "expert_matrices": 1}},
    "training": {"steps": 2},
}
Limit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def limit(capsys: Capsys, tmp_path: Path) -> Limit:
    """Return a call of `hpxfer limit` with a network, which is written to a file, and options."""

    def call(network: Any, *arguments: object) -> tuple[int, str, str]:
        if isinstance(network, dict):
            (tmp_path / "network.yaml").write_text(yaml.safe_dump(network))
            network = tmp_path / "network.yaml"
        code, out, err = hpxfer(capsys, "limit", network, *arguments)
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[str, str]:
    """The names of two files of samples beside the network file."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((3, 4)))
    np.save(tmp_path / "y.npy", rng.standard_normal(3))
    return "x.npy", "y.npy"


def changed(data: dict[str, Any], /, **changes: Any) -> dict[str, Any]:
    """Return data with keys changed. The key `a__b` is `a: {b: ...}`."""
    out = {**data}
    for name, value in changes.items():
        key, _, rest = name.partition("__")
        out[key] = changed(out.get(key, {}), **{rest: value}) if rest else value
    return out


def test_the_first_sentence_says_what_was_solved_and_a_long_solution_its_time(limit: Limit, monkeypatch: Patch) -> None:
    code, out, err = limit(INPUTS / "regime_ii.yaml", *SMALL)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("The limit of regime II under MSSP (M/N = 0.5, N_e = 2): the loss goes from 1.167 to ")
    assert lines[2] == "256 sites, 2 seeds."
    assert lines[4].split() == [*("update", "loss", "E", "phi", "Var", "phi", "E", "psi", "Var", "psi", "|h1|", "|h3|")]
    assert [line.split()[0] for line in lines[5:8]] == ["0", "1", "2"]
    monkeypatch.setattr(command, "LONG_S", 0.0)
    assert "solving: about 0 s on one core" in limit(INPUTS / "regime_ii.yaml", *SMALL)[2]


def test_json_holds_the_question_and_the_numbers_of_the_library(
    limit: Limit, arrays: tuple[str, str], tmp_path: Path
) -> None:
    hps = {"lr": 0.2, "multipliers": {"readout.forward_mult": 2}}
    code, out, _ = limit(changed(IN_I, hps=hps, data=dict(zip(("inputs", "targets"), arrays, strict=True))), "--json")
    found = json.loads(out)
    batch = Batch(inputs=np.load(tmp_path / "x.npy"), targets=np.load(tmp_path / "y.npy")[:, None])
    mults: dict[str, Any] = {"init_mult": {"readout": 2.0}, "lr_mult": {"readout": 4.0}}
    network = Network(regime="I", parameterization="mup", num_experts=3, expert_matrices=1, **mults)
    expected = solve(network, Given.full_batch(batch, steps=2, lr=0.2))
    assert (code, found["exact"], found["training"]["lrs"]) == (0, True, [0.2, 0.2])
    assert found["series"]["loss"]["mean"] == expected.series["loss"].mean.tolist()
    assert found["series"]["loss"]["error"] == [0.0, 0.0, 0.0]
    assert np.allclose(found["outputs"], expected.outputs)
    assert found["network"]["init_mult"] == {"readout": 2.0}


@pytest.mark.parametrize(("name", "arm"), [("limit_regime_ii", "mssp-ii"), ("limit_regime_i_soft", "mup-i")])
def test_a_sweep_file_is_a_network_file(name: str, arm: str, limit: Limit) -> None:
    path = ROOT / "sweeps" / "limit" / f"{name}.yaml"
    network, given = limit_of_sweep(load_sweep(path), arm=arm)
    code, out, _ = limit(path, "--arm", arm, *SMALL, "--json")
    found = json.loads(out)
    assert (code, found["training"]["lrs"]) == (0, list(given.lrs))
    assert found["network"]["experts_per_width"] == network.experts_per_width
    assert found["series"]["loss"]["mean"] == solve(network, given, sites=256, seeds=2).series["loss"].mean.tolist()


def test_a_width_of_experts_stays_in_a_residual_network_and_a_ratio_grows(limit: Limit) -> None:
    residual = yaml.safe_load((INPUTS / "residual.yaml").read_text())
    base = {name: value for name, value in residual["model"]["base"].items() if name != "expert_ratio"}
    for more, fixed in (({"expert_ratio": 0.25}, None), ({"expert_width": 2}, 2)):
        found = json.loads(limit(changed(residual, model__base={**base, **more}), "--seeds", 1, "--json")[1])["network"]
        assert (found.get("expert_width"), found["init_mult"]) == (fixed, {"router": 0.0})


def test_classes_need_the_cross_entropy(limit: Limit, tmp_path: Path, arrays: tuple[str, str]) -> None:
    np.save(tmp_path / "c.npy", np.array([0, 2, 1]))
    of = changed(IN_I, data={"inputs": "x.npy", "targets": "c.npy"}, model__mlp__loss="cross_entropy")
    code, out, _ = limit(of, "--json")
    assert code == 0
    assert json.loads(out)["series"]["loss"]["mean"][0] == pytest.approx(np.log(3))
    for classes, message in (
        (np.eye(3), "must hold one class per sample under cross entropy, got shape [3, 3]"),
        (np.array([0, np.nan, 1]), "must be whole numbers from 0 to 99999, the classes, got nan"),
        (np.array([0, -1, 1]), "must be whole numbers from 0 to 99999, the classes, got -1"),
        (np.array([0, 2**64 - 1, 1], dtype=np.uint64), "whole numbers from 0 to 99999, the classes, got 18446"),
    ):
        np.save(tmp_path / "c.npy", classes)
        code, out, err = limit(of)
        assert (code, out, f"data.targets: {message}" in err or message in err) == (2, "", True)


def test_top_k_without_a_bias_is_a_distribution(limit: Limit) -> None:
    two = changed(IN_I, model__base__num_experts=4, model__base__num_active=2)
    code, out, err = limit(changed(two, data={"samples": 2}))
    assert (code, "the 6 sets of experts with probability 0.1667" in out) == (0, True)
    assert err.startswith("warning: top-K without a router bias has no limit: these are networks whose samples keep")
    fixed = limit(changed(two, model__mlp__router_bias="fixed"))
    assert "Nothing was sampled" in fixed[1]
    assert "margin" in fixed[1]


def test_output_writes_text_numbers_and_figures(limit: Limit, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    code, out, _ = limit(INPUTS / "regime_iii.yaml", *SMALL, "--output", folder)
    assert code == 0
    assert {path.name for path in folder.iterdir()} == {"limit.txt", "limit.json", "limit.png", "limit.svg"}
    assert json.loads((folder / "limit.json").read_text())["network"]["regime"] == "III"
    assert (folder / "limit.txt").read_text().splitlines()[0] == out.splitlines()[0]


def test_files_that_hold_no_numbers(limit: Limit, tmp_path: Path, arrays: tuple[str, str]) -> None:
    (tmp_path / "text.npy").write_text("1,2,3")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "short.npy", np.zeros(2))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    for name in ("text.npy", "objects.npy", "a.npz", "cube.npy", "missing.npy", "."):
        code, _, err = limit(changed(IN_I, data={"inputs": name, "targets": "y.npy"}))
        assert (code, f"network.yaml:2: data.inputs: {tmp_path / name}" in err) == (2, True), err
        assert "unsafely" not in err  # numpy's advice for a file that it does not know
    for inputs, targets, message in (
        ("x.npy", "short.npy", "got 3 inputs and 2 targets"),
        ("y.npy", "y.npy", "inputs must be [samples, features]"),
        ("none.npy", "none.npy", "inputs must be [samples, features], got shape [0, 3]"),
    ):
        code, _, err = limit(changed(IN_I, data={"inputs": inputs, "targets": targets}))
        assert (code, message in err) == (2, True), err


BASE, MLP = "model__base__", "model__mlp__"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regime": "IV"}, "regime: must be 'I', 'II', 'III' or 'residual', got 'IV'"),
        ({"parameterization": "sp"}, "parameterization: must be 'mup' or 'mssp', got 'sp'"),
        ({BASE + "head_dim": 8}, "model.base.head_dim: unknown key"),
        ({BASE + "expert_width": 64}, "model.base.expert_ratio: give it, or expert_width"),
        ({BASE + "num_active": 4}, "model.base.num_active: must be at most num_experts, got 4"),
        ({BASE + "depth": 2}, "model.base.depth: must be 1 in regime I, got 2"),
        ({BASE + "expert_ratio": 2}, "model.base.expert_ratio: must be 1 where an expert has one matrix"),
        ({MLP + "residual": True}, "model.mlp.residual: not read in regime I"),
        ({MLP + "tied_experts": True}, "model.mlp.tied_experts: not read"),
        ({MLP + "router_bias_std": 2}, "model.mlp.router_bias_std: needs router_bias"),
        ({MLP + "expert_matrices": 3}, "model.mlp.expert_matrices: must be 1 or 2, got 3"),
        ({MLP + "loss": "cross_entropy"}, "model.mlp.loss: must be squared_error without data.inputs"),
        ({"model__gate": "normalized_sigmoid"}, "model.gate: must be 'sigmoid', 'softmax' or 'normalized_softmax'"),
        ({"hps__lr": -1}, "hps.lr: must be greater than or equal to 0, got -1"),
        ({"hps__lr": float("nan")}, "hps.lr: must be"),
        ({"hps__multipliers": {"lr": 1}}, "hps.multipliers.lr: unknown multiplier of this network"),
        ({"hps__multipliers": {"expert_in.lr_mult": 2}}, "hps.multipliers.expert_in.lr_mult: unknown multiplier"),
        (
            {"hps__multipliers": {"router_bias.init_mult": 2}},
            "hps.multipliers.router_bias.init_mult: unknown multiplier",
        ),
        (
            {"hps__multipliers": {"readout.forward_mult": 1e200}},
            "readout.lr_mult: must be a finite number, got inf",
        ),
        ({"training__steps": -1}, "training.steps: must be greater than or equal to 0, got -1"),
        ({"data": {"inputs": "x.npy"}}, "data: inputs and targets go together"),
        (
            {"data": {"inputs": "x.npy", "targets": "y.npy", "samples": 2}},
            "data.samples: belongs to the built-in batch",
        ),
        ({"data": {"samples": 0}}, "data.samples: must be greater than or equal to 1, got 0"),
    ],
)
def test_a_network_file_that_is_none(changes: dict[str, Any], message: str, limit: Limit) -> None:
    code, out, err = limit(changed(IN_I, **changes))
    assert (code, out) == (2, "")
    assert message in err
