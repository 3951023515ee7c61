"""The diffusion transformer: its draws, its loss, what its output depends on, its memory, and what a sweep may ask."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept import kept_bytes
from tiny_dit import RANDOM, text, trials
from torch import Tensor

from hpxfer.data import open_data
from hpxfer.errors import HpxferError
from hpxfer.model.dit import FAMILY
from hpxfer.model.dit.flow import FlowData, patched
from hpxfer.model.dit.forward import DiTForward
from hpxfer.plan.footprint import footprint
from hpxfer.spec import parse_sweep
from hpxfer.testing.families import allocated_peak, expanded, trained
from hpxfer.train.state import TrainState
from hpxfer.train.trainer import train
from hpxfer.trial import Stack, Trial

CPU = torch.device("cpu")
SIZE = 256  # numbers of a sample


def state_of(trial: Trial) -> TrainState:
    return TrainState(Stack(trials=(trial,)), CPU)


def data_of(**changes: Any) -> FlowData:
    data = open_data(trials(**changes)[0].setting)
    assert isinstance(data, FlowData)
    return data


def velocity(state: TrainState, inputs: Tensor) -> Tensor:
    model = state.model
    assert isinstance(model, DiTForward)
    return model.velocity(state.weights, state.router_bias, inputs, None)


# Draws.


def test_a_sample_lies_on_the_line_from_its_noise() -> None:
    data = data_of()
    inputs, u = data.rows(3, 0, 512)
    z, t, classes = inputs[:, :SIZE], inputs[:, SIZE:-1], inputs[:, -1]
    x, e = z + (1 - t) * u, z - t * u  # the ends of the line z + s u
    pixels, labels = data.samples.rows(3, 0, 512)
    np.testing.assert_allclose(x, patched(pixels, data.shape, 4), atol=1e-5)
    np.testing.assert_array_equal(classes, labels)
    # 131,072 numbers of a standard normal distribution, and 512 uniform ones.
    assert abs(e.mean()) < 0.015
    assert e.std() == pytest.approx(1.0, abs=0.01)
    assert (np.abs(e) > 1.96).mean() == pytest.approx(0.05, abs=0.004)
    assert abs(np.corrcoef(e[:-1].ravel(), e[1:].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(e.ravel(), x.ravel())[0, 1]) < 0.015
    assert t.mean() == pytest.approx(0.5, abs=0.06)
    assert 0 < t.min() < 0.02
    assert 0.98 < t.max() < 1


def test_draws_depend_on_seed_and_sample_alone() -> None:
    data = data_of()
    together, alone = data.rows(0, 5, 40), [data.rows(0, row, row + 1) for row in range(5, 40)]
    for at, part in enumerate(together):
        np.testing.assert_array_equal(part, np.concatenate([each[at] for each in alone]))
    assert not np.array_equal(data.rows(1, 5, 40)[1], together[1])
    for first, again in zip(
        data.validation_batches(), data_of(training={"steps": 3}).validation_batches(), strict=True
    ):
        np.testing.assert_array_equal(first[0], again[0])
    # No sample of the next epoch, or of validation, has the noise of this one.
    assert not np.array_equal(data.rows(0, 5, 6)[1], next(iter(data.validation_batches()))[1][5:6])


@pytest.mark.parametrize("law", ["uniform", "logit_normal"])
def test_held_out_times_lie_evenly_in_the_law_of_training(law: str) -> None:
    data = data_of(dit={"t": law}, training={"validation_samples": 512})
    held_out = np.concatenate([inputs[:, SIZE] for inputs, _ in data.validation_batches()])
    drawn = data.rows(0, 0, 8192)[0][:, SIZE]
    shares = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(np.quantile(held_out, shares), np.quantile(drawn, shares), atol=0.02)
    exact = shares if law == "uniform" else torch.special.ndtri(torch.tensor(shares)).sigmoid().numpy()
    np.testing.assert_allclose(np.quantile(held_out, shares), exact, atol=0.004)
    assert not np.all(np.diff(held_out) > 0), "the order is random"


def test_channels_may_come_first_or_last(tmp_path: Path) -> None:
    """The same images in both orders give the same batches, but are other data."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (64, 3, 8, 8), dtype=np.uint8)
    labels = random.permutation(np.arange(64) % 4)
    found = []
    for name, x in (("first", images), ("last", images.transpose(0, 2, 3, 1))):
        np.savez(tmp_path / name, x=x, y=labels)
        given = {"data": {"source": f"npz:{tmp_path / name}.npz"}, "training": {"validation_samples": 32, "steps": 1}}
        found.append(data_of(dit={"channels": 3, "patch": 2}, **given))
    np.testing.assert_array_equal(found[0].rows(0, 0, 16)[0], found[1].rows(0, 0, 16)[0])
    first, _ = found[0].rows(0, 0, 1)
    assert first.shape == (1, 3 * 8 * 8 + 2)
    # A patch is the 3 x 2 x 2 numbers of a corner.
    np.testing.assert_array_equal(
        patched(images.astype(np.float32), (3, 8, 8), 2)[5, :12], images[5, :, :2, :2].ravel()
    )


# The loss, and what the output depends on.


def test_the_first_loss_is_that_of_a_guess_of_zero() -> None:
    state = state_of(trials()[0])
    inputs, targets = state.for_all(state.data.train_batch(0, 0))
    losses = state.forward(inputs, targets, 0).losses_KT
    torch.testing.assert_close(losses, targets.square().mean(-1))
    assert losses.mean().item() == pytest.approx(2.0, rel=0.02)  # 1 + the mean square of normalized samples


@pytest.mark.parametrize("causal", [False, True])
def test_every_token_sees_every_other(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiTForward, "causal", causal)
    state = state_of(trials(dit=RANDOM)[0])
    inputs, _ = state.for_all(state.data.train_batch(0, 0))
    changed = inputs.clone()
    changed[..., SIZE - 16 : SIZE] += 1.0  # the last patch
    moved = (velocity(state, changed) - velocity(state, inputs)).view(-1, 16, 16).abs().amax((0, 2))
    assert bool((moved[:-1] > 0).all()) is not causal
    assert moved[-1] > 0


@pytest.mark.parametrize(
    ("part", "dit", "sees"),
    [
        ("time", RANDOM, True),
        ("class", RANDOM, True),
        ("class", {**RANDOM, "classes_used": False}, False),
        ("time", {"readout_init": "random"}, False),  # blocks and shifts that start as the identity read no condition
    ],
)
def test_the_velocity_depends_on_the_condition(part: str, dit: dict[str, Any], sees: bool) -> None:
    state = state_of(trials(dit=dit)[0])
    inputs, _ = state.for_all(state.data.train_batch(0, 0))
    other = inputs.clone()
    place = SIZE if part == "time" else SIZE + 1
    other[..., place] = inputs[..., place].roll(1, -1)
    assert torch.equal(velocity(state, other), velocity(state, inputs)) is not sees


def test_pieces_and_blocks_computed_again_change_no_bit_more_than_their_sum() -> None:
    given = {"accumulation_samples": 8, "accumulation_lanes": 2}
    whole, cut = (trials(training=changes)[:2] for changes in ({}, given))

    def loss_of(of: list[Trial], **way: Any) -> list[float | None]:
        (*_, ended) = train(Stack(trials=tuple(of), **way), "cpu")
        return [result.validation_loss_nats for result in ended.results]  # type: ignore[union-attr]

    one_by_one = loss_of(cut)
    assert loss_of(cut, pieces=2) == loss_of(cut, recompute=True) == one_by_one
    assert one_by_one == pytest.approx(loss_of(whole), rel=1e-5)


# Memory.

EXPERTS: dict[str, Any] = {"width": 64}
MEMORY: dict[str, dict[str, Any]] = {
    "base": {"base": EXPERTS},
    "small patches": {"base": EXPERTS, "dit": {"patch": 2}, "training": {"batch_samples": 16}},
    "many samples": {"base": {"width": 32}, "training": {"batch_samples": 256, "validation_samples": 256}},
    "dense": {"base": {"width": 64, "depth": 2, "dense_ratio": 3, "head_dim": 16}, "model": {"ffn": "gelu"}},
    "deep": {"base": {**EXPERTS, "depth": 8}},
    "rms norm": {"base": EXPERTS, "model": {"norm": "rmsnorm", "attention_gate": False}},
    "half precision": {"base": EXPERTS, "precision": "bfloat16"},
    "shared": {"base": {**EXPERTS, "num_experts": 16, "num_active": 4, "num_shared": 1, "shared_ratio": 1}},
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_memory_is_within_a_tenth_of_what_training_allocates(name: str) -> None:
    of_base = [trial for trial in trials(axes={"depth": [1]}, **MEMORY[name]) if trial.shape == trial.base][:2]
    peak = allocated_peak(partial(trained, of_base))
    assert footprint(of_base[0].shape, of_base[0].setting, 2, cuda=False).total == pytest.approx(peak, rel=0.1)


LARGE: dict[str, dict[str, Any]] = {
    "experts": {},
    "rms norm": {"model": {"norm": "rmsnorm"}},
    "dense": {"base": {"width": 256, "depth": 4, "dense_ratio": 4, "head_dim": 64}},
    "shared, small patches": {"base": {"num_experts": 16, "num_shared": 1, "shared_ratio": 1}, "dit": {"patch": 2}},
}


@pytest.mark.parametrize("name", LARGE)
def test_what_the_triton_path_keeps_at_real_sizes(name: str) -> None:
    base = {"width": 512, "depth": 4, "head_dim": 64, **LARGE[name].get("base", {})}
    batch = {"batch_samples": 256, "validation_samples": 256}
    changes = {**LARGE[name], "base": base, "training": batch, "axes": {"depth": [2]}, "precision": "bfloat16"}
    trial = trials(**changes)[0]
    memory = FAMILY.memory(trial.shape, trial.setting, True)
    kept = kept_bytes([trial], lambda: (torch.zeros(1, 256, SIZE + 2), torch.zeros(1, 256, SIZE)))
    assert sum(memory.parts.values()) + memory.ends == pytest.approx(kept, rel=0.1)


# What a sweep may ask.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dit": {"patch": 3}}, "model.dit.patch: must divide the side of a sample, 16, got 3"),
        ({"dit": {"channels": 2}}, "model.dit.channels: the 256 inputs of a sample must be a square of them, got 2"),
        ({"dit": {"frequencies": 7}}, "model.dit.frequencies: must be even"),
        ({"data": {"source": "builtin:teacher/network"}}, "must be a square of them"),
        ({"data": {"source": "builtin:teacher/few"}}, "the target is the velocity, got 1 real"),
        ({"data": {"source": "builtin:stdlib"}}, "must name samples"),
        ({"data": {"tokenizer": "bytes"}}, "data.tokenizer"),
        ({"model": {"context": 16}}, "model.context: unknown key"),
        ({"model": {"tied_embeddings": True}}, "tied_embeddings"),
        ({"training": {"batch_samples": 1, "validation_samples": 2}}, "batch_samples times the 16 tokens of a sample"),
        ({"training": {"validation_samples": 65}}, "validation_samples: must be whole batches of 32 samples"),
        ({"training": {"accumulation_samples": 5}}, "accumulation_samples: must divide the batch of 32 samples"),
        ({"training": {"accumulation_tokens": 8}}, "accumulation_tokens: has no effect in the family dit"),
        ({"base": {"num_groups": 4}}, "num_active must be a multiple of num_groups 4, got 2"),
        ({"base": {"head_dim": 12}}, "head_dim"),
        ({"parameterizations": ["mssp-i"]}, "mssp-i has no rule for"),
        ({"parameterizations": ["mup-iii"]}, "mup-iii has no rule for"),
        ({"parameterizations": ["ntp"]}, "no adam column"),
        ({"judge": {"loss": "final_window"}, "data": {"epochs": 2}}, "final_window is held-out for one epoch alone"),
        ({"judge": {"loss": "validation_error"}}, "judge.loss"),
        ({"hps": {"multipliers": {"modulation.init_mult": 2}}}, "modulation.init_mult has no effect"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError) as error:
        expanded(text(**changes))
    assert message in str(error.value), str(error.value)


def test_samples_that_are_no_images_are_refused(tmp_path: Path) -> None:
    """16 numbers may be an image or not: only the data know."""
    np.savez(tmp_path / "rows", x=np.zeros((64, 16), np.float32) + np.arange(16), y=np.arange(64) % 4)
    given = trials(data={"source": f"npz:{tmp_path / 'rows'}.npz"}, training={"validation_samples": 32, "steps": 1})
    with pytest.raises(HpxferError, match=r"must hold square samples of 1 channels for model\.dit\.channels, got 16"):
        open_data(given[0].setting)
    with pytest.raises(HpxferError, match="must hold square samples"):
        open_data(replace(given[0].setting, options=trials(dit={"channels": 4, "patch": 1})[0].setting.options))


def test_the_options_are_part_of_an_identity() -> None:
    ids = {trials(dit=dit)[0].id for dit in ({}, RANDOM, {"t": "logit_normal"}, {"time_scale": 1.0}, {"patch": 2})}
    assert len(ids) == 5
    assert parse_sweep(text()).model.loss == "velocity"
