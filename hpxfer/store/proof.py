"""Proof: the identity of a stored row, rebuilt from the row alone. A row proves its id if the identity hashes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.resolve import BaseInit
from hpxfer.scaling.shape import Shape
from hpxfer.spec.balance import Balance
from hpxfer.spec.mlp import MLP
from hpxfer.store.rows import SETTING_COLUMNS
from hpxfer.store.schema import UNKNOWN_SETTING, shape_of_row
from hpxfer.trial import FIRST_STORED_VERSION, Setting
from hpxfer.trial.identity import hps_of, identity


def identity_of_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the identity that a row's other columns stand for, whatever its id.

    A field that was added after the row was stored has its default. Returns None if the row names a field, a table or
    a dimension that this version does not know.
    """
    try:
        choice = None
        if row["parameterization"] is not None:
            choice = Parameterization(
                name=row["parameterization"], conventions=tuple(sorted(json.loads(row["conventions"]).items()))
            )
        hps = {name: row[name] for name in SCALARS if row[name] is not None}
        return identity(
            setting=_setting(row),
            shape=shape_of_row(row),
            base=Shape(**json.loads(row["base_shape"])),
            choice=choice,
            hps=hps_of(HPs(**hps, multipliers=tuple(sorted(json.loads(row["multipliers"]).items())))),
            seed=row["seed"],
            trainer_version=row["trainer_version"] or FIRST_STORED_VERSION,
            plugins=json.loads(row["plugins"] or "{}"),
        )
    except (HpxferError, KeyError, TypeError, ValueError):
        return None


def _setting(row: Mapping[str, Any]) -> Setting:
    columns = {name: UNKNOWN_SETTING.get(name) if row[name] is None else row[name] for name in SETTING_COLUMNS}
    given: dict[str, Any] = {**json.loads(row["setting"]), **columns, "data_source": ""}
    parts = {
        "init": BaseInit(**given["init"]),
        "balance": Balance(**given.get("balance", {})),
        "mlp": MLP(**given.get("mlp", {})),
        "only_classes": tuple(given.get("only_classes", ())),  # JSON has no tuple
    }
    return Setting(**{**given, **parts})
