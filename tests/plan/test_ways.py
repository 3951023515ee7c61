"""How many pieces are computed at once, and what is computed again: chosen so that stacks fit, said by the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import write_tiny
from tiny_trials import BASE, SETTING, trial

from hpxfer.driver.prepared import prepare
from hpxfer.plan.footprint import ONE, Way, stack_bytes
from hpxfer.plan.hardware import hardware_named
from hpxfer.plan.make import make_plan
from hpxfer.plan.packing import GPU_SHARE, Device, pack, stack_size, way_on
from hpxfer.plan.text import plan_text
from hpxfer.plan.ways import How, ways
from hpxfer.scaling.shape import Shape
from hpxfer.spec.balance import Balance
from hpxfer.trial import Expansion, Setting

GPU = Device(cuda=True, memory_bytes=80 * 2**30, num_gpus=1)
LARGE = Shape(width=512, depth=8, head_dim=64, num_experts=4, num_active=1, expert_width=512)
PAPER = replace(
    SETTING, context=1024, vocab_size=50304, precision="bfloat16", batch_tokens=2**19, accumulation_tokens=2**14
)


def with_memory(room: float) -> Device:
    return replace(GPU, memory_bytes=int(room / GPU_SHARE) + 1)


def need(way: Way, setting: Setting = PAPER, trials: int = 1) -> int:
    return stack_bytes(LARGE, setting, trials, cuda=True, way=way)


def test_as_many_pieces_as_fill_the_device_where_they_fit() -> None:
    assert way_on(LARGE, PAPER, 1, GPU) == Way(pieces=4)  # 65,536 tokens fill a GPU
    assert way_on(LARGE, PAPER, 1, replace(GPU, step_tokens=2**18)) == Way(pieces=16)
    assert way_on(LARGE, replace(PAPER, accumulation_lanes=16), 1, GPU) == Way(pieces=2)  # a lane has no more
    assert way_on(LARGE, PAPER, 4, GPU) == ONE
    assert way_on(LARGE, replace(PAPER, accumulation_tokens=None), 1, replace(GPU, memory_bytes=2**40)) == ONE


def test_fewer_pieces_before_blocks_are_computed_again() -> None:
    four, one = need(Way(pieces=4)), need(ONE)
    again, one_again = need(Way(pieces=4, recompute=True)), need(Way(recompute=True))
    assert one_again < one < four
    assert again < four
    assert way_on(LARGE, PAPER, 1, with_memory(four)) == Way(pieces=4)
    assert way_on(LARGE, PAPER, 1, with_memory(one)) == ONE
    assert way_on(LARGE, PAPER, 1, with_memory(one_again)) == Way(recompute=True)
    assert way_on(LARGE, PAPER, 1, with_memory(one_again // 2)) == Way(recompute=True)  # the least that there is


def test_what_the_sweep_asks_for_is_done() -> None:
    assert way_on(LARGE, PAPER, 1, GPU, How(micro_batch_tokens=2**15)) == Way(pieces=2)
    assert way_on(LARGE, PAPER, 1, GPU, How(micro_batch_tokens=2**14)) == ONE
    # At most so many tokens: a lane of 4 pieces is never cut into 3 and 1.
    assert way_on(LARGE, replace(PAPER, accumulation_lanes=8), 1, GPU, How(micro_batch_tokens=3 * 2**14)).pieces == 2
    assert way_on(LARGE, PAPER, 1, GPU, How(recompute="blocks")) == Way(pieces=4, recompute=True)
    small = with_memory(need(Way(recompute=True)))
    assert not way_on(LARGE, PAPER, 1, small, How(recompute="none")).recompute


def test_blocks_are_computed_again_where_a_larger_stack_then_fits() -> None:
    whole = replace(PAPER, batch_tokens=2**14, accumulation_tokens=None)
    deep = replace(LARGE, depth=32)
    fits = stack_bytes(deep, whole, 4, cuda=True, way=Way(recompute=True))
    device = with_memory(fits)
    assert stack_size(deep, whole, device, how=How(recompute="none")) < 4
    assert stack_size(deep, whole, device) == 4
    assert way_on(deep, whole, 4, device).recompute
    assert not way_on(deep, whole, 1, device).recompute
    (stack,) = pack([trial(whole, deep, seed=k) for k in range(4)], device)
    assert (len(stack.trials), stack.recompute) == (4, True)


@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.floats(1, 2**20),
    st.sampled_from(["auto", "none", "blocks"]),
    st.booleans(),
)
def test_the_ways_are_legal_and_each_stands_once(
    pieces: int, lanes: int, fill: float, recompute: str, cuda: bool
) -> None:
    setting = replace(
        SETTING, batch_tokens=32 * 2**pieces, accumulation_tokens=32, accumulation_lanes=2 ** min(lanes, pieces)
    )
    found = ways(BASE, setting, fill, How(recompute=recompute), cuda=cuda)  # type: ignore[arg-type]
    assert len(set(found)) == len(found) > 0
    for way in found:
        assert setting.pieces_per_lane % way.pieces == 0
        assert way.pieces == 1 or way.pieces * 32 <= fill
    assert {way.recompute for way in found} == {"auto": {False, True}, "none": {False}, "blocks": {True}}[recompute]
    assert min(way.pieces for way in found) == 1


def plan_of(folder: Path, training: str, resources: str = "") -> Expansion:
    file = write_tiny(
        folder,
        ("batch_tokens: 64", f"batch_tokens: 512, {training}"),
        ("validation_tokens: 128", "validation_tokens: 512"),
        ("workers: 2}", f"workers: 2{resources}}}"),
    )
    return prepare(file, results=folder).expansion


def test_the_plan_says_how_a_batch_is_computed(tmp_path: Path) -> None:
    sweep = plan_of(tmp_path, "accumulation_tokens: 64, accumulation_lanes: 2", ", micro_batch_tokens: 128")
    plan = make_plan(sweep, ())
    text = plan_text(plan)
    assert "8 pieces of 64 tokens in 2 lanes, 128 tokens at once" in text
    assert "sums of gradients" in text
    assert plan.to_dict()["shapes"][0]["batch"]["micro_batch_tokens"] == 128
    again = plan_of(tmp_path, "accumulation_tokens: 64", ", recompute: blocks")
    slower = make_plan(again, ())
    assert "blocks computed again in the backward pass (a third more FLOPs)" in plan_text(slower)
    for one, other in zip(plan.shapes, slower.shapes, strict=True):
        assert other.trial_s == pytest.approx(4 / 3 * one.trial_s)


def test_a_loss_that_balances_the_whole_batch_costs_a_forward_pass(tmp_path: Path) -> None:
    assert Balance(aux="switch").is_of_batch
    assert not Balance(aux="sequence").is_of_batch
    assert not Balance(aux="switch", load="last_step").is_of_batch


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_the_papers_sweeps_are_planned_without_a_caution(name: str, tmp_path: Path) -> None:
    files = sorted((Path(__file__).parents[2] / "sweeps" / "full").glob("*.yaml"))
    assert len(files) >= 4
    for file in files:
        sweep = prepare(file, results=tmp_path).expansion
        plan = make_plan(sweep, (), hardware=hardware_named(name), price_per_hour=3.0, bench=tmp_path)
        assert plan.unfit == ()
        assert plan.cautions == ()
        assert plan.price is not None
