"""The plan counts trials, stacks, tokens and FLOPs, and says where its time estimate is from."""

from __future__ import annotations

from pathlib import Path

from tiny import write_tiny

from hpxfer.driver import prepare
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan import Plan, ShapePlan, assumed_trial_s, make_plan
from hpxfer.plan_text import plan_text
from hpxfer.stack import Measured
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


def test_time_is_assumed_until_a_shape_has_been_measured_and_then_scaled(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    base, wide = make_plan(sweep, ()).shapes
    assert wide.worker_s == 20 * assumed_trial_s(wide.shape, sweep.setting, cuda=False)
    assert "assumed" in make_plan(sweep, ()).rate_from
    slow = 3 * assumed_trial_s(base.shape, sweep.setting, cuda=False)
    measured = make_plan(sweep, (), measured={base.shape: Measured(trial_s=slow)})
    assert measured.rate_from == "measured: 1 of 2 shapes, from the store"
    assert measured.shapes[0].worker_s == 10 * slow
    assert abs(measured.shapes[1].worker_s / wide.worker_s - 3) < 1e-9


def _shape_plan(shape: ShapePlan, num_stacks: int, worker_s: float) -> ShapePlan:
    from dataclasses import replace

    return replace(shape, num_stacks=num_stacks, worker_s=worker_s)


def test_no_stack_is_cut_to_fill_a_worker(tmp_path: Path) -> None:
    base, wide = make_plan(expansion(tmp_path), ()).shapes
    shapes = (_shape_plan(base, 1, 10.0), _shape_plan(wide, 1, 90.0))
    plan = Plan(sweep="x", shapes=shapes, workers=2, rate_from="here")
    assert plan.wall_s == 90.0
    assert Plan(sweep="x", shapes=shapes, workers=1, rate_from="here").wall_s == 100.0


def test_the_text_says_what_will_happen(tmp_path: Path) -> None:
    sweep = expansion(tmp_path)
    text = plan_text(make_plan(sweep, ()))
    assert "w32 d1 E2A1 h32" in text
    assert "30 trials, 0 done, 30 to run in" in text
    ids = {trial.id for trial in sweep.trials()}
    assert plan_text(make_plan(sweep, ids)).endswith("30 trials, all done")


def test_a_plan_counts_each_shape_s_own_run_and_names_it(tmp_path: Path) -> None:
    sweep = expansion(tmp_path, ("width: [16, 32]", "duration: [12]"))
    base, longer = make_plan(sweep, ()).shapes
    assert (base.tokens, longer.tokens) == (10 * 6 * 64, 20 * 12 * 64)
    assert longer.flops == 4 * base.flops  # twice the trials, twice the steps
    text = plan_text(make_plan(sweep, ()))
    assert "w16 d1 E2A1 h16 b64 t6 " in text
    assert "w16 d1 E2A1 h16 b64 t12 " in text


def test_a_plan_holds_the_cautions_of_its_sweep(tmp_path: Path) -> None:
    (caution,) = make_plan(expansion(tmp_path, ("width: [16, 32]", "duration: [12]")), ()).cautions
    assert caution.startswith("completep-moe along duration: ")
    assert make_plan(expansion(tmp_path), ()).to_dict()["cautions"] == []
