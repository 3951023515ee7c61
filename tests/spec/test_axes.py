"""Axes and schedules: the shapes of a path, its scale, and the steps of a schedule at each."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from strategies import sweeps
from sweep_text import SAMPLES, edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.spec import Axis, SweepSpec, axes_of, dump_sweep, parse_sweep
from hpxfer.spec.axes import moved
from hpxfer.spec.model_section import GPTModel, ShapeSpec
from hpxfer.spec.schedule import PhaseSteps, planned_at, schedule_at, schedule_lines
from hpxfer.spec.sweep import ShapeChange

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=64, head_dim=16)
PLAIN = GPTModel(family="gpt", base=ShapeSpec(width=32, depth=2, head_dim=16), context=64)


def path_of(axis: str) -> Axis:
    (path,) = axes_of(parse_sweep(edited(("  width: [32, 64]", axis), ("[completep-moe, sp]", "[sp]"))))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_experts": 0, "expert_ratio": 1},
            "num_experts 0 makes a dense shape, which has no active experts; take their sizes out",
        ),
        (
            {"num_experts": 0, "num_shared": 1},
            "shared experts and groups belong to a MoE layer, got no num_experts; give experts, or leave them out",
        ),
        ({"num_experts": 0, "dense_ratio": 1, "dense_width": 8}, "give one of dense_ratio and dense_width, got both"),
    ],
)
def test_moved_refuses_parts_of_no_layer(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        moved(BASE, ShapeChange(**change), PLAIN)
    assert str(caught.value) == message


MIXED = dataclasses.replace(BASE, num_shared=1, shared_width=16, dense_width=96)
SHARED = dataclasses.replace(BASE, num_active=2, num_shared=1, shared_width=16, num_groups=2)
NO_EXPERTS = {
    **dict.fromkeys(("num_experts", "num_active", "expert_width", "num_shared", "shared_width"), 0),
    "num_groups": 1,
}
DENSE = Shape(width=32, depth=2, head_dim=16, dense_width=64)
EVERY_OTHER = PLAIN.model_copy(update={"moe_every": 2})
TO_MOE = {"num_experts": 8, "num_active": 2, "expert_width": 16}
MOE_DIMS = {**TO_MOE, "dense_width": 0}


@pytest.mark.parametrize(
    ("base", "model", "change", "dims"),
    [
        (BASE, PLAIN, {}, {}),
        (BASE, PLAIN, {"width": 64}, {"width": 64, "expert_width": 128}),  # the ratio is kept
        (BASE, PLAIN, {"width": 64, "expert_width": 64}, {"width": 64}),
        (BASE, PLAIN, {"width": 64, "expert_ratio": 0.5}, {"width": 64, "expert_width": 32}),
        (BASE, PLAIN, {"depth": 3}, {"depth": 3}),
        (BASE, PLAIN, {"num_experts": 12}, {"num_experts": 12, "num_active": 3}),  # kappa is kept
        (BASE, PLAIN, {"num_experts": 12, "num_active": 1}, {"num_experts": 12}),
        (BASE, PLAIN, {"num_active": 2}, {"num_active": 2}),
        (MIXED, EVERY_OTHER, {"width": 64}, {"width": 64, "expert_width": 128, "shared_width": 32, "dense_width": 192}),
        (MIXED, EVERY_OTHER, {"num_shared": 0}, {"num_shared": 0, "shared_width": 0}),
        (MIXED, EVERY_OTHER, {"num_shared": 3, "shared_ratio": 1}, {"num_shared": 3, "shared_width": 32}),
        (MIXED, EVERY_OTHER, {"dense_ratio": 1}, {"dense_width": 32}),
        (BASE, PLAIN, {"num_experts": 0}, {**NO_EXPERTS, "dense_width": 64}),  # as wide as the one active expert
        (SHARED, PLAIN, {"num_experts": 0}, {**NO_EXPERTS, "dense_width": 2 * 64 + 16}),
        (SHARED, PLAIN, {"num_experts": 0, "width": 64}, {**NO_EXPERTS, "width": 64, "dense_width": 288}),
        (SHARED, PLAIN, {"num_experts": 0, "dense_ratio": 4}, {**NO_EXPERTS, "dense_width": 128}),
        (MIXED, EVERY_OTHER, {"num_experts": 0}, NO_EXPERTS),  # every block has the dense FFN that some had
        (DENSE, PLAIN, {"num_experts": 0}, {}),
        (BASE, PLAIN, {"num_shared": 2}, {"num_shared": 2, "shared_width": 64}),  # as wide as a routed one
        (BASE, PLAIN, {"num_active": 2, "num_groups": 2}, {"num_active": 2, "num_groups": 2}),
        (BASE, PLAIN, {"batch_tokens": 64, "steps": 9}, {"batch_tokens": 64, "steps": 9}),
        (DENSE, PLAIN, {"width": 64}, {"width": 64, "dense_width": 128}),
        (DENSE, PLAIN, TO_MOE, MOE_DIMS),  # every block has experts: no dense FFN is left
        (DENSE, EVERY_OTHER, TO_MOE, TO_MOE),  # the other blocks keep theirs
        (DENSE, PLAIN, {**TO_MOE, "num_shared": 1}, {**MOE_DIMS, "num_shared": 1, "shared_width": 64}),
        (DENSE, EVERY_OTHER, {**TO_MOE, "width": 64}, {**TO_MOE, "width": 64, "dense_width": 128}),
    ],
)
def test_moved(base: Shape, model: GPTModel, change: dict[str, Any], dims: dict[str, int]) -> None:
    assert moved(base, ShapeChange(**change), model) == dataclasses.replace(base, **dims)


@pytest.mark.parametrize(
    ("axis", "points"),
    [
        ("active: [4, 1]", [{"num_active": 1}, {}, {"num_active": 4}]),
        ("capacity: [4, 16]", [{"num_experts": 4}, {}, {"num_experts": 16}]),
        (
            "granularity: [1, 4]",
            [
                {"num_active": 1, "num_experts": 4, "expert_width": 64},
                {},
                {"num_active": 4, "num_experts": 16, "expert_width": 16},
            ],
        ),
        ("shared: [1, 2]", [{}, {"num_shared": 1, "shared_width": 32}, {"num_shared": 2, "shared_width": 32}]),
        ("groups: [2]", [{}, {"num_groups": 2}]),
        ("batch: [256, 1024]", [{"batch_tokens": 256, "steps": 400}, {}, {"batch_tokens": 1024, "steps": 100}]),
        ("duration: [50, 400]", [{"steps": 50}, {}, {"steps": 400}]),
    ],
)
def test_axes_of_bare_values(axis: str, points: list[dict[str, int]]) -> None:
    base = ("num_experts: 4, num_active: 1", "num_experts: 8, num_active: 2")
    spec = parse_sweep(edited(base, ("width: [32, 64]", axis), ("[completep-moe, sp]", "[sp]")))
    (path,) = axes_of(spec)
    assert [point.shape for point in path.points] == [
        dataclasses.replace(spec.base_shape, **change) for change in points
    ]
    scale_names = {"shared": "active_width", "groups": "num_groups", "batch": "batch_tokens", "duration": "steps"}
    name = axis.partition(":")[0]
    assert path.scale_name == scale_names.get(name, "num_experts" if name == "capacity" else "num_active")
    assert [point.scale for point in path.points] == [getattr(point.shape, path.scale_name) for point in path.points]


def test_labels_name_the_schedule_where_it_moves() -> None:
    for axis, labels in (
        ("  duration: [400]", ["w32 d2 E4A1 h32 b512 t200", "w32 d2 E4A1 h32 b512 t400"]),
        ("  width: [32, 64, 64]", ["w32 d2 E4A1 h32", "w64 d2 E4A1 h64"]),
    ):
        path = path_of(axis)
        assert [path.label(point.shape) for point in path.points] == labels


@pytest.mark.parametrize(
    ("axis", "scale_name", "scales"),
    [
        ("  width: [64, 128]", "width", [32, 64, 128]),
        ("  depth: [4]", "depth", [2, 4]),
        ("  experts: [16, 8]", "num_experts", [4, 8, 16]),
        ("  active: {values: [2], allow_kappa_change: true}", "num_active", [1, 2]),
        ("  expert_ratio: [2, 0.5]", "expert_ratio", [0.5, 1, 2]),
        ("  expert_width: [64]", "expert_width", [32, 64]),
        ("  wide: [{width: 64}]", "width", [32, 64]),
        ("  deep: [{depth: 4}, {depth: 8}]", "depth", [2, 4, 8]),
        ("  big: [{width: 64, depth: 4}]", "hidden weights", [24576, 4 * (4 * 64**2 + 2 * 4 * 64 * 64)]),
        ("  longer: [{batch_tokens: 1024, steps: 100}]", "batch_tokens", [512, 1024]),
        ("  longer: [{batch_tokens: 1024}]", "batch_tokens", [512, 1024]),
        ("  longer: [{batch_tokens: 1024, steps: 300}]", "tokens", [102400, 307200]),
        ("  shared: [{num_shared: 1, shared_width: 8}]", "active_width", [32, 40]),
        ("  shared: [{num_shared: 1, width: 64}]", "hidden weights", [24576, 2 * (4 * 64**2 + 2 * 5 * 64 * 64)]),
        ("  thin: [{width: 64, expert_width: 32}]", "hidden weights", [24576, 2 * (4 * 64**2 + 2 * 4 * 64 * 32)]),
    ],
)
def test_scales(axis: str, scale_name: str, scales: list[float]) -> None:
    path = path_of(axis)
    assert path.scale_name == scale_name
    assert [point.scale for point in path.points] == scales


def test_the_first_shared_expert_is_as_wide_as_a_routed_one() -> None:
    """Not as a dense FFN, where the base has both."""
    base = ("num_active: 1, expert_ratio: 1", "num_active: 1, expert_ratio: 1, dense_ratio: 4")
    mixed = ("context: 64", "context: 64\n  moe_every: 2")
    (path,) = axes_of(
        parse_sweep(edited(base, mixed, ("width: [32, 64]", "shared: [1]"), ("[completep-moe, sp]", "[sp]")))
    )
    assert [point.shape.shared_width for point in path.points] == [0, 32]


def test_a_path_is_measured_by_what_tells_most_of_its_shapes_apart() -> None:
    base = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 2")
    axis = "  x: [{num_groups: 2}, {num_active: 4, num_groups: 2}]"  # all of equal weights
    (path,) = axes_of(parse_sweep(edited(base, ("width: [32, 64]", axis), ("[completep-moe, sp]", "[sp]"))))
    assert (path.scale_name, [point.scale for point in path.points]) == ("active_width", [64, 64, 128])


def test_experts_at_a_held_number_of_active_ones() -> None:
    path = path_of("  experts: {values: [8, 16], num_active: 1, allow_kappa_change: true}")
    assert [(point.shape.num_experts, point.shape.num_active) for point in path.points] == [(4, 1), (8, 1), (16, 1)]


@pytest.mark.parametrize(
    ("shape", "matrices", "scale_name", "scales"),
    [
        ("width: 64, num_experts: 8, num_active: 8, expert_width: 16", 2, "width", [32, 64]),  # regime II
        ("width: 64, num_experts: 8, num_active: 8, expert_width: 32", 2, "width", [32, 64]),  # regime III
        ("width: 64, expert_width: 16", 2, "width", [32, 64]),
        ("width: 64, expert_width: 32, depth: 3", 2, "hidden weights", [2 * 4 * 16 * 32, 2 * 3 * 4 * 32 * 64]),
        ("width: 64, expert_width: 64, depth: 3", 1, "hidden weights", [4 * 32 * 32, 3 * 4 * 64 * 64]),
    ],
)
def test_a_regime_of_mlps_goes_by_its_width(shape: str, matrices: int, scale_name: str, scales: list[float]) -> None:
    """And a path on which the depth moves too by the weights of the experts, as there is no attention."""
    edits = [("width: 64, expert_width: 32", shape), ("[mup-i, sp]", "[sp]")]
    if matrices == 1:  # such an expert is as wide as the model
        one = "family: mlp\n  mlp: {expert_matrices: 1}"
        edits += [("family: mlp", one), ("num_active: 4, expert_width: 16", "num_active: 4, expert_width: 32")]
    (path,) = axes_of(parse_sweep(edited(*edits, text=SAMPLES)))
    assert (path.scale_name, [point.scale for point in path.points]) == (scale_name, scales)


@given(sweeps())
@settings(max_examples=examples(15))
def test_every_path_is_legal_ascending_and_holds_the_base(spec: SweepSpec) -> None:
    for path in axes_of(spec):
        shapes = [point.shape for point in path.points]
        scales = [point.scale for point in path.points]
        assert spec.base_shape in shapes
        assert len(set(shapes)) == len(shapes)
        assert scales == sorted(scales)
        assert not any(check_shape(shape) for shape in shapes)
        assert len({path.label(shape) for shape in shapes}) == len(shapes)
        assert scales[0] > 0
        assert spec.axes[path.name].allow_kappa_change or {shape.kappa for shape in shapes} == {spec.base_shape.kappa}


def test_a_path_from_a_dense_base_is_measured_by_its_weights() -> None:
    dense = "{width: 32, depth: 2, dense_ratio: 2, head_dim: 32}"
    base = ("{width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}", dense)
    shapes = "moe: [{num_experts: 4, num_active: 2, expert_ratio: 1}, {num_experts: 2, num_active: 1, expert_ratio: 1}]"
    edits = (base, ("[completep-moe, sp]", "[sp]"), ("context: 64", "context: 64\n  ffn: swiglu"))
    (path,) = axes_of(parse_sweep(edited(*edits, ("width: [32, 64]", shapes))))
    # The two small ones have equal weights, and nothing else tells more of the shapes apart.
    assert (path.scale_name, [point.scale for point in path.points]) == ("hidden weights", [20480, 20480, 32768])
    (path,) = axes_of(parse_sweep(edited(*edits, ("width: [32, 64]", shapes.partition(", {num_experts: 2")[0] + "]"))))
    assert (path.scale_name, [point.scale for point in path.points]) == ("hidden weights", [20480, 32768])


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
