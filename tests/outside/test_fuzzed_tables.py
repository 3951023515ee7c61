"""Whatever a table holds, it is judged or refused with a message that names the place. Nothing else is raised."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import examples

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.outside.columns import COLUMNS
from hpxfer.outside.prepare import prepare
from hpxfer.outside.read import read_table

CELLS = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.floats(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**320),
    st.booleans(),
    st.binary(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["nan", "inf", "-inf", "1e400", "0x10", "1_000", "٣", " 3 ", "finished", "diverged", "running"]),
    st.sampled_from([pd.NA, pd.NaT, np.float32("nan"), np.int64(3), np.bool_(True), np.array([1.0, 2.0])]),
    st.sampled_from([decimal.Decimal("1e-3"), decimal.Decimal("sNaN"), 1j, datetime.date(2026, 1, 1), object()]),
)
PLACE = re.compile(r"row \d+, column \S+|^table: columns? ")


def sound() -> list[dict[str, Any]]:
    """Return the rows of a table that can be judged, with every column."""
    return [
        {
            "arm": arm,
            "axis": "width",
            "scale": scale,
            "is_base": scale == 64,
            "hp": "lr",
            "value": 2.0**log2,
            "seed": seed,
            "loss": 3.0 + 0.04 * (log2 + 8) ** 2 + 0.003 * seed,
            "status": "finished",
            "run_id": f"{arm}-{scale}-{log2}-{seed}",
            "steps": 100,
            "loss_name": "validation loss",
            "unit": "nats",
            "scale_name": "width",
            "shape": f"w{scale}",
        }
        for arm in ("a", "b")
        for scale in (64, 128)
        for log2 in (-10, -9, -8, -7, -6)
        for seed in (0, 1)
    ]


def framed(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame that keeps every cell as it is."""
    names = list(rows[0])
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})


def refusal(call: Callable[[], object]) -> str | None:
    """Return the message of a refusal; None if the call goes through."""
    try:
        call()
    except HpxferError as error:
        return str(error)
    return None


@settings(max_examples=examples(400), deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 39), st.sampled_from(sorted(COLUMNS)), CELLS), min_size=1, max_size=4))
def test_a_spoiled_cell_is_read_or_named(changes: list[tuple[int, str, Any]]) -> None:
    rows = sound()
    for row, column, cell in changes:
        rows[row][column] = cell
    message = refusal(lambda: prepare(framed(rows), where="table"))
    assert message is None or PLACE.search(message)


@settings(max_examples=examples(150), deadline=None)
@given(
    sizes=st.lists(st.tuples(*[st.sampled_from([1, 2, 4.0, "8", None, "x"])] * 3), min_size=1, max_size=20),
    base=st.lists(st.sampled_from(["a=1", "b=2", "c=8", "d=1", "a", "a=0"]), max_size=2),
    scale=st.sampled_from([None, "a", "d"]),
)
def test_shape_columns_of_anything_are_read_or_named(
    sizes: list[tuple[Any, Any, Any]], base: list[str], scale: str | None
) -> None:
    rows = [dict(zip("abc", dims, strict=True), value=1e-3, loss=3.0 - 0.01 * at) for at, dims in enumerate(sizes)]
    columns = {} if scale is None else {"scale": scale}
    message = refusal(lambda: prepare(framed(rows), where="table", shape="abc", columns=columns, base=base))
    assert message is None or message.startswith(("table: ", "--base: "))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_read_can_be_judged(data: st.DataObject) -> None:
    """Numbers of any size, missing runs and diverged ones: the verdict copes, without a warning."""
    rows = sound()
    for at in data.draw(st.lists(st.integers(0, 39), max_size=40)):
        kind = data.draw(st.sampled_from(["loss", "value", "status"]))
        if kind == "loss":
            rows[at]["loss"] = data.draw(st.floats(min_value=-1e30, max_value=1e30))
        elif kind == "value":
            rows[at]["value"] = data.draw(st.floats(min_value=1e-30, max_value=1e30))
        else:
            rows[at]["status"] = data.draw(st.sampled_from(["diverged", "failed", "running"]))
    message = refusal(lambda: prepare(framed(rows), where="table", duplicates="last"))
    if message is not None:
        assert PLACE.search(message)
        return
    found = hpxfer.judge(framed(rows), control="b", duplicates="last")
    assert found.summary().startswith(found.report.headline)
    assert {finding.verdict for finding in found.report.findings} <= {"transfers", "stays", "drifts", "undecided"}


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
    kind=st.sampled_from(["csv", "parquet"]),
)
def test_a_file_of_anything_is_read_or_refused(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"runs.{kind}"
    path.write_bytes(content)
    with pytest.raises(HpxferError, match="runs"):  # no such bytes are a table with a scale, a value and a loss
        prepare(read_table(path), where=str(path))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_parquet_file_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    pd.DataFrame(sound()).to_parquet(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    message = refusal(lambda: prepare(read_table(path), where="table"))
    assert message is None or message.startswith(("table: ", str(path)))
