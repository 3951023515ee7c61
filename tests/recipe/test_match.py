"""Matching: the first pattern wins, and nothing is left over on either side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.recipe.match import match_roles
from hpxfer.scaling.roles import ROLES

NAMES = ["emb.weight", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.1.up.weight", "blocks.1.up.bias"]
PATTERNS = {"emb.*": "embedding", "*.up.weight": "expert_in", "*.bias": "hidden_bias"}


def match(roles: Any, names: list[str] | None = None, optional: list[str] | None = None) -> dict[str, str]:
    return match_roles(NAMES if names is None else names, optional or [], roles, {"shared_in": "no such layer"})


@pytest.mark.parametrize("roles", [PATTERNS, list(PATTERNS.items()), [list(pair) for pair in PATTERNS.items()]])
def test_every_name_gets_its_role(roles: Any) -> None:
    assert match(roles) == dict(
        zip(NAMES, ["embedding", "expert_in", "hidden_bias", "expert_in", "hidden_bias"], strict=True)
    )


def test_the_first_match_wins() -> None:
    first = match([("blocks.0.*", "dense_in"), *PATTERNS.items()])
    assert [first[name] for name in NAMES] == ["embedding", "dense_in", "dense_in", "expert_in", "hidden_bias"]


def test_an_iterator_is_read_once() -> None:
    assert match(iter(PATTERNS.items())) == match(PATTERNS)


def test_a_pattern_may_be_there_for_an_optional_name_only_and_these_need_none() -> None:
    found = match({**PATTERNS, "*.router_bias": "router_bias"}, optional=["moe.router_bias", "attn.mask"])
    assert found["moe.router_bias"] == "router_bias"
    assert "attn.mask" not in found


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), min_size=1))
def test_all_unmatched_parameters_are_named_and_only_they(names: list[str], missing: set[str]) -> None:
    kept = {name: "norm" for name in names if name not in missing}
    with pytest.raises(HpxferError) as error:
        match(kept, names)
    spelled = str(error.value).partition("got none for ")[2].partition(";")[0].split(", ")
    assert spelled == [name for name in names if name in missing]


def test_all_unused_patterns_are_named() -> None:
    with pytest.raises(HpxferError, match=r"got no match for 'a\.\*', 'b'; correct or remove"):
        match({**PATTERNS, "a.*": "norm", "b": "norm"})


def test_a_pattern_hidden_by_earlier_ones_is_told_from_one_that_matches_nothing() -> None:
    with pytest.raises(HpxferError, match=r"earlier patterns match all names of 'blocks\.0\.up\.bias'; move these up"):
        match({**PATTERNS, "blocks.0.up.bias": "norm"})


def test_roles_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(HpxferError) as error:
        match({**PATTERNS, "emb.*": "embeding", "*.bias": "shared_in"})
    assert str(error.value).splitlines() == [
        "roles: 'emb.*': unknown role 'embeding'; did you mean 'embedding'?",
        "roles: '*.bias': shared_in: no such layer",
    ]


def test_every_kind_of_fault_is_in_one_message() -> None:
    with pytest.raises(HpxferError) as error:
        match({"emb.*": "embeding", "nothing": "norm"})
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("roles", [None, 3, "norm", [3], [("a", "norm", "b")], [("a", 1)], {"a": None}])
def test_what_are_no_pairs_is_refused(roles: Any) -> None:
    with pytest.raises(HpxferError, match="must be a mapping of name pattern to role"):
        match(roles)


@given(st.lists(st.tuples(st.sampled_from(("*", "emb*", "*up*", "*.bias")), st.sampled_from(list(ROLES)))))
def test_a_match_accounts_for_every_name_and_every_pattern(pairs: list[tuple[str, str]]) -> None:
    try:
        found = match_roles(NAMES, [], pairs, {})
    except HpxferError:
        return
    assert list(found) == NAMES
    assert set(found.values()) == {role for _, role in pairs}
