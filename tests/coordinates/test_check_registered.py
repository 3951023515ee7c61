"""A table passes if the model follows its rows and features keep their size; only both do.

And what a check sees of lookups, gains, biases, eps and weight decay: each wrong row misses, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Patch

from hpxfer.coordinates import answers
from hpxfer.coordinates.checking import check
from hpxfer.coordinates.derive import INPUT_MOVES, derive
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.errors import HpxferError
from hpxfer.scaling import Convention, Row, Table
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.monomial import ONE, ZERO, ratio, width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS

COMPLETEP_MOE = PARAMETERIZATIONS.get("completep-moe")
SP = PARAMETERIZATIONS.get("sp")
WIDTHS = (16.0, 32.0, 64.0, 128.0)  # half of the default: the widest model takes the time
Register = Callable[[Table], None]
EVERY = "*"
Wrong = Mapping[str, Mapping[str, Any]]  # role, or EVERY -> factor of its row -> its value


def wrong_in(table: Table, wrong: Wrong, **fields: Any) -> Table:
    """Return a table named `mine` whose rows have other factors."""

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = table.rows["adam"](conventions)
        return tuple(replace(row, **{**wrong.get(EVERY, {}), **wrong.get(row.role, {})}) for row in found)

    return replace(table, name="mine", rows={"adam": rows}, **fields)


def report_on(choice: str | Parameterization = "mine", axis: str = "width", **asked: Any) -> CheckReport:
    return check(choice, axes=[axis], points=WIDTHS if axis == "width" else None, seeds=4, steps=2, **asked)


def checked(axis: str = "width", held_to: str | None = None, **conventions: str) -> AxisReport:
    """Return a cheap check of `mine` along an axis: by its own rows, or held to another table."""
    return report_on(parameterization("mine", conventions), axis, held_to=held_to).axes[0]


def missed(report: AxisReport) -> set[tuple[str, str]]:
    """Return the roles and quantities that do not keep their size."""
    return {(found.role, found.quantity) for found in report.judged_stability if found.verdict == "miss"}


@pytest.mark.first
@pytest.mark.parametrize("axis", ["width", "depth", "experts", "expert_ratio"])
def test_a_good_table_under_another_name_passes(register: Register, axis: str) -> None:
    register(replace(COMPLETEP_MOE, name="mine"))
    found = checked(axis)
    assert (found.follows, found.stable, found.passed) == (True, True, True)
    assert found.count("ok") > 35


def test_a_wrong_lr_of_the_experts_is_followed_and_fails(register: Register) -> None:
    """The negative twin: without its power of the width, the LR makes experts learn more and more."""
    register(wrong_in(COMPLETEP_MOE, {role: {"lr": ONE} for role in ("expert_in", "expert_out")}))
    report = report_on()
    (found,) = report.axes
    assert (found.follows, found.stable, found.passed) == (True, False, False)
    assert {("expert_in", "effective"), ("expert_out", "aggregate effective")} <= missed(found)
    learned = {judged.role: judged.shown for judged in found.judged if judged.quantity == "weight change"}
    assert learned["expert_in"].predicted == 0
    assert learned["attn_q"].predicted == -1
    text = report.table()
    assert "width: the model follows the table: yes (" in text
    assert "width: features keep their size: NO (" in text
    assert "expert_out aggregate effective grows as width^+" in text
    assert text.endswith("width: FAILED")


def test_a_model_that_does_not_do_what_the_rows_say_does_not_follow(register: Register, monkeypatch: Patch) -> None:
    """The rows that are derived from say one thing, those that are trained with another."""
    register(replace(COMPLETEP_MOE, name="mine"))
    other = wrong_in(COMPLETEP_MOE, {"attn_v": {"init_std": ONE, "lr": ONE}})

    def derived_from(choice: object, optimizer: object, facts: object) -> object:
        with PARAMETERIZATIONS.registered(replace(other, name="other")):
            return derive(parameterization("other"), optimizer, facts)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "derive", derived_from)
    found = checked()
    assert (found.follows, found.stable, found.passed) == (False, True, False)
    wrong = {(judged.role, judged.quantity) for judged in found.judged if judged.verdict == "miss"}
    assert {("attn_v", "activation"), ("attn_v", "weight change")} <= wrong


def test_sp_under_another_name_is_followed_and_fails(register: Register) -> None:
    register(replace(SP, name="mine"))
    report = report_on()
    (found,) = report.axes
    assert (found.follows, found.stable, found.passed) == (True, False, False)
    assert ("attn_q", "effective") in missed(found)
    assert INPUT_MOVES in {judged.shown.source for judged in found.judged}
    table, reasons = report.table().split("no prediction, because\n")
    assert any(line.split()[:2] == ["attn_q", "effective"] and "miss" in line for line in table.splitlines())
    assert "attn_q propagating" in reasons


def test_a_lazy_table_for_sgd_alone_is_followed_and_vanishes(register: Register) -> None:
    register(replace(PARAMETERIZATIONS.get("ntp"), name="mine", by_design=lambda conventions: ()))
    report = report_on()
    assert report.optimizer == "sgd"
    (found,) = report.axes
    assert (found.follows, found.stable) == (True, False)
    assert "vanishes as width^-0." in report.table()
    with pytest.raises(HpxferError, match="mine: the source has no adam column; it has: sgd"):
        check("mine", optimizer="adam")


def test_a_row_without_lr_learns_nothing(register: Register) -> None:
    register(wrong_in(COMPLETEP_MOE, {"attn_q": {"lr": ZERO}}))
    report = report_on()
    assert report.axes[0].follows
    assert missed(report.axes[0]) == {("attn_q", "effective")}
    assert "attn_q effective is 0" in report.table()


def test_a_lazy_table_passes_as_far_as_it_says_so() -> None:
    report = report_on("ntp")
    (found,) = report.axes
    assert (found.follows, found.stable, found.passed) == (True, True, True)
    learned = {(each.role, each.quantity): each.shown for each in found.judged_stability}
    assert (learned["attn_q", "effective"].predicted, learned["attn_q", "effective"].source) == (
        -0.5,
        "MSSP Table G.1, NTP",
    )
    assert learned["readout", "effective"].predicted == learned["attn_q", "activation"].predicted == 0


def test_a_table_that_says_it_is_lazy_and_learns_fails(register: Register) -> None:
    register(replace(PARAMETERIZATIONS.get("mup-moe"), name="mine", by_design=PARAMETERIZATIONS.get("ntp").by_design))
    found = checked()
    assert found.follows
    assert {("attn_q", "effective"), ("stream", "change"), ("norm", "weight change")} <= missed(found)


# Refusals.


def wrong_of(**fields: Any) -> Table:
    return replace(SP, name="mine", **fields)


def wrong_q(**factors: Any) -> Table:
    return wrong_in(SP, {"attn_q": factors})


def test_a_row_that_the_model_needs_is_asked_for(register: Register) -> None:
    rows = tuple(row for row in SP.rows["adam"]({"lr_exponent": 0.0}) if row.role not in ("attn_k", "norm"))
    register(wrong_of(rows={"adam": lambda conventions: rows}))
    with pytest.raises(HpxferError) as caught:
        check("mine", axes=["width"])
    assert str(caught.value) == (
        "parameterization mine: must have a row for every role of the model w256 d2 E4A4 h256, got none for attn_k, "
        "norm; add them to its adam column"
    )


BAD = Convention(default="no", legal=("no", "yes"), doc="whether a row is wrong")


def bad_where_asked(conventions: Conventions) -> tuple[Row, ...]:
    lr = ONE if conventions["bad"] == "no" else ratio("height")
    return tuple(replace(row, lr=lr) for row in SP.rows["adam"]({"lr_exponent": 0.0}))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (wrong_q(role="query"), ", adam: unknown role 'query'; did you mean"),
        (wrong_q(role="attn_k"), ", adam: a role must have one row, got two for attn_k; leave"),
        (wrong_q(lr=0.5), ", adam: attn_q: lr must be a monomial such as width**-1, got 0.5; build"),
        (wrong_q(lr=lambda at: 1.0), ", adam: attn_q: lr must be a monomial"),
        (wrong_q(forward=ratio("widht")), ", adam: attn_q: forward: unknown ratio 'widht'; did you"),
        (wrong_of(axes=("widht",)), ": unknown axis 'widht'; did you mean 'width'"),
        (wrong_of(adam_axes=("batches",)), ": unknown axis 'batches'; did you mean 'batch'"),
        (wrong_of(fixed={"kapa": "a slip"}), ": fixed must name properties of a shape, got 'kapa'; did you"),
        (wrong_of(regime="IV"), ": regime must be I, II or III, got 'IV'"),
        (wrong_of(rows={"lion": SP.rows["adam"]}), ", lion: a column must be adam, sgd, muon"),
        (wrong_of(rows={}), ": rows must have a column for adam or sgd, got none"),
        # The rows of every convention are looked at.
        (wrong_of(rows={"adam": bad_where_asked}, conventions={"bad": BAD}), ", adam, bad=yes: embedding: lr: unknown"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_evaluated_is_refused_when_it_is_registered(
    register: Register, table: Table, says: str
) -> None:
    with pytest.raises(HpxferError) as caught:
        register(table)
    assert str(caught.value).startswith(f"parameterization mine{says}")
    assert "mine" not in PARAMETERIZATIONS


@pytest.mark.slow
def test_a_forward_multiplier_that_the_model_does_not_apply_is_refused(register: Register) -> None:
    register(wrong_in(COMPLETEP_MOE, {role: {"forward": width} for role in ("embedding", "attn_q")}))
    with pytest.raises(HpxferError) as caught:
        report_on()
    assert str(caught.value) == (
        "mine: attn_q must have a forward multiplier of 1, got 0.5 at w16 d2 E4A4 h16: models of the family gpt "
        "multiply embedding, attn_out, router, expert_out, shared_out, dense_out, readout and no other role; put the "
        "factor into init_std and lr"
    )
    assert checked("depth").passed, "there the factor is 1"


# What a check sees.

WRONG_ALONG_WIDTH: Wrong = {
    **{role: {"lr": width**-1} for role in ("position", "norm", "final_norm", "hidden_bias")},
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
def test_wrong_rows_are_seen_and_no_others(register: Register, held_to: str | None) -> None:
    register(wrong_in(COMPLETEP_MOE, WRONG_ALONG_WIDTH))
    found = checked(held_to=held_to)
    assert not found.passed
    wrong = missed(found)
    assert wrong >= SEEN_ALONG_WIDTH
    # The stream starts from the lookups, so that all that reads it moves by less than it should.
    others = {quantity for _, quantity in wrong - SEEN_ALONG_WIDTH}
    assert others <= {"change", "propagating", "aggregate propagating"}


@pytest.mark.first
@pytest.mark.parametrize(
    ("role", "other", "power", "held_to"),
    [
        ("embedding", "position", -0.5, None),
        ("position", "embedding", 0.5, "completep-moe"),
    ],
)
def test_tokens_and_positions_are_seen_apart(
    register: Register, role: str, other: str, power: float, held_to: str | None
) -> None:
    register(wrong_in(COMPLETEP_MOE, {role: {"lr": width**power}}))
    wrong = missed(checked(held_to=held_to))
    assert (role, "change") in wrong
    assert (other, "change") not in wrong


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "held_to"), [("depth", None), ("experts", "completep-moe")])
def test_a_constant_eps_is_seen(register: Register, axis: str, held_to: str | None) -> None:
    """Along depth it is too large inside the blocks, along the number of experts in the MoE layer."""
    register(wrong_in(COMPLETEP_MOE, {EVERY: {"eps": ONE}}))
    found = missed(checked(axis, held_to=held_to))
    attention = {"attn_q", "attn_v", "norm"} if axis == "depth" else set()
    assert {(role, "gradient / eps") for role in {"expert_in", "expert_out", "router"} | attention} <= found
    assert {quantity for _, quantity in found} == {"gradient / eps"}
    assert ("embedding", "gradient / eps") not in found


def test_one_eps_by_convention_is_not_tested_and_is_said(register: Register) -> None:
    register(replace(COMPLETEP_MOE, name="mine"))
    report = report_on(parameterization("mine", {"eps": "global"}), "experts")
    assert report.passed
    text, said = report.table(), report.to_dict(lines=False)["axes"][0]["not_tested"]
    assert all(f"\nnot tested: {what}" in text for what in said)
    (of_eps,) = (what for what in said if "eps=global" in what)
    assert "eps of attn_q" in of_eps
    assert "eps of expert_in" in of_eps
    assert any(what.startswith("dense_in, dense_gate, dense_out, expert_gate, patch_in, ") for what in said)
    assert any("betas" in what for what in said)
    assert not any("LR of" in what for what in said)


@pytest.mark.slow
def test_the_base_s_eps_outside_hidden_matrices_is_not_tested_and_is_said(register: Register) -> None:
    """The eps of hidden matrices still is: a wrong one misses."""
    register(wrong_in(COMPLETEP_MOE, {"expert_in": {"eps": ONE}}))
    found = checked(eps="hidden")
    (said,) = (what for what in found.not_tested if "eps=hidden" in what)
    assert "eps of embedding" in said
    assert "expert_in" not in said
    assert missed(found) == {("expert_in", "gradient / eps")}


@pytest.mark.slow
def test_weight_decay_is_held_to_the_convention_or_the_source(register: Register) -> None:
    """A constant decay is wrong where LR times decay should stay, and right where a table says that it is constant."""
    constant = {role: {"weight_decay": ONE} for role in ("attn_q", "expert_in", "router")}
    seen = {(role, "decay") for role in constant}
    register(wrong_in(COMPLETEP_MOE, constant))
    assert missed(checked()) == seen
    # Only three roles have lost their factor: by the convention, the others are wrong.
    assert not seen & missed(checked(weight_decay="independent"))
    register(wrong_in(COMPLETEP_MOE, {EVERY: {"weight_decay": ONE}}, constant_decay=True))
    assert not missed(checked())


def test_under_sgd_an_lr_of_experts_that_is_too_small_is_said_to_pass(register: Register) -> None:
    """What experts and routers learn at first may be as small as the first gradients, so that only growth is wrong."""
    mup_moe = PARAMETERIZATIONS.get("mup-moe")

    def small(conventions: Conventions) -> tuple[Row, ...]:
        found = mup_moe.rows["sgd"](conventions)
        return tuple(replace(row, lr=row.lr * width**-0.5) if row.role == "expert_in" else row for row in found)

    register(replace(mup_moe, name="mine", rows={"sgd": small, "adam": mup_moe.rows["adam"]}))
    asked: dict[str, Any] = {"axes": ["width"], "points": WIDTHS, "seeds": 2, "steps": 1}
    under = {each: check("mine", optimizer=each, **asked).axes[0] for each in ("sgd", "adam")}
    (said,) = (what for what in under["sgd"].not_tested if "first gradient" in what)
    assert said == (
        "too small LR of router, too small LR of expert_in, too small LR of expert_out: under SGD, or beside a large "
        "eps, a small first gradient alone makes learning start slowly"
    )
    assert not any("first gradient" in what for what in under["adam"].not_tested)
