"""Ranks: processes that train one stack together have the bits of one process, and name the one that is at fault."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import trained_by_ranks
from test_pieces import cut, made
from tiny_trials import JOINT, numbers, trial

from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.train.ranks import ALONE, Ranks, shard_bounds
from hpxfer.train.trainer import train
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


def alone(stack: Stack, **options: Any) -> list[dict[str, Any]]:
    *_, ended = train(stack, "cpu", **options)
    assert isinstance(ended, Ended)
    return list(map(numbers, ended.results))


def numbers_of(found: tuple[TrialResult, ...] | str) -> list[dict[str, Any]]:
    assert not isinstance(found, str), found
    return list(map(numbers, found))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "world", "pieces", "recompute"),
    [("clipped", 2, 1, False), ("dense", 2, 1, False), ("switch", 4, 2, True), ("modern", 2, 2, False)],
)
def test_ranks_have_the_bits_of_one_process(
    setting: Setting, name: str, world: int, pieces: int, recompute: bool
) -> None:
    stack = Stack(trials=(made(setting, name, lanes=4), replace(made(setting, name, lanes=4), id="b", seed=9)))
    expected = alone(stack)
    way = replace(stack, pieces=pieces, recompute=recompute)
    for found in trained_by_ranks(way, world):
        assert numbers_of(found) == expected


@pytest.mark.slow
def test_a_diverged_trial_leaves_a_stack_of_ranks(setting: Setting) -> None:
    own = cut(setting, lanes=2, steps=12)
    stack = Stack(trials=(trial(own, JOINT, seed=1), trial(own, JOINT, seed=1, lr=1e5)))
    expected = alone(stack)
    assert [result["status"] for result in expected] == ["finished", "diverged"]
    for found in trained_by_ranks(stack, 2):
        assert numbers_of(found) == expected


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_from_a_checkpoint(setting: Setting, tmp_path: Path) -> None:
    stack = Stack(trials=(trial(cut(setting, lanes=4, gradient_clip=0.5), JOINT, "completep-moe", seed=2),))
    expected = alone(stack)
    spec = Checkpoints(tmp_path / "checkpoints").start(3600.0)
    assert trained_by_ranks(stack, 4, checkpoints=spec, stop_after=2) == ["stopped"] * 4
    assert list((tmp_path / "checkpoints").glob("*.safetensors"))
    assert alone(stack, checkpoints=spec) == expected  # by one process
    (found, _) = trained_by_ranks(stack, 2, checkpoints=spec)
    assert numbers_of(found) == expected
    assert not isinstance(found, str)
    assert found[0].resumes == 1


HANGS = """
import time
from hpxfer.train.step import TrainStep
plain = TrainStep.gradients
def gradients(self, step):
    if step == 3:
        time.sleep(8)
    return plain(self, step)
TrainStep.gradients = gradients
"""
OTHER_VERSION = "import hpxfer.train.trainer as trainer; trainer.__version__ = '9.9.9'"


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(setting: Setting) -> None:
    stack = Stack(trials=(trial(cut(setting, lanes=2), JOINT),))
    first, _ = trained_by_ranks(stack, 2, timeout_s=4.0, preludes={1: HANGS})
    assert isinstance(first, str)
    assert first.startswith("RankLost: rank 0 waited for ")
    assert "rank 1 (" in first
    assert first.endswith("is at step 3")


@pytest.mark.slow
def test_ranks_of_other_versions_are_refused(setting: Setting) -> None:
    stack = Stack(trials=(trial(cut(setting, lanes=2), JOINT),))
    for found in trained_by_ranks(stack, 2, preludes={1: OTHER_VERSION}):
        assert isinstance(found, str)
        assert "all ranks of a stack must have the same hpxfer, got 9.9.9 on rank 1" in found


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8))
def test_shards_are_whole_matrices_and_the_largest_is_as_small_as_can_be(sizes: list[int], world: int) -> None:
    bounds = shard_bounds(sizes, world)
    assert len(bounds) == world + 1
    assert bounds[0] == 0
    assert bounds[-1] == sum(sizes)
    assert sorted(bounds) == bounds
    ends = {sum(sizes[:number]) for number in range(len(sizes) + 1)}
    assert set(bounds) <= ends
    largest = max(high - low for low, high in itertools.pairwise(bounds))
    assert largest == _least_largest(tuple(sizes), world)


def _least_largest(sizes: tuple[int, ...], world: int) -> int:
    """Return it by dynamic programming, which shares nothing with the search of `shard_bounds`."""
    best = [0, *([10**9] * len(sizes))]
    for _ in range(world):
        best = [
            min(max(best[begin], sum(sizes[begin:end])) for begin in range(end + 1)) for end in range(len(sizes) + 1)
        ]
    return best[-1]


def test_a_part_of_the_vector_has_the_copies_that_lie_in_it() -> None:
    layout = FlatLayout(
        parameters=(
            ParameterSpec(name="a", role="readout", size=(2, 3)),
            ParameterSpec(name="b", role="router", size=(4,), blocks=(0, 1)),
        ),
        num_trials=2,
    )
    flat = torch.arange(28.0)
    part = layout.part(flat[12:20], 12)
    assert [tuple(copy.shape) for copy in (*part["a"], *part["b"])] == [(2, 0), (2, 4), (2, 0)]
    assert torch.equal(part["b"][0], layout.weights(flat)["b"][0])
    whole = layout.part(flat, 0)
    for name, copies in layout.weights(flat).items():
        assert all(torch.equal(mine, its) for mine, its in zip(whole[name], copies, strict=True))


def test_one_process_has_all_lanes_and_waits_for_nobody() -> None:
    assert list(ALONE.lanes(4)) == [0, 1, 2, 3]
    assert [list(Ranks(rank, 2).lanes(4)) for rank in range(2)] == [[0, 1], [2, 3]]
    assert ALONE.agree(True)
    assert ALONE.is_first
