"""The rows of losses name columns that exist, and say what each loss is."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from hpxfer.spec.recipe_file import LossName
from hpxfer.spec.sweep import JudgeSpec
from hpxfer.store import TRIALS
from hpxfer.store.losses import LOSS_COLUMNS, LOSSES, judged_loss
from hpxfer.trial.result import TrialResult


def test_every_loss_has_a_column_a_field_and_a_name_in_sweeps_and_recipes() -> None:
    assert set(LOSS_COLUMNS.values()) <= set(TRIALS.names) & {field.name for field in fields(TrialResult)}
    assert get_args(JudgeSpec.model_fields["loss"].annotation) == tuple(LOSS_COLUMNS) == get_args(LossName)
    assert {row.name for row in LOSSES if row.top is not None} == {"validation_error", "validation_top5_error"}


@pytest.mark.parametrize(("name", "guess"), [("validation_error", 0.99), ("validation_top5_error", 0.95)])
def test_an_error_knows_guessing_and_its_samples(name: str, guess: float) -> None:
    found = judged_loss(name, classes=100, num_samples=50)
    assert (found.kind, found.num_samples, found.trained) == ("error", 50, "cross entropy")
    assert found.guess == pytest.approx(guess)


def test_a_loss_has_the_kind_that_the_sweep_trains_with_and_no_binomial_error() -> None:
    for name in ("validation", "final_window"):
        found = judged_loss(name, classes=100, num_samples=50, trained="squared error")
        assert (found.unit, found.guess, found.num_samples) == ("squared error", None, None)
