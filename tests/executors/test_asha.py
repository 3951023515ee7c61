"""ASHA through Ray Tune: trials that fall behind in their own arm are stopped, all else is as with other executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import descend
import pytest
import ray
import until_asked
from descend import Descend
from fixture_types import Patch
from tiny_trials import SETTING, text_setting, trial

from hpxfer.executors.executor import Placement, Stopping, once
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.ray import RayExecutor
from hpxfer.executors.worker import TrainStack
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.testing.executor import ExecutorSuite, tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack

pytestmark = pytest.mark.slow

Stops = LocalExecutor | RayExecutor
HALVING = Stopping(grace_steps=4, reduction_factor=3.0)
STEPS = 100


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One Ray for the module: an executor leaves a session alone that it finds."""
    helpers = {"PYTHONPATH": str(Path(descend.__file__).parent)}  # workers import Descend by name
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": helpers}
    )
    yield
    ray.shutdown()


@pytest.fixture(params=[LocalExecutor, RayExecutor])
def executor(session: None, request: pytest.FixtureRequest, monkeypatch: Patch) -> Stops:
    monkeypatch.setenv("PYTHONPATH", str(Path(descend.__file__).parent))
    made: Stops = request.param(
        Placement(resources=ResourcesSpec(device="cpu", workers=2), workers=2, stopping=HALVING)
    )
    return made


@pytest.fixture
def setting() -> Setting:
    return replace(SETTING, steps=STEPS)


class TestStopsEarly(ExecutorSuite):
    """All that every executor promises. The loop that stops trials is the same for all of them."""

    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(Placement(workers=2, stopping=HALVING))


def results_of(executor: Stops, stacks: list[Stack]) -> dict[str, TrialResult]:
    found: dict[str, TrialResult] = {}

    def take(stack: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            found.update((result.trial_id, result) for result in event.results)

    executor.run(once(stacks), Descend(executor.placement.stopping), take)
    return found


def of_table(stack: Stack, name: str) -> Stack:
    """Return a stack of another arm."""
    trials = tuple(
        replace(trial, id=f"{name}-{trial.id}", parameterization=parameterization(name)) for trial in stack.trials
    )
    return replace(stack, trials=trials)


def test_what_falls_behind_in_its_own_arm_is_stopped_and_says_how_far_it_came(
    executor: Stops, setting: Setting
) -> None:
    """The first of an arm is compared to none, and one that is never worse than those before it is never stopped."""
    good = [tiny_stack(setting, seed, size=1) for seed in (3, 2, 1)]
    bad = [tiny_stack(setting, seed, size=1) for seed in (20, 21)]
    other_arm = [of_table(tiny_stack(setting, 40, size=1), "sp")]
    of_two = [tiny_stack(setting, 50, size=2)]
    placement = replace(executor.placement, resources=ResourcesSpec(device="cpu", workers=1), workers=1)
    one_at_a_time = type(executor)(placement)
    results = results_of(one_at_a_time, [*good, *bad, *other_arm, *of_two])
    status = {key: result.status for key, result in results.items()}
    assert status == {
        **{stack.trials[0].id: "finished" for stack in (*good, *other_arm)},
        **{stack.trials[0].id: "stopped" for stack in bad},
        **{trial.id: "finished" for trial in of_two[0].trials},
    }
    for stack in bad:
        result = results[stack.trials[0].id]
        assert result.validation_loss_nats is None
        assert result.final_window_loss_nats is None
        (curve,) = result.curves
        assert curve.steps[0] == HALVING.grace_steps - 1
        assert curve.steps[-1] < STEPS - 1
        assert result.last_finite_loss_nats == curve.values[-1] == 2.0 + stack.trials[0].seed


def test_a_trial_that_has_no_rung_before_its_end_is_never_stopped(executor: Stops, setting: Setting) -> None:
    resources, stopping = ResourcesSpec(device="cpu", workers=1), Stopping(grace_steps=STEPS, reduction_factor=3.0)
    never = type(executor)(replace(executor.placement, resources=resources, workers=1, stopping=stopping))
    stacks = [tiny_stack(setting, seed, size=1) for seed in (1, 2, 3)]
    assert {result.status for result in results_of(never, stacks).values()} == {"finished"}


def test_an_interrupted_run_keeps_the_steps_of_the_running_trials(
    executor: Stops, setting: Setting, tmp_path: Path
) -> None:
    def interrupt(_: Stack, event: Event) -> None:
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    train = until_asked.UntilAsked(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        executor.run(once([tiny_stack(setting, 0, size=1)]), train, interrupt)
    assert int((tmp_path / until_asked.KEPT).read_text()) > 0


@pytest.mark.parametrize(
    ("grace", "factor", "steps", "rungs"),
    [(10, 4.0, 200, (10, 40, 160)), (1, 2.0, 8, (1, 2, 4)), (3, 1.5, 12, (3, 5, 7, 11)), (8, 2.0, 8, ())],
)
def test_rungs(grace: int, factor: float, steps: int, rungs: tuple[int, ...]) -> None:
    assert Stopping(grace, factor).rungs(steps) == rungs


def test_trials_are_compared_with_those_of_their_arm() -> None:
    both = Stopping(4, 3.0, ("lr", "router.lr_mult"))
    plain, other, routed, tuned = (
        trial(SETTING, **hps)
        for hps in (
            {"lr": 0.1},
            {"lr": 0.2},
            {"lr": 0.1, "multipliers": (("router.lr_mult", 2.0),)},
            {"lr": 0.1, "multipliers": (("attn_q.lr_mult", 2.0),)},
        )
    )
    assert both.arm(plain) == both.arm(other) == both.arm(routed) != both.arm(tuned)
    assert both.arm(plain) != both.arm(trial(SETTING, replace(plain.shape, depth=3)))


def curves_of(event: Event) -> list[tuple[Curve, ...]]:
    return [result.curves for result in event.results]


def test_training_reports_at_every_rung(tmp_path: Path) -> None:
    stack = Stack(trials=(trial(text_setting(tmp_path)),))
    with_rungs = list(TrainStack("cpu", stopping=Stopping(1, 2.0))(stack))
    without = list(TrainStack("cpu")(stack))
    steps = [rung.step for rung in with_rungs if isinstance(rung, Progress)]
    assert steps == [1, 2, 4, 6]
    assert curves_of(with_rungs[-1]) == curves_of(without[-1])
