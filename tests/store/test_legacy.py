"""Legacy ids are computed as the first format did, and translate to the ids that a sweep gives today."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given
from made_results import DATA, made, trials_of
from strategies import sweeps

from hpxfer.spec import SweepSpec
from hpxfer.store.legacy import legacy_id, renamed, todays_ids
from hpxfer.store.rows import curves_table, trials_table
from hpxfer.trial import TRAINER_VERSION, Expansion, Trial

# Fields that came later.
_LATER_SETTING = (
    *("ties", "init_draw", "balance", "top_groups", "route_scale", "learned_router_bias", "shared_expert_gate"),
    *("qkv_biases", "attention_gate", "positions", "rope_theta", "rope_share", "norm", "norm_eps", "qk_norm"),
    *("qk_norm_kind", "accumulation_tokens", "accumulation_lanes", "validation_source", "validation_digest"),
    *("epochs", "document_eos", "mlp", "num_inputs", "num_targets", "only_classes", "trainer"),
)
_LATER_HPS = ("momentum", "aux_weight", "z_weight")


def first_format(trial: Trial) -> str:
    """Return the id as the first format gave it: the hash of every field, whatever its value."""
    setting = asdict(trial.setting)
    for name in ("data_source", *_LATER_SETTING):
        del setting[name]
    del setting["init"]["scale_of"]
    choice = trial.parameterization
    base = {name: value for name, value in asdict(trial.base).items() if value not in (0, None, "")}
    shape = {name: value for name, value in asdict(trial.shape).items() if value not in (0, None, "")}
    for dims in (base, shape):
        if dims["num_groups"] == 1:
            del dims["num_groups"]
    conventions = {} if choice is None else dict(choice.conventions)
    for name in ("expert_out_init", "lr_exponent"):
        conventions.pop(name, None)
    chosen = None if choice is None else {"name": choice.name, "conventions": conventions, "base": base}
    identity = {
        "trainer_version": TRAINER_VERSION,
        "setting": setting,
        "shape": shape,
        "parameterization": chosen,
        "hps": {name: value for name, value in asdict(trial.hps).items() if name not in _LATER_HPS},
        "seed": trial.seed,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def legacy_rows(trials: list[Trial]) -> pa.Table:
    """Return the rows of finished trials under their legacy ids."""
    rows = trials_table([made(trial) for trial in trials])
    return renamed(rows, {trial.id: first_format(trial) for trial in trials})


def _of_first_format(spec: SweepSpec) -> bool:
    return not any(name in _LATER_HPS for name in spec.grid)


@given(spec=sweeps().filter(_of_first_format))
def test_rows_of_every_sweep_get_the_ids_that_the_sweep_gives(spec: SweepSpec) -> None:
    some = list(islice(Expansion(spec, DATA).trials(), 6))
    assert [legacy_id(trial, TRAINER_VERSION) for trial in some] == [first_format(trial) for trial in some]
    rows = legacy_rows(some)
    ids = todays_ids(rows)
    assert ids == {first_format(trial): trial.id for trial in some}
    assert renamed(rows, ids)["trial_id"].to_pylist() == [trial.id for trial in some]


@given(spec=sweeps())
def test_todays_rows_are_not_translated(spec: SweepSpec) -> None:
    some = list(islice(Expansion(spec, DATA).trials(), 6))
    assert todays_ids(trials_table([made(trial) for trial in some])) == {}


@pytest.mark.parametrize("column", ["lr", "seed", "width", "trainer_version", "data_digest"])
@given(spec=sweeps())
def test_a_row_that_was_changed_keeps_its_id(column: str, spec: SweepSpec) -> None:
    rows = legacy_rows(list(islice(Expansion(spec, DATA).trials(), 1)))
    at = rows.schema.get_field_index(column)
    changed = pa.array(["other" if column == "data_digest" else 12345], rows.schema.field(at).type)
    assert todays_ids(rows.set_column(at, rows.schema.field(at), changed)) == {}


def test_only_ids_that_are_known_are_renamed() -> None:
    first, second, *_ = trials_of()
    curves = curves_table([made(first)[1], made(second)[1]])
    out = renamed(curves, {first.id: "new"})
    assert set(out["trial_id"].to_pylist()) == {"new", second.id}
    before, after = (table.drop_columns(["trial_id"]).to_pylist() for table in (curves, out))
    assert repr(after) == repr(before)  # a NaN equals itself
    assert out.schema == curves.schema
