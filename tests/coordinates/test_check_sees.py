"""What a check sees of lookups, gains, biases, eps and weight decay: each correct row passes, each wrong one misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.report import AxisReport
from hpxfer.scaling import Row, Table, register_parameterization
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import ONE, Monomial, width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS

COMPLETEP_MOE = PARAMETERIZATIONS.get("completep-moe")
WIDTHS = (16.0, 32.0, 64.0, 128.0)
EVERY = "*"
Wrong = Mapping[str, Mapping[str, Monomial]]  # role -> factor -> its value


@contextmanager
def registered(wrong: Wrong, table: Table = COMPLETEP_MOE) -> Iterator[None]:
    """Register a table named `mine` with other factors in the rows of some roles, or of all."""

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = table.rows["adam"](conventions)
        return tuple(_changed(row, {**wrong.get(EVERY, {}), **wrong.get(row.role, {})}) for row in found)

    register_parameterization(replace(table, name="mine", rows={"adam": rows}))
    try:
        yield
    finally:
        PARAMETERIZATIONS.remove("mine")


def _changed(row: Row, factors: dict[str, Any]) -> Row:
    return replace(row, **factors)


def checked(axis: str, *, held_to: str | None = None, **conventions: str) -> AxisReport:
    """Return a cheap check of `mine` along an axis: as a table of the user's own, or held to another's claims."""
    claims = None if held_to is None else parameterization(held_to).claims("adam")
    points = WIDTHS if axis == "width" else None
    choice = parameterization("mine", conventions)
    return check(choice, axes=[axis], points=points, seeds=4, steps=2, claims=claims).axes[0]


def missed(report: AxisReport) -> set[tuple[str, str]]:
    judged = report.judged_stability if report.must_be_stable else report.judged
    return {(found.role, found.quantity) for found in judged if found.verdict == "miss"}


WRONG_LR = {role: {"lr": width**-1} for role in ("position", "norm", "final_norm", "hidden_bias")}
WRONG_ALONG_WIDTH: Wrong = {
    **WRONG_LR,
    "embedding": {"lr": width**-0.5},
    "attn_q": {"weight_decay": ONE},
    "expert_in": {"eps": ONE},
}
SEEN_ALONG_WIDTH = {
    ("embedding", "change"),
    ("embedding", "decay"),  # it is the share LR times decay
    ("position", "change"),
    ("norm", "weight change"),
    ("final_norm", "weight change"),
    ("hidden_bias", "weight change"),
    ("attn_q", "decay"),
    ("expert_in", "gradient / eps"),
}


@pytest.mark.parametrize("held_to", [None, "completep-moe"])
def test_wrong_rows_are_seen_and_no_others(held_to: str | None) -> None:
    with registered(WRONG_ALONG_WIDTH):
        found = checked("width", held_to=held_to)
    assert not found.passed
    wrong = missed(found)
    assert wrong >= SEEN_ALONG_WIDTH
    # The stream starts from the lookups, so that all that reads it moves by less than it should.
    others = {quantity for _, quantity in wrong - SEEN_ALONG_WIDTH}
    assert others <= {"change", "propagating", "aggregate propagating"}


@pytest.mark.first
@pytest.mark.parametrize("held_to", [None, "completep-moe"])
@pytest.mark.parametrize("power", [-0.5, 0.5])
@pytest.mark.parametrize("role", ["embedding", "position"])
def test_tokens_and_positions_are_seen_apart(role: str, power: float, held_to: str | None) -> None:
    with registered({role: {"lr": width**power}}):
        wrong = missed(checked("width", held_to=held_to))
    other = "position" if role == "embedding" else "embedding"
    assert (role, "change") in wrong
    assert (other, "change") not in wrong


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["depth", "experts"])
@pytest.mark.parametrize("held_to", [None, "completep-moe"])
def test_a_constant_eps_is_seen(axis: str, held_to: str | None) -> None:
    """Along depth it is too large inside the blocks, along the number of experts in the MoE layer."""
    with registered({EVERY: {"eps": ONE}}):
        found = missed(checked(axis, held_to=held_to))
    attention = {"attn_q", "attn_v", "norm"} if axis == "depth" else set()
    assert {(role, "gradient / eps") for role in {"expert_in", "expert_out", "router"} | attention} <= found
    assert {quantity for _, quantity in found} == {"gradient / eps"}
    assert ("embedding", "gradient / eps") not in found


def test_one_eps_by_convention_is_not_tested_and_is_said() -> None:
    with registered({}):
        found = checked("experts", eps="global")
    assert found.passed
    (said,) = (what for what in found.not_tested if "eps=global" in what)
    assert "eps of attn_q" in said
    assert "eps of expert_in" in said


@pytest.mark.slow
def test_the_base_s_eps_outside_hidden_matrices_is_not_tested_and_is_said() -> None:
    """The eps of hidden matrices still is: a wrong one misses."""
    with registered({}):
        found = checked("width", eps="hidden")
    assert found.passed
    (said,) = (what for what in found.not_tested if "eps=hidden" in what)
    assert "eps of embedding" in said
    assert "expert_in" not in said
    with registered({"expert_in": {"eps": ONE}}):
        assert ("expert_in", "gradient / eps") in missed(checked("width", eps="hidden"))


@pytest.mark.slow
def test_weight_decay_is_held_to_the_convention_or_the_source() -> None:
    """A constant decay is wrong where LR times decay should stay, and right where a table says that it is constant."""
    constant = {role: {"weight_decay": ONE} for role in ("attn_q", "expert_in", "router")}
    seen = {(role, "decay") for role in constant}
    with registered(constant):
        assert missed(checked("width")) == seen
        # Only three roles have lost their factor: by the convention, the others are wrong.
        assert not seen & missed(checked("width", weight_decay="independent"))
    every = {EVERY: {"weight_decay": ONE}}
    with registered(every, replace(COMPLETEP_MOE, constant_decay=True)):
        assert not {quantity for _, quantity in missed(checked("width"))}


def test_under_sgd_an_lr_of_experts_that_is_too_small_is_said_to_pass() -> None:
    """What experts and routers learn at first may be as small as the first gradients, so that only growth is wrong."""
    mup_moe = PARAMETERIZATIONS.get("mup-moe")

    def small(conventions: Conventions) -> tuple[Row, ...]:
        found = mup_moe.rows["sgd"](conventions)
        return tuple(replace(row, lr=row.lr * width**-0.5) if row.role == "expert_in" else row for row in found)

    register_parameterization(replace(mup_moe, name="mine", rows={"sgd": small, "adam": mup_moe.rows["adam"]}))
    try:
        under = {
            each: check("mine", axes=["width"], points=WIDTHS, optimizer=each, seeds=2, steps=1).axes[0]
            for each in ("sgd", "adam")
        }
    finally:
        PARAMETERIZATIONS.remove("mine")
    (said,) = (what for what in under["sgd"].not_tested if "first gradient" in what)
    assert said == (
        "too small LR of router, too small LR of expert_in, too small LR of expert_out: under SGD a small first "
        "gradient alone makes learning start slowly"
    )
    assert not any("first gradient" in what for what in under["adam"].not_tested)


def test_what_is_not_tested_is_said_in_text_and_json() -> None:
    with registered({}):
        report = check("mine", axes=["experts"], seeds=2, steps=1)
    text, data = report.table(), report.to_dict(lines=False)
    said = data["axes"][0]["not_tested"]
    assert all(f"\nnot tested: {what}" in text for what in said)
    assert any(what.startswith("dense_in, dense_gate, dense_out, expert_gate: ") for what in said)
    assert any(what.startswith("eps of hidden_bias: ") for what in said)
    assert any("betas" in what for what in said)
    assert not any("LR of" in what for what in said)
