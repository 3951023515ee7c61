"""A training may report anything that JSON holds. No check of a receipt raises on it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpxfer.receipts import groups_match, init_matches, schedule_keeps_ratios, seeds_differ
from hpxfer.receipts.seeds import init_digest

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=3),
)
KEYS = ("name", "role", "numel", "trained", "held", "lr", "peak_lr", "eps", "weight_decay", "betas", "std", "mean")
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys((*KEYS, "largest", "digest"), VALUES),
            "name": st.one_of(VALUES, st.sampled_from(["a.b", "c"])),
            "role": st.one_of(VALUES, st.sampled_from(["attn_q", "attn_q+attn_k@3"])),
        },
    ),
    max_size=4,
)
EXPECTED: dict[str, dict[str, Any]] = {
    "a.b": {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.0, "init_std": 0.1, "betas": (0.9, 0.99)},
    "attn_q": {"lr": 0.0, "init": "ones"},
}
STATES = {"passed", "failed", "not possible"}


@given(ENTRIES)
def test_no_entries_raise(entries: list[dict[str, Any]]) -> None:
    for factor in (1.0, 0.0, None):
        assert groups_match(entries, EXPECTED, factor=factor).status in STATES
    assert init_matches(entries, EXPECTED).status in STATES
    assert schedule_keeps_ratios([{"step": 0, "groups": entries}, {"step": 3, "groups": entries}]).status in STATES
    init_digest(entries)


@given(*(st.dictionaries(st.sampled_from(["init", "batch", "loss"]), VALUES),) * 2)
def test_no_runs_raise(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert seeds_differ(one, other).status in STATES
