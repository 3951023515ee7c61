"""What seeds saw is what their trials are trained on: batches, LRs, targets and the biases of routers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limit_sweeps import REGIME_I, along, text_of

from hpxfer.data.samples import open_samples
from hpxfer.data.samples.batches import open_sample_data
from hpxfer.errors import HpxferError
from hpxfer.limit.against.batches import given_of, seen_by
from hpxfer.model.draws import untrained_bias
from hpxfer.spec import parse_sweep
from hpxfer.trial import DataRef, Expansion, Trial


def trials_of(text: str, source: str, seeds: int = 2) -> list[Trial]:
    samples = open_samples(source)
    assert samples is not None
    facts = samples.facts
    data = DataRef(
        digest=samples.digest(),
        tokenizer="none",
        vocab_size=facts.num_classes,
        num_inputs=facts.num_inputs,
        num_targets=facts.num_targets,
    )
    expansion = Expansion(parse_sweep(text), data)
    return [along(expansion, expansion.choices[0], seed)[0] for seed in range(seeds)]


def of_few(seeds: int = 2, **changed: object) -> list[Trial]:
    return trials_of(text_of(REGIME_I, **changed), "builtin:teacher/few", seeds)


def test_full_batches_are_one_batch_and_one_training_for_all_seeds() -> None:
    (seen,) = seen_by(of_few(3), 3, has_bias=True)
    assert seen.seeds == (0, 1, 2)
    assert len(seen.given.batches) == 4
    assert all(batch is seen.given.batches[0] for batch in seen.given.batches)
    assert seen.given.lrs == (0.01,) * 3
    assert seen.given.router_bias is None


def test_after_the_last_update_the_held_out_samples_are_seen() -> None:
    (seen,) = seen_by(of_few(), 4, has_bias=True)
    *training, held_out = seen.given.batches
    assert all(batch is training[0] for batch in training)
    assert held_out is not training[0]
    (own,) = open_sample_data(of_few()[0].setting).validation_batches()
    assert sorted(held_out.targets[:, 0].tolist()) == sorted(own[1][:, 0].astype(float).tolist())


def test_a_stream_is_a_training_for_each_seed() -> None:
    text = text_of(REGIME_I, source="builtin:teacher/polynomial")
    trials = trials_of(text, "builtin:teacher/polynomial")
    found = seen_by(trials, 3, has_bias=True)
    assert [seen.seeds for seen in found] == [(0,), (1,)]
    data = open_sample_data(trials[0].setting)
    for seed, seen in enumerate(found):
        for step in range(4):
            inputs, targets = data.train_batch(seed, step)
            batch = seen.given.batches[step]
            read = {(*x.tolist(), *y.tolist()) for x, y in zip(inputs, targets, strict=True)}
            assert {(*x, *y) for x, y in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)} == read


@pytest.mark.parametrize(("only", "outputs"), [("[3, 5]", 1), ("[3, 5, 8]", 3)])
def test_classes_are_the_numbers_that_outputs_should_be(only: str, outputs: int) -> None:
    """Of two classes 1 and -1, of more a one in the place of the class, as the trainer has them."""
    text = text_of(REGIME_I, source="builtin:shapes").replace(
        'data: {source: "builtin:shapes"}', f'data: {{source: "builtin:shapes", only: {only}}}'
    )
    trial = trials_of(text, "builtin:shapes", 1)[0]
    trial = replace(trial, setting=replace(trial.setting, vocab_size=outputs if outputs > 1 else 2))
    (seen,) = seen_by([trial], 3, has_bias=True)
    targets = np.concatenate([batch.targets for batch in seen.given.batches])
    assert targets.shape[1] == outputs
    if outputs == 1:
        assert set(targets[:, 0]) <= {1.0, -1.0}
    else:
        assert np.array_equal(targets.sum(axis=1), np.ones(len(targets)))


def test_a_schedule_gives_every_update_its_lr() -> None:
    schedule = ", schedule: {decay: linear, warmup: 2}"
    (seen,) = seen_by(of_few(training=schedule), 4, has_bias=True)
    assert seen.given.lrs == pytest.approx([0.005, 0.01, 0.005, 0.0])


@pytest.mark.parametrize("bias", ["fixed", "schedule"])
def test_a_bias_of_the_router_is_the_draw_of_the_trials(bias: str) -> None:
    trial = of_few(1, options=f", router_bias: {bias}")[0]
    data = open_sample_data(trial.setting)
    found = given_of(trial, data, 3, has_bias=True).router_bias
    assert found is not None
    assert found.shape == (4, 2)
    for step, row in enumerate(found):
        drawn = untrained_bias(trial, [0], step)
        assert drawn is not None
        assert np.array_equal(row, drawn[0].double().numpy())
    assert np.array_equal(found[0], found[1]) == (bias == "fixed")
    assert given_of(trial, data, 3, has_bias=False).router_bias is None


@pytest.mark.parametrize("method", ["generator", "counter"])
def test_a_learned_bias_starts_where_the_trainer_starts_it(method: str) -> None:
    import torch

    from hpxfer.model.draws import draw
    from hpxfer.model.flat import FlatLayout
    from hpxfer.model.mlp.layout import parameters

    trial = of_few(1, options=", router_bias: learned")[0]
    trial = replace(trial, setting=replace(trial.setting, init_draw=method))
    layout = FlatLayout(parameters=parameters(trial.shape, trial.setting), num_trials=1)
    stds = [{role: numbers.init_std for role, numbers in trial.resolved().items()}]
    whole: torch.Tensor = draw(layout, [trial.seed], stds, method=method)
    expected = layout.weights(whole)["router_logit_bias"][0][0]
    found = given_of(trial, open_sample_data(trial.setting), 3, has_bias=True).router_bias
    assert found is not None
    assert np.array_equal(found, np.tile(expected.double().numpy(), (4, 1)))


def test_other_biases_are_other_trainings() -> None:
    found = seen_by(of_few(3, options=", router_bias: fixed"), 3, has_bias=True)
    assert [seen.seeds for seen in found] == [(0,), (1,), (2,)]
    (joint,) = seen_by(of_few(3, options=", router_bias: fixed"), 3, has_bias=False)
    assert joint.seeds == (0, 1, 2)


def test_samples_that_are_no_longer_here_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    rng = np.random.default_rng(0)
    sizes: dict[str, Any] = {"x_train": (8, 4), "y_train": 8, "x_test": (4, 4), "y_test": 4}
    np.savez(path, **{name: rng.standard_normal(size) for name, size in sizes.items()})
    text = text_of(REGIME_I, source=f"npz:{path}").replace("data: {source", "data: {epochs: 9, source")
    trials = trials_of(text, f"npz:{path}")
    assert len(seen_by(trials, 3, has_bias=True)) == 2  # halves of the samples, in another order for each seed
    path.unlink()
    with pytest.raises(HpxferError, match="is not on this machine"):
        seen_by(trials, 3, has_bias=True)
