"""The conformance suite of parameterizations. Derive a pytest class from `ParameterizationSuite`, and define `name`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
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
from hpxfer.scaling.monomial import ZERO
from hpxfer.scaling.regimes import REGIMES
from hpxfer.scaling.roles import CONDITIONED, ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import COLUMNS, FACTORS, Column
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
MAY_START_AT_ZERO = {"hidden_bias", "router_bias", "router", "readout", "final_bias"}
NOT_DECAYED = {"position", "norm", "final_norm", "hidden_bias", "router_bias", "final_bias"}
DENSE = {"dense_in", "dense_gate", "dense_out"}
MOE = {"router", "router_bias", "expert_in", "expert_gate", "expert_out"}
SAME = 1e-9


def made(name: str, conventions: Mapping[str, Any]) -> Parameterization | str:
    """Return a table under conventions, or the words in which they are refused."""
    try:
        return parameterization(name, conventions)
    except HpxferError as error:
        return str(error)


def columns(name: str) -> Iterator[tuple[Parameterization, Column]]:
    """Yield every column of the table, under its defaults and with each legal value of each convention."""
    table = PARAMETERIZATIONS.get(name)
    for chosen in ({}, *({key: value} for key, known in table.conventions.items() for value in known.values())):
        if not isinstance(choice := made(name, chosen), str):  # a value may exclude another convention's default
            yield from ((choice, optimizer) for optimizer in table.rows)


class ParameterizationSuite:
    """The rules that every table obeys. A subclass defines the fixture `name`, the name of a registered table."""

    def test_says_what_it_is(self, name: str) -> None:
        """It has a name, a source, a doc and a column; its axes, fixed properties and regime exist."""
        table = PARAMETERIZATIONS.get(name)
        assert table.name == name
        assert table.source
        assert table.doc
        assert set(COLUMNS) >= set(table.rows) > set()
        known = {axis for axes in MOVES.values() for axis in axes}
        assert {*table.axes, *table.adam_axes} <= known, f"axes must be of {sorted(known)}"
        assert all(hasattr(SHAPES[0], fixed) for fixed in table.fixed), "fixed must name properties of a Shape"
        assert table.regime is None or table.regime in REGIMES

    def test_conventions_work_or_are_refused_in_words(self, name: str) -> None:
        known = PARAMETERIZATIONS.get(name).conventions
        for key, convention in known.items():
            assert convention.doc, key
            assert convention.allows(convention.default), key
            assert not convention.allows(True), f"{key}: True is no number"
        pairs = [(key, value) for key, convention in known.items() for value in convention.values()]
        for chosen in itertools.combinations_with_replacement(pairs, 2):
            found = made(name, dict(chosen))
            assert not isinstance(found, str) or found.startswith(f"parameterization {name}: "), found

    def test_rows_are_of_known_roles_once_each_with_a_source(self, name: str) -> None:
        """The rows cover the tensors of a plain model, with experts or with a dense FFN, and are a pure function.

        They cover all tensors of a conditioned model, or none.
        """
        for choice, optimizer in columns(name):
            rows = choice.rows(optimizer)
            roles = [row.role for row in rows]
            assert rows == choice.rows(optimizer)
            assert len(set(roles)) == len(roles), "a role stands twice"
            assert set(roles) <= set(ROLES), f"unknown roles {sorted(set(roles) - set(ROLES))}"
            assert all(row.source for row in rows), "every row has a source"
            of_condition = set(CONDITIONED) & set(roles)
            outside = {role for role in ROLES if not role.startswith(("router", "expert", "shared", "dense"))}
            outside -= set() if of_condition else set(CONDITIONED)
            assert outside <= set(roles), f"no row for {sorted(outside - set(roles))}"
            assert set(roles) >= MOE or set(roles) >= DENSE, "rows for the experts, or for a dense FFN"

    def test_factors_are_made_of_known_ratios(self, name: str) -> None:
        table, known = PARAMETERIZATIONS.get(name), set(ratios_of(SHAPES[0], SHAPES[0]))
        rows = [row for choice, optimizer in columns(name) for row in choice.rows(optimizer)]
        found = [(f"{row.role}.{field}", getattr(row, field)) for row in rows for field in FACTORS]
        for where, factor in [*found, ("route_scale", table.route_scale), ("one_minus_beta", table.one_minus_beta)]:
            for symbol, power in factor.exponents:
                assert symbol in known, f"{where}: no such ratio: {symbol}"
                assert math.isfinite(power), where

    def test_nothing_is_zero_but_a_start_and_a_decay(self, name: str) -> None:
        """Biases, the router and the readout may start at zero. Exactly gains, biases and positions have no decay."""
        for choice, optimizer in columns(name):
            for row in choice.rows(optimizer):
                assert ZERO not in (row.lr, row.eps, row.forward), row.role
                assert row.init_std != ZERO or row.role in MAY_START_AT_ZERO, f"{row.role} starts at zero"
                assert (row.weight_decay == ZERO) == (row.role in NOT_DECAYED), f"weight decay of {row.role}"

    def test_at_the_base_all_is_as_without_a_table(self, name: str) -> None:
        """Every factor is 1 and every absolute number is that of `sp`, except for exact zeros."""
        plain, hps, init = parameterization("sp"), HPs(lr=0.5, weight_decay=0.1, eps=1e-8), BaseInit()
        for (choice, optimizer), shape in itertools.product(columns(name), SHAPES):
            zero = {row.role for row in choice.rows(optimizer) if row.init_std == ZERO}
            for role, factors in evaluate(choice, shape, shape, optimizer).items():
                start, decay = float(role not in zero), float(role not in NOT_DECAYED)
                want = Multipliers(init_std=start, lr=1.0, eps=1.0, weight_decay=decay, forward=1.0)
                assert factors == want, f"{choice.label()}, {role} at the base"
            assert evaluate_globals(choice, shape, shape) == Globals(route_scale=1.0, one_minus_beta=1.0)
            its = resolve(plain, shape, shape, optimizer, hps, init)
            for role, found in resolve(choice, shape, shape, optimizer, hps, init).items():
                assert found == (dataclasses.replace(its[role], init_std=0.0) if role in zero else its[role]), role
            assert resolve_globals(choice, shape, shape, hps) == resolve_globals(plain, shape, shape, hps)

    def test_two_steps_are_one(self, name: str) -> None:
        """The factors from base to middle times those from middle to target are those from base to target."""
        for (choice, optimizer), way in itertools.product(columns(name), itertools.combinations(SHAPES, 3)):
            base, middle, target = way
            first, second = evaluate(choice, base, middle, optimizer), evaluate(choice, middle, target, optimizer)
            for role, whole in evaluate(choice, base, target, optimizer).items():
                if role in DENSE and not all(shape.dense_width for shape in way):
                    continue  # a dense FFN has no counterpart in an expert
                for field in FACTORS:
                    near, far, both = (getattr(part, field) for part in (first[role], second[role], whole))
                    assert math.isclose(near * far, both, rel_tol=SAME), f"{choice.label()}, {role}, {field}"
