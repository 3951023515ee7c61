"""The figure of steps to the same loss: what is decided as data, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from looks import drawn_texts, unlabeled
from matplotlib.text import Annotation
from there import there

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.same_loss import ArmRun
from hpxfer.analysis.statistics.steps_to_loss import StepsToLoss, compared
from hpxfer.figures.steps_to_loss import ARROWS, SameLossInfo, draw_steps_to_loss, steps_to_loss_info

STEPS = np.arange(500)
BLANK = StepsToLoss(axis="moe", parameterization="complete-mue", hp="lr", value=0.01)
AT = tuple(float(x) for x in range(5, 501, 5))
LOSSES = tuple(2 + (x / 20) ** -0.5 for x in AT)


def arm(name: str, rate: float, batch_tokens: int = 512, data: str = "") -> ArmRun:
    luck = 0.01 * np.random.default_rng(0).standard_normal((2, STEPS.size))
    curves = {seed: (STEPS, 2 + (rate * (STEPS + 1) / 20.0) ** -0.5 + luck[seed]) for seed in range(2)}
    return ArmRun(
        name=name, curves=curves, planned=frozenset((0, 1)), batch_tokens=batch_tokens, data=data, data_digest=data
    )


def info(*arms: ArmRun, elsewhere: tuple[ReferenceCurve, ...] = ()) -> SameLossInfo:
    dense = arm("dense", 1.0)
    found = steps_to_loss_info([compared([(dense, None), *((each, dense) for each in arms)], elsewhere, BLANK)], "moe")
    assert isinstance(found, SameLossInfo)
    return found


def test_arrows_lead_from_the_end_of_the_reference_to_the_arms_that_have_its_loss() -> None:
    found = info(arm("fast", 4.0), arm("slow", 0.5))
    (panel,) = found.panels
    (arrow,) = panel.arrows
    assert (arrow.arm, arrow.start) == ("fast", 500)
    assert arrow.stop == pytest.approx(125, rel=0.1)
    assert arrow.factor == pytest.approx(4, rel=0.1)
    assert [(curve.name, curve.kind) for curve in panel.curves] == [
        ("dense", "reference"),
        ("fast", "arm"),
        ("slow", "arm"),
    ]
    assert found.title == f"Steps to the same loss, moe: complete-mue up to {arrow.factor:.3g}x fewer than dense"
    table = found.table()
    assert set(table["curve"]) == {"dense", "fast", "slow"}
    assert list(table.columns)[-4:] == ["steps", "mean_nats", "min_nats", "max_nats"]


def test_only_the_fastest_arms_have_arrows() -> None:
    arms = [arm(f"arm {i}", 1.0 + i / 2) for i in range(1, 6)]
    (panel,) = info(*arms).panels
    assert [arrow.arm for arrow in panel.arrows] == ["arm 5", "arm 4", "arm 3"]
    assert len(panel.arrows) == ARROWS


def test_no_arm_that_has_the_loss_is_said_in_the_title() -> None:
    found = info(arm("slow", 0.5))
    assert found.title == "Steps to the same loss, moe: complete-mue never has it"
    assert not found.panels[0].arrows


def test_title_and_arrow_say_more_where_the_table_does() -> None:
    """A longer run may reach the loss later than its reference, at a factor below 1."""
    steps = np.arange(1000)
    longer = ArmRun(
        name="longer",
        curves={0: (steps, 2 + (0.6 * (steps + 1) / 20.0) ** -0.5)},
        planned=frozenset({0}),
        batch_tokens=512,
    )
    short = ArmRun(name="dense", curves={0: (STEPS, 2 + ((STEPS + 1) / 20.0) ** -0.5)}, batch_tokens=512)
    answer = compared([(short, None), (longer, short)], (), BLANK)
    (row,) = answer.rows
    assert there(row.speed_up) < 1
    said = f"{1 / there(row.speed_up):.3g}x more"
    found = steps_to_loss_info([answer], "moe")
    assert isinstance(found, SameLossInfo)
    assert row.in_brief.startswith(f"{said} steps")
    assert found.title == f"Steps to the same loss, moe: complete-mue at best {said} than dense"
    assert said in drawn_texts(draw_steps_to_loss(found))


def test_arms_that_train_on_other_data_have_no_factor_and_are_named() -> None:
    found = info(arm("fast", 4.0), arm("elsewhere", 8.0, data="text:b.txt"))
    (panel,) = found.panels
    assert [arrow.arm for arrow in panel.arrows] == ["fast"]
    assert found.title.endswith(f"up to {panel.arrows[0].factor:.3g}x fewer than dense")
    assert "training losses on different data are not comparable: elsewhere (text:b.txt)." in found.caption
    texts = drawn_texts(draw_steps_to_loss(found))
    assert "elsewhere (other data)" in texts
    assert "fast" in texts
    alone = info(arm("elsewhere", 8.0, data="text:b.txt"))
    assert alone.title.endswith("complete-mue not compared, as data differ")
    assert not alone.panels[0].arrows


def test_x_counts_tokens_where_batches_differ_or_a_curve_has_no_steps() -> None:
    assert info(arm("fast", 2.0)).unit == "steps"
    batches = info(arm("fast", 2.0, batch_tokens=1024))
    assert batches.unit == "tokens"
    assert batches.panels[0].arrows[0].factor == pytest.approx(1, abs=0.05)  # half the steps, of twice the tokens
    by_tokens = ReferenceCurve(name="gpt2", losses=LOSSES, tokens=tuple(512 * x for x in AT))
    assert info(arm("fast", 2.0), elsewhere=(by_tokens,)).unit == "tokens"
    by_steps = ReferenceCurve(name="gpt2", losses=LOSSES, steps=AT)
    assert info(arm("fast", 2.0), elsewhere=(by_steps,)).unit == "steps"
    left_out = info(arm("fast", 2.0, batch_tokens=1024), elsewhere=(by_steps,))
    assert left_out.caption.endswith("these curves count no tokens: gpt2.")
    assert "gpt2" not in {curve.name for curve in left_out.panels[0].curves}


def test_the_figure_draws_every_curve_and_every_factor() -> None:
    by_steps = ReferenceCurve(name="gpt2 $x_1$ <b>", losses=LOSSES, steps=AT)
    found = info(arm("fast", 4.0), arm("slow", 0.5), elsewhere=(by_steps,))
    figure = draw_steps_to_loss(found)
    texts = drawn_texts(figure)
    assert {"dense", "fast", "slow", "gpt2 $x_1$ <b>", "steps (log scale)"} <= texts
    assert {f"{arrow.factor:.3g}x" for arrow in found.panels[0].arrows} <= texts
    assert not unlabeled(figure)
    (axes,) = figure.axes
    arrows = [child for child in axes.get_children() if isinstance(child, Annotation) and child.arrow_patch is not None]
    assert len(arrows) == len(found.panels[0].arrows)
    low, high = axes.get_xlim()
    assert all(low < arrow.stop <= arrow.start < high for arrow in found.panels[0].arrows)


def test_without_arms_the_reason_is_given() -> None:
    nothing = compared([(arm("dense", 1.0), None)], (), BLANK)
    assert steps_to_loss_info([nothing], "moe") == there(nothing.why_not)
    assert steps_to_loss_info([], "moe") == "no two arms to compare"
