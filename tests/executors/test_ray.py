"""The Ray executor passes the executors' suite, fills GPUs by shares, and refuses what no node can hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Capsys
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors import ray as ray_executor
from hpxfer.executors.executor import Placement, once
from hpxfer.executors.ray import RayExecutor
from hpxfer.executors.ray_cluster import cluster_device
from hpxfer.plan.packing import GPU_STEP_TOKENS, Measured
from hpxfer.spec import load_sweep
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.testing.executor import FINE, GO, LOST_ONCE, WAITS, ExecutorSuite, Misbehave, Reported, collect, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own, in its own threads


def ray_of(**resources: Any) -> RayExecutor:
    """Return the executor for a sweep's resources, on CPUs unless they say otherwise."""
    return RayExecutor(Placement(resources=ResourcesSpec(**{"device": "cpu", "gpus_per_stack": 1.0, **resources})))


def test_an_own_ray_keeps_stdout_clean_and_ends(setting: Setting, tmp_path: Path, capfd: Capsys) -> None:
    """Reports go to stdout; Ray would say there that a worker was lost."""
    assert not ray_executor.ray.is_initialized()
    stack = tiny_stack(setting, LOST_ONCE, size=1)
    seen = collect(ray_of(workers=1), [stack], Misbehave(str(tmp_path)))
    assert [result.status for result in seen.results.values()] == ["finished"]
    assert not ray_executor.ray.is_initialized()
    assert capfd.readouterr().out == ""


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Ray on this machine, as a user may have started it, with a GPU that is one in Ray's books only."""
    ray_executor.ray.init(
        address="local", num_cpus=8, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield
    ray_executor.ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("started")
class TestRayExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> RayExecutor:
        return ray_of(workers=2)


class NotThere(Misbehave):
    """A class of this module, which workers do not have."""


@pytest.mark.usefixtures("started")
def test_a_worker_that_cannot_start_is_one_message_at_once(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"cannot start a worker: .*No module named 'test_ray'.*every node needs"):
        collect(ray_of(workers=1), [tiny_stack(setting, FINE, size=1)], NotThere(str(tmp_path)))


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("executor", "message"),
    [
        (ray_of(cpus_per_stack=64), "each stack needs 64 CPU on one node, and no node"),
        (ray_of(device="auto", gpu_type="H100"), "gpu_type is H100, but the Ray cluster has 1 node with 8 CPU"),
    ],
)
def test_what_no_node_can_hold_is_refused_with_what_there_is(
    executor: RayExecutor, message: str, setting: Setting, tmp_path: Path
) -> None:
    with pytest.raises(HpxferError, match=message):
        collect(executor, [tiny_stack(setting, FINE, size=1)], Misbehave(str(tmp_path)))


@pytest.mark.usefixtures("started")
def test_the_planner_is_told_what_the_cluster_has() -> None:
    device = cluster_device(ResourcesSpec(device="auto"))
    assert (device.cuda, device.num_gpus, device.num_cpus) == (True, 1, 8)
    on_cpus = cluster_device(ResourcesSpec(device="cpu"))
    assert (on_cpus.cuda, on_cpus.memory_bytes, on_cpus.num_cpus) == (False, None, 8)
    assert on_cpus.host_bytes


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_a_precision_of_auto_is_that_of_the_workers(tmp_path: Path) -> None:
    """This machine has no GPU. The cluster has one, if only in Ray's books, and a worker gets a share of it."""
    edits = ("executor: local, workers: 2", "executor: ray, kernels: torch"), ("grid:", "precision: auto\ngrid:")
    sweep = write_tiny(tmp_path, *edits, ("seeds: 2", "seeds: 1"), ("width: [16, 32]", "width: [16]"))
    assert prepare(sweep, results=tmp_path).spec.precision == "float32"
    job = prepare(sweep, results=tmp_path, address="auto")
    assert (job.spec.precision, job.plan.chosen.device) == ("bfloat16", "CUDA of the Ray cluster")
    found = run(job, address="auto")
    assert set(found.trials["status"]) == {"finished"}
    assert set(found.trials["precision"]) == {"bfloat16"}
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml").precision == "bfloat16"
    again = prepare(sweep, results=tmp_path)  # on this machine alone
    assert (again.spec.precision, again.missing) == ("bfloat16", ())


def wide(stack: Stack, batch_tokens: int) -> Stack:
    """Return the stack with a larger batch, which is what a share of a GPU follows here."""
    return Stack(
        trials=tuple(
            replace(trial, setting=replace(trial.setting, batch_tokens=batch_tokens)) for trial in stack.trials
        )
    )


@pytest.mark.slow
@pytest.mark.usefixtures("started")
def test_stacks_share_a_gpu_by_what_they_need(setting: Setting, tmp_path: Path) -> None:
    """Two halves at once, and a whole one alone, though six more CPUs are idle."""
    halves = [wide(tiny_stack(setting, WAITS, size=1, name=name), GPU_STEP_TOKENS // 2) for name in ("a", "b", "c")]
    whole = wide(tiny_stack(setting, FINE, size=1), GPU_STEP_TOKENS)
    need = {stack.id: share for share, group in ((0.5, halves), (1.0, [whole])) for stack in group}
    seen, running, most = Reported(), set[str](), list[float]()

    def on_event(stack: Stack, event: Event) -> None:
        seen.on_event(stack, event)
        if isinstance(event, Started):
            running.add(stack.id)
        elif isinstance(event, Ended):
            running.discard(stack.id)
        most.append(sum(need[stack_id] for stack_id in running))
        if len(running) == 2:
            (tmp_path / GO).touch()

    known = {whole.shape: Measured(trial_bytes=1.0)}  # so that tokens decide
    executor = RayExecutor(Placement(resources=ResourcesSpec(device="auto"), measured=known))
    executor.run(once([*halves, whole]), Misbehave(str(tmp_path)), on_event)
    assert len(seen.ended) == 4
    assert max(most) == 1.0
