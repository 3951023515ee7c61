"""A table of the user's own: registered, evaluated, explained, swept; the suite passes it and fails broken ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.coverage import coverage_warnings
from hpxfer.scaling.evaluate import evaluate, parameterization
from hpxfer.scaling.explain import explain, list_parameterizations
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, depth, ratio, width
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.scaling.table import Convention, Conventions, Row, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS, register_parameterization
from hpxfer.scaling.tables.sp import SP
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.testing.parameterization import SHAPES, ParameterizationSuite
from hpxfer.trial import DataRef, Expansion

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
WIDER = replace(BASE, width=128, expert_width=128)
SHY = Convention(default=0.5, legal=(0.5, 1.0), doc="the power of the width in every LR")


def rows(conventions: Conventions) -> tuple[Row, ...]:
    by = width ** -float(conventions["shy"])
    plain = SP.rows["adam"]({"lr_exponent": 0.0})
    return tuple(replace(row, source="mine", lr=ONE if row.role == "router_bias" else by) for row in plain)


MINE = Table(
    name="mine",
    source="a test",
    axes=("width",),
    rows={"adam": rows},
    conventions={"shy": SHY},
    doc="LR as width^-shy.",
)


@pytest.fixture
def mine() -> Iterator[str]:
    with PARAMETERIZATIONS.registered(MINE):
        yield MINE.name


class TestMine(ParameterizationSuite):
    @pytest.fixture
    def name(self, mine: str) -> str:
        return mine


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
class TestShipped(ParameterizationSuite):
    """Every table that is shipped."""


def test_a_registered_table_is_one_like_the_others(mine: str) -> None:
    choice = parameterization(mine, {"shy": 1.0})
    assert evaluate(choice, BASE, WIDER)["attn_q"].lr == 1 / 4
    assert choice.label() == "mine[shy=1.0]"
    assert explain(choice, BASE, WIDER).table().startswith("mine[shy=1.0] (a test), adamw\n")
    assert "mine (a test)\n  LR as width^-shy." in list_parameterizations()
    assert coverage_warnings(choice, BASE, WIDER) == []
    assert coverage_warnings(choice, BASE, replace(BASE, depth=4)) == [
        "mine does not cover depth: it changes by a factor of 2"
    ]


def test_a_sweep_names_it(mine: str) -> None:
    text = edited(("[completep-moe, sp]", "[{table: mine, conventions: {shy: 1.0}}, sp]"))
    spec = parse_sweep(text)
    assert parse_sweep(dump_sweep(spec)) == spec
    trials = list(Expansion(spec, DataRef(digest="d", tokenizer="ascii", vocab_size=128)).trials())
    rates = {trial.resolved()["attn_q"].lr for trial in trials if trial.shape.width == 64 and trial.parameterization}
    assert rates == {0.01, 0.005}


def test_an_unknown_one_is_still_refused() -> None:
    with pytest.raises(HpxferError, match="unknown parameterization 'mine'"):
        parse_sweep(edited(("[completep-moe, sp]", "[mine, sp]")))


def test_a_name_is_given_once() -> None:
    with pytest.raises(HpxferError) as caught:
        register_parameterization(replace(MINE, name="sp"))
    assert str(caught.value) == "parameterization 'sp' is registered already, by hpxfer; choose another name"
    assert PARAMETERIZATIONS.get("sp") is SP


def test_a_regime_s_warning_names_no_table_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mine", replace(MINE, regime="I"))
    (warning,) = coverage_warnings(parameterization("mine"), BASE, replace(BASE, width=64, num_experts=8, num_active=2))
    assert warning.endswith("; it follows regime II")


def change(where: str, /, **fields: Any) -> Callable[[Conventions], tuple[Row, ...]]:
    """Return MINE's rows with one of them changed."""
    return lambda conventions: tuple(replace(row, **fields) if row.role == where else row for row in rows(conventions))


def impure() -> Callable[[Conventions], tuple[Row, ...]]:
    calls = iter(range(10**6))
    return lambda conventions: change("attn_q", forward=depth ** -next(calls))(conventions)


def fails_badly(conventions: Conventions) -> tuple[Row, ...]:
    return rows({"shy": 1 / (1 - conventions["shy"])})  # type: ignore[operator]


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("test_says_what_it_is", {"source": ""}),
    ("test_says_what_it_is", {"axes": ("widht",)}),
    ("test_says_what_it_is", {"fixed": {"kapa": "a slip"}}),
    ("test_says_what_it_is", {"regime": "IV"}),
    ("test_says_what_it_is", {"rows": {}}),
    ("test_conventions_work_or_are_refused_in_words", {"conventions": {"shy": replace(SHY, default=0.25)}}),
    ("test_conventions_work_or_are_refused_in_words", {"conventions": {"shy": replace(SHY, doc="")}}),
    ("test_conventions_work_or_are_refused_in_words", {"rows": {"adam": fails_badly}}),
    ("test_rows_are_of_known_roles_once_each_with_a_source", {"rows": {"adam": change("attn_q", role="query")}}),
    ("test_rows_are_of_known_roles_once_each_with_a_source", {"rows": {"adam": change("attn_q", role="attn_k")}}),
    ("test_rows_are_of_known_roles_once_each_with_a_source", {"rows": {"adam": change("attn_q", source="")}}),
    ("test_rows_are_of_known_roles_once_each_with_a_source", {"rows": {"adam": lambda given: rows(given)[1:]}}),
    ("test_rows_are_of_known_roles_once_each_with_a_source", {"rows": {"adam": impure()}}),
    ("test_factors_are_made_of_known_ratios", {"rows": {"adam": change("attn_q", lr=ratio("heads"))}}),
    ("test_factors_are_made_of_known_ratios", {"route_scale": width ** float("nan")}),
    ("test_nothing_is_zero_but_a_start_and_a_decay", {"rows": {"adam": change("attn_q", lr=ZERO)}}),
    ("test_nothing_is_zero_but_a_start_and_a_decay", {"rows": {"adam": change("attn_q", init_std=ZERO)}}),
    ("test_nothing_is_zero_but_a_start_and_a_decay", {"rows": {"adam": change("norm", weight_decay=ONE)}}),
    ("test_at_the_base_all_is_as_without_a_table", {"rows": {"adam": change("attn_q", lr=Monomial((), 2))}}),
    ("test_at_the_base_all_is_as_without_a_table", {"one_minus_beta": Monomial((), 2)}),
    ("test_two_steps_are_one", {"rows": {"adam": change("attn_q", lr=Monomial((), 2))}}),
    ("test_at_the_base_all_is_as_without_a_table", {"rows": {"adam": change("attn_q", forward=Monomial((), 3))}}),
    ("test_at_the_base_all_is_as_without_a_table", {"route_scale": Monomial((), 2)}),
]


@pytest.mark.parametrize(("test", "fault"), BROKEN)
def test_the_suite_fails_a_broken_table(test: str, fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = getattr(ParameterizationSuite(), test)
    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mine", MINE)
    run("mine")
    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mine", replace(MINE, **fault))
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run("mine")


def test_every_test_of_the_suite_can_fail() -> None:
    tests = {name for name in vars(ParameterizationSuite) if name.startswith("test_")}
    assert {test for test, _ in BROKEN} == tests


def test_the_suite_s_shapes_are_of_every_layout() -> None:
    assert [bool(shape.dense_width) for shape in SHAPES] == [False, False, False, True, True, True]
    assert {shape.num_groups for shape in SHAPES} == {1, 3}
    for dim in ("width", "depth", "batch_tokens", "steps"):
        assert len({getattr(shape, dim) for shape in SHAPES}) == len(SHAPES), dim
    assert all(check_shape(shape) is None for shape in SHAPES)
