"""A user's own trainer: shapes and their scale, what tables read of them, the files that count, stored sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from user_sweeps import ARMS, TABLES, write_user

from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import MAX_OWN, Shape, check_trainable, own_problem, shape_from_mapping, spell_own
from hpxfer.spec import dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.own import NAMED_DIMS, changed, own_scale, own_shape
from hpxfer.spec.trainer_files import digested

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)
NUMBERS = st.integers(-MAX_OWN, MAX_OWN) | st.floats(allow_nan=False, allow_infinity=False)
OWN = st.dictionaries(NAMES, NUMBERS | st.booleans() | TEXTS, min_size=1, max_size=5)


def shape_of(dims: dict[str, str | int] | None = None, steps: int = 10, batch: int = 4, **own: Any) -> Shape:
    return own_shape(own, dims, batch=batch, steps=steps)


@given(OWN)
def test_a_shape_comes_back_from_its_spelling_in_any_order(own: dict[str, Any]) -> None:
    shape = own_shape(own, None, batch=1, steps=1)
    assert own_problem(own) is None
    assert shape.own_dims == own
    assert {name: type(value) for name, value in shape.own_dims.items()} == {n: type(v) for n, v in own.items()}
    assert spell_own(dict(reversed(own.items()))) == shape.own
    assert shape_from_mapping({"own": own, "batch_tokens": 1, "steps": 1}, "x") == shape
    assert shape_from_mapping(json.loads(json.dumps(shape.dims())), "x") == shape  # as identities and recipes hold it
    assert check_trainable(shape) is None


@given(OWN, st.data())
def test_a_change_gives_the_spelling_that_the_base_would_have(own: dict[str, Any], data: st.DataObject) -> None:
    """The bare values of an axis are floats. A shape has one id, however its numbers are spelled."""
    name = data.draw(st.sampled_from(sorted(own)))
    value = own[name]
    as_float = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    assert spell_own(changed(own, {name: as_float})) == spell_own(own)
    assert changed(own, {}) == own


def test_a_whole_number_for_a_float_is_the_float() -> None:
    assert spell_own(changed({"ratio": 0.5}, {"ratio": 1})) == spell_own(changed({"ratio": 0.5}, {"ratio": 1.0}))


@pytest.mark.parametrize(
    ("own", "change"),
    [({"a": 1}, {"a": "x"}), ({"a": "x"}, {"a": 1}), ({"a": True}, {"a": 1.0}), ({"a": 1}, {"a": True})],
)
def test_a_change_of_kind_is_refused(own: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(HpxferError, match="a must be of the kind that it has at the base"):
        changed(own, change)


@pytest.mark.parametrize(
    "own",
    [
        *({}, None, [], "x", {"a": None}, {"a": [1]}, {"a": {}}, {1: 2}, {"": 1}, {"a b": 1}, {"_a": 1}, {"a" * 65: 1}),
        *({"a": float("nan")}, {"a": float("inf")}, {"a": 2**53 + 1}, {"a": ""}, {"a": "x\n"}, {"a": "x" * 201}),
    ],
)
def test_what_is_no_shape_is_refused_with_a_reason(own: Any) -> None:
    assert own_problem(own) is not None
    with pytest.raises(HpxferError, match=r"^x: own: "):
        shape_from_mapping({"own": own}, "x")


@given(
    st.dictionaries(st.sampled_from([*NAMED_DIMS]), st.integers(1, 64), max_size=6).filter(
        lambda wanted: "num_heads" not in wanted or "head_dim" in wanted  # which follows from it, see below
    )
)
def test_dims_are_the_numbers_that_they_name(wanted: dict[str, int]) -> None:
    own = {f"my_{name}": value for name, value in wanted.items()}
    named = own_shape(own or {"a": 1}, {name: f"my_{name}" for name in wanted}, batch=2, steps=3)
    given_ = own_shape(own or {"a": 1}, dict(wanted), batch=2, steps=3)
    assert named == given_
    heads = {"num_heads", "kv_heads"}  # a shape holds 0 where they follow from the others
    assert {name: getattr(named, name) for name in wanted.keys() - heads} == {
        name: value for name, value in wanted.items() if name not in heads
    }
    if "num_heads" in wanted and wanted.get("head_dim"):
        assert named.query_heads == wanted["num_heads"]
    unnamed = set(NAMED_DIMS) - wanted.keys() - heads - {"num_groups"}
    assert all(getattr(named, name) == 0 for name in unnamed)


@pytest.mark.parametrize("value", [-1, 10**9 + 1, True, 1.5, "x"])
def test_a_dimension_is_a_whole_number_that_can_be_stored(value: Any) -> None:
    with pytest.raises(HpxferError, match=r"dims\.width: must be a whole number from 0 to 1000000000, got"):
        shape_of({"width": "a"}, a=value)


def scale_of(axis: str, *shapes: Shape, asked: str | None = None) -> tuple[str, list[float]]:
    return own_scale(axis, asked, shapes)


def test_the_scale_is_what_is_asked_for_then_the_axis_name_then_the_only_change() -> None:
    small, large = shape_of(a=1, b=2, kind="x"), shape_of(a=2, b=3, kind="x")
    assert scale_of("a", small, large) == ("a", [1.0, 2.0])
    assert scale_of("a", small, large, asked="b") == ("b", [2.0, 3.0])
    assert scale_of("size", small, shape_of(a=1, b=5, kind="x")) == ("b", [2.0, 5.0])
    assert scale_of("longer", small, shape_of(a=1, b=2, kind="x", steps=20))[0] == "steps"
    # Of a shape and a number of the run, the shape's counts.
    assert scale_of("size", small, shape_of(a=1, b=5, kind="x", steps=20)) == ("b", [2.0, 5.0])


@pytest.mark.parametrize(
    ("shapes", "asked", "expected"),
    [
        ((shape_of(a=1, b=2), shape_of(a=2, b=3)), None, "must be given: .*; a, b differ everywhere"),
        ((shape_of(a=1, b=2), shape_of(a=1, b=2)), None, "must be given: .*; none differs everywhere"),
        ((shape_of(a=1, k="x"), shape_of(a=1, k="y")), "k", "k must be a number above 0"),
        ((shape_of(a=0), shape_of(a=1)), "a", "a must be a number above 0"),
        ((shape_of(a=True), shape_of(a=False)), "a", "a must be a number above 0"),
        ((shape_of(a=1, b=1), shape_of(a=1, b=2)), "a", "a must differ between the shapes"),
        ((shape_of(a=1), shape_of(a=2)), "c", "must be a key of own, or of the run, got 'c'"),
    ],
)
def test_shapes_without_a_scale_are_refused(shapes: tuple[Shape, ...], asked: str | None, expected: str) -> None:
    with pytest.raises(HpxferError, match=rf"^scale: {expected}"):
        own_scale("size", asked, shapes)


def test_a_label_speaks_the_users_words() -> None:
    shape = shape_of(d_model=64, act="gelu", steps=20, batch=512)
    assert shape.label() == "act=gelu d_model=64"
    assert shape.label(schedule=True) == "act=gelu d_model=64 b512 t20"


NANO_DIMS: dict[str, int | str] = {"width": "d", "depth": "n", "num_heads": "h"}


@given(heads=st.integers(1, 32), head_dim=st.integers(1, 64))
def test_the_number_of_heads_gives_their_width(heads: int, head_dim: int) -> None:
    """Tables scale attention by head_dim, and a trainer such as nanoGPT names the number of heads."""
    own = {"d": heads * head_dim, "n": 2, "h": heads}
    by_number = own_shape(own, NANO_DIMS, batch=1, steps=1)
    by_width = own_shape(own, {"width": "d", "depth": "n", "head_dim": head_dim}, batch=1, steps=1)
    assert by_number == by_width
    assert by_number.head_dim == head_dim


def test_a_width_of_heads_that_is_given_stays() -> None:
    shape = own_shape({"d": 32, "n": 2, "h": 4}, {**NANO_DIMS, "head_dim": 16}, batch=1, steps=1)
    assert (shape.head_dim, shape.num_heads) == (16, 4)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(HpxferError, match=r"dims\.num_heads: must divide the width .* got 3 at width 32"):
        own_shape({"d": 32, "n": 2, "h": 3}, NANO_DIMS, batch=1, steps=1)


def digests(folder: Path, files: str) -> dict[str, str]:
    path = write_user(folder, "finish()", ("files: [train.py]", f"files: {files}"))
    trainer = digested(load_sweep(path)).trainer
    assert trainer is not None
    return trainer.digests or {}


def test_a_digest_follows_the_content_alone(tmp_path: Path) -> None:
    first = digests(tmp_path, "[train.py]")
    assert [*first] == ["train.py"]
    assert digests(tmp_path, "['*.py']") == first
    other = tmp_path / "other"
    other.mkdir()
    assert digests(other, "[train.py]") == first
    (tmp_path / "helper.py").write_text("x = 1\n")
    assert digests(tmp_path, "[train.py]") == first
    assert digests(tmp_path, "['*.py', train.py]") == {
        **first,
        "helper.py": digests(tmp_path, "[helper.py]")["helper.py"],
    }
    (tmp_path / "helper.py").write_text("x = 2\n")
    assert digests(tmp_path, "[helper.py]") != {"helper.py": digests(other, "[train.py]")["train.py"]}


def test_a_glob_passes_over_what_is_no_code(tmp_path: Path) -> None:
    """Above all over results, which would give each run other ids than the one before."""
    for name in (".git/x.py", "a/__pycache__/x.py", ".venv/lib/x.py", "results/mine/runs/1/x.py", "a/b/x.py", "c/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "results/mine/sweep.yaml").write_text("name: mine\n")
    (tmp_path / "results/mine/trials.parquet").write_text("")
    (tmp_path / "c/sweep.yaml").write_text("name: mine\n")  # a sweep beside its code is no results folder
    assert [*digests(tmp_path, "['**/*.py']")] == ["a/b/x.py", "c/x.py", "train.py"]
    assert [*digests(tmp_path, "[.git/x.py]")] == [".git/x.py"]  # named as it is


@pytest.mark.parametrize("name", ["nope.py", "'**/*.nope'", "folder", "'[a'"])
def test_a_name_without_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HpxferError, match=r"^trainer.files: .* must name files below"):
        digests(tmp_path, f"[{name}]")


def test_a_stored_sweep_keeps_its_digests_where_its_files_are_not(tmp_path: Path) -> None:
    path = write_user(tmp_path)
    spec = digested(load_sweep(path))
    stored = parse_sweep(dump_sweep(spec))
    assert stored == spec
    (tmp_path / "train.py").unlink()
    assert digested(stored) == spec


def test_the_folder_is_that_of_the_sweep_file(tmp_path: Path) -> None:
    trainer = load_sweep(write_user(tmp_path)).trainer
    assert trainer is not None
    assert trainer.folder == str(tmp_path.resolve() / "")
    inner = load_sweep(write_user(tmp_path, "", ("  files", "  folder: code\n  files"))).trainer
    assert inner is not None
    assert inner.folder == str(tmp_path.resolve() / "code")


@pytest.mark.parametrize("text", [ARMS, TABLES], ids=["arms", "tables"])
def test_the_sweeps_themselves_are_legal_and_come_back_from_their_dump(text: str) -> None:
    spec = parse_sweep(text)
    assert parse_sweep(dump_sweep(spec)) == spec


def test_the_data_of_a_stored_sweep_follows_its_trainer() -> None:
    """A stored sweep spells its data out. Another name in `trainer.data` is other data, and so other trials."""
    stored = dump_sweep(parse_sweep(ARMS))
    assert "source: user:unnamed" in stored
    assert parse_sweep(stored.replace("data: unnamed", "data: tokens@2")).data.source == "user:tokens@2"
