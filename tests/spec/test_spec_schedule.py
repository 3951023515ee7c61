"""Step counts follow the length of the run and never break the rules of a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import sweeps
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.schedule import PhaseSteps, planned_at, schedule_at, schedule_lines


def at(spec: SweepSpec, steps: int, batch_tokens: int = 0) -> PhaseSteps:
    shape = replace(spec.base_shape, steps=steps, batch_tokens=batch_tokens or spec.base_shape.batch_tokens)
    return schedule_at(spec, shape)


def shortest(spec: SweepSpec) -> int:
    return planned_at(spec, spec.base_shape).shortest()


def base_schedule(spec: SweepSpec) -> PhaseSteps:
    schedule = spec.training.schedule
    return PhaseSteps(
        warmup_steps=schedule.warmup.steps or 0,
        decay_steps=(schedule.decay_length.steps or 0) if schedule.decay_length else 0,
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
    schedule = ("{decay: constant, warmup: 20}", "{decay: wsd, warmup: 20, decay_length: 50}")
    spec = parse_sweep(edited(schedule, ("steps: 200", "steps: 200\n  final_window_steps: 7")))
    warmup, decay, window = expected
    assert at(spec, steps) == PhaseSteps(warmup_steps=warmup, decay_steps=decay, final_window_steps=window)
    assert shortest(spec) == 2


def test_what_the_base_has_not_nobody_has() -> None:
    spec = parse_sweep(edited(("warmup: 20", "warmup: 0")))
    assert at(spec, 10**6) == PhaseSteps(warmup_steps=0, decay_steps=0, final_window_steps=10**5)
    assert shortest(spec) == 1


@given(sweeps(), st.integers(0, 3000))
def test_any_run_has_a_legal_schedule(spec: SweepSpec, more: int) -> None:
    base = base_schedule(spec)
    assert at(spec, spec.steps) == base
    steps = shortest(spec) + more
    found = at(spec, steps)
    assert found.warmup_steps + found.decay_steps <= steps
    for name in ("warmup_steps", "decay_steps", "final_window_steps"):
        mine, its = getattr(found, name), getattr(base, name)
        assert (mine > 0) is (its > 0)
        assert mine <= steps
        assert abs(mine - its * steps / spec.steps) <= 1


SCHEDULE = "{decay: constant, warmup: 20}"  # the file's; its run has 200 steps of 512 tokens
AXES = "  width: [32, 64]"


def planned(schedule: str, axes: str = AXES) -> SweepSpec:
    return parse_sweep(edited((SCHEDULE, schedule), (AXES, axes)))


@pytest.mark.parametrize(
    ("length", "base", "longer", "small_batches"),
    [
        ("20", 20, 40, 20),  # keeps its share of the run
        ("{steps: 20}", 20, 40, 20),
        ("{fraction: 0.1}", 20, 40, 20),
        ("{fraction: 0.0125}", 3, 5, 3),  # 2.5 steps are rounded up
        ("{fraction: 0.001}", 1, 1, 1),  # at least one step
        ("{tokens: 10240}", 20, 20, 40),  # tokens stay
        ("{tokens: 100}", 1, 1, 1),
    ],
)
def test_a_length_has_one_of_three_forms(length: str, base: int, longer: int, small_batches: int) -> None:
    spec = planned(f"{{decay: wsd, warmup: {length}, decay_length: {length}}}")
    for found, expected in ((at(spec, 200), base), (at(spec, 400), longer), (at(spec, 200, 256), small_batches)):
        assert (found.warmup_steps, found.decay_steps) == (expected, expected)
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize(
    ("schedule", "axes", "problem"),
    [
        ("{warmup: -1}", AXES, "12: training.schedule.warmup: must be greater than or equal to 0, got -1"),
        ("{warmup: {fraction: 1.5}}", AXES, "12: training.schedule.warmup.fraction: must be less than or equal to 1, "
         "got 1.5"),
        ("{warmup: {fraction: 0.1, tokens: 5}}", AXES, "12: training.schedule.warmup: must be a whole number of steps, "
         "or one of {fraction: x} and {tokens: n}, got {'fraction': 0.1, 'tokens': 5}"),
        ("{decay: wsd, decay_length: 0}", AXES, "12: training.schedule.decay_length: must be at least 1 step, got 0"),
        ("{warmup: {tokens: 102401}}", AXES, "12: training.schedule.warmup: the warm-up must not be longer than the "
         "run of 200 steps, got {tokens: 102401} (200.002 steps)"),
        ("{warmup: {tokens: 51200}}", "  duration: [50]", "16: axes.duration[0]: training.schedule.warmup: the warm-up "
         "must not be longer than the run of 50 steps, got {tokens: 51200} (100 steps)"),
        ("{decay: wsd, warmup: 100, decay_length: {fraction: 0.75}}", AXES, "12: training.schedule.decay_length: "
         "warm-up and decay must fit in the run of 200 steps, got 100 + {fraction: 0.75} (150 steps)"),
        ("{}", "  a: [{steps: 400, schedule: {warmup: 401}}]", "16: axes.a[0].schedule.warmup: the warm-up must not be "
         "longer than the run of 400 steps, got 401"),
        ("{}", "  a: [{width: 64}]\n  b: [{width: 64, schedule: {decay: cosine}}]", "17: axes.b[0].schedule: must be "
         "the schedule of axes.a.shapes[0], which is the same shape w64 d2 E4A1 h64 b512 t200; give this point other "
         "steps, or both the same schedule"),
        ("{}", "  a: [{width: 32, schedule: {decay: cosine}}]", "16: axes.a[0].schedule: must be the schedule of the "
         "base, which is the same shape w32 d2 E4A1 h32 b512 t200; give this point other steps, or both the same "
         "schedule"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(schedule: str, axes: str, problem: str) -> None:
    with pytest.raises(HpxferError) as caught:
        planned(schedule, axes)
    assert str(caught.value) == f"<sweep>:{problem}"


def test_a_point_may_carry_its_own_schedule() -> None:
    axes = "  long: [{steps: 400}, {steps: 800, schedule: {decay: cosine, warmup: 10}}]"
    spec = planned(SCHEDULE, axes)
    assert at(spec, 400).warmup_steps == 40  # the base's, scaled
    assert at(spec, 800).warmup_steps == 10  # its own, in its own steps
    assert schedule_lines(spec) == (
        "b512 t200: constant after 20 steps of warm-up",
        "b512 t400: constant after 40 steps of warm-up",
        "b512 t800: cosine after 10 steps of warm-up",
    )
    assert schedule_lines(planned("{decay: wsd, warmup: {fraction: 0.0125}, decay_length: {tokens: 10240}}")) == (
        "b512 t200: wsd after 3 steps (0.0125 of the run) of warm-up, over the last 20 steps (10240 tokens)",
    )
    assert schedule_lines(planned(SCHEDULE)) == ()
    assert parse_sweep(dump_sweep(spec)) == spec
