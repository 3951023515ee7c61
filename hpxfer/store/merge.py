"""Merge: which row stands for a trial that several files hold. Pure.

A finished or diverged trial beats a failed one, then the latest wins; its curves are those of the same file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hpxfer.store.schema import TRIALS

# The status of a trial that is never run again.
DONE = ("finished", "diverged")
_KEYS = ("trial_id", "status", "finished_at")


def best_rows(tables: Sequence[pa.Table]) -> list[list[int]]:
    """Return, for each table, the rows in it that stand for their trial. Of equals, the first one does."""
    best: dict[str, tuple[tuple[bool, str], int, int]] = {}
    for index, table in enumerate(tables):
        rows = zip(*(table[name].to_pylist() for name in _KEYS), strict=True)
        for row, (trial_id, status, finished_at) in enumerate(rows):
            rank = (status in DONE, finished_at or "")
            if trial_id not in best or rank > best[trial_id][0]:
                best[trial_id] = (rank, index, row)
    out: list[list[int]] = [[] for _ in tables]
    for _, index, row in best.values():
        out[index].append(row)
    return out


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, ordered by trial_id: the same for every history of the same results."""
    return pa.concat_tables([TRIALS.empty_table(), *tables]).sort_by("trial_id").combine_chunks()


def of_trials(batch: pa.RecordBatch, trial_ids: Collection[str]) -> pa.RecordBatch:
    """Return the rows of a batch of CURVES that belong to these trials."""
    column = batch.column("trial_id")
    wanted = pc.is_in(column.dictionary, value_set=pa.array(list(trial_ids), pa.string()))
    return batch.filter(wanted.take(column.indices))
