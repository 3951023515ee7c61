"""Merge: which row stands for a trial that several files hold. Pure.

A finished or diverged row beats a stopped one, a stopped row beats a failed one, and of equal rows the latest wins. The
curves of a trial come from the file of its row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hpxfer.store.schema import TRIALS

# The status of a trial that is never run again.
DONE = ("finished", "diverged")
# Cut short by early stopping. It is an outcome as long as the sweep stops trials early; otherwise it is run again.
STOPPED = "stopped"
_RANKS = {**dict.fromkeys(DONE, 2), STOPPED: 1}


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


def done(rows: pa.Table, *others: str) -> pa.Table:
    """Return the rows of trials that are done, or have one of the other statuses."""
    return rows.filter(pc.is_in(rows["status"].cast(pa.string()), value_set=pa.array([*DONE, *others])))


def of_trials(batch: pa.RecordBatch, trial_ids: Collection[str]) -> pa.RecordBatch:
    """Return the rows of a batch of CURVES that belong to these trials."""
    column = batch.column("trial_id")
    wanted = pc.is_in(column.dictionary, value_set=pa.array(list(trial_ids), pa.string()))
    return batch if pc.all(wanted).as_py() is not False else batch.filter(wanted.take(column.indices))
