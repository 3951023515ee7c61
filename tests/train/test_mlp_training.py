"""Trainings of the family mlp: they learn, have the same numbers in every stack, and measure what plain numpy sees."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tiny_trials import numbers, trained
from trainings import CLASSES, FORMS, STEPS, always, blobs, facts, mlp_trial, run

from hpxfer.data import open_data
from hpxfer.train import trainer
from hpxfer.train.log import Measures, probe_steps
from hpxfer.train.snapshot import Snapshot
from hpxfer.train.state import TrainState
from hpxfer.train.trainer import train
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import Curve, TrialResult
from hpxfer.trial.stack import Stack


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blobs(tmp_path_factory.mktemp("samples"))


@functools.cache
def alone(samples: Path, case: str) -> TrialResult:
    """Return the result of a form's trial that is trained alone."""
    return trained(mlp_trial(samples, case))[0]


@pytest.mark.parametrize("case", FORMS)
def test_a_trial_has_the_same_numbers_alone_among_its_seed_and_among_others(samples: Path, case: str) -> None:
    one = mlp_trial(samples, case)
    mates = [replace(one, id=f"mate {k}", hps=replace(one.hps, lr=one.hps.lr * (k + 2))) for k in range(3)]
    others = [mlp_trial(samples, case, seed=seed) for seed in (1, 2)]
    wild = replace(one, id="wild", hps=replace(one.hps, lr=1e30))
    assert alone(samples, case).status == "finished"
    of_seed = trained(*mates, one)[-1]
    _, mixed, diverged, _ = trained(others[0], one, wild, others[1])
    assert numbers(of_seed) == numbers(mixed) == numbers(alone(samples, case))
    assert (diverged.status, diverged.validation_error, diverged.validation_top5_error) == ("diverged", None, None)


def test_a_model_learns_classes_that_lie_apart(samples: Path) -> None:
    (result,) = trained(mlp_trial(samples, "sgd", lr=2.0))
    assert result.validation_error is not None
    assert result.validation_top5_error is not None
    assert result.validation_top5_error <= result.validation_error < 1 - 1.5 / CLASSES
    curve = next(curve for curve in result.curves if curve.metric == "train_error")
    assert curve.values[0] > curve.values[-1]


PROBED = sorted(probe_steps(STEPS))
SOFT = {"entropy_of_all", "entropy_of_active", "load_entropy", "logit_rms", "logit_mean_rms", "logit_spread"}
SOFT |= {"logit_low", "logit_high", "concentration_high", "concentration_low", "gate_slack"}
TOP = {"margin_median", "margin_low", "tied_share", "changed_share"}
Array = Any


@pytest.fixture
def compacting() -> Iterator[None]:
    """Let diverged trials leave the stack at once."""
    with mock.patch.object(trainer, "saves_time", return_value=True):
        yield


def curve(result: TrialResult, metric: str, *, layer: int | None = None, role: str | None = None) -> Curve:
    (found,) = (each for each in result.curves if (each.metric, each.layer, each.role) == (metric, layer, role))
    return found


def after_each_step(trial: Trial) -> tuple[TrialResult, list[dict[str, list[Array]]], list[Snapshot]]:
    """Return the result, the parameters before each step and after the last, and what was kept after each step."""
    state = TrainState(Stack(trials=(trial,)), torch.device("cpu"))

    def parameters(flat: torch.Tensor) -> dict[str, list[Array]]:
        views = state.layout.weights(flat)
        return {name: [copy[0].double().numpy().copy() for copy in copies] for name, copies in views.items()}

    kept: list[Snapshot] = []
    read = trainer._Run.read
    found = [parameters(state.initial())]

    def read_and_keep(run: trainer._Run) -> bool:
        is_alive, now = read(run), run.train_step.snapshot()
        moments = tuple(each.clone() for each in now.moments)
        kept.append(replace(now, moments=moments, powers=now.powers.clone()))
        found.append(parameters(now.parameters))
        return is_alive

    with mock.patch.object(trainer._Run, "read", read_and_keep):
        *_, ended = train(Stack(trials=(trial,)), "cpu", report_at=range(1, STEPS))
    assert isinstance(ended, Ended)
    return ended.results[0], found, kept


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def test_they_are_what_plain_numpy_sees_before_the_update(samples: Path) -> None:
    """Softmax over all of four experts, two active, with a learned bias. The samples are those of no seed."""
    trial = mlp_trial(samples, "top-2, learned bias", width=24, seed=3)
    result, parameters, _ = after_each_step(trial)
    inputs = open_data(trial.setting).train_batch(2**62, 0)[0].astype(float)
    assert len(inputs) == 50, "a batch of fewer than 64"
    first = None
    for place, step in enumerate(PROBED):
        w = parameters[step]
        hidden = inputs @ w["input"][0]
        hidden = 0.5 * hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        logits = hidden @ w["router"][0] + w["router_logit_bias"][0]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        order = np.argsort(-logits, axis=1)
        active = np.zeros_like(logits, bool)
        np.put_along_axis(active, order[:, :2], True, axis=1)
        first = active if first is None else first
        weights = np.where(active, p, 0.0)
        expected = {
            "router_entropy_of_all": -(p * np.log(p)).sum(1).mean() / math.log(4),
            "router_logit_rms": rms(logits),
            "router_changed_share": (active != first).any(1).mean(),
            "router_gate_slack": (weights * (1 - weights)).mean(),
        }
        for metric, value in expected.items():
            found = curve(result, metric, layer=0)
            assert found.steps[place] == step
            assert found.values[place] == pytest.approx(value, rel=1e-4, abs=1e-6), (metric, step)
        start = parameters[0]["router"][0]
        of_router = {"weight_rms": w["router"][0], "moved_rms": w["router"][0] - start}
        for metric, x in of_router.items():
            assert curve(result, metric, role="router").values[place] == pytest.approx(rms(x), rel=1e-5, abs=1e-12)
        for role in ("expert_in", "expert_out"):
            experts = w[role][0]
            pairs = [rms(experts[i] - experts[j]) for i in range(4) for j in range(i)]
            found = curve(result, "expert_difference", layer=0, role=role)
            assert found.values[place] == pytest.approx(rms(pairs), rel=1e-5)
    assert max(curve(result, "router_changed_share", layer=0).values) > 0


def test_faithfulness_of_adam(samples: Path) -> None:
    """eps lies among the sizes of the gradients, so that it outweighs some of them."""
    trial = mlp_trial(samples, "adam, two blocks, residual", eps=3e-4)
    result, _, kept = after_each_step(trial)
    roles = ("embedding", "router", "expert_in", "expert_out", "readout")
    state = TrainState(Stack(trials=(trial,)), torch.device("cpu"))
    seen = set()
    for role in roles:
        eps, gradients = trial.resolved()[role].eps, curve(result, "grad_rms", role=role)
        assert eps == 3e-4
        over = curve(result, "grad_over_eps", role=role)
        assert over.steps == gradients.steps
        assert over.values == pytest.approx([value / eps for value in gradients.values], rel=1e-6)
        shares = curve(result, "below_eps_share", role=role)
        assert list(shares.steps) == PROBED
        for step, share in zip(shares.steps, shares.values, strict=True):
            snapshot = kept[step]
            views = state.layout.weights(snapshot.moments[1])
            flat = [x for name, copies in views.items() if state.roles[name] == role for x in copies]
            v = np.concatenate([x.double().numpy().ravel() for x in flat])
            beta2 = trial.hps.beta2
            assert snapshot.powers[1, 0].item() == pytest.approx(beta2 ** (step + 1))
            below = np.sqrt(v * (1 - beta2) / (1 - beta2 ** (step + 1))) < eps
            assert share == pytest.approx(below.mean(), abs=2 / v.size)
            seen.add(round(share, 3))
    assert len(seen) > 5


@pytest.mark.parametrize("case", FORMS)
def test_each_form_of_the_family_has_its_measures(samples: Path, case: str) -> None:
    result, shape = alone(samples, case), mlp_trial(samples, case).shape
    adam, plain = FORMS[case][1] == "adamw", case == "bias by plain SGD"
    metrics = SOFT if shape.num_active == shape.num_experts else SOFT | TOP
    for layer in range(shape.depth):
        for metric in metrics:
            assert list(curve(result, f"router_{metric}", layer=layer).steps) == PROBED, metric
    logged = {member.metric for member in result.curves}
    extra = {name for name in logged if name.startswith("router_")} - {"router_entropy_nats"}
    assert extra == {f"router_{metric}" for metric in metrics}
    assert logged & {"grad_over_eps", "below_eps_share"} == ({"grad_over_eps", "below_eps_share"} if adam else set())
    if plain:
        roles = {member.role for member in result.curves if member.metric == "below_eps_share"}
        assert roles == {"embedding", "router", "expert_in", "expert_out", "readout"}
    assert curve(result, "moved_rms", role="router").values[0] == 0


@pytest.mark.usefixtures("compacting")
@pytest.mark.parametrize("case", ["adam, two blocks, residual", "top-2, learned bias", "schedule, one matrix"])
def test_a_trial_has_them_in_a_stack_that_shrinks_and_after_a_cut(samples: Path, case: str, tmp_path: Path) -> None:
    one, spec = mlp_trial(samples, case), always(tmp_path / "checkpoints")
    wild = replace(one, id="wild", seed=4, hps=replace(one.hps, lr=1e30))
    stack = [wild, replace(one, id="other", seed=1), one]
    undisturbed = trained(*stack)
    assert undisturbed[0].status == "diverged"
    assert numbers(undisturbed[2]) == numbers(alone(samples, case))
    run(stack, spec, until=5)
    steps, _, cut = run(stack, spec)
    assert steps[0] == 5
    assert facts(cut) == facts(undisturbed)
    assert max(curve(cut[2], "moved_rms", role="router").values) > 0


def test_without_curves_nothing_is_measured_and_the_numbers_stay(samples: Path, tmp_path: Path) -> None:
    one = mlp_trial(samples, "top-2, learned bias")
    with (
        mock.patch.object(Measures, "__init__", side_effect=AssertionError),
        mock.patch.object(trainer, "router_entropies", side_effect=AssertionError),
    ):
        *_, ended = train(Stack(trials=(one,)), "cpu", curves=False)
    assert isinstance(ended, Ended)
    assert numbers(ended.results[0]) == {**numbers(alone(samples, "top-2, learned bias")), "curves": ()}
    # Curves cannot begin in the middle. Without curves, a run goes on from any checkpoint.
    spec = always(tmp_path / "checkpoints")
    run([one], spec, until=7, curves=False)
    assert run([one], spec, until=9)[0][0] == 0
    steps, _, (result,) = run([one], spec, curves=False)
    assert (steps[0], result.curves) == (9, ())
    # Nor have they a hole where a run without them was in between.
    spec = always(tmp_path / "others")
    run([one], spec, until=4)
    run([one], spec, until=9, curves=False)
    steps, _, (result,) = run([one], spec)
    assert steps[0] == 0
    assert numbers(result) == numbers(alone(samples, "top-2, learned bias"))


def test_one_by_one_they_are_the_same(samples: Path) -> None:
    """As on a GPU that is asked for the same bits in every stack."""
    trials = [mlp_trial(samples, "top-2, learned bias", seed=seed) for seed in range(3)]
    state = TrainState(Stack(trials=tuple(replace(each, id=str(each.seed)) for each in trials)), torch.device("cpu"))
    together, apart = (
        [(name, values.tolist(), *at) for name, values, *at in Measures(state, 0, one_by_one=how).before(0, {})]
        for how in (False, True)
    )
    assert together == apart
    assert len(together) > len(SOFT | TOP)
