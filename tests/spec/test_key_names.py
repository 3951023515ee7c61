"""Wrong keys and numbers: the message says which key is meant and where it stands, or how the number is written."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import MULTIPLIERS, SCALARS
from hpxfer.scaling.roles import ROLES
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.key_names import _KEYS, _OTHER_NAMES, _homes
from hpxfer.spec.number_text import how_to_write
from hpxfer.spec.schema import sweep_schema
from hpxfer.spec.yaml_file import parse_yaml, spell

SECTIONS = (sweep_schema(), *sweep_schema()["$defs"].values())
KEYS = {key for section in SECTIONS for key in section.get("properties", {})}
TOP = ("seeds: 2", "seeds: 2\n{}: 1")
BASE = ("depth: 2,", "depth: 2, {}: 1,")
TRAINING = ("steps: 200", "steps: 200\n  {}: 1")


def message_of(*edits: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits), "s.yaml")
    return str(caught.value)


def test_every_key_of_the_table_exists_and_no_other_name_is_a_key_of_the_same_section() -> None:
    homes = {spell(home) for home in _homes(SweepSpec)}
    assert _OTHER_NAMES.keys() <= homes
    clashes = [
        (name, key) for name, keys in _KEYS.items() for key in keys if f"{key.rpartition('.')[0]}.{name}" in homes
    ]
    assert clashes == []


@pytest.mark.parametrize(
    ("at", "key", "fix"),
    [
        (TOP, "optimiser", "did you mean 'training.optimizer'?"),
        (TOP, "n_layers", "did you mean 'model.base.depth'?"),
        (BASE, "hidden_size", "did you mean 'width'?"),
        (BASE, "Hidden-Sise", "did you mean 'width'?"),  # as keys are written, and nearly another name
        (BASE, "numLayers", "did you mean 'depth'?"),
        (BASE, "top_k", "did you mean 'num_active'?"),
        (BASE, "d_ff", "did you mean 'expert_width' or 'dense_width'?"),
        (BASE, "block_size", "did you mean 'model.context'?"),
        (TRAINING, "learning_rate", "did you mean 'hps.lr'?"),
        (TRAINING, "batch_size", "did you mean 'batch_tokens' or 'batch_samples'?"),
        (TRAINING, "warmup_steps", "did you mean 'training.schedule.warmup'?"),
        (TRAINING, "context", "write it as model.context"),
        (("router_bias_lr: 0.01", "{}: 1"), "router.lr_mult", "write it as hps.multipliers.router.lr_mult"),
        (("width: [32, 64]", "joint: [{{width: 64, {}: 4}}]"), "n_layer", "did you mean 'depth'?"),
        (TRAINING, "zzz", "legal: accumulation_lanes, accumulation_tokens, "),
    ],
)
def test_the_key_that_is_meant_is_named_with_its_place(at: tuple[str, str], key: str, fix: str) -> None:
    assert f"{key}: unknown key; {fix}" in message_of((at[0], at[1].format(key)))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("  lr: [0.01]", "  learning_rate: [0.01]"), "grid.learning_rate: unknown HP; did you mean 'lr'?"),
        (
            ("  lr: [0.01]", "  batch_size: [512]"),
            "batch_tokens is no HP, so the grid cannot scan it; give its values as",
        ),
        (("  lr: [0.01]", "  dropout: [0.1]"), "unknown HP; legal: lr, init_scale, "),
        (("  width: [32, 64]", "  n_layers: [2, 4]"), "must be named after a dimension; did you mean 'depth'?"),
        (("  width: [32, 64]", "  lr: [0.1, 0.2]"), "it is an HP, and HPs are scanned in grid"),
        (("  lr: [0.01]", "  lr: [-9, -8]"), "got [-9, -8]; exponents of two are written as {log2: [-9, -8]}"),
        (("router_bias_lr: 0.01", "lr: -6"), "lr must be > 0, got -6; 2^-6 is written as {log2: -6}"),
        (("router_bias_lr: 0.01", "lr: 2^-6"), "got '2^-6'; write {log2: -6}"),
        (("  lr: [0.01]", "  lr: [2^-9]"), "got '2^-9'; write 0.001953125, or exponents as {log2: [low, high]}"),
        (("seeds: 2", "seeds: '2'"), "got '2'; write 2 without quotes"),
        (("  steps: 200", "  {steps: 1,000}"), "not valid YAML"),
        (
            ("  width: [32, 64]", "  a: [{width: 64, steps: 1,000}]"),
            "write a number without commas: 1_000 and not 1,000",
        ),
    ],
)
def test_what_to_write_instead_is_said(edit: tuple[str, str], problem: str) -> None:
    assert problem in message_of(edit)


@pytest.mark.parametrize(
    ("text", "whole", "fix"),
    [
        ("0.5M", True, "write 500000"),
        ("2k", True, "write 2000"),
        ("1.5B", True, "write 1500000000"),
        ("120", True, "write 120 without quotes"),
        ("1e6", True, "write 1e6 without quotes"),
        ("10%", False, "write 0.1"),
        ("10%", True, None),  # no whole number
        ("2**10", True, "write 1024"),
        ("1/4", False, "write 0.25"),
        ("1,000", True, "write 1000"),
        ("10 000", True, "write 10000"),
        ("200 steps", True, "write 200"),
        ("1/0", False, None),
        ("9**9999", False, None),
        ("-2**0.5", False, None),
        ("inf", False, None),
        ("two", False, None),
        (7, True, None),
    ],
)
def test_numbers_that_people_write(text: object, whole: bool, fix: str | None) -> None:
    assert how_to_write(text, whole=whole) == fix


@given(st.text(alphabet="0123456789.,eE+-*^/% kMB_'", max_size=30), st.booleans())
@example("1_000", True)
def test_what_is_said_can_be_written(text: str, whole: bool) -> None:
    fix = how_to_write(text, whole=whole)
    if fix is not None:
        number = parse_yaml(fix.removeprefix("write ").removesuffix(" without quotes"), "s.yaml").data
        assert isinstance(number, int | float)
        assert not whole or number == round(number)


DIMS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from((1, 2, 3, 8, 12, 16, 20, 36, 64)) for name in (
            "width", "depth", "num_experts", "num_active", "head_dim", "num_heads", "kv_heads", "expert_width",
            "num_shared", "shared_width", "num_groups", "dense_width",
        )},
        **{name: st.sampled_from((0.3, 0.5, 1)) for name in ("expert_ratio", "shared_ratio", "dense_ratio")},
    },
)  # fmt: skip
CHOSEN = {"width": 64, "depth": 2, "num_experts": 4, "num_active": 1, "head_dim": 4}


@given(DIMS)
@example({"num_heads": 6, "kv_heads": 3, "expert_ratio": 1})  # 12 features of the keys
@example({"num_heads": 5, "expert_ratio": 1})
def test_a_broken_shape_is_explained_by_keys_of_the_file(dims: dict[str, float]) -> None:
    base = ", ".join(f"{name}: {value}" for name, value in {**CHOSEN, **dims}.items())
    text = re.sub(r"base: \{.*\}", f"base: {{{base}}}", SWEEP)
    try:
        parse_sweep(text, "s.yaml")
    except HpxferError as error:
        named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", str(error)))
        assert named <= KEYS | {*SCALARS, *MULTIPLIERS, *ROLES}
