"""Legacy ids: the ids in files before version 5 of the schema. They hashed every field, defaults included.

This module lists the fields of that time, and the lists never change. Reading a file translates its ids, so all other
code knows only today's ids. `hpxfer rekey` stores the translated ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa

from hpxfer.store.proof import identity_of_row
from hpxfer.trial import FIRST_STORED_VERSION, Trial
from hpxfer.trial.identity import id_of

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

# The first version of the schema whose files hold today's ids.
IDS_SINCE = 5
# The fields of a setting, but for `data_source`, which no id held.
_SETTING = (
    *("family", "context", "gate", "ffn", "moe_every", "dense_first", "attention_scale", "tied_embeddings"),
    *("norm_gains", "biases", "init", "data_digest", "tokenizer", "vocab_size", "batch_tokens", "steps", "optimizer"),
    *("decay", "warmup_steps", "decay_steps", "final_fraction", "final_window_steps", "validation_tokens"),
    *("gradient_clip", "precision"),
)
_INIT = ("matrices", "matrix_std", "embedding_std", "position_std")
_SCALARS = ("lr", "init_scale", "residual_scale", "weight_decay", "eps", "beta1", "beta2", "router_bias_lr")
# Conventions that tables got later. A legacy id holds every convention that its table had.
_LATER_CONVENTIONS = ("expert_out_init", "lr_exponent")
# The dimensions of a shape with the values that were left out.
_SHAPE = {
    "width": None,
    "depth": None,
    "num_experts": 0,
    "num_active": 0,
    "expert_width": 0,
    "head_dim": None,
    "num_shared": 0,
    "shared_width": 0,
    "num_groups": 1,
    "dense_width": 0,
    "batch_tokens": 0,
    "steps": 0,
}


def todays_ids(trials: pa.Table) -> dict[str, str]:
    """Return legacy id -> today's id, for the rows of TRIALS that prove their legacy id. Other rows keep their id."""
    out = {}
    for row in trials.to_pylist():
        found = identity_of_row(row)
        if found is not None and _id_of_row(row) == row["trial_id"]:
            out[row["trial_id"]] = id_of(found)
    return out


def renamed(rows: Rows, ids: Mapping[str, str]) -> Rows:
    """Return rows with their `trial_id` translated. Ids that are not in `ids` stay."""
    at, column = rows.schema.get_field_index("trial_id"), rows.column("trial_id")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    new = [_translated(chunk, ids) for chunk in chunks]
    found = pa.chunked_array(new, column.type) if isinstance(column, pa.ChunkedArray) else new[0]
    return rows.set_column(at, rows.schema.field(at), found)


def legacy_id(trial: Trial, trainer_version: int) -> str:
    """Return the id that a trial had in files of the first format."""
    setting, choice = asdict(trial.setting), trial.parameterization
    chosen = None
    if choice is not None:
        base = _dims(asdict(trial.base))
        conventions = {key: value for key, value in choice.conventions if key not in _LATER_CONVENTIONS}
        chosen = {"name": choice.name, "conventions": conventions, "base": base}
    return id_of(
        {
            "trainer_version": trainer_version,
            "setting": _setting(setting),
            "shape": _dims(asdict(trial.shape)),
            "parameterization": chosen,
            "hps": {**{name: trial.hps.get(name) for name in _SCALARS}, "multipliers": trial.hps.multipliers},
            "seed": trial.seed,
        }
    )


def _id_of_row(row: Mapping[str, Any]) -> str | None:
    try:
        chosen = None
        if row["parameterization"] is not None:
            base, conventions = json.loads(row["base_shape"]), json.loads(row["conventions"])
            chosen = {"name": row["parameterization"], "conventions": conventions, "base": base}
        return id_of(
            {
                "trainer_version": row["trainer_version"] or FIRST_STORED_VERSION,
                "setting": _setting({**row, **json.loads(row["setting"])}),
                "shape": _dims(row),
                "parameterization": chosen,
                "hps": {
                    **{name: row[name] for name in _SCALARS},
                    "multipliers": sorted(json.loads(row["multipliers"]).items()),
                },
                "seed": row["seed"],
            }
        )
    except (KeyError, TypeError, ValueError):
        return None


def _setting(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: given[name] for name in _SETTING}, "init": {name: given["init"][name] for name in _INIT}}


def _dims(given: Mapping[str, Any]) -> dict[str, int]:
    return {name: given[name] for name, default in _SHAPE.items() if given[name] != default}


def _translated(values: pa.Array, ids: Mapping[str, str]) -> pa.Array:
    if isinstance(values, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(values.indices, _translated(values.dictionary, ids))
    return pa.array([ids.get(value, value) for value in values.to_pylist()], values.type)
