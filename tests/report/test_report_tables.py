"""Tables as data."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from hpxfer.report.tables import NOTHING, Column, Table, table_of

CELLS = st.one_of(st.none(), st.text(max_size=5), st.integers(), st.floats())


@given(CELLS)
def test_every_cell_has_a_text_and_goes_into_json(cell: str | float | None) -> None:
    column = Column(name="a")
    assert isinstance(column.text(cell), str)
    (row,) = Table(title="t", columns=(column,), rows=((cell,),)).to_dict()["rows"]
    json.dumps(row, allow_nan=False)
    missing = cell is None or (isinstance(cell, float) and not math.isfinite(cell))
    assert (row["a"] is None) == missing
    assert missing <= (column.text(cell) == NOTHING)


def test_text_beside_numbers_makes_a_column_of_text() -> None:
    table = Table(title="t", columns=(Column(name="a"), Column(name="b")), rows=((1, 1), (None, "diverges")))
    assert table.numeric(0)
    assert not table.numeric(1)


def test_a_column_of_nothing_is_not_one_of_numbers() -> None:
    assert not Table(title="t", columns=(Column(name="a"),), rows=((None,),)).numeric(0)


def test_a_table_of_mappings_has_every_key_that_holds_a_scalar() -> None:
    table = table_of("t", [{"a_b": 1, "list": [1]}, {"c": "x", "a_b": None}])
    assert [column.name for column in table.columns] == ["a b", "c"]
    assert table.rows == ((1, None), (None, "x"))


def test_numbers_are_written_in_their_columns_form() -> None:
    assert Column(name="a", form="{:.2f}").text(1.234) == "1.23"
    assert Column(name="a").text(True) == "yes"
    assert Column(name="a", form="{:.2f}").text(7) == "7"


def test_a_column_that_says_nothing_can_be_dropped() -> None:
    table = Table(title="t", columns=(Column(name="a"), Column(name="b")), rows=((None, 0), (None, None)))
    assert table.without_empty_columns().rows == ((0,), (None,))
    assert [column.name for column in table.without_empty_columns().columns] == ["b"]
