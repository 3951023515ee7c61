"""The conformance suite for parameterizations.

Register a table, derive a pytest class from `ParameterizationSuite`, and define its fixture `name`:

    hpxfer.register_parameterization(MY_TABLE)

    class TestMine(ParameterizationSuite):
        @pytest.fixture
        def name(self):
            return MY_TABLE.name
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.coverage import MOVES
from hpxfer.scaling.evaluate import (
    BaseInit,
    Globals,
    Multipliers,
    Parameterization,
    evaluate,
    evaluate_globals,
    parameterization,
    resolve,
    resolve_globals,
)
from hpxfer.scaling.evaluate import ratios as ratios_of
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.monomial import ZERO, Monomial
from hpxfer.scaling.regimes import REGIMES
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import FACTORS, Column, Conventions, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS

# Width, depth, batch_tokens and steps, and the layout. Three layouts have a dense FFN, to compare its roles too.
_LAYOUTS: tuple[tuple[tuple[int, int, int, int], dict[str, Any]], ...] = (
    ((16, 2, 64, 100), {"num_experts": 4, "num_active": 1, "expert_width": 24}),
    ((64, 3, 96, 120), {"num_experts": 8, "num_active": 2, "expert_width": 32, "num_shared": 1, "shared_width": 16}),
    ((32, 8, 32, 500), {"num_experts": 12, "num_active": 6, "expert_width": 8, "num_groups": 3}),
    ((48, 5, 256, 50), {"dense_width": 96}),
    ((24, 4, 128, 80), {"num_experts": 6, "num_active": 3, "expert_width": 40, "dense_width": 56}),
    ((40, 6, 192, 150), {"dense_width": 200}),
)
SHAPES = tuple(
    Shape(width=width, depth=depth, head_dim=8, batch_tokens=batch_tokens, steps=steps, **layout)
    for (width, depth, batch_tokens, steps), layout in _LAYOUTS
)
# Roles that may start at exact zero, and roles without weight decay.
MAY_START_AT_ZERO = {"hidden_bias", "router_bias", "router", "readout"}
NOT_DECAYED = {"position", "norm", "final_norm", "hidden_bias", "router_bias"}
DENSE = {"dense_in", "dense_gate", "dense_out"}
SAME = 1e-9


def columns(name: str) -> Iterator[tuple[Parameterization, Column]]:
    """Yield every column of the table, under its defaults and with each legal value of each convention.

    A value that excludes the default of another convention is left out. Another test holds its refusal to be in words.
    """
    table = PARAMETERIZATIONS.get(name)
    for chosen in ({}, *({key: value} for key, known in table.conventions.items() for value in known.values())):
        try:
            choice = parameterization(name, chosen)
        except HpxferError:
            continue
        for optimizer in table.rows:
            yield choice, optimizer


def comparable(role: str, *shapes: Shape) -> bool:
    """Return whether the factors of a role compose along these shapes. A dense FFN has no counterpart in an expert."""
    return role not in DENSE or all(shape.dense_width for shape in shapes)


class ParameterizationSuite:
    """The rules that every table obeys. A subclass defines the fixture `name`, the name of a registered table."""

    def test_says_what_it_is(self, name: str) -> None:
        """It has a name, a source, a doc and a column; its axes, fixed properties and regime exist."""
        table = PARAMETERIZATIONS.get(name)
        assert table.name == name
        assert table.source
        assert table.doc
        assert table.rows
        assert set(table.rows) <= {"adam", "sgd"}
        known = {axis for axes in MOVES.values() for axis in axes}
        assert {*table.axes, *table.adam_axes} <= known, f"axes must be of {sorted(known)}"
        assert all(hasattr(SHAPES[0], fixed) for fixed in table.fixed), "fixed must name properties of a Shape"
        assert table.regime is None or table.regime in REGIMES

    def test_conventions_have_legal_defaults_and_a_doc(self, name: str) -> None:
        """True is no number."""
        for key, convention in PARAMETERIZATIONS.get(name).conventions.items():
            assert convention.doc, key
            assert convention.allows(convention.default), key
            assert not convention.allows(True), key

    def test_every_value_of_a_convention_works_or_is_refused_in_words(self, name: str) -> None:
        """Each value is tried alone and beside each value of every other convention."""
        known = PARAMETERIZATIONS.get(name).conventions
        pairs = [(key, value) for key, convention in known.items() for value in convention.values()]
        for chosen in itertools.combinations_with_replacement(pairs, 2):
            refusal = _refusal(name, dict(chosen))
            assert refusal is None or refusal.startswith(f"parameterization {name}: "), refusal

    def test_rows_are_of_known_roles_once_each_with_a_source(self, name: str) -> None:
        """The rows also cover the tensors of a plain model, with experts or with a dense FFN."""
        for choice, optimizer in columns(name):
            rows = choice.rows(optimizer)
            roles = [row.role for row in rows]
            assert len(set(roles)) == len(roles), "a role stands twice"
            assert set(roles) <= set(ROLES), f"unknown roles {sorted(set(roles) - set(ROLES))}"
            assert all(row.source for row in rows), "every row has a source"
            outside = {role for role in ROLES if not role.startswith(("router", "expert", "shared", "dense"))}
            assert outside <= set(roles), f"no row for {sorted(outside - set(roles))}"
            moe = {"router", "router_bias", "expert_in", "expert_gate", "expert_out"}
            assert moe <= set(roles) or set(roles) >= DENSE, "rows for the experts, or for a dense FFN"

    def test_rows_are_a_pure_function_of_the_conventions(self, name: str) -> None:
        for choice, optimizer in columns(name):
            assert choice.rows(optimizer) == choice.rows(optimizer)

    def test_factors_are_made_of_known_ratios(self, name: str) -> None:
        known = set(ratios_of(SHAPES[0], SHAPES[0]))
        for where, factor in _monomials(name):
            names = {symbol for symbol, _ in factor.exponents}
            assert names <= known, f"{where}: no such ratio: {sorted(names - known)}"
            assert all(math.isfinite(power) for _, power in factor.exponents), where

    def test_nothing_is_zero_but_a_start_and_a_decay(self, name: str) -> None:
        """Biases, the router and the readout may start at zero. Exactly gains, biases and positions have no decay."""
        for choice, optimizer in columns(name):
            for row in choice.rows(optimizer):
                assert ZERO not in (row.lr, row.eps, row.forward), row.role
                assert row.init_std != ZERO or row.role in MAY_START_AT_ZERO, f"{row.role} starts at zero"
                assert (row.weight_decay == ZERO) == (row.role in NOT_DECAYED), f"weight decay of {row.role}"

    def test_the_base_is_the_identity(self, name: str) -> None:
        for (choice, optimizer), shape in itertools.product(columns(name), SHAPES):
            zero = {row.role for row in choice.rows(optimizer) if row.init_std == ZERO}
            for role, found in evaluate(choice, shape, shape, optimizer).items():
                decay = 0.0 if role in NOT_DECAYED else 1.0
                start = 0.0 if role in zero else 1.0
                want = Multipliers(init_std=start, lr=1.0, eps=1.0, weight_decay=decay, forward=1.0)
                assert found == want, f"{choice.label()}, {role} at the base"
            assert evaluate_globals(choice, shape, shape) == Globals(route_scale=1.0, one_minus_beta=1.0)

    def test_two_steps_are_one(self, name: str) -> None:
        """The factors from base to middle times those from middle to target are those from base to target."""
        for choice, optimizer in columns(name):
            for way in itertools.combinations(SHAPES, 3):
                base, middle, target = way
                first, second = evaluate(choice, base, middle, optimizer), evaluate(choice, middle, target, optimizer)
                for role, whole in evaluate(choice, base, target, optimizer).items():
                    if not comparable(role, *way):
                        continue
                    for field in FACTORS:
                        near, far, both = (getattr(part, field) for part in (first[role], second[role], whole))
                        assert math.isclose(near * far, both, rel_tol=SAME), f"{choice.label()}, {role}, {field}"

    def test_at_the_base_the_model_is_the_plain_one(self, name: str) -> None:
        """Every absolute number equals that of `sp`, except for exact zeros."""
        plain, hps, init = parameterization("sp"), HPs(lr=0.5, weight_decay=0.1, eps=1e-8), BaseInit()
        for (choice, optimizer), shape in itertools.product(columns(name), SHAPES):
            its = resolve(plain, shape, shape, optimizer, hps, init)
            zero = {row.role for row in choice.rows(optimizer) if row.init_std == ZERO}
            for role, found in resolve(choice, shape, shape, optimizer, hps, init).items():
                assert found == (dataclasses.replace(its[role], init_std=0.0) if role in zero else its[role]), role
            assert resolve_globals(choice, shape, shape, hps) == resolve_globals(plain, shape, shape, hps)


def _refusal(name: str, conventions: Conventions) -> str | None:
    try:
        parameterization(name, conventions)
    except HpxferError as error:
        return str(error)
    return None


def _monomials(name: str) -> Iterator[tuple[str, Monomial]]:
    table: Table = PARAMETERIZATIONS.get(name)
    yield "route_scale", table.route_scale
    yield "one_minus_beta", table.one_minus_beta
    for choice, optimizer in columns(name):
        for row in choice.rows(optimizer):
            yield from ((f"{row.role}.{field}", getattr(row, field)) for field in FACTORS)
