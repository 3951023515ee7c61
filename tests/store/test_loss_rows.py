"""The rows of losses name columns that exist."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from hpxfer.spec.recipe_file import LossName
from hpxfer.spec.sweep import JudgeSpec
from hpxfer.store import TRIALS
from hpxfer.store.losses import LOSS_COLUMNS, LOSS_NUMBERS
from hpxfer.trial.result import TrialResult


def test_every_loss_has_a_column_a_field_and_a_name_in_sweeps_and_recipes() -> None:
    assert set(LOSS_NUMBERS) <= set(TRIALS.names) & {field.name for field in fields(TrialResult)}
    assert get_args(JudgeSpec.model_fields["loss"].annotation) == tuple(LOSS_COLUMNS) == get_args(LossName)
