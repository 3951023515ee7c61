"""A judged loss says its unit, how pages show it, and how well held-out samples tell it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.verdict.loss import NATS, JudgedLoss

TOP5 = JudgedLoss(
    name="validation_top5_error", words="validation top-5 error", kind="error", guess=0.95, num_samples=1000
)
SQUARED = JudgedLoss(kind="squared error", trained="squared error")


def test_a_loss_is_written_in_its_unit_and_an_error_as_accuracy() -> None:
    assert (NATS.level_with_unit(3.14159), NATS.amount(0.0171)) == ("3.1416 nats", "0.017 nats")
    assert (SQUARED.level_with_unit(0.5), SQUARED.amount(0.0171)) == ("0.5000 squared error", "0.017 squared error")
    assert (TOP5.level_with_unit(0.377), TOP5.amount(0.0171)) == ("62.30%", "1.7 points")
    assert (TOP5.shown, TOP5.noun, TOP5.best) == (
        "validation top-5 accuracy",
        "top-5 accuracy",
        "best top-5 accuracy, %",
    )
    assert TOP5.training_unit == "nats"


@pytest.mark.parametrize(
    ("judged", "name"), [(NATS, "mean_nats"), (SQUARED, "mean_squared_error"), (TOP5, "mean_share")]
)
def test_columns_of_data_name_the_unit(judged: JudgedLoss, name: str) -> None:
    assert judged.column("mean_nats") == name
    assert judged.column("log2_lr") == "log2_lr"


def test_no_text_of_an_error_or_a_squared_error_names_nats() -> None:
    for judged in (TOP5, JudgedLoss(kind="squared error", trained="squared error")):
        texts = [value for name in dir(judged) if isinstance(value := getattr(judged, name), str)]
        kept = [text for text in texts if "nats" in text]
        assert kept == (["nats"] if judged is TOP5 else [])  # the unit of its training loss


@given(share=st.floats(0, 1), samples=st.integers(10, 10**6))
def test_the_binomial_variance_is_that_of_counts_and_never_zero(share: float, samples: int) -> None:
    judged = JudgedLoss(kind="error", guess=0.9, num_samples=samples)
    found = judged.binomial(share)
    assert 0 < found <= 0.25 / samples * (1 + 1e-9)
    assert found == pytest.approx(share * (1 - share) / samples, abs=1 / samples**2)
    assert judged.binomial(np.array([share]))[0] == found
    assert NATS.binomial(share) == 0


def test_the_depth_of_a_basin_is_measured_from_guessing() -> None:
    assert TOP5.basin_depth(0.35) == pytest.approx(0.6)
    assert TOP5.basin_depth(0.99) == 0  # worse than guessing: equal logits count as wrong
    assert NATS.basin_depth(3.0) == 3.0


def test_a_shape_has_learned_if_its_error_is_surely_below_guessing() -> None:
    error = math.sqrt(TOP5.binomial(0.95))
    assert not TOP5.has_learned(0.95 - 3.9 * error)
    assert TOP5.has_learned(0.95 - 4.1 * error)
    assert NATS.has_learned(99.0)
