"""Plans of a user's own trainer: what is not known stays unknown, and is never taken for nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from user_sweeps import TABLES, write_user

from hpxfer.cli.consent import ask, keep_within
from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.plan.plan import Plan
from hpxfer.plan.text import plan_text

GPU = ("executor: local", "executor: local\n  gpus_per_trial: 2")


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Plan]:
    return lambda *edits: prepare(write_user(tmp_path, "", *edits), results=tmp_path / "results").plan


def cost(text: str) -> tuple[str, str]:
    return "  control: plain\n", f"  control: plain\n  cost: {{seconds_per_trial: {text}}}\n"


def test_an_unknown_time_is_said_and_is_null_in_strict_json(planned: Callable[..., Plan]) -> None:
    plan = planned(GPU)
    assert "time: unknown until a trial of each shape is stored; trainer.cost may say it" in plan_text(plan)
    assert "nan" not in plan_text(plan)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads(json.dumps(plan.to_dict()), parse_constant=refuse)
    assert [data[name] for name in ("wall_s", "worker_hours", "gpu_hours")] == [None] * 3
    assert {row["trial_s"] for row in data["shapes"]} == {None}


def test_a_limit_of_gpu_hours_refuses_what_is_not_known_and_what_is_too_much(planned: Callable[..., Plan]) -> None:
    with pytest.raises(HpxferError, match=r"its time is not known"):
        keep_within(planned(GPU), 1000.0)
    known = planned(GPU, cost("3600"))
    assert known.gpu_hours == pytest.approx(16 * 2)  # trials of two GPUs each
    keep_within(known, 32.0)
    with pytest.raises(HpxferError, match="got about 32 GPU-hours"):
        keep_within(known, 31.9)


def test_without_gpus_no_gpu_hours_are_used_whatever_the_time(planned: Callable[..., Plan]) -> None:
    plan = planned()
    assert plan.gpu_hours == 0.0
    keep_within(plan, 0.0)
    assert math.isnan(plan.worker_hours)
    ask(plan, yes=False)  # asks nothing


def test_costs_go_by_label_with_batch_and_steps_or_without(planned: Callable[..., Plan]) -> None:
    labels = "{act=gelu d_model=64: 5, act=gelu d_model=128: 7}"
    assert {row.shape.label(): row.trial_s for row in planned(cost(labels)).shapes} == {
        "act=gelu d_model=64": 5.0,
        "act=gelu d_model=128": 7.0,
    }
    longer = ("d_model: [128]", "steps: [40]")
    labels = "{act=gelu d_model=64 b512 t40: 9, act=gelu d_model=64: 5}"
    assert {row.shape.steps: row.trial_s for row in planned(longer, cost(labels)).shapes} == {20: 5.0, 40: 9.0}


def test_a_cost_of_one_shape_leaves_the_whole_unknown(planned: Callable[..., Plan]) -> None:
    plan = planned(cost("{act=gelu d_model=64: 5}"))
    assert math.isnan(plan.wall_s)
    assert sorted(row.trial_s for row in plan.shapes if not math.isnan(row.trial_s)) == [5.0]


def test_too_few_dimensions_for_a_recipe_are_said(tmp_path: Path) -> None:
    def cautions(*edits: tuple[str, str]) -> str:
        plan = prepare(write_user(tmp_path, "", *edits, text=TABLES), results=tmp_path / "results").plan
        return "\n".join(plan.cautions)

    assert "model.dims: names too few dimensions for a recipe: must have experts" in cautions()
    assert "model.dims" not in cautions(("depth: 2}", "depth: 2, dense_width: 256, head_dim: 16}"))
