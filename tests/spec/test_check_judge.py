"""A sweep is judged by an error only if its data has such classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_text import SAMPLES, edited

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, load_sweep, parse_sweep

FIRST = Path(__file__).resolve().parents[2] / "sweeps" / "mlp" / "first.yaml"


def text_of(loss: str, classes: int | None) -> str:
    """Return a sweep over samples of so many classes, or over tokens."""
    of_samples = f"source: idx:elsewhere\n  digest: 0123456789abcdef\n  inputs: 4\n  classes: {classes}"
    text = edited() if classes is None else edited(("source: builtin:shapes", of_samples), text=SAMPLES)
    return f"{text}judge: {{loss: {loss}}}\n"


@pytest.mark.parametrize(
    ("loss", "classes", "why"),
    [
        ("validation_error", None, "needs samples with classes, and builtin:stdlib has none; use validation"),
        ("validation_top5_error", None, "needs samples with classes"),
        ("validation_top5_error", 4, "needs more than 5 classes, and the data has 4; use validation_error"),
        ("validation_top5_error", 5, "needs more than 5 classes, and the data has 5"),
    ],
)
def test_an_error_without_such_classes_is_refused_at_load(loss: str, classes: int | None, why: str) -> None:
    with pytest.raises(HpxferError, match=r"judge\.loss: ") as caught:
        parse_sweep(text_of(loss, classes))
    assert why in str(caught.value)


@pytest.mark.parametrize(("loss", "classes"), [("validation_error", 2), ("validation_top5_error", 6)])
def test_a_sweep_judged_by_an_error_loads_and_dumps(loss: str, classes: int) -> None:
    only = f"data.only={list(range(classes))}"
    spec = load_sweep(FIRST, overrides=(only, f"judge.loss={loss}"))
    assert (spec.judge.loss, spec.data.classes) == (loss, classes)
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("source: builtin:shape", r"data\.source: unknown built-in samples 'shape'; did you mean 'shapes'\?"),
        ("source: builtin:shapes\n  only: [3]", r"data\.only: must name at least two different classes, got \[3\]"),
        (
            "source: idx:elsewhere\n  inputs: 4\n  classes: 2\n  only: [1, 1]",
            r"data\.only: must name at least two different classes",
        ),
        ("source: idx:elsewhere\n  inputs: 4\n  classes: 1", r"data\.classes: must be at least 2, got 1"),
        ("source: idx:elsewhere", r"data\.inputs: must be given where the samples are not on this machine"),
    ],
)
def test_the_judge_is_not_blamed_for_broken_samples(data: str, why: str) -> None:
    text = edited(("source: builtin:shapes", data), text=SAMPLES)
    with pytest.raises(HpxferError, match=why) as caught:
        parse_sweep(f"{text}judge: {{loss: validation_top5_error}}\n")
    assert str(caught.value).count("\n") == 0
    assert "judge" not in str(caught.value)
