"""Loss collapse, load balance and steps to the same loss, from hand-made analyses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from looks import drawn_texts, unlabeled
from matplotlib.text import Annotation
from there import of, there

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.collapse import Collapse, CollapseCurve
from hpxfer.analysis.statistics.routers import BalanceLine, LoadBalance
from hpxfer.analysis.statistics.same_loss import ArmRun
from hpxfer.analysis.statistics.steps_to_loss import StepsToLoss, compared
from hpxfer.figures.balance import balance_block
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.collapse import collapse_block, normalized_block
from hpxfer.figures.steps_to_loss import ARROWS, Arrow, arrows_of, steps_to_loss_block

STEPS = (1.0, 3.0, 5.0, 7.0)
WHOLE = Collapse(
    axis="width",
    scale_name="width",
    parameterization="completep-moe",
    hp="lr",
    value=0.0625,
    steps=STEPS,
    curves=(
        CollapseCurve(shape="w32", scale=32.0, is_base=True, losses=(4, 3, 2.5, 2.25), normalized=(2, 1)),
        CollapseCurve(shape="w64", scale=64.0, is_base=False, losses=(4, 3, 2.375, 2.0), normalized=(2, 1)),
        CollapseCurve(shape="w128", scale=128.0, is_base=False, losses=(4, 3), diverged_step=5),
    ),
    spread_nats=(0.01, 0.01, 0.125, 0.25),
    noise_nats=(0.02, 0.02, 0.02, 0.02),
    parts_at=5.0,
    shares=(0.5, 1.0),
    floor_nats=1.5,
    floor_from="the power law",
    deviation=(0.1, 0.0),
    noise_floor=(0.2, 0.1),
    below_noise=0.75,
    num_seeds=3,
)
CONTROL = replace(WHOLE, parameterization="sp", parts_at=None)
PLACE = {"axis": "width", "scale_name": "width", "hp": "lr"}


def shown(*found: Collapse) -> Block:
    return of(Block, collapse_block(found, "width"))


def test_the_title_tells_from_which_step_shapes_part() -> None:
    title = shown(CONTROL, WHOLE).title
    assert title.startswith("Training losses of width 32 to 128 at one lr part")
    assert title.endswith("beyond the seeds' noise: completep-moe from step 5, sp at no step")
    bare = shown(replace(WHOLE, noise_nats=(), parts_at=None, why_no_noise="one seed"))
    assert bare.title.endswith("completep-moe unknown (one seed)")


def test_the_step_of_parting_is_marked_and_only_then() -> None:
    assert "how far apart the 2 curves are: more than seeds from step 5" in drawn_texts(draw(shown(WHOLE)))
    calm = drawn_texts(draw(shown(CONTROL)))
    assert not any("from step" in text for text in calm)
    assert "apart by more than seeds" not in calm
    share = drawn_texts(draw(shown(replace(CONTROL, parts_by_share_at=7.0))))
    assert "how far apart the 2 curves are: more than 1% of the loss from step 7" in share


def test_curves_are_those_of_the_analysis_and_one_that_diverged_ends_there() -> None:
    table = shown(WHOLE).table()
    of_scale = dict(list(table.groupby("width")))
    assert of_scale[64.0]["training loss (nats)"].to_list() == [4, 3, 2.375, 2.0]
    assert of_scale[128.0]["step"].to_list() == [1.0, 3.0]
    assert len(table) == 10
    figure = draw(shown(WHOLE))
    assert {"32 (base)", "64", "128"} <= drawn_texts(figure)
    (cross,) = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3.0], [3])
    assert table["training loss (nats)"].iloc[3] == 2.25
    assert table["from seeds alone"].to_list() == [0.02] * 10


def test_normalized_curves_come_with_their_floor() -> None:
    info = of(Block, normalized_block([WHOLE, CONTROL], "width"))
    assert "1.5 nats (the power law)" in info.caption
    assert "completep-moe for 75% of training" in info.title
    curves = info.table().groupby(["parameterization", "width"])["normalized loss (1 = final)"].apply(list)
    assert curves.to_list() == [[2, 1]] * 4
    assert "normalized loss (1 = final)" in drawn_texts(draw(info))  # a spread of 0 has no log


def load(scale: float, value: float, final: float, *, peak: float = 0.2) -> BalanceLine:
    return BalanceLine(
        shape=f"w{scale:g}",
        scale=scale,
        is_base=scale == 32,
        value=value,
        fair_share=0.25,
        steps=(0, 10),
        max_deviation=(peak, final),
        peak=peak,
        final=final,
        num_seeds=2,
        num_diverged=0,
    )


BALANCE = LoadBalance(
    **PLACE,
    parameterization="sp",
    lines=(load(64, 0.25, 0.1), load(64, 0.125, 0.05), load(32, 0.125, 0.025), load(32, 0.0, 0.5)),
)


def test_loads_are_in_fair_shares_by_scale_and_hp() -> None:
    info = of(Block, balance_block([BALANCE], "width"))
    columns = ["width", "log2_lr", "final", "peak"]
    base, *wide = info.table()[columns].itertuples(index=False, name=None)
    assert base == (32, -3.0, 0.1, 0.8)  # an HP of 0 has no log
    assert wide == [(64, -3.0, 0.2, 0.8), (64, -2.0, 0.4, 0.8)]
    assert info.title.endswith("sp 0.4 at width 64, lr 2^-2")
    assert {"32 (base)", "64", "largest at any time"} <= drawn_texts(draw(info))


def test_rules_of_balance_are_compared_by_the_title_and_a_panel_each() -> None:
    arms = {"sp": 0.1, "sp (sign)": 0.05, "sp (none)": 0.2, "sp (loss)": 0.15}
    loads = [replace(BALANCE, parameterization=name, lines=(load(32, 0.125, end),)) for name, end in arms.items()]
    info = of(Block, balance_block(loads, "width"))
    least, most = "least with sp (sign) 0.2 at width 32", "most with sp (none) 0.8 at width 32"
    assert f"{least}, lr 2^-3; {most}, lr 2^-3" in info.title
    figure = draw(info)
    assert set(arms) <= drawn_texts(figure)
    assert len({axes.get_ylim() for axes in figure.axes if axes.lines}) == 1


RUN_STEPS = np.arange(500)
BLANK = StepsToLoss(axis="moe", parameterization="complete-mue", hp="lr", value=0.01)
AT = tuple(float(x) for x in range(5, 501, 5))
LOSSES = tuple(2 + (x / 20) ** -0.5 for x in AT)


def arm(name: str, rate: float, batch_tokens: int = 512, data: str = "") -> ArmRun:
    luck = 0.01 * np.random.default_rng(0).standard_normal((2, RUN_STEPS.size))
    curves = {seed: (RUN_STEPS, 2 + (rate * (RUN_STEPS + 1) / 20.0) ** -0.5 + luck[seed]) for seed in range(2)}
    return ArmRun(
        name=name, curves=curves, planned=frozenset((0, 1)), batch_tokens=batch_tokens, data=data, data_digest=data
    )


def answer_of(*arms: ArmRun, elsewhere: tuple[ReferenceCurve, ...] = ()) -> StepsToLoss:
    dense = arm("dense", 1.0)
    return compared([(dense, None), *((each, dense) for each in arms)], elsewhere, BLANK)


def same_loss(*arms: ArmRun, elsewhere: tuple[ReferenceCurve, ...] = ()) -> Block:
    return of(Block, steps_to_loss_block([answer_of(*arms, elsewhere=elsewhere)], "moe"))


def arrows(*arms: ArmRun) -> list[Arrow]:
    return arrows_of(answer_of(*arms), "steps")


def test_arrows_lead_from_the_end_of_the_reference_to_the_arms_that_have_its_loss() -> None:
    arms = arm("fast", 4.0), arm("slow", 0.5)
    found = same_loss(*arms)
    (arrow,) = arrows(*arms)
    assert (arrow.arm, arrow.start) == ("fast", 500)
    assert arrow.stop == pytest.approx(125, rel=0.1)
    assert arrow.factor == pytest.approx(4, rel=0.1)
    assert found.title == f"Steps to the same loss, moe: complete-mue up to {arrow.factor:.3g}x fewer than dense"
    table = found.table()
    kinds = table.drop_duplicates("curve")[["curve", "kind"]].itertuples(index=False, name=None)
    assert list(kinds) == [("dense", "reference"), ("fast", "arm"), ("slow", "arm")]
    assert list(table.columns)[-4:] == ["steps", "mean_nats", "min_nats", "max_nats"]


def test_only_the_fastest_arms_have_arrows() -> None:
    arms = [arm(f"arm {i}", 1.0 + i / 2) for i in range(1, 6)]
    assert [arrow.arm for arrow in arrows(*arms)] == ["arm 5", "arm 4", "arm 3"]
    assert len(arrows(*arms)) == ARROWS


def test_title_and_arrow_say_more_where_the_table_does() -> None:
    """A longer run may reach the loss later than its reference, at a factor below 1."""
    steps = np.arange(1000)
    longer = ArmRun(
        name="longer",
        curves={0: (steps, 2 + (0.6 * (steps + 1) / 20.0) ** -0.5)},
        planned=frozenset({0}),
        batch_tokens=512,
    )
    short = ArmRun(name="dense", curves={0: (RUN_STEPS, 2 + ((RUN_STEPS + 1) / 20.0) ** -0.5)}, batch_tokens=512)
    answer = compared([(short, None), (longer, short)], (), BLANK)
    (row,) = answer.rows
    assert there(row.speed_up) < 1
    said = f"{1 / there(row.speed_up):.3g}x more"
    found = of(Block, steps_to_loss_block([answer], "moe"))
    assert row.in_brief.startswith(f"{said} steps")
    assert found.title == f"Steps to the same loss, moe: complete-mue at best {said} than dense"
    assert said in drawn_texts(draw(found))


def test_arms_that_train_on_other_data_have_no_factor_and_are_named() -> None:
    arms = arm("fast", 4.0), arm("elsewhere", 8.0, data="text:b.txt")
    found, (arrow,) = same_loss(*arms), arrows(*arms)
    assert arrow.arm == "fast"
    assert found.title.endswith(f"up to {arrow.factor:.3g}x fewer than dense")
    assert "training losses on different data are not comparable: elsewhere (text:b.txt)." in found.caption
    texts = drawn_texts(draw(found))
    assert "elsewhere (other data)" in texts
    assert "fast" in texts
    alone = arm("elsewhere", 8.0, data="text:b.txt")
    assert same_loss(alone).title.endswith("complete-mue not compared, as data differ")
    assert not arrows(alone)


def test_x_counts_tokens_where_batches_differ_or_a_curve_has_no_steps() -> None:
    assert "steps" in same_loss(arm("fast", 2.0)).frame
    larger = arm("fast", 2.0, batch_tokens=1024)
    assert "tokens" in same_loss(larger).frame
    (arrow,) = arrows_of(answer_of(larger), "tokens")
    assert arrow.factor == pytest.approx(1, abs=0.05)  # half the steps, of twice the tokens
    by_tokens = ReferenceCurve(name="gpt2", losses=LOSSES, tokens=tuple(512 * x for x in AT))
    assert same_loss(arm("fast", 2.0), elsewhere=(by_tokens,)).frame.columns[4] == "tokens"
    by_steps = ReferenceCurve(name="gpt2", losses=LOSSES, steps=AT)
    assert same_loss(arm("fast", 2.0), elsewhere=(by_steps,)).frame.columns[4] == "steps"
    left_out = same_loss(larger, elsewhere=(by_steps,))
    assert left_out.caption.endswith("these curves count no tokens: gpt2.")
    assert "gpt2" not in set(left_out.frame["curve"])


def test_the_figure_draws_every_curve_and_every_factor() -> None:
    by_steps = ReferenceCurve(name="gpt2 $x_1$ <b>", losses=LOSSES, steps=AT)
    answer = answer_of(arm("fast", 4.0), arm("slow", 0.5), elsewhere=(by_steps,))
    drawn = arrows_of(answer, "steps")
    figure = draw(of(Block, steps_to_loss_block([answer], "moe")))
    texts = drawn_texts(figure)
    assert {"dense", "fast", "slow", "gpt2 $x_1$ <b>", "steps (log scale)"} <= texts
    assert {f"{arrow.factor:.3g}x" for arrow in drawn} <= texts
    assert not unlabeled(figure)
    (axes,) = figure.axes
    heads = [child for child in axes.get_children() if isinstance(child, Annotation) and child.arrow_patch is not None]
    assert len(heads) == len(drawn)
    low, high = axes.get_xlim()
    assert all(low < arrow.stop <= arrow.start < high for arrow in drawn)


def test_no_arm_that_has_the_loss_is_said_in_the_title() -> None:
    slow = arm("slow", 0.5)
    assert same_loss(slow).title == "Steps to the same loss, moe: complete-mue never has it"
    assert not arrows(slow)


@pytest.mark.parametrize("scale_name", ["rank", "step", "loss", "noise", "x", "shape", "axis"])
def test_a_scale_of_any_name_changes_no_curve(scale_name: str) -> None:
    """A user's own trainer names its dimensions itself, LoRA's rank for one."""
    named, plain = replace(WHOLE, scale_name=scale_name), WHOLE
    lines = [
        [(list(line.get_xdata()), list(line.get_ydata())) for axes in draw(shown(each)).axes for line in axes.lines]
        for each in (named, plain)
    ]
    assert lines[0] == lines[1]
    table = shown(named).table()
    assert list(table.columns)[2] == scale_name
    assert table.iloc[:, 2].to_list() == shown(plain).table()["width"].to_list()


def test_shapes_of_one_scale_stay_apart() -> None:
    first, second, third = WHOLE.curves
    twins = replace(WHOLE, curves=(first, replace(second, scale=first.scale), third))
    curves = [line for line in draw(shown(twins)).axes[0].lines if line.get_marker() != "x"]
    assert [len(line.get_xdata()) for line in curves[:3]] == [4, 4, 2]
    loads = replace(BALANCE, lines=(load(32, 0.25, 0.1), replace(load(32, 0.25, 0.2), shape="other", is_base=False)))
    (axes,) = draw(of(Block, balance_block([loads], "width"))).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1] * 4
