"""Batches of samples: each sample once per epoch, held-out ones never, and nothing made twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from sample_files import mnist, numbered, numbers_of

from hpxfer.data import SampleData, open_data
from hpxfer.data.made import makers, shapes
from hpxfer.data.made.makers import MAKERS, EndlessSamples, Maker
from hpxfer.data.samples import Split, StoredSamples
from hpxfer.data.sources import open_samples
from hpxfer.errors import HpxferError
from hpxfer.trial import Setting
from hpxfer.trial.identity import non_defaults


def held(train: int, test: int = 0) -> StoredSamples:
    """Return samples in memory whose inputs tell their numbers; test samples are numbered from 1000 on."""
    parts = [Split(name="a", inputs=numbered(train), targets=np.arange(train) % 2)]
    if test:
        parts.append(Split(name="b", inputs=numbered(test, start=1000), targets=np.arange(test) % 2))
    return StoredSamples(read=lambda: parts)


def raw(data: SampleData, batch: np.ndarray) -> np.ndarray:
    """Return the numbers of samples that were normalized."""
    mean, std = data.samples.normalization or (0.0, 1.0)
    return numbers_of(np.rint(batch.astype(np.float64) * std + mean).astype(int))


@settings(deadline=None, max_examples=examples(60))
@given(
    batch=st.integers(1, 7),
    validation=st.integers(1, 4),
    train=st.integers(8, 90),
    test=st.sampled_from([0, 50]),
    seed=st.integers(0, 2**32),
)
def test_an_epoch_visits_each_sample_once(batch: int, validation: int, train: int, test: int, seed: int) -> None:
    num_held = batch * validation
    if not test:
        train += num_held
    data = SampleData(samples=held(train, test), batch_tokens=batch, validation_tokens=num_held)
    region = train if test else train - num_held
    steps = -(-3 * region // batch)
    inputs, targets = data.train_batches(seed, 0, steps)
    assert inputs.shape == (steps, batch, 15)
    assert inputs.dtype == np.float32
    assert targets.shape == (steps, batch)
    seen = raw(data, inputs).ravel()[: 3 * region].reshape(3, region)
    found = np.concatenate([raw(data, x) for x, _ in data.validation_batches()])
    assert len(set(found.tolist())) == num_held
    trained = np.setdiff1d(np.arange(train), found)
    assert len(trained) == region
    for epoch in seen:
        assert np.array_equal(np.sort(epoch), trained)
    assert np.array_equal(targets.ravel()[: 3 * region], seen.ravel() % 2)
    if region >= 12:  # by chance alone, two orders agree once in 12!
        assert not np.array_equal(seen[0], seen[1])
    assert all(1000 <= number < 1000 + test for number in found) if test else found.max() < train


def test_files_that_hold_one_class_after_the_other_are_held_out_from_all_of_them() -> None:
    """As image folders are read. A file's first or last samples would be of one class."""

    def by_class(count: int, start: int = 0) -> Split:
        return Split(name="a", inputs=numbered(count, start=start), targets=np.arange(count) * 4 // count)

    for splits in ([by_class(400)], [by_class(400), by_class(400, 1000)]):
        samples = StoredSamples(read=lambda splits=splits: splits)
        data = SampleData(samples=samples, batch_tokens=10, validation_tokens=100)
        counts = np.bincount(np.concatenate([y for _, y in data.validation_batches()]), minlength=4)
        assert counts.min() >= 15
        trained = data.train_batches(0, 0, 30)[1]
        assert np.bincount(trained.ravel(), minlength=4).min() >= 60


def test_a_source_of_its_own_is_held_out_and_its_test_split_before_its_training_split() -> None:
    data = SampleData(samples=held(20, 6), held_out=held(9), batch_tokens=2, validation_tokens=8)
    own = np.concatenate([raw(data, x) for x, _ in data.validation_batches()])
    assert len(set(own.tolist()) & set(range(9))) == 8
    data = SampleData(samples=held(20), held_out=held(9, 5), batch_tokens=2, validation_tokens=4)
    own = np.concatenate([raw(data, x) for x, _ in data.validation_batches()])
    assert len(set(own.tolist()) & set(range(1000, 1005))) == 4
    seen = raw(data, data.train_batches(0, 0, 10)[0]).ravel()
    assert np.array_equal(np.sort(seen), np.arange(20))


def test_samples_without_end_differ_by_seed_and_from_the_held_out_ones() -> None:
    data = SampleData(samples=EndlessSamples(maker=MAKERS["shapes"]), batch_tokens=50, validation_tokens=100)
    groups = [data.train_batches(seed, 0, 4)[0].reshape(200, -1) for seed in (0, 1)]
    groups.append(np.concatenate([x for x, _ in data.validation_batches()]))
    every = np.concatenate(groups)
    assert len(np.unique(every, axis=0)) == len(every) == 500
    other = replace(data, samples=EndlessSamples(maker=MAKERS["shapes"]))
    held_out = [x for x, _ in other.validation_batches()]
    assert all(np.array_equal(x, y) for x, (y, _) in zip(held_out, data.validation_batches(), strict=True))


def test_nothing_is_made_twice_in_a_process() -> None:
    calls: list[tuple[str, int]] = []

    def draw(stream: str, begin: int, end: int, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        calls.append((stream, begin))
        return shapes.draw(stream, begin, end, classes)

    maker = Maker(name="counted", facts=MAKERS["shapes"].facts, draw=draw, normalization=(0.0, 1.0))
    for _ in range(3):  # as three stacks, one after the other
        data = SampleData(samples=EndlessSamples(maker=maker), batch_tokens=50, validation_tokens=100)
        for step in range(0, 40, 8):
            data.train_batches(0, step, 8)
        list(data.validation_batches())
    assert sorted(calls) == [("train 0", 0), ("train 0", 1024), ("validation", 0)]


def test_cached_samples_are_read_only() -> None:
    block = makers._block(MAKERS["shapes"], (0, 1), "train 0", 0, 8)
    with pytest.raises(ValueError, match="read-only"):
        block[0][0] = 1


@pytest.fixture
def make_setting() -> Callable[..., Setting]:
    def make(source: str, **changed: object) -> Setting:
        found = open_samples(source)
        assert found is not None
        values = {
            "family": "mlp",
            "context": 1,
            "data_source": source,
            "data_digest": found.digest(),
            "tokenizer": "none",
            "vocab_size": found.facts.num_classes,
            "num_inputs": found.facts.num_inputs,
            "num_targets": found.facts.num_targets,
            "batch_tokens": 4,
            "steps": 5,
            "final_window_steps": 1,
            "validation_tokens": 8,
            **changed,
        }
        return Setting(**values)  # type: ignore[arg-type]

    return make


def test_a_setting_opens_its_samples(tmp_path: Path, make_setting: Callable[..., Setting]) -> None:
    data = open_data(make_setting(mnist(tmp_path)))
    assert isinstance(data, SampleData)
    inputs, _ = data.train_batches(0, 0, 5)
    pixels = numbered(40).astype(np.float64)
    expected = ((pixels - pixels.mean()) / pixels.std())[raw(data, inputs)]
    assert np.allclose(inputs, expected, rtol=1e-6, atol=1e-6)


def test_a_setting_opens_its_classes_alone(tmp_path: Path, make_setting: Callable[..., Setting]) -> None:
    source = mnist(tmp_path, train=60)
    setting = make_setting(source, vocab_size=2, only_classes=(2, 0), steps=7, validation_tokens=4)
    data = open_data(setting)
    inputs, targets = data.train_batches(0, 0, 7)
    assert np.array_equal(targets, np.where(raw(data, inputs) % 4 == 2, 0, 1))
    assert non_defaults(setting)["only_classes"] == (2, 0)
    assert "only_classes" not in non_defaults(make_setting(source))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 9}, "at least 44 samples for 9 steps of 4, 8 for validation, got 40"),
        ({"steps": 11}, "data.source: must hold at least 44 samples for 11 steps of 4, got 40"),
        ({"steps": 21, "epochs": 2}, "at least 42 samples for 21 steps of 4 in 2 epochs, got 40"),
        ({"validation_tokens": 16}, "must hold at least 16 samples for validation, got 12 at .*, its test split"),
        ({"data_digest": "0" * 32}, "differs from the sweep's: its digest must be 0000"),
        ({"data_source": "idx:/nowhere/at/all"}, "must be on every machine that trains"),
    ],
)
def test_what_a_setting_cannot_open(
    tmp_path: Path, make_setting: Callable[..., Setting], changed: dict[str, object], message: str
) -> None:
    setting = make_setting(mnist(tmp_path, test=0 if "9 steps" in message else 12), steps=8)
    open_data(setting)
    with pytest.raises(HpxferError, match=message):
        open_data(replace(setting, **changed))
