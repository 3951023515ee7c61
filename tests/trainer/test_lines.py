"""Lines: what is read from them, whatever they hold."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.trainer.lines import Alive, Checkpoint, Fault, Groups, Line, Point, Result, parse_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NUMBERS = st.floats() | st.integers(-(10**400), 10**400)


def parse(data: object) -> Line:
    return parse_line(json.dumps(data).encode(), trial_id="t1", attempt=2, steps=10)


@given(st.integers(0, 10), NUMBERS, st.dictionaries(st.text().map("m_".__add__), NUMBERS))
def test_a_report_reads_back(step: int, loss: float, metrics: dict[str, float]) -> None:
    point = parse({"type": "report", "step": step, "loss": loss, **metrics, "trial": "t1", "attempt": 2, "time": 1.5})
    assert isinstance(point, Point)
    assert point.step == step
    for got, given_ in [(point.loss, loss), *((point.metrics[name], metrics[name]) for name in metrics)]:
        assert isinstance(got, float)
        assert got == given_ or (math.isnan(got) and math.isnan(given_)) or math.isinf(got)
    assert set(point.metrics) == set(metrics)


@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        *(("NaN", math.nan), ("nan", math.nan), ("Infinity", math.inf), ("+inf", math.inf), (" -Inf ", -math.inf)),
        ("-Infinity", -math.inf),
    ],
)
def test_numbers_that_are_not_finite_may_be_text(spelled: str, value: float) -> None:
    point = parse({"type": "report", "step": 0, "loss": spelled})
    assert isinstance(point, Point)
    assert point.loss == value or (math.isnan(point.loss) and math.isnan(value))


def test_the_other_lines() -> None:
    assert parse({"type": "alive"}) == Alive()
    assert parse({"type": "checkpoint", "step": 3.0, "path": "ckpt/3"}) == Checkpoint(3, "ckpt/3")
    assert parse({"type": "groups", "step": 1, "groups": [{"lr": 1}]}) == Groups(1, ({"lr": 1},))
    assert parse({"type": "result", "status": "diverged", "step": 4}) == Result("diverged", 4, None, {})
    line = {"type": "result", "status": "finished", "validation_loss": 2, "accuracy": 0.5}
    assert parse(line) == Result("finished", None, 2.0, {"accuracy": 0.5})


@given(st.binary() | JSON.map(lambda data: json.dumps(data).encode()))
def test_any_other_text_is_a_fault(text: bytes) -> None:
    with pytest.raises(Fault, match="must"):
        parse_line(text, trial_id="t1", attempt=2, steps=10)


@given(
    st.sampled_from(["report", "alive", "checkpoint", "groups", "result"]),
    st.dictionaries(st.sampled_from(["step", "loss", "path", "groups", "status", "time", "trial", "attempt"]), JSON),
)
def test_any_content_is_a_line_or_a_fault(kind: str, content: dict[str, object]) -> None:
    line: Line | Fault
    try:
        line = parse({"type": kind, **content})
    except Fault as fault:
        line = fault
    if isinstance(line, Fault):
        assert "must" in str(line)
        assert len(str(line)) < 500
    else:
        assert isinstance(line, Point | Alive | Checkpoint | Groups | Result)
        assert content.get("trial", "t1") == "t1"
        assert content.get("attempt", 2) == 2


@pytest.mark.parametrize("step", [-1, 11, 1.5, True, None, "1", math.nan, 10**30])
def test_a_step_is_a_whole_number_of_the_run(step: object) -> None:
    with pytest.raises(Fault, match="step: must"):
        parse({"type": "report", "step": step, "loss": 1})


@pytest.mark.parametrize("path", ["", None, 3, "a\0b"])
def test_a_checkpoint_has_a_path(path: object) -> None:
    with pytest.raises(Fault, match="path: must"):
        parse({"type": "checkpoint", "step": 1, "path": path})
