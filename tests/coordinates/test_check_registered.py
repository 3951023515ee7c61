"""A table that a user registered passes if the model follows its rows and features keep their size; only both do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.errors import HpxferError
from hpxfer.scaling import Convention, Row, Table, register_parameterization
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, ratio, width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS

COMPLETEP_MOE = PARAMETERIZATIONS.get("completep-moe")
SP = PARAMETERIZATIONS.get("sp")
EXPERTS = ("expert_in", "expert_out")
WIDTHS = (16.0, 32.0, 64.0, 128.0)  # half of the default: the widest model takes the time
Register = Callable[[Table], None]


@pytest.fixture
def register() -> Iterator[Register]:
    """Yield a function that registers a table for the length of a test."""
    with ExitStack() as stack:

        def registered(table: Table) -> None:
            stack.callback(PARAMETERIZATIONS.remove, register_parameterization(table).name)

        yield registered


def with_rows(table: Table, roles: tuple[str, ...], **factors: Monomial) -> Table:
    """Return a table named `mine` with other factors in the rows of some roles."""

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = table.rows["adam"](conventions)
        return tuple(replace(row, **factors) if row.role in roles else row for row in found)  # type: ignore[arg-type]

    return replace(table, name="mine", rows={"adam": rows})


def report_on(choice: str | Parameterization = "mine", axis: str = "width") -> CheckReport:
    return check(choice, axes=[axis], points=WIDTHS if axis == "width" else None, seeds=4, steps=2)


def checked(axis: str = "width") -> AxisReport:
    (found,) = report_on(axis=axis).axes
    return found


def missed(report: AxisReport) -> set[tuple[str, str]]:
    """Return the roles and quantities that do not keep their size."""
    return {(judged.role, judged.quantity) for judged in report.judged_stability if judged.verdict == "miss"}


@pytest.mark.first
@pytest.mark.parametrize("axis", ["width", "depth", "experts", "expert_ratio"])
def test_a_good_table_under_another_name_passes(register: Register, axis: str) -> None:
    register(replace(COMPLETEP_MOE, name="mine"))
    found = checked(axis)
    assert found.must_be_stable
    assert (found.follows, found.stable, found.passed) == (True, True, True)
    assert found.count("ok") > 35


def test_a_wrong_lr_of_the_experts_is_followed_and_fails(register: Register) -> None:
    """The negative twin: without its power of the width, the LR makes experts learn more and more."""
    register(with_rows(COMPLETEP_MOE, EXPERTS, lr=ONE))
    found = checked()
    assert found.follows
    assert not found.stable
    assert not found.passed
    assert {("expert_in", "effective"), ("expert_out", "aggregate effective")} <= missed(found)
    learned = {judged.role: judged.shown for judged in found.judged if judged.quantity == "weight change"}
    assert learned["expert_in"].predicted == 0
    assert learned["attn_q"].predicted == -1
    text = report_on().table()
    assert "width: the model follows the table: yes (" in text
    assert "width: features keep their size: NO (" in text
    assert "expert_out aggregate effective grows as width^+" in text
    assert text.endswith("width: FAILED")


def test_a_model_that_does_not_do_what_the_rows_say_does_not_follow(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are derived from say one thing, those that are trained with another."""
    register(replace(COMPLETEP_MOE, name="mine"))
    other = with_rows(COMPLETEP_MOE, ("attn_v",), init_std=ONE, lr=ONE)

    def derived_from(choice: object, optimizer: object, facts: object) -> object:
        with PARAMETERIZATIONS.registered(replace(other, name="other")):
            return derive(parameterization("other"), optimizer, facts)  # type: ignore[arg-type]

    from hpxfer.coordinates import expected
    from hpxfer.coordinates.derive import derive

    monkeypatch.setattr(expected, "derive", derived_from)
    found = checked()
    assert not found.follows
    wrong = {(judged.role, judged.quantity) for judged in found.judged if judged.verdict == "miss"}
    assert {("attn_v", "activation"), ("attn_v", "weight change")} <= wrong
    assert found.stable
    assert not found.passed


def test_sp_under_another_name_is_followed_and_fails(register: Register) -> None:
    register(replace(SP, name="mine"))
    found = checked()
    assert (found.follows, found.stable, found.passed) == (True, False, False)
    assert ("attn_q", "effective") in missed(found)


def test_a_lazy_table_for_sgd_alone_is_followed_and_vanishes(register: Register) -> None:
    register(replace(PARAMETERIZATIONS.get("ntp"), name="mine"))
    report = report_on()
    assert report.optimizer == "sgd"
    (found,) = report.axes
    assert (found.follows, found.stable) == (True, False)
    assert "vanishes as width^-0." in report.table()
    with pytest.raises(HpxferError, match="mine: the source has no adam column; it has: sgd"):
        check("mine", optimizer="adam")


def test_a_row_without_lr_learns_nothing(register: Register) -> None:
    register(with_rows(COMPLETEP_MOE, ("attn_q",), lr=ZERO))
    found = checked()
    assert found.follows
    assert missed(found) == {("attn_q", "effective")}
    assert "attn_q effective is 0" in report_on().table()


def test_a_table_with_conventions_is_checked_under_those_asked_for(register: Register) -> None:
    gamma = Convention(default=1.0, legal=(0.0, 1.0), doc="the power of the width in the LR of the experts")

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = COMPLETEP_MOE.rows["adam"](conventions)
        lr = width ** -float(conventions["gamma"])
        return tuple(replace(row, lr=lr) if row.role in EXPERTS else row for row in found)

    conventions = {**COMPLETEP_MOE.conventions, "gamma": gamma}
    register(replace(COMPLETEP_MOE, name="mine", conventions=conventions, rows={"adam": rows}))
    good = report_on(parameterization("mine"))
    bad = report_on(parameterization("mine", {"gamma": 0.0}))
    assert (good.parameterization, good.passed) == ("mine", True)
    assert (bad.parameterization, bad.passed, bad.axes[0].follows) == ("mine[gamma=0.0]", False, True)


def test_what_cannot_be_derived_is_listed(register: Register) -> None:
    register(replace(SP, name="mine"))
    text = report_on().table()
    reasons = text.split("no prediction, because\n")[1]
    assert "attn_q effective" in reasons
    assert "change by a growing part of their size" in reasons
    assert "stream change" in reasons


def test_a_table_of_the_package_passes_by_its_source_alone() -> None:
    (found,) = check("ntp", axes=["width"], points=WIDTHS, seeds=4, steps=2).axes
    assert not found.must_be_stable
    assert (found.follows, found.stable, found.passed) == (True, False, True)


def test_mlp_needs_claims(register: Register) -> None:
    register(replace(COMPLETEP_MOE, name="mine", block_claims=None))
    with pytest.raises(HpxferError, match="--architecture mlp: mine has no block_claims to compare with"):
        check("mine", architecture="mlp")


def test_a_row_that_the_model_needs_is_asked_for(register: Register) -> None:
    rows = tuple(row for row in SP.rows["adam"]({"lr_exponent": 0.0}) if row.role not in ("attn_k", "norm"))
    register(replace(SP, name="mine", rows={"adam": lambda conventions: rows}))
    with pytest.raises(HpxferError) as caught:
        check("mine", axes=["width"])
    assert str(caught.value) == (
        "parameterization mine: must have a row for every role of the model w256 d2 E4A4 h256, got none for attn_k, "
        "norm; add them to its adam column"
    )


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        ({"role": "query"}, "unknown role 'query'; did you mean"),
        ({"role": "attn_k"}, "a role must have one row, got two for attn_k; leave one out"),
        ({"lr": 0.5}, "attn_q: lr must be a monomial such as width\\*\\*-1, got 0.5; build it from the symbols of"),
        ({"lr": lambda at: 1.0}, "attn_q: lr must be a monomial"),
        ({"forward": ratio("widht")}, "attn_q: forward: unknown ratio 'widht'; did you mean 'width'?"),
    ],
)
def test_rows_that_cannot_be_evaluated_are_refused_when_they_are_registered(
    register: Register, factors: dict[str, Monomial], says: str
) -> None:
    with pytest.raises(HpxferError, match=f"parameterization mine, adam: {says}"):
        register(with_rows(SP, ("attn_q",), **factors))
    assert "mine" not in PARAMETERIZATIONS


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"axes": ("widht",)}, "unknown axis 'widht'; did you mean 'width'"),
        ({"adam_axes": ("batches",)}, "unknown axis 'batches'; did you mean 'batch'"),
        ({"fixed": {"kapa": "a slip"}}, "fixed must name properties of a shape, got 'kapa'; did you mean 'kappa'"),
        ({"regime": "IV"}, "regime must be I, II or III, got 'IV'"),
    ],
)
def test_what_a_table_names_must_exist(register: Register, fields: dict[str, object], says: str) -> None:
    with pytest.raises(HpxferError, match=f"parameterization mine: {says}"):
        register(replace(SP, name="mine", **fields))  # type: ignore[arg-type]


def test_the_rows_of_every_convention_are_looked_at(register: Register) -> None:
    bad = Convention(default="no", legal=("no", "yes"), doc="whether a row is wrong")

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        lr = ONE if conventions["bad"] == "no" else ratio("height")
        return tuple(replace(row, lr=lr) for row in SP.rows["adam"]({"lr_exponent": 0.0}))

    with pytest.raises(HpxferError, match="mine, adam, bad=yes: embedding: lr: unknown ratio 'height'"):
        register(replace(SP, name="mine", rows={"adam": rows}, conventions={"bad": bad}))


def test_a_column_must_be_of_a_known_optimizer(register: Register) -> None:
    with pytest.raises(HpxferError, match="mine, lion: a column must be adam or sgd"):
        register(replace(SP, name="mine", rows={"lion": SP.rows["adam"]}))  # type: ignore[dict-item]
    with pytest.raises(HpxferError, match="rows must have a column for adam or sgd, got none"):
        register(replace(SP, name="mine", rows={}))


@pytest.mark.slow
def test_a_forward_multiplier_that_the_model_does_not_apply_is_refused(register: Register) -> None:
    register(with_rows(COMPLETEP_MOE, ("embedding", "attn_q"), forward=width))
    with pytest.raises(HpxferError) as caught:
        report_on()
    assert str(caught.value) == (
        "mine: attn_q must have a forward multiplier of 1, got 0.5 at w16 d2 E4A4 h16: models of the family gpt "
        "multiply embedding, attn_out, router, expert_out, shared_out, dense_out, readout and no other role; put the "
        "factor into init_std and lr"
    )
    assert checked("depth").passed, "there the factor is 1"
