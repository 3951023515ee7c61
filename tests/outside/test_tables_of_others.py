"""Tables as other programs write them: each is read as the plain table, or its refusal says what makes it that."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from foreign_runs import foreign_table

from hpxfer.errors import HpxferError
from hpxfer.outside.judging import judge
from hpxfer.outside.prepare import Prepared, prepare
from hpxfer.outside.read import read_table

OPTION = re.compile(r"--(map|shape) (\w+)(?:=([\w/.]+))?")
LINE = re.compile(r"in pandas: (frame.*?)(?:; or give|, or keep|$)", re.MULTILINE)


def table() -> pd.DataFrame:
    return foreign_table({"good": 0.0, "plain": -1.0}, seed=1, seeds=(0, 1), log2_lrs=range(-11, -7)).round({"loss": 5})


def runs_of(found: Prepared) -> set[tuple[Any, ...]]:
    return {(run.arm, run.scale, run.value, run.seed, run.loss) for run in found.runs}


NAMES = {"value": "lr", "scale": "width", "arm": "method"}
PLAIN = runs_of(prepare(table(), where="plain", columns=NAMES))


def followed(frame: pd.DataFrame, **given: Any) -> tuple[Prepared, list[str]]:
    """Return what a user gets who does what each refusal says, and the refusals."""
    said: list[str] = []
    for _ in range(8):
        try:
            return prepare(frame, where="table", **given), said
        except HpxferError as error:
            said.append(str(error))
        if line := LINE.search(said[-1]):
            frame = eval(line[1], {"frame": frame})  # the line that the message prints
            continue
        if "--duplicates last" in said[-1]:
            given["duplicates"] = "last"
        elif "--empty diverged" in said[-1]:
            given["empty"] = "diverged"
        for option, name, own in OPTION.findall(said[-1]):
            if option == "map":
                given["columns"] = {**given.get("columns", {}), name: own}
    raise AssertionError(said[-1])


def tracker(prefix: str, metric: str, **more: Any) -> pd.DataFrame:
    names = {"lr": f"{prefix}lr", "width": f"{prefix}n_embd", "seed": f"{prefix}seed", "method": f"{prefix}method"}
    return table().rename(columns={**names, "loss": metric}).assign(**more)


def logged(**rows: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """Return a log with the rows of several steps for each run."""
    return pd.concat([row(table()) for row in rows.values()], ignore_index=True)


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
    found = prepare(EXPORTS[name], where="table")
    assert runs_of(found) == PLAIN
    taken = [column for column, own in found.read.columns.items() if column != own]
    assert all(f"{column} from {found.read.columns[column]}" in found.notes[0] for column in taken)
    path = tmp_path / "runs.csv"
    EXPORTS[name].to_csv(path, index=False, sep=";", quoting=1, encoding="utf-8-sig", lineterminator="\r\n")
    assert runs_of(prepare(read_table(path), where="table")) == PLAIN


def pivoted(columns: str, spelled: str) -> pd.DataFrame:
    """Return the table with one column of losses for each width, LR or seed."""
    index = [name for name in ("method", "width", "lr", "seed") if name != columns]
    wide = table().pivot(index=index, columns=columns, values="loss")
    return wide.rename(columns=lambda size: spelled.format(size)).reset_index()


HINTED = {
    "a column for each width": pivoted("width", "{}"),
    "a column for each width, named": pivoted("width", "val_loss_w{}"),
    "a column for each LR": pivoted("lr", "{}"),
    "a column for each seed": pivoted("seed", "loss_seed{}"),
    "an arm of another name": table().rename(columns={"method": "kind"}).assign(wall_s=lambda frame: frame["loss"] / 7),
    "columns of other names": table().rename(columns={"lr": "a", "width": "b", "loss": "c"}),
    "a held-out loss beside another": table().rename(columns={"loss": "eval_loss"}).assign(loss=1.0),
    "repeats without a seed": table().drop(columns="seed"),
    "a row per epoch": logged(
        first=lambda frame: frame.assign(epoch=0, loss=frame["loss"] + 1), last=lambda frame: frame.assign(epoch=1)
    ),
    "a row per logged metric": logged(  # as transformers and Lightning log
        first=lambda frame: frame.assign(step=1, eval_loss=frame.pop("loss") + 1),
        train=lambda frame: frame.assign(step=2, grad_norm=1.0, learning_rate=0.0),
        last=lambda frame: frame.assign(step=2, eval_loss=frame.pop("loss")),
        summary=lambda frame: frame.drop(columns="loss").assign(step=2, train_runtime=9.0),
    ),
}


@pytest.mark.parametrize("name", HINTED)
def test_a_refused_table_is_judged_when_its_hint_is_followed(name: str) -> None:
    found, said = followed(HINTED[name])
    assert said
    assert runs_of(found) == PLAIN


def test_a_log_of_steps_keeps_the_divergence_of_its_last_row() -> None:
    log = HINTED["a row per logged metric"].copy()
    last = log.index[(log["step"] == 2) & log["eval_loss"].notna()][:3]
    log.loc[last, "eval_loss"] = math.nan
    found, said = followed(log)
    assert sum("--empty diverged" in message for message in said) == 2
    assert [run.row for run in found.runs if run.status == "diverged"]
    assert len([run for run in found.runs if run.loss == math.inf]) == 3


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
        ({"depth": lambda frame: frame["width"] / 64}, r"column scale must be one of .*--shape width --shape depth"),
        (
            {"loss": lambda frame: [{"val": loss} for loss in frame.pop("loss")]},
            r"row 1, column loss: must be a number",
        ),
    ],
)
def test_what_cannot_be_known_is_asked_for(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        prepare(table().assign(**change), where="table")


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(HpxferError, match=r"columns scale, value and loss are missing .*'config'.*hpxfer judge wandb:"):
        prepare(pd.DataFrame({"config": [{"lr": 0.1}], "seed": [0]}), where="table")


def test_an_accuracy_is_no_loss() -> None:
    with pytest.raises(HpxferError, match=r"falls as models get better, got 'val/acc'; write 1 minus an accuracy"):
        prepare(table().rename(columns={"loss": "val/acc"}), where="table", columns={"loss": "val/acc"})


def test_the_states_of_trackers_are_known() -> None:
    states = {
        "finished": "finished COMPLETE TrialState.COMPLETE FINISHED TERMINATED",
        "failed": "crashed failed killed KILLED ERROR",
        "running": "running preempted PRUNED WAITING SCHEDULED",
    }
    for status, words in states.items():
        for word in words.split():
            found = prepare(table().assign(State=[word, *["finished"] * 47]), where="table")
            assert found.runs[0].status == status
            assert (found.runs[0].loss is None) == (status != "finished")


def test_rows_that_differ_in_a_size_are_no_repeats() -> None:
    both = pd.concat([table().assign(n_layer=2), table().assign(n_layer=4)], ignore_index=True)
    with pytest.raises(HpxferError, match=r"differ in n_layer: if it is a size .*--shape width --shape n_layer"):
        prepare(both, where="table", columns={"scale": "width"})
    kept = prepare(both, where="table", columns={"scale": "width"}, duplicates="last")
    assert "48 results are left out" in kept.notes[-1]
    assert kept.notes[-1].endswith("they differ in n_layer")


def test_the_last_row_of_a_run_must_be_that_of_its_last_step() -> None:
    logs = pd.concat([table().assign(step=step, loss=table()["loss"] + 100 / step) for step in (300, 200, 100)])
    for mapped in ({}, {"steps": "step"}):
        with pytest.raises(HpxferError, match="must be that of its last step, got step 200 here and 300 in row 1;"):
            prepare(logs, where="table", duplicates="last", columns=NAMES | mapped)
    ordered = prepare(logs.sort_values("step", kind="stable"), where="table", duplicates="last", columns=NAMES)
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
    assert "if they are one, --tolerance 0.1 joins them" in " ".join(prepare(near, where="t", columns=NAMES).notes)
    powers = frame.assign(lr=-np.log2(frame["lr"]))
    assert "if these are exponents, name" in " ".join(prepare(powers, where="t", columns=NAMES).notes)
