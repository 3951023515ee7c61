"""The training loop: what it reports, what it learns, and on which device and precision it runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_trials import BASE, JOINT, trained, trial
from tolerances import same_run

from hpxfer.data import open_data
from hpxfer.data.batches import Batch
from hpxfer.model.draws import draw
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.forward import build_gpt
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.train import trainer
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def curve(result: TrialResult, metric: str, *, layer: int | None = None, role: str | None = None) -> dict[int, float]:
    (found,) = [
        member for member in result.curves if (member.metric, member.layer, member.role) == (metric, layer, role)
    ]
    return dict(zip(found.steps, found.values, strict=True))


@pytest.mark.parametrize("interval_s", [0.0, math.inf])
def test_progress_adds_up_and_results_come_last(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", interval_s)
    trials = tuple(trial(setting, seed=seed) for seed in (0, 1))
    torch.set_num_threads(2)
    *progress, ended = train(Stack(trials=trials), "cpu")
    assert torch.get_num_threads() == 2
    assert isinstance(ended, Ended)
    assert [result.trial_id for result in ended.results] == [member.id for member in trials]
    assert all(isinstance(event, Progress) for event in progress)
    tokens = sum(event.tokens for event in progress if isinstance(event, Progress))
    assert tokens == 2 * setting.steps * setting.batch_tokens
    assert len(progress) == (1 + setting.steps if interval_s == 0.0 else 1)


def model_losses(given: Trial, weights: Weights, batch: Batch) -> torch.Tensor:
    """Return the losses [T] of one trial without router bias."""
    bias = torch.zeros(given.shape.depth, 1, given.shape.num_experts)
    inputs, targets = (torch.from_numpy(part)[None] for part in batch)
    return build_gpt([given], torch.device("cpu"))(weights, bias, inputs, targets).losses_KT[0]


def drawn(given: Trial) -> Weights:
    """Return the leaves that a trial starts from."""
    layout = FlatLayout(parameters=gpt_parameters(given.shape, given.setting), num_trials=1)
    stds = {role: values.init_std for role, values in given.resolved().items()}
    return layout.leaves(draw(layout, [given.seed], [stds]))


def test_losses_before_training_are_the_models(setting: Setting) -> None:
    """With no LR, every loss is that of the drawn model, and validation is the mean over the whole tail."""
    tested = trial(setting, JOINT, "completep-moe", lr=0.0, router_bias_lr=0.0, seed=4)
    (result,) = trained(tested)
    data, weights = open_data(setting), drawn(tested)
    found = curve(result, "train_loss_nats")
    batches = [data.train_batch(4, step) for step in range(setting.steps)]
    assert list(found.values()) == [float(model_losses(tested, weights, batch).detach().mean()) for batch in batches]
    assert result.final_window_loss_nats == np.mean([found[4], found[5]])
    tail = [float(model_losses(tested, weights, batch).detach().double().mean()) for batch in data.validation_batches()]
    assert len(tail) == 2
    assert result.validation_loss_nats == np.mean(tail)


def test_the_gradient_is_that_of_the_mean_loss_before_clipping(setting: Setting) -> None:
    tested = trial(setting, JOINT, "completep-moe")
    (result,) = trained(tested)
    weights = drawn(tested)
    loss = model_losses(tested, weights, open_data(setting).train_batch(0, 0)).mean()
    for name in ("embedding", "position", "router", "expert_in", "expert_out", "attn_q", "attn_out", "readout"):
        grads = torch.autograd.grad(loss, weights[name], retain_graph=True)
        rms = float(torch.stack(grads).double().square().mean().sqrt())
        assert curve(result, "grad_rms", role=name)[0] == pytest.approx(rms)
    plain, clipped = (trained(trial(replace(setting, gradient_clip=clip)))[0] for clip in (None, 1e-3))
    for role in ("readout", "router"):
        assert curve(plain, "grad_rms", role=role)[0] == curve(clipped, "grad_rms", role=role)[0]
    assert plain.validation_loss_nats != clipped.validation_loss_nats


def test_provenance(setting: Setting) -> None:
    first, second = trained(trial(setting), trial(setting, seed=1))
    assert first.stack_size == second.stack_size == 2
    assert first.device == "cpu"
    assert first.wall_s == second.wall_s
    assert first.tokens_per_s == pytest.approx(2 * setting.steps * setting.batch_tokens / first.wall_s)
    assert (first.peak_bytes or 0) > 2**20
    assert set(json.loads(first.versions or "")) == {"hpxfer", "python", "torch"}
    assert (first.determinism, first.backend, first.kernel_configs) == ("strict", "torch", None)
    assert first.backend_reason


def test_curves_of_gradients_updates_and_balance_are_named_after_roles_and_blocks(setting: Setting) -> None:
    (result,) = trained(trial(replace(setting, norm_gains=True), weight_decay=0.0))
    last = setting.steps - 1
    roles = {tensor.role for tensor in gpt_parameters(BASE, replace(setting, norm_gains=True))}
    for metric in ("grad_rms", "update_rms"):
        assert {member.role for member in result.curves if member.metric == metric} == roles
        for role in roles:
            found = curve(result, metric, role=role)
            assert {0, last} <= set(found)
            assert all(value > 0 for value in found.values())
    # Adam's first step moves every parameter that has a gradient by the LR, here half of its peak.
    moved = curve(result, "update_rms", role="attn_q")[0]
    assert same_run(moved, trial(setting).hps.lr / 2, torch.float32)
    for layer in range(BASE.depth):
        deviation = curve(result, "load_deviation", layer=layer)
        assert all(0 <= value <= 1 - BASE.kappa for value in deviation.values())
        entropy = curve(result, "router_entropy_nats", layer=layer)
        assert all(0 < value <= math.log(BASE.num_experts) for value in entropy.values())
        assert len(entropy) == len(deviation) == setting.steps
    shape = replace(BASE, depth=5, dense_width=24)
    (result,) = trained(trial(replace(setting, moe_every=2), shape))
    for metric in ("load_deviation", "router_entropy_nats"):
        assert sorted(member.layer for member in result.curves if member.metric == metric) == [1, 3]
    logged = {"train_loss_nats", "grad_rms", "update_rms", "load_deviation", "router_entropy_nats"}
    assert {member.metric for member in result.curves} == logged, "only a family that shows its routers measures more"
    dense = Shape(width=16, depth=2, head_dim=8, dense_width=24)
    (result,) = trained(trial(setting, dense, "completep"))
    assert result.status == "finished"
    assert {member.metric for member in result.curves} == {"train_loss_nats", "grad_rms", "update_rms"}


def test_training_learns(setting: Setting) -> None:
    setting = replace(setting, steps=40, gate="normalized_sigmoid", ffn="swiglu")
    shape = replace(BASE, num_active=2, num_shared=1, shared_width=16)
    (result,) = trained(trial(setting, shape, "complete-mue"))
    assert 0.0 < (result.validation_loss_nats or 0.0) < 0.8 * curve(result, "train_loss_nats")[0]


def test_a_router_that_has_no_gradient_does_not_move(setting: Setting) -> None:
    """One active expert of normalized gates: a constant gate, an exact zero gradient, and no step of Adam."""
    tested = trial(replace(setting, gate="normalized_sigmoid"), weight_decay=0.0)
    (result,) = trained(tested)
    assert set(curve(result, "grad_rms", role="router").values()) == {0.0}
    assert set(curve(result, "update_rms", role="router").values()) == {0.0}
    (twin,) = trained(trial(replace(setting, gate="sigmoid"), weight_decay=0.0))
    assert min(curve(twin, "update_rms", role="router").values()) > 0


def test_bfloat16_is_near_float32(setting: Setting) -> None:
    exact, rough = (
        trained(trial(replace(setting, precision=precision), JOINT, "completep-moe"))[0].validation_loss_nats or 0.0
        for precision in ("float32", "bfloat16")
    )
    assert 0.0 < rough != exact
    assert same_run(rough, exact, torch.bfloat16)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cuda_is_near_the_cpu(setting: Setting, precision: str) -> None:
    trials = [trial(replace(setting, precision=precision), JOINT, name) for name in ("sp", "completep-moe")]
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    for cpu, cuda in zip(trained(*trials), trained(*trials, device="cuda"), strict=True):
        assert cuda.device != "cpu"
        assert same_run(cuda.validation_loss_nats or 0.0, cpu.validation_loss_nats or 0.0, dtype)
