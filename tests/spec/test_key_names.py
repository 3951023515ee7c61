"""Wrong keys: the message names the nearest legal one, in words of the file."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import MULTIPLIERS, SCALARS
from hpxfer.scaling.roles import ROLES
from hpxfer.spec import parse_sweep
from hpxfer.spec.schema import sweep_schema

SECTIONS = (sweep_schema(), *sweep_schema()["$defs"].values())
KEYS = {key for section in SECTIONS for key in section.get("properties", {})}
TOP = ("seeds: 2", "seeds: 2\n{}: 1")
BASE = ("depth: 2,", "depth: 2, {}: 1,")
TRAINING = ("steps: 200", "steps: 200\n  {}: 1")


def message_of(*edits: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits), "s.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("at", "key", "fix"),
    [
        (TOP, "optimizr", "did you mean 'training.optimizer'?"),
        (BASE, "widht", "did you mean 'width'?"),
        (TRAINING, "context", "did you mean 'model.context'?"),
        (TRAINING, "zzz", "legal: accumulation_lanes, accumulation_tokens, "),
    ],
)
def test_the_nearest_key_is_named_with_its_place(at: tuple[str, str], key: str, fix: str) -> None:
    assert f"{key}: unknown key; {fix}" in message_of((at[0], at[1].format(key)))


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
