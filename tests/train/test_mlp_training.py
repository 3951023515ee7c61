"""Whole trainings of the MLP mixture: they learn, and a trial has the same numbers in every stack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mlp_trials import CASES, CLASSES, blobs, mlp_trial
from tiny_trials import numbers, trained


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blobs(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("case", CASES)
def test_a_trial_has_the_same_numbers_alone_among_its_seed_and_among_others(samples: Path, case: str) -> None:
    one = mlp_trial(samples, case)
    mates = [replace(one, id=f"mate {k}", hps=replace(one.hps, lr=one.hps.lr * (k + 2))) for k in range(3)]
    others = [mlp_trial(samples, case, seed=seed) for seed in (1, 2)]
    wild = replace(one, id="wild", hps=replace(one.hps, lr=1e30))
    (alone,) = trained(one)
    assert alone.status == "finished"
    of_seed = trained(*mates, one)[-1]
    mixed = trained(others[0], one, wild, others[1])[1]
    assert numbers(of_seed) == numbers(mixed) == numbers(alone)


def test_a_model_learns_classes_that_lie_apart(samples: Path) -> None:
    (result,) = trained(mlp_trial(samples, "sgd", lr=2.0))
    assert result.validation_error is not None
    assert result.validation_top5_error is not None
    assert result.validation_top5_error <= result.validation_error < 1 - 1.5 / CLASSES
    curve = next(curve for curve in result.curves if curve.metric == "train_error")
    assert curve.values[0] > curve.values[-1]


def test_a_diverged_trial_has_no_error(samples: Path) -> None:
    (result,) = trained(mlp_trial(samples, "sgd", lr=1e30))
    assert (result.status, result.validation_error, result.validation_top5_error) == ("diverged", None, None)
