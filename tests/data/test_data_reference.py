"""What planning needs to know about the data: identity and length, also of points with data of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from made_results import made
from sweep_text import SWEEP

from hpxfer.data import check_length, data_ref, open_data, point_keys, require_data
from hpxfer.data.reference import require_length
from hpxfer.data.sources import DataFile, Dataset
from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.plan.make import make_plan
from hpxfer.plan.plan import data_lines
from hpxfer.plan.text import plan_text
from hpxfer.results import load_results
from hpxfer.spec import SweepSpec, load_sweep, parse_sweep
from hpxfer.spec.data import own_data
from hpxfer.spec.data_section import DataSpec
from hpxfer.store import Store
from hpxfer.trial import Expansion

Write = Callable[..., Path]
Make = Callable[..., SweepSpec]


def test_the_vocabulary_is_a_tokenizer_or_a_size_and_not_in_the_digest(tmp_path: Path, write_shard: Write) -> None:
    path = write_shard(tmp_path / "a.bin", range(10))
    found = []
    for keys, vocabulary in (
        ({"source": f"text:{path}"}, ("bytes", 256)),
        ({"source": f"text:{path}", "tokenizer": "ascii"}, ("ascii", 128)),
        ({"source": f"tokens:{path}"}, ("gpt2", 50304)),
        ({"source": f"tokens:{path}", "vocab_size": 10}, ("ids", 10)),
        ({"source": "tokens:/nowhere/*.bin", "digest": "abc"}, ("gpt2", 50304)),
    ):
        found.append(data_ref(DataSpec.model_validate(keys)))
        assert (found[-1].tokenizer, found[-1].vocab_size) == vocabulary
    assert [ref.digest == found[0].digest for ref in found] == [True, True, False, False, False]
    assert found[2].digest == found[3].digest
    assert found[4].digest == "abc"
    with pytest.raises(HpxferError, match=r"a\.bin: token 9: .*below the vocabulary of 9, got 9"):
        data_ref(DataSpec(source=f"tokens:{path}", vocab_size=9))
    with pytest.raises(HpxferError, match=rf"^data\.digest: .*{found[2].digest}, got abc; without the key"):
        data_ref(DataSpec(source=f"tokens:{path}", digest="abc"))


@pytest.mark.parametrize("source", ["text:/nowhere/a.txt", "tokens:/nowhere/*.bin"])
def test_missing_data_without_a_digest_is_refused(source: str) -> None:
    with pytest.raises(HpxferError) as error:
        data_ref(DataSpec(source=source))
    assert f"must name data on this machine, got {source}, which no file matches (" in str(error.value)
    assert "give data.digest to plan without the data" in str(error.value)


def test_the_longest_run_of_an_axis_must_fit(tmp_path: Path, make_sweep: Make) -> None:
    path = tmp_path / "a.txt"
    for axes, tokens, rule in (
        (
            "{width: [32]}",
            162,
            "data.source: must hold at least 162 tokens for 3 steps of 32, 64 for validation and 2 ",
        ),
        (
            "{width: [32], duration: [2, 5]}",
            226,
            "data.source: at axes.duration[1]: must hold at least 226 tokens for 5",
        ),
    ):
        sweep = make_sweep(f"text:{path}", axes=axes)
        path.write_bytes(b"x" * tokens)
        check_length(sweep)
        path.write_bytes(b"x" * (tokens - 1))
        with pytest.raises(HpxferError) as error:
            check_length(sweep)
        assert str(error.value).startswith(rule)
        assert f"got {tokens - 1} at text:{path}; see data.epochs" in str(error.value)


def test_length_of_missing_data_is_not_checked(make_sweep: Make) -> None:
    check_length(make_sweep("text:/nowhere/a.txt", steps=10**9))


@settings(deadline=None, max_examples=examples(50))
@given(*(st.integers(1, most) for most in (2000, 50, 20, 4, 3, 3)))
def test_as_much_as_is_said_to_be_needed_is_enough(
    num_tokens: int, steps: int, context: int, rows: int, tail: int, epochs: int
) -> None:
    def of(num_tokens: int) -> Dataset:
        return Dataset(format="text", parts=(DataFile(path="x", num_tokens=num_tokens, dtype="u1"),))

    def refused(num_tokens: int) -> str | None:
        try:
            sizes = {"batch": context * rows, "validation": tail * context * rows, "context": context}
            require_length("x", of(num_tokens), steps=steps, held_out=None, epochs=epochs, **sizes)
        except HpxferError as error:
            return str(error)
        return None

    refusal = refused(num_tokens)
    if refusal is not None:
        needed = int(refusal.partition("must hold at least ")[2].partition(" ")[0])
        assert num_tokens < needed
        assert refused(needed) is None
        assert refused(needed - 1) is not None


def test_epochs_lift_the_limit_and_held_out_data_has_its_own(tmp_path: Path, make_sweep: Make) -> None:
    path, held_out = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"x" * 100)
    held_out.write_bytes(b"y" * 65)
    given = f"text:{path}", f"text:{held_out}"
    with pytest.raises(HpxferError, match=r"at least 129 tokens for 4 steps of 32 and a last target, got 100"):
        check_length(make_sweep(given[0], validation=given[1], steps=4))
    check_length(make_sweep(given[0], validation=given[1], steps=4, epochs=2))
    check_length(make_sweep(given[0], validation=given[1], steps=3))
    held_out.write_bytes(b"y" * 64)
    with pytest.raises(HpxferError, match=r"^data\.validation: must hold at least 65 tokens for validation, got 64"):
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


LONG = "{width: 64, steps: 400, data: text:more.txt}"


def swept(folder: Path, *edits: tuple[str, str], long: str = LONG) -> SweepSpec:
    (folder / "few.txt").write_bytes(bytes(range(32, 96)) * 2000)
    (folder / "more.txt").write_bytes(bytes(range(32, 96))[::-1] * 4000)
    (folder / "held.txt").write_bytes(b"held out " * 300)
    text = SWEEP.replace("source: builtin:stdlib", "source: text:few.txt\n  validation: text:held.txt")
    text = text.replace("width: [32, 64]", f"width: [32, 64]\n  long: {{shapes: [{long}]}}")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "s.yaml").write_text(text)
    return load_sweep(folder / "s.yaml")


def test_only_that_shape_trains_on_it(tmp_path: Path) -> None:
    spec = swept(tmp_path)
    (own,) = own_data(spec).values()
    assert own.source == f"text:{tmp_path}/more.txt"
    require_data(spec)
    check_length(spec)
    data = data_ref(spec.data, point_keys(spec))
    trials = list(Expansion(spec, data).trials())
    sources = {(trial.shape.steps, trial.setting.data_source, trial.setting.data_digest) for trial in trials}
    assert sources == {(200, spec.data.source, data.digest), (400, own.source, data.others[0][1])}
    assert len({trial.setting.validation_digest for trial in trials}) == 1
    (long,) = {trial.setting for trial in trials if trial.shape.steps == 400}
    assert open_data(long).corpus.num_tokens == 64 * 4000


def test_the_plan_says_which_shape_trains_on_what(tmp_path: Path) -> None:
    lines = data_lines(swept(tmp_path))
    assert [line.split(": ", 1)[0] for line in lines] == ["w64 d2 E4A1 h64 b512 t400", "all other shapes"]
    assert [Path(line).name for line in lines] == ["more.txt", "few.txt"]
    swept(tmp_path)
    job = prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    text = plan_text(make_plan(job.expansion, ()))
    assert all(f"data of {line}" in text.splitlines() for line in lines)
    assert data_lines(parse_sweep(SWEEP)) == ()


def test_a_stored_sweep_knows_all_digests(tmp_path: Path) -> None:
    swept(tmp_path)
    job = prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    store = Store.open(job.folder, write=True)
    store.save_sweep(job.spec, job.expansion.data.digest)
    store.append([made(next(iter(job.expansion.trials())))])
    ids = {trial.id for trial in job.expansion.trials()}
    for name in ("few", "more", "held"):
        (tmp_path / f"{name}.txt").unlink()
    again = prepare(job.folder / "sweep.yaml", results=tmp_path / "results", executor="local")
    assert {trial.id for trial in again.expansion.trials()} == ids
    assert {trial.id for trial in load_results(job.folder).expansion.trials()} == ids


@pytest.mark.parametrize(
    ("edits", "long", "message"),
    [
        ((("\n  validation: text:held.txt", ""),), LONG, r"axes\.long\.shapes\[0\]\.data: needs data\.validation, so"),
        ((), "{width: 64, steps: 400, data: x}", r"axes\.long\.shapes\[0\]\.data\.source: must be builtin:stdlib"),
        (
            (),
            "{width: 64, data: text:more.txt}",
            r"axes\.long\.shapes\[0\]: must have the data of axes\.width\.values\[1\], which",
        ),
        (
            (("text:held.txt", "text:held.txt\n  digest: ab\n  validation_digest: ab"),),
            LONG,
            r"data\.digest: must be given with data\.digest: all digests stand in for data, or none does",
        ),
    ],
)
def test_bad_input_is_named(tmp_path: Path, edits: tuple[tuple[str, str], ...], long: str, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        swept(tmp_path, *edits, long=long)


@pytest.mark.parametrize("form", ["long: {{shapes: [{}]}}", "long: [{}]"])
@pytest.mark.parametrize(
    ("long", "line", "key", "rule"),
    [
        ("{width: 64, steps: 400, data: text:gone.txt}", 18, "axes.long[0].data.source", "must name data on this"),
        (
            "{width: 64, steps: 40000, data: text:more.txt}",
            18,
            "axes.long[0].data.source",
            "at axes.long[0]: must hold at least",
        ),
        ("{width: 64, steps: 40000}", 7, "data.source", "at axes.long[0]: must hold at least"),
    ],
)
def test_errors_name_keys_of_the_point(tmp_path: Path, form: str, long: str, line: int, key: str, rule: str) -> None:
    """The key is spelled as the file has it."""
    swept(tmp_path, ("long: {shapes: [LONG]}", form.format(long)), long="LONG")
    with pytest.raises(HpxferError) as error:
        prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    spelled = key.replace("long[0]", "long.shapes[0]") if "shapes" in form else key
    assert f"s.yaml:{line}: {spelled}: " in str(error.value)
    assert rule in str(error.value)
