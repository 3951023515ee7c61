"""`hpxfer limit` as a user calls it: text, JSON, files, and every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import hpxfer
from fixture_types import Capsys, Patch

from hpxfer.cli import limit_source
from hpxfer.limit import Batch, Given, Network, solve

SMALL = ("--sites", 256, "--seeds", 2)
IN_I = ("--regime", "I", "--parameterization", "mup")  # the smallest question that has an answer


@pytest.fixture
def limit(capsys: Capsys) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        code, out, err = hpxfer(capsys, "limit", *arguments)
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 4)), rng.standard_normal(3)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    return tmp_path / "x.npy", tmp_path / "y.npy"


def test_the_first_sentence_says_what_was_solved(limit: Any) -> None:
    code, out, err = limit("--regime", "II", "--parameterization", "mssp", *SMALL)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("The limit of regime II under MSSP (M/N = 0.5, N_e = 2): the loss goes from 1.167 to ")
    assert lines[2] == "256 sites, 2 seeds."
    assert lines[4].split() == [*("update", "loss", "E", "phi", "Var", "phi", "E", "psi", "Var", "psi", "|h1|", "|h3|")]
    assert [line.split()[0] for line in lines[5:11]] == ["0", "1", "2", "3", "4", "5"]


def test_a_long_solution_says_its_time_before_it_starts(limit: Any, monkeypatch: Patch) -> None:
    asked = ("--regime", "II", "--parameterization", "mssp", *SMALL)
    assert "on one core" not in limit(*asked)[2]
    monkeypatch.setattr(limit_source, "LONG_S", 0.0)
    assert "solving: about 0 s on one core" in limit(*asked)[2]


def test_json_holds_the_question_and_the_numbers_of_the_library(limit: Any, arrays: tuple[Path, Path]) -> None:
    x, y = arrays
    asked = (*IN_I, "--experts", 3, "--steps", 2, "--lr", 0.2)
    code, out, _ = limit(*asked, "--inputs", x, "--targets", y, "--hp", "readout.forward_mult=2", "--json")
    found = json.loads(out)
    batch = Batch(inputs=np.load(x), targets=np.load(y)[:, None])
    mults = {"init_mult": {"readout": 2.0}, "lr_mult": {"readout": 4.0}}
    network = Network(regime="I", parameterization="mup", num_experts=3, expert_matrices=1, **mults)
    expected = solve(network, Given.full_batch(batch, steps=2, lr=0.2))
    assert (code, found["exact"], found["training"]["lrs"]) == (0, True, [0.2, 0.2])
    assert found["series"]["loss"]["mean"] == expected.series["loss"].mean.tolist()
    assert found["series"]["loss"]["error"] == [0.0, 0.0, 0.0]
    assert np.allclose(found["outputs"], expected.outputs)
    assert found["network"]["init_mult"] == {"readout": 2.0}


def test_classes_need_the_cross_entropy(limit: Any, tmp_path: Path, arrays: tuple[Path, Path]) -> None:
    np.save(tmp_path / "c.npy", np.array([0, 2, 1]))
    asked = (*IN_I, "--inputs", arrays[0], "--targets", tmp_path / "c.npy")
    code, out, _ = limit(*asked, "--loss", "cross_entropy", "--steps", 1, "--json")
    assert code == 0
    assert json.loads(out)["series"]["loss"]["mean"][0] == pytest.approx(np.log(3))
    assert limit(*asked[:-2], "--targets", arrays[1], "--loss", "cross_entropy")[0] == 2


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (np.eye(3), "must hold one class per sample under cross entropy, got shape [3, 3]"),
        (np.array([0, np.nan, 1]), "must be whole numbers from 0 to 99999, the classes, got nan"),
        (np.array([0, -1, 1]), "must be whole numbers from 0 to 99999, the classes, got -1"),
        (np.array([0, 2**64 - 1, 1], dtype=np.uint64), "must be whole numbers from 0 to 99999, the classes, got 18446"),
    ],
)
def test_targets_that_are_no_classes(
    limit: Any, tmp_path: Path, arrays: tuple[Path, Path], classes: Any, message: str
) -> None:
    np.save(tmp_path / "c.npy", classes)
    code, out, err = limit(*IN_I, "--inputs", arrays[0], "--targets", tmp_path / "c.npy", "--loss", "cross_entropy")
    assert (code, out) == (2, "")
    assert err.startswith(f"hpxfer: --targets: {message}")


def test_a_batch_without_samples(limit: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 3)))
    for shape in ((0, 1), (0,)):
        np.save(tmp_path / "y.npy", np.zeros(shape))
        asked = ("--inputs", tmp_path / "x.npy", "--targets", tmp_path / "y.npy")
        code, _, err = limit(*IN_I, *asked)
        assert (code, err) == (2, "hpxfer: samples: inputs must be [samples, features], got shape [0, 3]\n")


def test_top_k_without_a_bias_is_a_distribution(limit: Any) -> None:
    code, out, err = limit(*IN_I, "--top-k", 0.5, "--samples", 2, "--steps", 2)
    assert (code, "the 6 sets of experts with probability 0.1667" in out) == (0, True)
    assert err.startswith("warning: top-K without a router bias has no limit: these are networks whose samples keep")
    fixed = limit(*IN_I, "--top-k", 2, "--bias", "fixed", "--steps", 2)
    assert "Nothing was sampled" in fixed[1]
    assert "margin" in fixed[1]


def test_output_writes_text_numbers_and_figures(limit: Any, tmp_path: Path) -> None:
    asked = ("--regime", "III", "--parameterization", "mup", "--steps", 2, *SMALL, "--output", tmp_path / "new" / "out")
    code, out, _ = limit(*asked)
    assert code == 0
    folder = tmp_path / "new" / "out"
    assert {"limit.txt", "limit.json"} < {path.name for path in folder.iterdir()}
    assert any(path.suffix == ".png" for path in folder.iterdir())
    assert json.loads((folder / "limit.json").read_text())["network"]["regime"] == "III"
    assert (folder / "limit.txt").read_text().splitlines()[0] == out.splitlines()[0]


def test_files_that_hold_no_numbers(limit: Any, tmp_path: Path, arrays: tuple[Path, Path]) -> None:
    x, y = arrays
    text, pickled, archive, cube = (tmp_path / name for name in ("text.npy", "objects.npy", "a.npz", "cube.npy"))
    text.write_text("1,2,3")
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(archive, x=np.zeros(3))
    np.save(cube, np.zeros((2, 2, 2)))
    np.save(tmp_path / "short.npy", np.zeros(2))
    for path in (text, pickled, archive, cube, tmp_path / "missing.npy", tmp_path):
        code, _, err = limit(*IN_I, "--inputs", path, "--targets", y)
        assert (code, err.startswith(f"hpxfer: --inputs: {path}")) == (2, True), err
        assert "unsafely" not in err  # numpy's advice for a file that it does not know
    code, _, err = limit(*IN_I, "--inputs", x, "--targets", tmp_path / "short.npy")
    assert (code, "got 3 inputs and 2 targets" in err) == (2, True)
    code, _, err = limit(*IN_I, "--inputs", y, "--targets", y)
    assert (code, "must be [samples, features]" in err) == (2, True)
