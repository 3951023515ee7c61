"""Tables as other programs write them, or damaged ones: read as the plain table, or refused with the place."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from foreign_runs import foreign_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import examples

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.outside.columns import COLUMNS
from hpxfer.outside.files import read_table
from hpxfer.outside.judging import judge, prepare
from hpxfer.outside.runs import Read


def table() -> pd.DataFrame:
    return foreign_table({"good": 0.0, "plain": -1.0}, seed=1, seeds=(0, 1), log2_lrs=range(-11, -7)).round({"loss": 5})


def ready(frame: pd.DataFrame, where: str = "table", **given: Any) -> Read:
    return prepare(frame, where=where, **given)[0]


def runs_of(found: Read) -> set[tuple[Any, ...]]:
    return set(found.runs[["arm", "scale", "value", "seed", "loss"]].itertuples(index=False, name=None))


NAMES = {"value": "lr", "scale": "width", "arm": "method"}
PLAIN = runs_of(ready(table(), columns=NAMES))


def tracker(prefix: str, metric: str, **more: Any) -> pd.DataFrame:
    names = {"lr": f"{prefix}lr", "width": f"{prefix}n_embd", "seed": f"{prefix}seed", "method": f"{prefix}method"}
    return table().rename(columns={**names, "loss": metric}).assign(**more)


EXPORTS = {
    "W&B": tracker("", "val/loss", Name="run", State="finished", **{"train/loss": 2.0, "train/lr": 0.0, "n_layer": 4}),
    "W&B, nested": tracker("config.model.", "summary.val/loss", state="finished", **{"summary.train/loss": 1.0}),
    "Optuna": tracker("user_attrs_", "value", state="COMPLETE").rename(columns={"user_attrs_lr": "params_lr"}),
    "MLflow": tracker("params.", "metrics.val_loss", status="FINISHED", run_id="a").astype(str),
    "Ray Tune": tracker("config/", "eval_loss", done=True, training_iteration=9, trial_id="a"),
    "TensorBoard": tracker("", "Value", Step=99, **{"Wall time": 1.0}),
    "words": table().rename(columns={"lr": "Learning Rate", "width": "hiddenSize", "loss": "valLoss", "seed": "Seed"}),
    "powers": table().assign(lr=lambda frame: [f" 2**{math.log2(lr):.0f} " for lr in frame["lr"]]),
    "fractions": table().assign(lr=lambda frame: [f"1/{1 / lr:.0f}" for lr in frame["lr"]]),
    "exponents": table().assign(
        log2_lr=lambda frame: [math.log2(lr) for lr in frame.pop("lr")],
        **{"log2(width)": lambda frame: [math.log2(width) for width in frame.pop("width")]},
    ),
    "decimal commas": table().map(lambda cell: str(cell).replace(".", ",")),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_as_the_plain_table(name: str, tmp_path: Path) -> None:
    found = ready(EXPORTS[name])
    assert runs_of(found) == PLAIN
    taken = [column for column, own in found.columns.items() if column != own]
    assert all(f"{column} from {found.columns[column]}" in found.notes[0] for column in taken)
    path = tmp_path / "runs.csv"
    EXPORTS[name].to_csv(path, index=False, sep=";", quoting=1, encoding="utf-8-sig", lineterminator="\r\n")
    assert runs_of(ready(read_table(path))) == PLAIN


@pytest.mark.parametrize("columns", ["width", "lr", "seed"])
def test_a_column_for_each_width_is_no_row_for_each_run(columns: str) -> None:
    index = [name for name in ("method", "width", "lr", "seed") if name != columns]
    wide = table().pivot(index=index, columns=columns, values="loss").rename(columns="val_{}".format).reset_index()
    with pytest.raises(HpxferError, match="a row is one run"):
        ready(wide)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": lambda frame: [math.log2(lr) for lr in frame["lr"]]}, r"row 1, column lr .*such as log2_lr"),
        (
            {"width": lambda frame: [f"{width:,}" for width in frame["width"] * 8]},
            r"row 1, .*nothing between thousands",
        ),
        ({"lr": lambda frame: [f"{lr:.5%}" for lr in frame["lr"]]}, r"row 1, .*write the share, such as 0\.01 for 1%"),
        ({"optimizer": lambda frame: frame["seed"].map(str)}, r"column arm must be one of 'method', 'optimizer'"),
        (
            {"log2_lr": lambda frame: frame.pop("lr") * 0 - 9999},
            r"row 1, column log2_lr \(value\): must be 0 or a number from 1e-30",
        ),
        ({"depth": lambda frame: frame["width"] / 64}, r"column scale must be one of .*--shape width --shape depth"),
        (
            {"loss": lambda frame: [{"val": loss} for loss in frame.pop("loss")]},
            r"row 1, column loss: must be a number",
        ),
    ],
)
def test_what_cannot_be_known_is_asked_for(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        ready(table().assign(**change))


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(HpxferError, match=r"columns scale, value and loss are missing .* has 'config', 'seed'"):
        ready(pd.DataFrame({"config": [{"lr": 0.1}], "seed": [0]}))


def test_an_accuracy_is_no_loss() -> None:
    with pytest.raises(HpxferError, match=r"falls as models get better, got 'val/acc'"):
        ready(table().rename(columns={"loss": "val/acc"}), columns={"loss": "val/acc"})


def test_the_states_of_trackers_are_known() -> None:
    states = {
        "finished": "finished COMPLETE TrialState.COMPLETE FINISHED TERMINATED",
        "failed": "crashed failed killed KILLED ERROR",
        "running": "running preempted PRUNED WAITING SCHEDULED",
    }
    for status, words in states.items():
        for word in words.split():
            found = ready(table().assign(State=[word, *["finished"] * 47]))
            assert found.runs["status"][0] == status
            assert math.isnan(found.runs["loss"][0]) == (status != "finished")


def test_rows_that_differ_in_a_size_are_no_repeats() -> None:
    both = pd.concat([table().assign(n_layer=2), table().assign(n_layer=4)], ignore_index=True)
    with pytest.raises(HpxferError, match=r"differ in n_layer: if it is a size .*--shape width --shape n_layer"):
        ready(both, columns={"scale": "width"})
    kept = ready(both, columns={"scale": "width"}, duplicates="last")
    assert "48 results are left out" in kept.notes[-1]
    assert kept.notes[-1].endswith("they differ in n_layer")


def test_the_last_row_of_a_run_must_be_that_of_its_last_step() -> None:
    logs = pd.concat([table().assign(step=step, loss=table()["loss"] + 100 / step) for step in (300, 200, 100)])
    for mapped in ({}, {"steps": "step"}):
        with pytest.raises(HpxferError, match=r"must be that of its last step, got step 200 here and 300 in row 1$"):
            ready(logs, duplicates="last", columns=NAMES | mapped)
    ordered = ready(logs.sort_values("step", kind="stable"), duplicates="last", columns=NAMES)
    assert {loss for *_, loss in runs_of(ordered)} == set(table()["loss"] + 100 / 300)


@pytest.mark.parametrize(
    ("metric", "unit"), [("val_bpb", "bits per byte"), ("val_perplexity", "perplexity"), ("val_loss", "nats")]
)
def test_the_name_of_a_loss_may_say_its_unit(metric: str, unit: str) -> None:
    found = judge(table().rename(columns={"loss": metric}), columns={**NAMES, "loss": metric})
    assert f"no unit is named: losses count as {unit}" in " ".join(found.notes)


def test_values_that_may_be_one_or_exponents_are_pointed_out() -> None:
    frame = table()
    near = frame.assign(lr=frame["lr"].where(frame["width"] > frame["width"].min(), frame["lr"] * 1.03))
    assert "if they are one, --tolerance 0.1 joins them" in " ".join(ready(near, columns=NAMES).notes)
    powers = frame.assign(lr=-np.log2(frame["lr"]))
    assert "if these are exponents, name" in " ".join(ready(powers, columns=NAMES).notes)


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
    message = refusal(lambda: ready(framed(rows)))
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
    message = refusal(lambda: ready(framed(rows), shape="abc", columns=columns, base=base))
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
    message = refusal(lambda: ready(framed(rows), duplicates="last"))
    if message is not None:
        assert PLACE.search(message)
        return
    found = hpxfer.judge(framed(rows), control="b", duplicates="last")
    assert found.summary().startswith(found.report.headline)
    assert {finding.verdict for finding in found.report.findings} <= {"transfers", "stays", "drifts", "undecided"}


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
    kind=st.sampled_from(["csv", "parquet", "jsonl"]),
)
def test_a_file_of_anything_is_read_or_refused(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"runs.{kind}"
    path.write_bytes(content)
    with pytest.raises(HpxferError, match="runs"):  # no such bytes are a table with a scale, a value and a loss
        ready(read_table(path), str(path))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_parquet_file_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    pd.DataFrame(sound()).to_parquet(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    message = refusal(lambda: ready(read_table(path)))
    assert message is None or message.startswith(("table: ", str(path)))
