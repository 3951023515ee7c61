"""Sums of squares by parameter and trial."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_trials import BASE, SETTING, trial
from tolerances import assert_near

from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.train.squares import sums_of_squares

SMALL = replace(SETTING, norm_gains=True, biases=True)
STDS = {role: values.init_std for role, values in trial(SMALL).resolved().items()}


def drawn(*seeds: int) -> Weights:
    layout = FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=len(seeds))
    return layout.weights(draw(layout, seeds, [STDS] * len(seeds)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_squares(dtype: torch.dtype) -> None:
    weights = drawn(0, 1)
    for name, got in sums_of_squares(weights, dtype).items():
        own, exact = (
            torch.stack(weights[name]).to(to).square().flatten(2).sum((0, 2)) for to in (dtype, torch.float64)
        )
        assert_near(got, own, exact, name)


def test_sums_of_squares_do_not_depend_on_the_stack() -> None:
    alone, stacked = drawn(1), drawn(0, 1, 2)
    for name, got in sums_of_squares(alone, torch.float32).items():
        assert got[0] == sums_of_squares(stacked, torch.float32)[name][1]
