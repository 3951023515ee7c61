"""Identity: ids never move. Ten are pinned, and new fields, dimensions, conventions and HPs leave them alone."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, field, fields, make_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import sweeps
from sweep_text import edited

from hpxfer.scaling.evaluate import BaseInit
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Convention
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.trial import DataRef, Expansion, Setting, Trial
from hpxfer.trial.identity import canonical, digest_of, hps_of, identity, non_defaults

DATA = DataRef(digest="d1", tokenizer="ascii", vocab_size=128)
Edit = tuple[str, str]

DENSE = ("num_experts: 4, num_active: 1, expert_ratio: 1", "dense_ratio: 4")
TABLES_OF = "[completep-moe, sp]"
MODEL = "context: 64"
TRAINING = "betas: [0.9, 0.95]"
# Edits of the sweep -> ids of its first and its last trial. They stand in stored files: none of them may ever change.
PINNED: list[tuple[tuple[Edit, ...], tuple[str, str]]] = [
    ((), ("1a1733a2c15370c971a14469f90cf7e6", "84ce27dada39723834075845e35dee4f")),
    (
        (
            (MODEL, f"{MODEL}\n  gate: softmax\n  ffn: swiglu\n  biases: true\n  init: constant\n  matrix_std: 0.5"),
            (TRAINING, f"{TRAINING}\n  eps: 1e-6\n  weight_decay: 0.1\n  gradient_clip: 1"),
        ),
        ("5c512edc0bb03b2e794c1464ee2f52b8", "ebfde1f157d43c10beefb181f0e13c54"),
    ),
    (
        (
            (DENSE[0], DENSE[1]),
            ("  router_bias_lr: 0.01", "  init_scale: 2"),
            (TABLES_OF, "[{table: completep, conventions: {depth_alpha: 0.5}}]"),
            ("{decay: constant, warmup: 20}", "{decay: wsd, warmup: 20, decay_length: 9}"),
        ),
        ("cbfc76fa4d432bbb1c54f5fd1b195b23", "8112c5ddd11b0d5c567288d45b1c933c"),
    ),
    (
        (
            (TABLES_OF, "[sp]"),
            (TRAINING, "optimizer: sgd"),
            ("seeds: 2", "seeds: [7, 1234567]\nprecision: bfloat16"),
            ("  router_bias_lr: 0.01", "  multipliers: {router.lr_mult: 0.25, attn_q.init_mult: 3}"),
        ),
        ("d90dddaf64c66c2db0f7a5e8884183d6", "d111f554cf4ac5783c4bdb7a7adf34ea"),
    ),
    (
        (
            (TABLES_OF, "[{table: complete-mue, conventions: {eps: global, readout: init_lr}}]"),
            ("width: [32, 64]", "duration: [400, 800]"),
            ("expert_ratio: 1", "expert_ratio: 1, num_shared: 1, shared_ratio: 1"),
        ),
        ("563044cb4eae10fc3bca9caba6313530", "4ab7f634c6c71481ac3442154339f5f1"),
    ),
]


def first_and_last(spec: SweepSpec, data: DataRef = DATA) -> tuple[Trial, Trial]:
    found = list(Expansion(spec, data).trials())
    return found[0], found[-1]


def first_ids(spec: SweepSpec, **arguments: Any) -> list[str]:
    return [trial.id for trial in itertools.islice(Expansion(spec, DATA, **arguments).trials(), 20)]


@pytest.mark.parametrize(("edits", "ids"), PINNED)
def test_ten_ids_are_what_they_always_were(edits: tuple[Edit, ...], ids: tuple[str, str]) -> None:
    first, last = first_and_last(parse_sweep(edited(*edits)))
    assert (first.id, last.id) == ids


def test_an_identity_says_only_what_is_not_a_default() -> None:
    expansion = Expansion(parse_sweep(edited()), DATA)
    trial = next(expansion.trials())
    found = expansion.identity(trial.parameterization, trial.shape, hps_of(trial.hps), trial.seed)
    always = {"family": "gpt", "context": 64, "data_digest": "d1", "tokenizer": "ascii", "vocab_size": 128}
    run = {"batch_tokens": 512, "steps": 200, "final_window_steps": 20, "validation_tokens": 1024, "warmup_steps": 20}
    assert found == {
        "trainer_version": 3,
        "setting": always | run,
        "shape": trial.shape.dims(),
        "hps": {"lr": 0.01, "eps": 1e-12},
        "seed": 0,
    }


def with_new_field(kind: type, value: Any) -> type:
    """Return the dataclass with one more field, `novel`, of this default."""
    frozen = {"frozen": True, "kw_only": True}
    return make_dataclass("Grown", [("novel", Any, field(default=value))], bases=(kind,), **frozen)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("value", ["off", 0.0, None, False, 1, ()])
@given(spec=sweeps())
def test_a_new_field_with_a_default_moves_no_id(value: Any, spec: SweepSpec) -> None:
    grown = {kind: with_new_field(kind, value) for kind in (Setting, BaseInit, HPs, Shape)}
    expansion = Expansion(spec, DATA)
    for trial in itertools.islice(expansion.trials(), 5):
        facts = {name.name: getattr(trial.setting, name.name) for name in fields(trial.setting)}
        facts["init"] = grown[BaseInit](**asdict(trial.setting.init))
        hps = grown[HPs](**{name.name: getattr(trial.hps, name.name) for name in fields(trial.hps)})
        found = identity(
            setting=grown[Setting](**facts),
            shape=grown[Shape](**asdict(trial.shape)),
            base=grown[Shape](**asdict(trial.base)),
            choice=trial.parameterization,
            hps=hps_of(hps),
            seed=trial.seed,
            trainer_version=expansion.trainer_version,
        )
        assert digest_of(canonical(found)) == trial.id
        changed = replace(grown[Setting](**facts), novel="changed")
        assert non_defaults(changed)["novel"] == "changed"
        nested = replace(grown[Setting](**facts), init=replace(facts["init"], novel="changed"))
        assert non_defaults(nested)["init"]["novel"] == "changed"
        assert replace(grown[Shape](**asdict(trial.shape)), novel="changed").dims()["novel"] == "changed"


@given(spec=sweeps())
def test_a_new_convention_with_a_default_moves_no_id(spec: SweepSpec) -> None:
    before = first_ids(spec)
    novel = Convention(default="old", legal=("old", "new"), doc="a convention that came later")
    with pytest.MonkeyPatch.context() as patch:
        for table in PARAMETERIZATIONS.rows():
            patch.setitem(
                PARAMETERIZATIONS._rows, table.name, replace(table, conventions={**table.conventions, "novel": novel})
            )
        assert first_ids(spec) == before
        changed = [
            choice.model_copy(update={"conventions": {**choice.conventions, "novel": "new"}})
            for choice in spec.parameterizations
        ]
        other = first_ids(spec.model_copy(update={"parameterizations": tuple(changed)}))
    some = list(itertools.islice(Expansion(spec, DATA).trials(), 20))
    own = [trial.parameterization for trial in some]
    assert [old == new for old, new in zip(before, other, strict=True)] == [choice is None for choice in own]


@given(spec=sweeps())
def test_a_plugin_is_part_of_an_id_only_where_it_is_used(spec: SweepSpec) -> None:
    before = first_ids(spec)
    assert first_ids(spec, plugins={}) == before
    assert first_ids(spec, plugins={"parameterization:elsewhere": "1"}) == before
    found, other = (first_ids(spec, plugins={"gate:mine": digest}) for digest in ("1", "2"))
    assert len({*before, *found, *other}) == 3 * len(before)


def full(trial: Trial) -> str:
    """Return everything that determines a trial's numbers, defaults included, without the code under test."""
    setting = asdict(trial.setting)
    del setting["data_source"]
    choice = trial.parameterization
    chosen = None
    if choice is not None:
        chosen = [choice.name, sorted(map(list, choice.conventions)), asdict(trial.base)]
    return json.dumps(
        [setting, asdict(trial.shape), chosen, asdict(trial.hps), trial.seed], sort_keys=True, default=vars
    )


@given(st.lists(sweeps(), min_size=1, max_size=4), st.data())
def test_two_ids_are_equal_if_and_only_if_all_that_determines_the_numbers_is(
    specs: list[SweepSpec], data: st.DataObject
) -> None:
    """Sweeps are also crossed: each gives its seeds or its precision to another, so that near twins are met."""
    crossed = [
        spec.model_copy(update={name: getattr(other, name)})
        for spec in specs
        for other in specs
        for name in data.draw(st.sets(st.sampled_from(("seeds", "precision"))))
    ]
    by_full: dict[str, str] = {}
    for spec in [*specs, *crossed]:
        for trial in itertools.islice(Expansion(spec, DATA).trials(), 10):
            assert by_full.setdefault(full(trial), trial.id) == trial.id
    assert len(set(by_full.values())) == len(by_full)
