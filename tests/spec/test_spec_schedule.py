"""Step counts follow the length of the run and never break the rules of a schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import sweeps
from sweep_text import edited

from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.schedule import PhaseSteps, schedule_at, shortest_run


def base_schedule(spec: SweepSpec) -> PhaseSteps:
    schedule = spec.training.schedule
    return PhaseSteps(
        warmup_steps=schedule.warmup_steps,
        decay_steps=schedule.decay_steps or 0,
        final_window_steps=spec.final_window_steps,
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (200, (20, 50, 7)),
        (400, (40, 100, 14)),
        (100, (10, 25, 4)),  # 3.5 is rounded up
        (50, (5, 13, 2)),
        (3, (1, 1, 1)),  # none of what the base has is lost
        (2, (1, 1, 1)),
    ],
)
def test_shares_of_the_run(steps: int, expected: tuple[int, int, int]) -> None:
    schedule = ("{decay: constant, warmup_steps: 20}", "{decay: wsd, warmup_steps: 20, decay_steps: 50}")
    spec = parse_sweep(edited(schedule, ("steps: 200", "steps: 200\n  final_window_steps: 7")))
    warmup, decay, window = expected
    assert schedule_at(spec, steps) == PhaseSteps(warmup_steps=warmup, decay_steps=decay, final_window_steps=window)
    assert shortest_run(spec) == 2


def test_what_the_base_has_not_nobody_has() -> None:
    spec = parse_sweep(edited(("warmup_steps: 20", "warmup_steps: 0")))
    assert schedule_at(spec, 10**6) == PhaseSteps(warmup_steps=0, decay_steps=0, final_window_steps=10**5)
    assert shortest_run(spec) == 1


@given(sweeps(), st.integers(0, 3000))
def test_any_run_has_a_legal_schedule(spec: SweepSpec, more: int) -> None:
    base = base_schedule(spec)
    assert schedule_at(spec, spec.steps) == base
    steps = shortest_run(spec) + more
    found = schedule_at(spec, steps)
    assert found.warmup_steps + found.decay_steps <= steps
    for name in ("warmup_steps", "decay_steps", "final_window_steps"):
        mine, its = getattr(found, name), getattr(base, name)
        assert (mine > 0) is (its > 0)
        assert mine <= steps
        assert abs(mine - its * steps / spec.steps) <= 1
