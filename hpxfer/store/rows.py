"""Rows of a file: made of trials and their results, and which of several stands for a trial. Pure.

A finished or diverged row beats a stopped one, a stopped row beats a failed one, and of equal rows the latest wins. The
curves of a trial come from the file of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpxfer.scaling.hps import SCALARS
from hpxfer.scaling.shape import Shape
from hpxfer.store.parquet import shortened
from hpxfer.store.schema import CURVES, SHAPE_COLUMNS, TRIALS, UNKNOWN_DIMS, UNKNOWN_SETTING
from hpxfer.trial import LOCAL, TRAINER_VERSION, Curve, Setting, Trial, TrialResult, canonical

Pair = tuple[Trial, TrialResult]
# The status of a trial that is never run again.
DONE = ("finished", "diverged")
# Cut short by early stopping. It is an outcome as long as the sweep stops trials early; otherwise it is run again.
STOPPED = "stopped"
_RANKS = {**dict.fromkeys(DONE, 2), STOPPED: 1}


def trials_table(pairs: Sequence[Pair]) -> pa.Table:
    """Return one row of TRIALS per pair."""
    return pa.Table.from_pylist([_trial_row(trial, result) for trial, result in pairs], schema=TRIALS)


def _trial_row(trial: Trial, result: TrialResult) -> dict[str, Any]:
    assert trial.id == result.trial_id, f"result of {result.trial_id} given for trial {trial.id}"
    choice, setting, count = trial.parameterization, asdict(trial.setting), _count(trial.shape, trial.setting)
    # The parts of the setting that have columns of their own. The rest is one JSON object.
    columns = {name: setting.pop(name) for name in TRIALS.names if name in setting}
    resolved = {
        "roles": {role: asdict(numbers) for role, numbers in trial.resolved().items()},
        "globals": asdict(trial.globals()),
        "structure": asdict(trial.structure()),
    }
    return {
        "parameterization": None if choice is None else choice.name,
        "conventions": None if choice is None else canonical(dict(choice.conventions)),
        **_dims(trial.shape),
        "base_shape": canonical(trial.base.dims()),
        **{name: trial.hps.get(name) for name in SCALARS},
        "multipliers": canonical(dict(trial.hps.multipliers)),
        "resolved": canonical(resolved),
        "seed": trial.seed,
        "plugins": canonical(dict(trial.plugins)) if trial.plugins else None,
        **{name: None if value == UNKNOWN_SETTING.get(name) else value for name, value in columns.items()},
        "setting": canonical({name: value for name, value in setting.items() if name not in LOCAL}),
        "params_total": count.total or None,
        "params_active": count.active or None,
        **{name: value for name, value in vars(result).items() if name != "curves"},
        "error": None if result.error is None else shortened(result.error),
        "trainer_version": TRAINER_VERSION,
    }


def _dims(shape: Shape) -> dict[str, Any]:
    """Return the columns of a shape. Of a user's own trainer, dimensions that are not known are null."""
    dims = {name: getattr(shape, name) for name in SHAPE_COLUMNS}
    if not shape.own:
        return {**dims, "own": None}
    unknown = {name: UNKNOWN_DIMS.get(name, 0) for name in SHAPE_COLUMNS if TRIALS.field(name).nullable}
    return {name: None if value == unknown.get(name) else value for name, value in dims.items()}


@lru_cache(maxsize=256)
def _count(shape: Shape, setting: Setting) -> Any:
    from hpxfer.model.cost import count_params  # here: reading a store needs no model

    return count_params(shape, setting)


def curves_table(results: Sequence[TrialResult]) -> pa.Table:
    """Return the curves of all results as rows of CURVES."""
    curves = [(result.trial_id, curve) for result in results for curve in result.curves]
    for _, curve in curves:
        assert len(curve.steps) == len(curve.values), f"{curve.metric}: steps and values must be as many"
    spread = pa.array(np.repeat(np.arange(len(curves)), [len(curve.steps) for _, curve in curves]))

    def names(of: Callable[[str, Curve], str | None]) -> pa.DictionaryArray:
        return pa.array([of(*named) for named in curves], pa.string()).dictionary_encode().take(spread)

    columns = [
        names(lambda trial_id, _: trial_id),
        names(lambda _, curve: curve.metric),
        pa.array([curve.layer for _, curve in curves], pa.int16()).take(spread),
        names(lambda _, curve: curve.role),
        pa.array(chain.from_iterable(curve.steps for _, curve in curves), pa.int32()),
        pa.array(chain.from_iterable(curve.values for _, curve in curves), pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=CURVES)


def best_rows(tables: Sequence[pa.Table]) -> list[pa.Array]:
    """Return, per table, the indices of the rows that count for their trial. Of equal rows the first one counts."""
    best: dict[str, tuple[tuple[int, str], int, int]] = {}
    for index, table in enumerate(tables):
        columns = (table[name].to_pylist() for name in ("trial_id", "status", "finished_at"))
        for row, (trial_id, status, finished_at) in enumerate(zip(*columns, strict=True)):
            rank = (_RANKS.get(status, 0), finished_at or "")
            if trial_id not in best or rank > best[trial_id][0]:
                best[trial_id] = (rank, index, row)
    rows: list[list[int]] = [[] for _ in tables]
    for _, index, row in best.values():
        rows[index].append(row)
    return [pa.array(kept, pa.int64()) for kept in rows]


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, ordered by trial_id. The order does not depend on the order of the writes."""
    if not tables:
        return TRIALS.empty_table()
    rows = pa.concat_tables(tables).unify_dictionaries()
    return rows.take(pc.sort_indices(rows["trial_id"].cast(pa.string()))).combine_chunks()


def done_rows(rows: pa.Table, *others: str) -> pa.Table:
    """Return the rows of trials that are done, or have one of the other statuses."""
    return rows.filter(pc.is_in(rows["status"].cast(pa.string()), value_set=pa.array([*DONE, *others])))


def of_trials(rows: pa.Table, trial_ids: Collection[str]) -> pa.Table:
    """Return the rows of trials that have these ids."""
    return rows.filter(pc.is_in(rows["trial_id"].cast(pa.string()), value_set=pa.array(list(trial_ids), pa.string())))


def points_of_trials(batch: pa.RecordBatch, trial_ids: Collection[str]) -> pa.RecordBatch:
    """Return the rows of a batch of CURVES that belong to these trials."""
    column = batch.column("trial_id")
    wanted = pc.is_in(column.dictionary, value_set=pa.array(list(trial_ids), pa.string()))
    return batch if pc.all(wanted).as_py() is not False else batch.filter(wanted.take(column.indices))
