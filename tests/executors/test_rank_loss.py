"""Workers of several ranks: whatever happens to one of them, the stack is trained again by all, or fails once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import one_of_two
import pytest
from fixture_types import Patch
from one_of_two import BUG, DIES, DIES_ONCE, FINE, GIVES_UP, NO_MEMORY, REFUSES, WAIT_S, OneOfTwo
from tiny_trials import numbers

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor, Placement, once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.lost_workers import TRIES
from hpxfer.executors.ray import RayExecutor
from hpxfer.executors.worker import TrainStack
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.testing.executor import tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def importable(monkeypatch: Patch) -> None:
    """Let workers import what they train with."""
    monkeypatch.setenv("PYTHONPATH", str(Path(one_of_two.__file__).parent))


@pytest.fixture(params=["local", "ray"])
def executor(request: pytest.FixtureRequest) -> Executor:
    resources = ResourcesSpec(device="cpu", gpus_per_stack=2, workers=1)
    if request.param == "local":
        return LocalExecutor(Placement(workers=1, resources=resources))
    return RayExecutor(Placement(resources=resources))


def test_a_rank_that_is_lost_or_fails_ends_the_others(executor: Executor, setting: Setting, tmp_path: Path) -> None:
    train, ended, steps = OneOfTwo(str(tmp_path)), {}, []
    acts = [FINE, DIES_ONCE, DIES, GIVES_UP, REFUSES, NO_MEMORY, BUG]
    if isinstance(executor, RayExecutor):  # whose workers start slowly
        acts = [FINE, DIES_ONCE, GIVES_UP, REFUSES]
    stacks = [tiny_stack(setting, act, size=1) for act in acts]

    def on_event(stack: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            (ended[stack.trials[0].seed],) = event.results
        elif isinstance(event, Progress):
            steps.append(stack.trials[0].seed)

    began = time.monotonic()
    executor.run(once(stacks), train, on_event)
    assert time.monotonic() - began < WAIT_S, "nobody waits for a rank that never comes"
    expected = {
        FINE: ("finished", None),
        DIES_ONCE: ("finished", None),
        DIES: ("failed", "lost"),
        GIVES_UP: ("failed", "lost"),
        REFUSES: ("failed", "input"),
        NO_MEMORY: ("failed", "lost"),
        BUG: ("failed", "bug"),
    }
    found = {act: (result.status, result.error_kind) for act, result in ended.items()}
    assert found == {act: expected[act] for act in acts}
    tries = {FINE: 1, DIES_ONCE: 2, DIES: TRIES, GIVES_UP: TRIES, REFUSES: 1, NO_MEMORY: TRIES, BUG: 1}
    assert {act: train.tries(act) for act in acts} == {act: tries[act] for act in acts}
    assert "rank 0 (here, pid 1) is at step 3" in str(ended[GIVES_UP].error)
    assert "the same torch" in str(ended[REFUSES].error)
    if NO_MEMORY in acts:
        assert "rank 1 has no memory left" in str(ended[NO_MEMORY].error)
    assert steps.count(FINE) <= 1, "one rank speaks for all"


def test_a_stack_of_two_ranks_has_the_results_of_one_process(executor: Executor, setting: Setting) -> None:
    own = replace(
        setting, batch_tokens=512, validation_tokens=512, accumulation_tokens=128, accumulation_lanes=2, steps=4
    )
    stack = replace(tiny_stack(own, 0, size=2), pieces=2)
    found: list[Ended] = []
    for each in (executor, LocalExecutor(Placement(workers=1))):
        each.run(once([stack]), TrainStack("cpu"), lambda _, event: found.extend([event] * isinstance(event, Ended)))
    mine, alone = ([numbers(result) for result in ended.results] for ended in found)
    assert mine == alone
    assert mine[0]["status"] == "finished"


def test_a_place_that_the_cluster_can_never_give_is_said_at_once(setting: Setting, tmp_path: Path) -> None:
    resources = ResourcesSpec(device="cpu", gpus_per_stack=64, cpus_per_stack=100)
    executor = RayExecutor(Placement(resources=resources.model_copy(update={"workers": 1}), address=None))
    began = time.monotonic()
    with pytest.raises(HpxferError) as caught:
        _run_on_few_cpus(executor, setting, tmp_path)
    assert time.monotonic() - began < WAIT_S
    assert "each stack needs 64 times 100 CPU at once" in str(caught.value)
    assert "change resources.cpus_per_stack, gpus_per_stack" in str(caught.value)


def _run_on_few_cpus(executor: RayExecutor, setting: Setting, folder: Path) -> None:
    """Run on a cluster of two CPUs, where the executor would start one that is large enough."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        executor.run(once([tiny_stack(setting, FINE, size=1)]), OneOfTwo(str(folder)), lambda stack, event: None)
    finally:
        ray.shutdown()
