"""The LR schedule: its values by hand, and its laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import SETTING

from hpxfer.train.schedules import lr_factor
from hpxfer.trial import Setting


def factors(decay: str, steps: int, *, warmup: int = 0, decay_steps: int = 0, final: float = 0.0) -> list[float]:
    setting = replace(
        SETTING, decay=decay, steps=steps, warmup_steps=warmup, decay_steps=decay_steps, final_fraction=final
    )
    return [lr_factor(setting, step) for step in range(steps)]


def test_constant_after_warmup() -> None:
    assert factors("constant", 6, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_no_warmup_starts_at_the_peak() -> None:
    assert factors("constant", 3) == [1.0, 1.0, 1.0]


def test_linear() -> None:
    assert factors("linear", 6, warmup=2, final=0.5) == [0.5, 1.0, 0.875, 0.75, 0.625, 0.5]


def test_wsd_falls_over_its_last_steps_only() -> None:
    assert factors("wsd", 8, warmup=2, decay_steps=4) == [0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_cosine() -> None:
    thirds = [0.5 * (1 + math.cos(math.pi * k / 3)) for k in (1, 2, 3)]
    assert factors("cosine", 4, warmup=1, final=0.25) == [1.0, *(0.25 + 0.75 * third for third in thirds)]


@st.composite
def settings(draw: st.DrawFn) -> Setting:
    steps = draw(st.integers(2, 60))
    decay_steps = draw(st.integers(1, steps))
    return replace(
        SETTING,
        decay=draw(st.sampled_from(("constant", "cosine", "linear", "wsd"))),
        steps=steps,
        warmup_steps=draw(st.integers(0, steps - decay_steps)),
        decay_steps=decay_steps,
        final_fraction=draw(st.sampled_from((0.0, 0.1, 1.0))),
    )


@given(settings())
def test_rises_then_falls_to_the_final_fraction(setting: Setting) -> None:
    found = [lr_factor(setting, step) for step in range(setting.steps)]
    rise, fall = found[: setting.warmup_steps], found[setting.warmup_steps :]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert all(0 <= found_value <= 1 for found_value in found)
    if setting.warmup_steps:
        assert rise[-1] == 1.0
    assert fall[-1] == pytest.approx(1.0 if setting.decay == "constant" else setting.final_fraction)
