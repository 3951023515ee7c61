"""Patience: when a trainer counts as hanging."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpxfer.trainer import Timeouts
from hpxfer.trainer.patience import Patience


def test_before_the_first_line_start_s_counts() -> None:
    patience = Patience(Timeouts(start_s=10.0, silence_s=1.0), 100.0)
    assert patience.why_over(110.0) is None
    assert "start_s, 10 s" in str(patience.why_over(110.1))
    assert Patience(Timeouts(start_s=None), 0.0).why_over(10.0**9) is None


def test_after_the_first_line_silence_s_counts() -> None:
    patience = Patience(Timeouts(silence_s=1.0), 0.0)
    patience.heard(5.0)
    assert patience.why_over(6.0) is None
    assert "silence_s, 1 s" in str(patience.why_over(6.1))
    patience.heard(6.2)
    assert patience.why_over(7.0) is None


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=50))
def test_by_default_20_median_gaps_are_no_hang(gaps: list[float]) -> None:
    patience, now = Patience(Timeouts(), 0.0), 0.0
    patience.heard(now)
    for gap in gaps:
        now += gap
        patience.heard(now)
    middle = sorted(gaps)[len(gaps) // 2]
    assert patience.silence_s >= 900.0
    assert patience.silence_s <= max(900.0, 20 * middle) + 1e-6
    if len(gaps) % 2:
        assert abs(patience.silence_s - max(900.0, 20 * middle)) < 1e-6


def test_the_whole_attempt_has_a_limit_if_one_is_given() -> None:
    patience = Patience(Timeouts(wall_s=10.0, silence_s=100.0), 0.0)
    patience.heard(9.0)
    assert patience.why_over(10.0) is None
    assert "wall_s, 10 s" in str(patience.why_over(10.1))


def test_who_does_not_speak_is_not_expected_to() -> None:
    patience = Patience(Timeouts(start_s=1.0, silence_s=1.0, wall_s=50.0), 0.0, speaks=False)
    assert patience.why_over(49.0) is None
    assert "wall_s" in str(patience.why_over(51.0))
