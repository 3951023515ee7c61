"""Turn trials and their results into the rows of a file. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import SCALARS
from hpxfer.scaling.shape import Shape
from hpxfer.store import bounds
from hpxfer.store.schema import CURVES, SHAPE_COLUMNS, TRIALS, UNKNOWN_DIMS, UNKNOWN_SETTING
from hpxfer.trial import TRAINER_VERSION, Setting, Trial
from hpxfer.trial.identity import LOCAL, canonical
from hpxfer.trial.result import Curve, TrialResult

Pair = tuple[Trial, TrialResult]


def trials_table(pairs: Sequence[Pair]) -> pa.Table:
    """Return one row of TRIALS per pair."""
    return pa.Table.from_pylist([_trial_row(trial, result) for trial, result in pairs], schema=TRIALS)


def _trial_row(trial: Trial, result: TrialResult) -> dict[str, Any]:
    assert trial.id == result.trial_id, f"result of {result.trial_id} given for trial {trial.id}"
    choice, setting = trial.parameterization, asdict(trial.setting)
    total, active = _num_params(trial.shape, trial.setting)
    # The parts of the setting that have columns of their own. The rest is one JSON object.
    columns = {name: setting.pop(name) for name in TRIALS.names if name in setting}
    resolved = {
        "roles": {role: asdict(numbers) for role, numbers in trial.resolved().items()},
        "globals": asdict(trial.globals()),
        "structure": asdict(trial.structure()),
    }
    row = {
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
        "params_total": total or None,
        "params_active": active or None,
        **{name: value for name, value in vars(result).items() if name != "curves"},
        "error": None if result.error is None else bounds.shortened(result.error),
        "trainer_version": TRAINER_VERSION,
    }
    if why := bounds.why_too_long_to_store(row, TRIALS):
        raise HpxferError(f"trial {trial.id}: {why}; give the roles of its model fewer and shorter names")
    return row


def _dims(shape: Shape) -> dict[str, Any]:
    """Return the columns of a shape. Of a user's own trainer, dimensions that are not known are null."""
    dims = {name: getattr(shape, name) for name in SHAPE_COLUMNS}
    if not shape.own:
        return {**dims, "own": None}
    unknown = {name: UNKNOWN_DIMS.get(name, 0) for name in SHAPE_COLUMNS if TRIALS.field(name).nullable}
    return {name: None if value == unknown.get(name) else value for name, value in dims.items()}


@lru_cache(maxsize=256)
def _num_params(shape: Shape, setting: Setting) -> tuple[int, int]:
    from hpxfer.model.cost import count_params  # here: reading a store needs no model

    count = count_params(shape, setting)
    return count.total, count.active


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
