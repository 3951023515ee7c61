"""Batches: contiguous text, one epoch, and a tail that training never sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data import TokenData, data_ref, open_data
from hpxfer.data.tokens import Corpus
from hpxfer.data.windows import shuffled
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.trial import Setting, setting_of

Write = Callable[..., Path]
Make = Callable[..., SweepSpec]


def setting(spec: SweepSpec) -> Setting:
    return setting_of(spec, data_ref(spec.data))


def counting(num_tokens: int, *, context: int, rows: int, tail_batches: int, cut: int = 0) -> TokenData:
    """Return data whose token at i is i, in two shards cut at `cut`."""
    whole = np.arange(num_tokens, dtype=np.uint16)
    return TokenData(
        corpus=Corpus(parts=(whole[:cut], whole[cut:]), names=("a", "b"), vocab_size=2**16),
        context=context,
        batch_tokens=rows * context,
        validation_tokens=tail_batches * rows * context,
    )


@st.composite
def token_data(draw: st.DrawFn) -> TokenData:
    context, rows, tail_batches = draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    region = draw(st.integers(rows * context + 1, 400))
    num_tokens = region + tail_batches * rows * context + 1
    cut = draw(st.integers(0, num_tokens))
    return counting(num_tokens, context=context, rows=rows, tail_batches=tail_batches, cut=cut)


@settings(deadline=None, max_examples=examples(60))
@given(data=token_data(), seed=st.integers(0, 2**32))
def test_an_epoch_visits_windows_once_and_never_the_tail(data: TokenData, seed: int) -> None:
    num_steps = data.num_windows // data.batch_rows
    batches = [data.train_batch(seed, step) for step in range(num_steps)]
    seen = np.concatenate([inputs.ravel() for inputs, _ in batches])
    assert len(np.unique(seen)) == len(seen)
    last_train = max(int(targets.max()) for _, targets in batches)
    tail = [(inputs, targets) for inputs, targets in data.validation_batches()]
    assert last_train < tail[0][0].min()
    # The epoch leaves out less than a batch and less than a window of the region.
    assert len(seen) > data.tail_start - 1 - data.batch_tokens - data.context


@given(data=token_data(), seed=st.integers(0, 2**32))
def test_every_epoch_visits_all_windows_in_an_order_of_its_own(data: TokenData, seed: int) -> None:
    """Three epochs, as one row of windows, are three permutations of the same windows."""
    num_steps = -(-3 * data.num_windows // data.batch_rows)
    rows = np.concatenate([data.train_batch(seed, step)[0] for step in range(num_steps)])[: 3 * data.num_windows]
    epochs = rows.reshape(3, data.num_windows, data.context)
    first = np.sort(epochs[0][:, 0])
    for epoch in epochs[1:]:
        assert np.array_equal(np.sort(epoch[:, 0]), first)
    if data.num_windows >= 12:  # by chance alone, two orders agree once in 12!
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(epochs[1], epochs[2])


def test_held_out_data_of_its_own_leaves_all_other_tokens_to_training() -> None:
    corpus = Corpus(parts=(np.arange(100, dtype=np.uint16),), names=("a",), vocab_size=1000)
    held_out = Corpus(parts=(np.arange(500, 540, dtype=np.uint16),), names=("b",), vocab_size=1000)
    data = TokenData(corpus=corpus, held_out=held_out, context=8, batch_tokens=16, validation_tokens=32)
    assert data.num_windows == 12  # 96 inputs and a last target of 100 tokens
    seen = np.concatenate([data.train_batch(0, step)[0].ravel() for step in range(6)])
    assert np.array_equal(np.sort(seen), np.arange(96))
    inputs, targets = (np.concatenate(parts).ravel() for parts in zip(*data.validation_batches(), strict=True))
    assert np.array_equal(inputs, np.arange(500, 532))
    assert np.array_equal(targets, np.arange(501, 533))


@given(data=token_data(), seed=st.integers(0, 2**32))
def test_a_batch_is_contiguous_text(data: TokenData, seed: int) -> None:
    for inputs, targets in [data.train_batch(seed, 0), *data.validation_batches()]:
        assert inputs.shape == targets.shape == (data.batch_rows, data.context)
        assert inputs.dtype == targets.dtype == np.int64
        assert inputs.flags.c_contiguous
        assert targets.flags.c_contiguous
        assert (targets == inputs + 1).all()
        assert (np.diff(inputs, axis=1) == 1).all()


@given(data=token_data())
def test_validation_covers_the_tail_in_order(data: TokenData) -> None:
    batches = list(data.validation_batches())
    targets = np.concatenate([batch.ravel() for _, batch in batches])
    assert targets.tolist() == list(range(data.corpus.num_tokens - data.validation_tokens, data.corpus.num_tokens))
    again = list(data.validation_batches())
    assert all((batch[0] == other[0]).all() for batch, other in zip(batches, again, strict=True))


@pytest.mark.parametrize("cut", [0, 23])
def test_batches_of_many_steps_are_those_of_each(cut: int) -> None:
    data = counting(400, context=7, rows=3, tail_batches=2, cut=cut)
    assert len({data.train_batch(seed, step)[0].tobytes() for seed, step in ((0, 3), (0, 4), (1, 3))}) == 3
    inputs, targets = data.train_batches(5, 2, 9)
    assert inputs.shape == targets.shape == (9, 3, 7)
    for index in range(9):
        batch = data.train_batch(5, 2 + index)
        assert np.array_equal(inputs[index], batch[0])
        assert np.array_equal(targets[index], batch[1])


def test_opening_twice_reads_once(tmp_path: Path, make_sweep: Make) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 500)
    asked = setting(make_sweep(f"text:{path}"))
    first = open_data(asked)
    path.unlink()
    assert open_data(asked).corpus is first.corpus
    assert open_data(replace(asked, steps=1)).corpus is first.corpus


def test_data_that_is_not_the_sweeps_or_too_short_is_refused(tmp_path: Path, make_sweep: Make) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 161)
    asked = setting(make_sweep(f"text:{path}"))
    path.write_bytes(b"y" * 161)
    short = setting(make_sweep(f"text:{path}"))
    open_data(replace(short, steps=2))
    elsewhere = setting(make_sweep("tokens:/nowhere/*.bin", digest="abc"))
    for refused, message in (
        (asked, rf"differs from the sweep's: .*{asked.data_digest}, got \w+; copy"),
        (short, r"at least 162 tokens .* got 161"),
        (elsewhere, r"must be on every machine that trains, got tokens:/nowhere/\*\.bin, which no file here matches"),
        (
            replace(setting(make_sweep("builtin:stdlib")), data_digest="abc"),
            r"builtin:stdlib on this machine differs .* run the same Python on all",
        ),
    ):
        with pytest.raises(HpxferError, match=message):
            open_data(refused)


def test_id_that_the_digest_missed_is_caught(tmp_path: Path, make_sweep: Make, write_shard: Write) -> None:
    ids = np.zeros(3_000_000, np.uint16)
    ids[40_000] = 9  # between the first two blocks of the digest
    write_shard(tmp_path / "a.bin", ids)
    spec = make_sweep(f"tokens:{tmp_path}/a.bin", vocab_size=9, context=1024, batch_tokens=4096, validation_tokens=4096)
    data = open_data(setting(spec))
    window = shuffled(np.arange(data.num_windows), data.num_windows, 0).tolist().index(40_000 // 1024)
    data.train_batch(0, window // data.batch_rows - 1)
    with pytest.raises(HpxferError, match=r"a\.bin: token 40000: .*below the vocabulary of 9, got 9"):
        data.train_batch(0, window // data.batch_rows)
