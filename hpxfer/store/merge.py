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
KEYS = ("trial_id", "status", "finished_at")


def best_rows(tables: Sequence[pa.Table]) -> list[list[int]]:
    """Return, per table, the indices of the rows that count for their trial. Of equal rows the first one counts."""
    ids = [trial_id for table in tables for trial_id in table["trial_id"].to_pylist()]
    if len(set(ids)) == len(ids):
        return [list(range(len(table))) for table in tables]
    best: dict[str, tuple[tuple[int, str], int, int]] = {}
    for index, table in enumerate(tables):
        rows = zip(*(table[name].to_pylist() for name in KEYS), strict=True)
        for row, (trial_id, status, finished_at) in enumerate(rows):
            rank = (_RANKS.get(status, 0), finished_at or "")
            if trial_id not in best or rank > best[trial_id][0]:
                best[trial_id] = (rank, index, row)
    out: list[list[int]] = [[] for _ in tables]
    for _, index, row in best.values():
        out[index].append(row)
    return out


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, ordered by trial_id. The order does not depend on the order of the writes."""
    if not tables:
        return TRIALS.empty_table()
    rows = pa.concat_tables(tables).unify_dictionaries()
    return rows.take(pc.sort_indices(rows["trial_id"].cast(pa.string()))).combine_chunks()


def done_of(trials: pa.Table, trial_ids: Collection[str]) -> pa.Table:
    """Return the rows of TRIALS that are done and belong to these trials."""
    wanted = pc.is_in(trials["trial_id"].cast(pa.string()), value_set=pa.array(list(trial_ids), pa.string()))
    done = pc.is_in(trials["status"].cast(pa.string()), value_set=pa.array(DONE))
    return trials.filter(pc.and_(wanted, done))


def curves_of(curves: pa.Table, trial_ids: pa.ChunkedArray) -> pa.Table:
    """Return the rows of CURVES that belong to these trials, or the table itself if all of them do."""
    batches = curves.unify_dictionaries().to_batches()
    held = pa.array([], pa.string()) if not batches else batches[0].column("trial_id").dictionary
    wanted = pa.array(trial_ids.to_pylist(), pa.string())
    if pc.all(pc.is_in(held, value_set=wanted)).as_py() is not False:
        return curves
    return pa.Table.from_batches([of_trials(batch, trial_ids.to_pylist()) for batch in batches], curves.schema)


def of_trials(batch: pa.RecordBatch, trial_ids: Collection[str]) -> pa.RecordBatch:
    """Return the rows of a batch of CURVES that belong to these trials."""
    column = batch.column("trial_id")
    wanted = pc.is_in(column.dictionary, value_set=pa.array(list(trial_ids), pa.string()))
    return batch.filter(wanted.take(column.indices))
