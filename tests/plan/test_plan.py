"""The plan counts trials, stacks, tokens and FLOPs, and says where its time estimate is from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import write_tiny

from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan.cautions import require_fit, spell_bytes
from hpxfer.plan.footprint import stack_bytes
from hpxfer.plan.hardware import CPU_CORE, hardware_named, rate_of
from hpxfer.plan.make import make_plan, search_counts, workers_of
from hpxfer.plan.packing import (
    CPU,
    CPU_STACK_BYTES,
    GPU_SHARE,
    WORKER_BYTES,
    Device,
    Measured,
    Packer,
)
from hpxfer.plan.plan import Plan
from hpxfer.plan.text import plan_text
from hpxfer.search import Progress
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.trial import Expansion


def expansion(tmp_path: Path, *edits: tuple[str, str]) -> Expansion:
    return prepare(write_tiny(tmp_path, *edits), results=tmp_path).expansion


def test_counts_of_what_is_left(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("workers: 2", "workers: 2, stack_size: 4"))
    trials = list(sweep.trials())
    done = {trial.id for trial in trials if trial.shape.width == 16}
    base, wide = make_plan(sweep, done).shapes
    assert (base.num_trials, base.num_done, base.num_stacks, base.tokens, base.flops) == (10, 10, 0, 0, 0.0)
    assert (wide.num_trials, wide.num_done, wide.num_stacks) == (20, 0, 5)
    assert wide.tokens == 20 * 6 * 64
    assert wide.flops == 20 * train_flops(wide.shape, sweep.setting)
    params = count_params(wide.shape, sweep.setting)
    assert (wide.params_total, wide.params_active) == (params.total, params.active)


def test_time_is_rated_until_a_shape_has_been_measured_and_then_scaled(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    rate = rate_of(CPU_CORE, "float32")
    base, wide = make_plan(sweep, ()).shapes
    assert wide.worker_s == 20 * rate.trial_s(wide.shape, sweep.setting)
    assert "measured 2026-11 on one core" in make_plan(sweep, ()).rate_from
    slow = 3 * rate.trial_s(base.shape, sweep.setting)
    measured = make_plan(sweep, (), measured={base.shape: Measured(trial_s=slow)})
    assert measured.rate_from.startswith("measured: 1 of 2 shapes, from the store; they took 3x of what the rate says")
    assert measured.measured_over_rate == pytest.approx(3)
    assert measured.shapes[0].worker_s == pytest.approx(10 * slow)
    assert measured.shapes[1].worker_s == pytest.approx(3 * wide.worker_s)


def test_no_stack_is_cut_to_fill_a_worker(tmp_path: Path) -> None:
    shapes = tuple(
        replace(shape, num_stacks=1, trial_s=seconds / (shape.num_trials - shape.num_done))
        for shape, seconds in zip(make_plan(expansion(tmp_path), ()).shapes, (10.0, 90.0), strict=True)
    )
    plan = Plan(sweep="x", shapes=shapes, workers=2, rate_from="here")
    assert plan.wall_s == 90.0
    assert Plan(sweep="x", shapes=shapes, workers=1, rate_from="here").wall_s == 100.0


def test_a_plan_counts_each_shape_s_own_run_and_names_it(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("width: [16, 32]", "duration: [12]"))
    plan = make_plan(sweep, ())
    base, longer = plan.shapes
    assert [caution.partition(": ")[0] for caution in plan.cautions] == ["completep-moe along duration"]
    assert make_plan(expansion(tmp_path), ()).to_dict()["cautions"] == []
    assert (base.tokens, longer.tokens) == (10 * 6 * 64, 20 * 12 * 64)
    assert longer.flops == 4 * base.flops  # twice the trials, twice the steps
    text = plan_text(plan)
    assert "w16 d1 E2A1 h16 b64 t6 " in text
    assert "w16 d1 E2A1 h16 b64 t12 " in text


H100 = hardware_named("h100")


def test_hours_and_price_follow_the_hardware(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("workers: 2", "workers: 4"))
    here = make_plan(sweep, (), price_per_hour=3.0)
    assert (here.gpu_hours, here.hardware) == (0.0, "cpu")
    assert here.worker_hours == pytest.approx(sum(row.worker_s for row in here.shapes) / 3600)
    assert here.price == pytest.approx(3 * here.worker_hours)
    there = make_plan(sweep, (), hardware=H100, price_per_hour=3.0, bench=tmp_path)
    assert there.device.memory_bytes == H100.memory_bytes
    assert there.gpu_hours == pytest.approx(sum(row.worker_s * row.gpu_share for row in there.shapes) / 3600)
    assert 0 < there.gpu_hours < there.worker_hours  # these stacks leave most of a GPU to others
    assert there.price == pytest.approx(3 * there.gpu_hours)
    assert make_plan(sweep, ()).price is None
    text = plan_text(there)
    for said in ("assumed", "unmeasured", "GPU-hours", "at 3 per hour", "never measured on a GPU"):
        assert said in text


def test_times_of_this_machine_say_nothing_of_other_hardware(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    known = {shape: Measured(trial_s=1e6) for shape in sweep.shapes}
    assert make_plan(sweep, (), measured=known).measured_over_rate is not None
    other = make_plan(sweep, (), measured=known, hardware=H100, bench=tmp_path)
    assert other.measured_over_rate is None
    assert other.worker_hours < 1
    named = make_plan(sweep, (), measured=known, hardware=CPU_CORE)
    assert named.measured_over_rate is not None  # the hardware named is what is there


def test_a_gpu_of_its_own_is_asked_for_by_a_number(tmp_path: Path) -> None:
    device = Device(cuda=True, memory_bytes=2**36, num_gpus=2)
    for given, shares, workers in (("auto", {0.125}, 2), (1, {1.0}, 2), (0.5, {0.5}, 4)):
        edit = ("workers: 2}", f"gpus_per_stack: {given}}}")
        plan = make_plan(expansion(tmp_path, edit), (), device, bench=tmp_path)
        assert {row.gpu_share for row in plan.shapes} == shares
        assert plan.workers == workers


ON_CPUS, ON_GPUS = Device(num_cpus=16, num_gpus=4), Device(cuda=True, num_cpus=64, num_gpus=4)


@pytest.mark.parametrize(
    ("resources", "device", "workers"),
    [
        ({}, ON_CPUS, 16),
        ({"cpus_per_stack": 3}, ON_CPUS, 5),
        ({"cpus_per_stack": 99}, ON_CPUS, 1),
        ({"gpus_per_stack": 0.25}, ON_GPUS, 16),
        ({}, Device(cuda=True), 1),
        ({"workers": 7}, ON_GPUS, 7),
        # Of a user's own trainer.
        ({"gpus_per_trial": 2}, ON_GPUS, 2),
        ({"gpus_per_trial": 3}, ON_GPUS, 1),
        ({"gpus_per_trial": 0.25}, ON_GPUS, 16),
        ({"gpus_per_trial": 16, "gpus_per_node": 8}, ON_GPUS, 1),
        ({"gpus_per_trial": 2, "workers": 3}, ON_GPUS, 3),
    ],
)
def test_workers_are_what_the_cluster_has_room_for(resources: dict[str, float], device: Device, workers: int) -> None:
    assert workers_of(ResourcesSpec(**resources), device) == workers  # type: ignore[arg-type]


def test_a_search_that_chooses_is_planned_at_most(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    base, wide = sweep.shapes
    counts = search_counts({base: Progress(8, 0), wide: Progress(5, 15)}, now={wide: 15})
    plan = make_plan(sweep, (), counts=counts)
    assert (plan.num_trials, plan.num_done, plan.num_left, plan.at_most) == (28, 13, 15, True)
    assert "it may end earlier: at most 28 trials, 13 done, 15 to run" in plan_text(replace(plan, search="refine"))
    over = make_plan(sweep, (), counts=search_counts({base: Progress(0, 8), wide: Progress(5, 15)}, now={}))
    assert (over.num_trials, over.num_left, over.at_most) == (5, 0, False)
    assert plan_text(over).endswith("5 trials, all done")


def test_stacks_that_share_a_gpu_run_at_once(tmp_path: Path) -> None:
    gpu = Device(cuda=True, memory_bytes=80 * 2**30, num_gpus=1)
    edit = ("{executor: local, workers: 2}", "{executor: ray, stack_size: 1}")
    plan = make_plan(expansion(tmp_path, edit), (), gpu, bench=tmp_path)
    assert {row.gpu_share for row in plan.shapes} == {1 / 8}
    assert plan.wall_s == pytest.approx(3600 * plan.gpu_hours)
    assert "on 1 GPU (gpu, stacks of 0.125 of a GPU each; 65,536 tokens a step fill one, assumed)" in plan_text(plan)
    asked = expansion(tmp_path, (edit[0], "{executor: ray, stack_size: 1, workers: 1}"))
    plan = make_plan(asked, (), gpu, bench=tmp_path)
    assert plan.wall_s == pytest.approx(3600 * plan.worker_hours)
    assert "on 1 worker (gpu, 0.125 of a GPU each)" in plan_text(plan)


def test_a_search_in_rounds_says_what_its_stacks_and_its_time_rest_on(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("seeds: 2", "search: refine\nseeds: 2"))
    left = {shape: Progress(0, 9) for shape in sweep.shapes}
    text = plan_text(make_plan(sweep, (), counts=search_counts(left, now={sweep.shapes[0]: 9})))
    assert "at most 18 trials" in text
    assert "\nabout " in text
    assert "stacks counted round by round: " in text
    assert "if its rounds keep the workers busy" in text


def test_a_search_of_a_billion_passes_is_planned(tmp_path: Path) -> None:
    search = "search: {kind: coordinate, passes: 1000000000}\nseeds: 2"
    plan = prepare(write_tiny(tmp_path, ("seeds: 2", search)), results=tmp_path).plan
    assert plan.num_left > 10**9
    assert plan.num_left >= sum(row.num_stacks for row in plan.shapes) > 10**9


def memory_of(plan: Plan) -> list[str]:
    return [caution for caution in plan.cautions if "memory" in caution]


def test_a_trial_that_does_not_fit_is_said_before_it_runs(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("workers: 2}", "stack_size: 4}"))
    narrow, wide = sweep.shapes
    each, least = (stack_bytes(shape, sweep.setting, 1, cuda=True) for shape in (wide, narrow))
    for memory, cautions, refused, largest in (
        (least // 4, 1, [wide, narrow], 1),
        (int(each / 2.1 / GPU_SHARE), 1, [wide], 1),
        (int(each / 1.9 / GPU_SHARE), 2, [], 1),
        (3 * each, 1, [], 2),
        (2**40, 0, [], 4),
    ):
        device = Device(cuda=True, memory_bytes=memory)
        plan, fours = make_plan(sweep, (), device, bench=tmp_path), Packer(device=device, asked=4)
        assert max(row.stack_size for row in plan.shapes if row.shape == wide) == largest
        assert len(memory_of(plan)) == cautions
        assert {len(stack.trials) for stack in fours.pack(sweep.trials()) if stack.shape == wide} <= {
            largest,
            4,
        }
        assert [text.split(" needs ")[0] for text in sorted(plan.unfit)] == sorted(
            f"memory: one trial of {shape.label()}" for shape in refused
        )
        assert all("never measured on a GPU" in text for text in plan.unfit)
        if cautions == 2:
            alone, stacks = memory_of(plan)
            assert f"one trial of {wide.label()} needs {spell_bytes(each)}" in alone
            assert "expect it to fail" in alone
            assert "never measured on a GPU" in alone
            assert "4 trials of" in stacks


def test_a_measured_shape_and_a_gpu_of_unknown_size_are_judged_as_such(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    _, wide = sweep.shapes
    gpu = Device(cuda=True, memory_bytes=2**34)
    known = {wide: Measured(trial_s=1.0, trial_bytes=1.1 * gpu.room(), stack_size=1)}
    (refused,) = make_plan(sweep, (), gpu, measured=known, bench=tmp_path).unfit
    assert "never measured" not in refused
    unknown = make_plan(sweep, (), Device(cuda=True), measured={wide: Measured(trial_bytes=2.0**50)}, bench=tmp_path)
    assert unknown.unfit == ()
    assert "expect it to fail" in memory_of(unknown)[0]


def test_on_a_cpu_fewer_workers_are_offered_where_these_fit(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("workers: 2", "workers: 4"))
    _, wide = sweep.shapes
    need = stack_bytes(wide, sweep.setting, 1, cuda=False) + WORKER_BYTES
    plan = make_plan(sweep, (), Device(host_bytes=int(2.5 * need / 0.8)))
    assert plan.unfit
    assert all("give fewer resources.workers, fewer batch_tokens" in text for text in plan.unfit)
    with pytest.raises(HpxferError, match="--no-strict-memory"):
        require_fit(plan)
    require_fit(make_plan(sweep, (), Device(host_bytes=2**40)))


@pytest.mark.parametrize("search", ["refine", "{kind: optuna, budget: 40, batch: 2}"])
def test_a_round_with_fewer_trials_than_a_stack_may_have_is_no_lack_of_memory(search: str, tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("seeds: 2", f"search: {search}\nseeds: 2"), ("workers: 2}", "stack_size: 16}"))
    plan = prepare(sweep, results=tmp_path).plan
    assert min(row.stack_size for row in plan.shapes) < 16
    assert memory_of(plan) == []


def test_only_workers_that_have_a_stack_count(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("workers: 2}", "workers: 40}"))
    need = stack_bytes(sweep.shapes[1], sweep.setting, 1, cuda=False) + WORKER_BYTES
    plan = make_plan(sweep, (), Device(host_bytes=int(31 * need / 0.8)))
    assert sum(row.num_stacks for row in plan.shapes) == 30
    assert memory_of(plan) == list(plan.unfit) == []
    assert memory_of(make_plan(sweep, (), CPU)) == []


def test_a_machine_with_little_memory_gets_small_stacks(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    _, wide = sweep.shapes
    each = stack_bytes(wide, sweep.setting, 1, cuda=False)
    for workers in (1, 4):
        device = Device(host_bytes=int(workers * (WORKER_BYTES + 3.5 * each) / 0.8))
        (stack, *_) = [
            stack for stack in Packer(device=device, workers=workers).pack(sweep.trials()) if stack.shape == wide
        ]
        assert len(stack.trials) <= 3
    assert CPU.room() == CPU_STACK_BYTES
