"""`hpxfer predict` as a user calls it: text, JSON, and every kind of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import hpxfer

TRANSFER = Path(__file__).parents[2] / "results" / "published" / "transfer"
WIDE = {"width": 512, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 512, "head_dim": 32}
Predict = Callable[..., tuple[int, str, str]]


@pytest.fixture
def predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Predict:
    """Return a call of `hpxfer predict` with a shape or a text as the target file."""

    def call(*arguments: object, target: object = WIDE, results: Path = TRANSFER) -> tuple[int, str, str]:
        path = tmp_path / "shape.json"
        path.write_text(target if isinstance(target, str) else json.dumps(target), encoding="utf-8")
        code, out, err = hpxfer(capsys, "predict", results, "--target", path, *arguments)
        assert "Traceback" not in err
        return code, out, err

    return call


def test_the_answer_goes_to_stdout_and_cautions_to_stderr(predict: Predict) -> None:
    code, out, err = predict()
    assert (code, out.startswith("Expect a validation loss of ")) == (0, True)
    assert err.startswith("warning: the target w512 d2 E4A1 h512 b512 t300 is beyond what was measured")


def test_what_cannot_be_said_is_an_answer(predict: Predict) -> None:
    code, out, _ = predict("--tokens", 307200, "--json")
    found = json.loads(out)
    assert (code, found["loss"], found["tokens"]) == (0, None, 307200)
    assert "steps 300 (got 600)" in found["why_no_loss"]
    assert found["hps"]["rows"]


def test_options_choose_the_arm_and_the_base(predict: Predict) -> None:
    assert json.loads(predict("--parameterization", "sp", "--json")[1])["parameterization"] == "sp"
    assert json.loads(predict("--base", "w64", "--json")[1])["sweep"] == "transfer from width 64"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("{bad", "shape.json: not a JSON file"),
        ([1], "must hold one JSON object of dimensions, got list"),
        ({"dpeth": 2}, "dpeth: unknown key; did you mean 'depth'?"),
        ({"width": 512}, "must give depth"),
        ({**WIDE, "width": -512}, "width must be at least 1, got -512"),
        ({**WIDE, "width": 512.5}, "width: must be a whole number, got 512.5"),
        ({**WIDE, "steps": 300}, "batch_tokens and steps belong together"),
    ],
)
def test_a_file_that_is_no_shape_is_refused(predict: Predict, target: object, why: str) -> None:
    code, out, err = predict(target=target)
    assert (code, out) == (2, "")
    assert why in err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--tokens", "1000"), "tokens: must be a multiple of the batch of 512 tokens, got 1000; take 1024"),
        (("--tokens", "x"), "Invalid value for '--tokens'"),
        (("--parameterization", "foo"), "parameterization: must be one of the sweep's, got 'foo'"),
        (("--base", "w7"), "base: must be a shape of the sweep, got 'w7'"),
    ],
)
def test_an_option_without_sense_is_refused(predict: Predict, options: tuple[str, str], why: str) -> None:
    code, _, err = predict(*options)
    assert code == 2
    assert why in err


def test_missing_results_and_a_missing_target_are_refused(
    predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = predict(results=tmp_path / "nowhere")
    assert (code, "must be a results folder" in err) == (2, True)
    code, _, err = hpxfer(capsys, "predict", TRANSFER)
    assert (code, "Missing option '--target'" in err) == (2, True)
    code, _, err = hpxfer(capsys, "predict", TRANSFER, "--target", tmp_path / "none.json")
    assert (code, "cannot be read" in err) == (2, True)
