"""Pieces and ranks: what is stacked, computed at once or again, or by several processes, changes no bit of a trial."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import trained_by_ranks
from tiny_trials import JOINT, numbers, trial

from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.model_section import Balance
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.train.ranks import ALONE, Ranks, shard_bounds
from hpxfer.train.state import TrainState
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


def cut(setting: Setting, tokens: int = 32, lanes: int = 1, batch_tokens: int = 256, **changed: Any) -> Setting:
    """Return a setting whose batch of 256 tokens has 8 pieces."""
    pieces = {"accumulation_tokens": tokens, "accumulation_lanes": lanes, "batch_tokens": batch_tokens}
    return replace(setting, validation_tokens=batch_tokens, **pieces, **changed)


def train_pieces(*trials: Trial, pieces: int = 1, recompute: bool = False) -> tuple[TrialResult, ...]:
    *_, ended = train(Stack(trials=trials, pieces=pieces, recompute=recompute), "cpu")
    assert isinstance(ended, Ended)
    return ended.results


def whole(given: Trial) -> Trial:
    """Return the trial with its batch in one piece."""
    return replace(given, setting=replace(given.setting, accumulation_tokens=None))


def random_ties(given: Trial) -> Trial:
    # The routers start at zero, so every choice of the first step is a tie.
    table = parameterization("mssp-i")
    return replace(given, parameterization=table, setting=replace(given.setting, ties="random"))


MODERN = {"norm": "rmsnorm", "ffn": "swiglu", "positions": "rope", "qk_norm": "head", "gate": "normalized_softmax"}
MODERN |= dict.fromkeys(("norm_gains", "biases", "tied_embeddings"), True)
AUX = Balance(bias="sign", aux="switch")
CASES: dict[str, dict[str, Any]] = {
    "switch": {"balance": AUX},
    "modern": MODERN,
    "half the blocks dense": {"moe_every": 2},
    "dense": {"ffn": "swiglu"},
    "bfloat16, clipped": {"precision": "bfloat16", "gradient_clip": 0.01},
    "transformers": {"balance": AUX.model_copy(update={"aux": "transformers"})},
    "sequence": {"balance": AUX.model_copy(update={"aux": "sequence"})},
    "last step": {"balance": AUX.model_copy(update={"load": "last_step"})},
    "of pieces": {"balance": AUX.model_copy(update={"load": "piece"})},
}


def made(setting: Setting, name: str, lanes: int = 1) -> Trial:
    """Return a trial of a case."""
    own = cut(setting, lanes=lanes, steps=2, **CASES[name])
    shape = replace(JOINT, dense_width=64) if "moe_every" in CASES[name] else JOINT
    if name == "dense":
        shape = replace(JOINT, num_experts=0, num_active=0, expert_width=0, dense_width=64)
    weighted = {"aux_weight": 0.05, "z_weight": 0.01} if "balance" in CASES[name] else {}
    return trial(own, shape, "completep-moe", seed=3, **weighted)


@pytest.mark.first
@pytest.mark.parametrize("name", CASES)
def test_micro_batches_stacks_and_recomputation_change_no_bit(setting: Setting, name: str) -> None:
    given = made(setting, name, lanes=2)
    other = replace(made(setting, name, lanes=2), id="other", seed=5)
    alone = numbers(train_pieces(given)[0])
    assert alone["status"] == "finished"
    # Two pieces with recomputation are left out here: the stack below trains the same trial in that way.
    for pieces, again in ((1, True), (2, False), (4, False), (4, True)):
        assert numbers(train_pieces(given, pieces=pieces, recompute=again)[0]) == alone, (pieces, again)
    assert numbers(train_pieces(other, given, pieces=2, recompute=True)[1]) == alone


def test_one_piece_is_recomputed_with_equal_bits(setting: Setting) -> None:
    for name in ("modern", "switch"):
        given = made(setting, name)
        assert numbers(train_pieces(whole(given), recompute=True)[0]) == numbers(train_pieces(whole(given))[0]), name


def test_ties_at_random_are_broken_alike_in_any_micro_batch(setting: Setting) -> None:
    given = random_ties(trial(cut(setting, steps=2), JOINT))
    alone = numbers(train_pieces(given)[0])
    assert numbers(train_pieces(given, pieces=4)[0]) == alone
    by_index = replace(given, setting=replace(given.setting, ties="index"))
    assert numbers(train_pieces(by_index, given, pieces=2)[1]) == alone
    assert numbers(train_pieces(by_index)[0]) != alone


def test_pieces_and_lanes_number_the_tokens_on_and_are_part_of_the_numbers(setting: Setting) -> None:
    """With an equal load of all pieces, two pieces of a batch would choose alike if their tokens had equal numbers."""
    given = random_ties(trial(cut(setting, tokens=128), JOINT))
    cut_up, at_once = (TrainState(Stack(trials=(one,)), CPU).forward_backward(0)[0] for one in (given, whole(given)))
    assert torch.equal(cut_up.load_LKE, at_once.load_LKE)
    # Sums in another order have other bits, which is why both are part of a trial's identity.
    grads = []
    for tokens, lanes in ((32, 1), (32, 2), (32, 4), (64, 1), (256, 1)):
        given = trial(cut(setting, tokens, lanes), JOINT)
        grads.append(TrainState(Stack(trials=(given,)), CPU).forward_backward(0)[1]["expert_in"][0].clone())
    for index, one in enumerate(grads):
        for other in grads[:index]:
            assert not torch.equal(one, other)
            assert (one - other).abs().max() < 1e-5 * one.abs().max()


@pytest.mark.first
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("bfloat16, clipped", "of pieces")])
def test_the_gradients_are_those_of_the_whole_batch(setting: Setting, name: str) -> None:
    given = made(setting, name, lanes=2)
    for step in (0, 1):
        outputs = []
        for one in (given, whole(given)):
            state = TrainState(Stack(trials=(one,)), CPU)
            for earlier in range(step):
                state.update(*state.forward_backward(earlier))
            outputs.append(state.forward_backward(step))
        (output, grads), (expected, right) = outputs
        assert torch.equal(output.load_LKE, expected.load_LKE)
        torch.testing.assert_close(output.losses_KT, expected.losses_KT, rtol=1e-5, atol=1e-6)
        assert output.regularizers.keys() == expected.regularizers.keys()
        for metric, values in expected.regularizers.items():
            for mine, its in zip(output.regularizers[metric], values, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-7)
        for key, copies in right.items():
            for mine, its in zip(grads[key], copies, strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-4, atol=2e-6 * float(its.abs().max()), msg=key)


def test_a_balancing_loss_over_pieces_is_another_one(setting: Setting) -> None:
    """The negative twin of the test above: with the loads of each piece, the gradients are not those of the batch."""
    given = made(setting, "of pieces")
    mine, its = (
        TrainState(Stack(trials=(one,)), CPU).forward_backward(0)[1]["router"][0].clone()
        for one in (given, whole(given))
    )
    assert (mine - its).abs().max() > 1e-3 * its.abs().max()


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
    [("bfloat16, clipped", 2, 1, False), ("dense", 2, 1, False), ("switch", 4, 2, True), ("modern", 2, 2, False)],
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


THREADS = """
import atexit, torch
from pathlib import Path
from hpxfer.train.ranks import TeamRanks, open_store
from hpxfer.trial import Team

def of_gloo():
    return [path for path in Path("/proc/self/task").glob("*/comm") if "gloo" in path.read_text()]

store, address = open_store(1, timeout_s=60.0)
atexit.register(lambda: print(bool(of_gloo())))  # after the ranks have left
ranks = TeamRanks(Team(rank=0, world=1, address=address, timeout_s=60.0), torch.device("cpu"), {})
ranks.sum_(torch.ones(1))
print(bool(of_gloo()))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_no_thread_of_gloo_is_left_when_python_ends() -> None:
    ran = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.split() == ["True", "False"]


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
    assert (bounds[0], bounds[-1]) == (0, sum(sizes))
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


def test_one_process_has_all_lanes_and_a_part_of_the_vector_its_copies() -> None:
    assert list(ALONE.lanes(4)) == [0, 1, 2, 3]
    assert [list(Ranks(rank, 2).lanes(4)) for rank in range(2)] == [[0, 1], [2, 3]]
    assert ALONE.agree(True)
    assert ALONE.is_first
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
