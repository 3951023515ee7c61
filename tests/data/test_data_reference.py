"""What planning needs to know about the data: identity and length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data import check_length, data_ref
from hpxfer.data.reference import require_length
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.spec.data_section import DataSpec

Write = Callable[..., Path]
Make = Callable[..., SweepSpec]


@pytest.mark.parametrize(
    ("kind", "tokenizer", "vocabulary"),
    [
        ("text", None, ("bytes", 256)),
        ("text", "bytes", ("bytes", 256)),
        ("text", "ascii", ("ascii", 128)),
        ("tokens", None, ("gpt2", 50304)),
        ("tokens", "gpt2", ("gpt2", 50304)),
    ],
)
def test_vocabulary_of_a_tokenizer(
    tmp_path: Path, write_shard: Write, kind: str, tokenizer: str | None, vocabulary: tuple[str, int]
) -> None:
    path = write_shard(tmp_path / "a.bin", range(10))
    ref = data_ref(DataSpec(source=f"{kind}:{path}", tokenizer=tokenizer))
    assert (ref.tokenizer, ref.vocab_size) == vocabulary


def test_vocabulary_by_its_size(tmp_path: Path, write_shard: Write) -> None:
    path = write_shard(tmp_path / "a.bin", range(10))
    ref = data_ref(DataSpec(source=f"tokens:{path}", vocab_size=10))
    assert (ref.tokenizer, ref.vocab_size) == ("ids", 10)
    with pytest.raises(HpxferError, match=r"a\.bin: token 9: .*below the vocabulary of 9, got 9"):
        data_ref(DataSpec(source=f"tokens:{path}", vocab_size=9))


def test_builtin_is_ascii_and_stable() -> None:
    ref = data_ref(DataSpec(source="builtin:stdlib"))
    assert (ref.tokenizer, ref.vocab_size) == ("ascii", 128)
    assert data_ref(DataSpec(source="builtin:stdlib", digest=ref.digest)) == ref


def test_tokenizer_is_not_in_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    as_ascii, as_bytes = (
        data_ref(DataSpec(source=f"text:{tmp_path}/a.txt", tokenizer=name)) for name in ("ascii", "bytes")
    )
    assert as_ascii.digest == as_bytes.digest
    assert as_ascii != as_bytes


@pytest.mark.parametrize("source", ["text:/nowhere/a.txt", "tokens:/nowhere/*.bin"])
def test_missing_data_without_a_digest_is_refused(source: str) -> None:
    with pytest.raises(HpxferError) as error:
        data_ref(DataSpec(source=source))
    assert f"must name data on this machine, got {source}, which no file matches" in str(error.value)
    assert "give data.digest to plan without the data" in str(error.value)


def test_missing_data_is_known_by_its_digest() -> None:
    ref = data_ref(DataSpec(source="tokens:/nowhere/*.bin", digest="abc"))
    assert (ref.digest, ref.tokenizer, ref.vocab_size) == ("abc", "gpt2", 50304)


def test_other_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    source = f"text:{tmp_path}/a.txt"
    found = data_ref(DataSpec(source=source)).digest
    with pytest.raises(HpxferError, match=rf"^data\.digest: .*{found}, got abc; .*remove the key"):
        data_ref(DataSpec(source=source, digest="abc"))


def test_shortest_data_that_is_long_enough(tmp_path: Path, make_sweep: Make) -> None:
    path = tmp_path / "a.txt"
    sweep = make_sweep(f"text:{path}", batch_tokens=32, steps=3, validation_tokens=64)
    path.write_bytes(b"x" * (3 * 32 + 1 + 64 + 1))
    check_length(sweep)
    path.write_bytes(b"x" * (3 * 32 + 1 + 64))
    with pytest.raises(HpxferError) as error:
        check_length(sweep)
    assert "must hold at least 162 tokens for 3 steps of 32, 64 for validation and 2 last targets" in str(error.value)
    assert (
        f"got 161 at text:{path}; add data, set data.epochs: 2 to read it so often, or lower training.steps "
        "(at most 2 fit)" in str(error.value)
    )


def test_the_longest_run_of_an_axis_must_fit_too(tmp_path: Path, make_sweep: Make) -> None:
    path = tmp_path / "a.txt"
    sweep = make_sweep(f"text:{path}", axes="{width: [32], duration: [2, 5]}")
    path.write_bytes(b"x" * (5 * 32 + 1 + 64 + 1))
    check_length(sweep)
    path.write_bytes(b"x" * (5 * 32 + 1 + 64))
    with pytest.raises(
        HpxferError, match=r"^data\.source: at axes\.duration\[1\]: must hold at least 226 tokens for 5 "
    ):
        check_length(sweep)


def test_length_counts_all_shards(tmp_path: Path, make_sweep: Make, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", range(100))
    sweep = make_sweep(f"tokens:{tmp_path}/*.bin")
    with pytest.raises(HpxferError, match=r"at least 162 tokens .* got 100 at tokens:"):
        check_length(sweep)
    write_shard(tmp_path / "b.bin", range(62))
    check_length(sweep)


def test_length_of_missing_data_is_not_checked(make_sweep: Make) -> None:
    check_length(make_sweep("text:/nowhere/a.txt", steps=10**9))


@settings(deadline=None, max_examples=examples(50))
@given(
    num_tokens=st.integers(1, 2000),
    steps=st.integers(1, 50),
    context=st.integers(1, 20),
    rows=st.integers(1, 4),
    tail=st.integers(1, 3),
    epochs=st.integers(1, 3),
)
def test_the_steps_that_are_said_to_fit_do(
    num_tokens: int, steps: int, context: int, rows: int, tail: int, epochs: int
) -> None:
    def fits(steps: int) -> str | None:
        try:
            require_length(
                name="x",
                num_tokens=num_tokens,
                steps=steps,
                batch_tokens=context * rows,
                validation_tokens=tail * context * rows,
                held_out=None,
                context=context,
                epochs=epochs,
            )
        except HpxferError as error:
            return str(error)
        return None

    refusal = fits(steps)
    if refusal is not None:
        most = int(refusal.partition("(at most ")[2].partition(" fit)")[0])
        assert most < steps
        assert most == 0 or fits(most) is None
        assert fits(most + 1) is not None


def test_epochs_lift_the_limit_and_held_out_data_has_its_own(tmp_path: Path, make_sweep: Make) -> None:
    path, held_out = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"x" * 100)
    held_out.write_bytes(b"y" * 65)
    given = f"text:{path}", f"text:{held_out}"
    with pytest.raises(
        HpxferError, match=r"set data\.epochs: 2 to read it so often, or lower training\.steps \(at most"
    ):
        check_length(make_sweep(given[0], validation=given[1], steps=4))
    check_length(make_sweep(given[0], validation=given[1], steps=4, epochs=2))
    check_length(make_sweep(given[0], validation=given[1], steps=3))
    held_out.write_bytes(b"y" * 64)
    with pytest.raises(HpxferError, match=r"^data\.validation: must hold at least 65 tokens, .*\(at most 32 fit\)"):
        check_length(make_sweep(given[0], validation=given[1], steps=3))


def test_held_out_data_is_part_of_the_identity(tmp_path: Path) -> None:
    for name, text in (("a", b"some text"), ("b", b"other text"), ("c", b"third text")):
        (tmp_path / f"{name}.txt").write_bytes(text)
    source = f"text:{tmp_path}/a.txt"
    alone, beside = (data_ref(DataSpec(source=source, validation=name)) for name in (None, f"text:{tmp_path}/b.txt"))
    other = data_ref(DataSpec(source=source, validation=f"text:{tmp_path}/c.txt"))
    assert alone.digest == beside.digest == other.digest
    assert alone.validation_digest is None
    assert len({alone.validation_digest, beside.validation_digest, other.validation_digest}) == 3
    with pytest.raises(HpxferError, match=r"^data\.validation_digest: must be the digest of the data at"):
        data_ref(DataSpec(source=source, validation=f"text:{tmp_path}/c.txt", validation_digest="0" * 32))
    with pytest.raises(HpxferError, match=r"^data\.validation: must name data on this machine, got text:/no/such"):
        data_ref(DataSpec(source=source, validation="text:/no/such"))
