"""Loss collapse, load balance and steps to the same loss, from hand-made analyses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from looks import drawn_texts, unlabeled
from matplotlib.text import Annotation
from there import of, there

from hpxfer.analysis import Found
from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics.collapse import COLLAPSE, COLLAPSE_CURVES, NORMALIZED_CURVES
from hpxfer.analysis.statistics.routers import BALANCE
from hpxfer.analysis.statistics.same_loss import ArmRun
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.analysis.statistics.steps_to_loss import LOSS_CURVES, STEPS_TO_LOSS, Compared, compared
from hpxfer.figures.balance import balance_block, load_curves
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.collapse import collapse_block, normalized_block
from hpxfer.figures.steps_to_loss import ARROWS, Arrow, arrows_of, steps_to_loss_block

STEPS = (1.0, 3.0, 5.0, 7.0)
SPREAD, NOISE = (0.01, 0.01, 0.125, 0.25), (0.02, 0.02, 0.02, 0.02)
LOSSES_OF = {"w32": (4, 3, 2.5, 2.25), "w64": (4, 3, 2.375, 2.0), "w128": (4, 3)}  # the last diverged at step 5
Parts = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]  # numbers, curves, normalized curves


def whole(
    name: str = "completep-moe",
    *,
    scale_name: str = "width",
    scales: Sequence[float] = (32.0, 64.0, 128.0),
    noise: Sequence[float] = NOISE,
    **numbers: Any,
) -> Parts:
    """Return the collapse of one arm over three shapes."""
    labels = {"axis": "width", "parameterization": name, "hp": "lr"}
    shapes = [
        ({**labels, "shape": shape, "scale": scale, "is_base": scale == 32}, losses)
        for scale, (shape, losses) in zip(scales, LOSSES_OF.items(), strict=True)
    ]
    shapes[0][0]["is_base"] = True
    curves = [
        {
            **of,
            "step": STEPS[i],
            "loss_nats": loss,
            "difference_nats": loss - LOSSES_OF["w32"][i] if of["shape"] != "w128" else None,
            "difference_se": 0.01,
            "spread_nats": SPREAD[i],
            "noise_nats": noise[i] if noise else None,
            "diverged": of["shape"] == "w128" and i == 1,
        }
        for of, losses in shapes
        for i, loss in enumerate(losses)
    ]
    normalized = [
        {**of, "share": share, "normalized_loss": loss, "deviation": deviation, "noise_floor": floor}
        for of, _ in shapes[:2]
        for share, loss, deviation, floor in ((0.5, 2, 0.1, 0.2), (1.0, 1, 0.0, 0.1))
    ]
    given = {"parts_at": 5.0, "num_seeds": 3, "num_shapes": 2, "below_noise": 0.75} | numbers
    given |= {"floor_nats": 1.5, "floor_from": "the power law", "value": 0.0625, "scale_name": scale_name}
    return {**labels, **given}, curves, normalized


WHOLE = whole()
CALM = whole("sp", parts_at=None)


def founds(*every: Parts) -> tuple[Found, Found, Found]:
    return (
        Found(frame=frame_of((numbers for numbers, *_ in every), COLLAPSE.columns)),
        Found(frame=frame_of((row for _, curves, _ in every for row in curves), COLLAPSE_CURVES.columns)),
        Found(frame=frame_of((row for *_, curves in every for row in curves), NORMALIZED_CURVES.columns)),
    )


def shown(*every: Parts) -> Block:
    found, curves, _ = founds(*every)
    return of(Block, collapse_block(found, curves, "width"))


def test_the_title_tells_from_which_step_shapes_part() -> None:
    title = shown(CALM, WHOLE).title
    assert title.startswith("Training losses of width 32 to 128 at one lr part")
    assert title.endswith("beyond the seeds' noise: completep-moe from step 5, sp at no step")
    bare = shown(whole(noise=(), parts_at=None, num_seeds=1))
    assert bare.title.endswith("completep-moe unknown (one seed)")


def test_the_step_of_parting_is_marked_and_only_then() -> None:
    assert "how far apart the 2 curves are: more than seeds from step 5" in drawn_texts(draw(shown(WHOLE)))
    calm = drawn_texts(draw(shown(CALM)))
    assert not any("from step" in text for text in calm)
    assert "apart by more than seeds" not in calm
    share = drawn_texts(draw(shown(whole("sp", parts_at=None, parts_by_share_at=7.0))))
    assert "how far apart the 2 curves are: more than 1% of the loss from step 7" in share


def test_a_curve_that_diverged_ends_with_a_cross() -> None:
    figure = draw(shown(WHOLE))
    assert {"32 (base)", "64", "128"} <= drawn_texts(figure)
    (cross,) = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3.0], [3])


def test_curves_that_are_nowhere_apart_have_no_panel_beside_them() -> None:
    numbers, curves, normalized = WHOLE
    info = shown((numbers, [{**row, "spread_nats": 0.0, "noise_nats": 0.0} for row in curves], normalized))
    assert len(draw(info).axes) == 2
    assert "Right" not in info.caption
    assert len(draw(shown(WHOLE)).axes) == 3


def test_differences_to_the_base_have_a_band_of_two_errors() -> None:
    info = shown(WHOLE)
    _, axes, _ = draw(info).axes
    assert axes.get_title() == "difference to the base"
    assert [list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 4] == [
        [0] * 4,
        [0, 0, -0.125, -0.25],
    ]
    ends = there(info.drawn)[["low", "high"]].dropna().tail(1).to_numpy().tolist()
    assert ends == [pytest.approx([-0.27, -0.23])]
    numbers, curves, normalized = WHOLE
    alone = shown((numbers, [{**row, "difference_nats": None} for row in curves], normalized))
    assert len(draw(alone).axes) == 2
    assert "Middle" not in alone.caption


def test_normalized_curves_come_with_their_floor() -> None:
    found, _, normalized = founds(WHOLE, CALM)
    info = of(Block, normalized_block(found, normalized, "width"))
    assert "1.5 nats (the power law)" in info.caption
    assert "completep-moe for 75% of training" in info.title
    assert "normalized loss (1 = final)" in drawn_texts(draw(info))  # a spread of 0 has no log


def load(scale: float, value: float, final: float, **given: Any) -> dict[str, Any]:
    of = {"axis": "width", "parameterization": "sp", "hp": "lr", "scale_name": "width", "is_base": scale == 32}
    return {**of, "shape": f"w{scale:g}", "scale": scale, "value": value, "peak": 0.8, "final": final, **given}


BALANCES = (load(32, 0.125, 0.1), load(32, 0.0, 2.0), load(64, 0.125, 0.2), load(64, 0.25, 0.4))


def balance(*rows: dict[str, Any]) -> Block:
    return of(Block, balance_block(Found(frame=frame_of(rows, BALANCE.columns)), "width"))


def test_loads_are_in_fair_shares_by_scale_and_hp() -> None:
    info = balance(*BALANCES)
    columns = ["scale", "x", "final", "peak"]
    base, *wide = there(info.drawn)[columns].itertuples(index=False, name=None)
    assert base == (32, -3.0, 0.1, 0.8)  # an HP of 0 has no log
    assert wide == [(64, -3.0, 0.2, 0.8), (64, -2.0, 0.4, 0.8)]
    assert info.title.endswith("sp 0.4 at width 64, lr 2^-2")
    assert {"32 (base)", "64", "largest at any time"} <= drawn_texts(draw(info))


def test_rules_of_balance_are_compared_by_the_title_and_a_panel_each() -> None:
    arms = {"sp": 0.4, "sp (sign)": 0.2, "sp (none)": 0.8, "sp (loss)": 0.6}
    info = balance(*(load(32, 0.125, end, parameterization=name) for name, end in arms.items()))
    least, most = "least with sp (sign) 0.2 at width 32", "most with sp (none) 0.8 at width 32"
    assert f"{least}, lr 2^-3; {most}, lr 2^-3" in info.title
    figure = draw(info)
    assert set(arms) <= drawn_texts(figure)
    assert len({axes.get_ylim() for axes in figure.axes if axes.lines}) == 1


def test_load_over_training_is_that_of_shapes_at_one_hp_and_of_the_base_at_several() -> None:
    """Of two seeds at steps 0 and 100, over a fair share of a quarter."""
    values = [2.0**x for x in range(-9, -1)]
    rows = [load(scale, value, 0.1, fair_share=0.25) for scale in (32, 64) for value in values]
    found = Found(frame=frame_of(rows, BALANCE.columns))
    at, runs = np.array([0, 100]), ([0.1, 0.2], [0.3, 0.2])
    curves = {
        ("sp", f"w{scale}", value): [(at, np.array(run)) for run in runs] for scale in (32, 64) for value in values
    }
    over = load_curves(found.frame, curves, {"sp": 2.0**-4})
    assert {(line, shape) for line, shape in zip(over["line"], over["shape"], strict=True)} == {
        *(("shape", shape) for shape in ("w32", "w64")),
        ("HP", "w32"),
    }
    assert set(over.loc[over["line"] == "shape", "value"]) == {2.0**-4}
    base = over[over["line"] == "HP"].groupby("value")["deviation"].agg(list)
    assert len(base) == 6
    assert (base.index[0], base.index[-1]) == (values[0], values[-1])
    assert base.iloc[0] == pytest.approx([0.8, 0.8])
    info = of(Block, balance_block(found, "width", over=over))
    figure = draw(info)
    assert [len(axes.lines) for axes in figure.axes] == [4, 2, 6]
    assert {"each shape at the transferred lr", "the base at each lr", "2^-9"} <= drawn_texts(figure)
    assert len(info.table()) == len(rows) + len(over)
    assert load_curves(found.frame, {}, {}).empty


RUN_STEPS = np.arange(500)
AT = tuple(float(x) for x in range(5, 501, 5))
LOSSES = tuple(2 + (x / 20) ** -0.5 for x in AT)


def arm(name: str, rate: float, batch_tokens: int = 512, data: str = "") -> ArmRun:
    luck = 0.01 * np.random.default_rng(0).standard_normal((2, RUN_STEPS.size))
    curves = {seed: (RUN_STEPS, 2 + (rate * (RUN_STEPS + 1) / 20.0) ** -0.5 + luck[seed]) for seed in range(2)}
    return ArmRun(
        name=name, curves=curves, planned=frozenset((0, 1)), batch_tokens=batch_tokens, data=data, data_digest=data
    )


def answer_of(*arms: ArmRun, elsewhere: tuple[ReferenceCurve, ...] = ()) -> Compared:
    dense = arm("dense", 1.0)
    return compared([(dense, None), *((each, dense) for each in arms)], elsewhere)


def block_of(answer: Compared) -> Block:
    labels = {"axis": "moe", "parameterization": "complete-mue", "hp": "lr"}
    found, curves = (
        Found(frame=frame_of(({**labels, **row} for row in rows), statistic.columns))
        for rows, statistic in ((answer.rows, STEPS_TO_LOSS), (answer.curves, LOSS_CURVES))
    )
    return of(Block, steps_to_loss_block(found, curves, "moe"))


def same_loss(*arms: ArmRun, elsewhere: tuple[ReferenceCurve, ...] = ()) -> Block:
    return block_of(answer_of(*arms, elsewhere=elsewhere))


def arrows(*arms: ArmRun) -> list[Arrow]:
    return arrows_to(answer_of(*arms), "steps")


def arrows_to(answer: Compared, unit: Literal["steps", "tokens"]) -> list[Arrow]:
    return arrows_of(pd.DataFrame(answer.rows), unit)


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
    answer = compared([(short, None), (longer, short)], ())
    (row,) = answer.rows
    assert there(row["speed_up"]) < 1
    said = f"{1 / there(row['speed_up']):.3g}x more"
    found = block_of(answer)
    assert row["in_brief"].startswith(f"{said} steps")
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


def x_of(block: Block) -> str:
    return block.charts[0].x


def test_x_counts_tokens_where_batches_differ_or_a_curve_has_no_steps() -> None:
    assert x_of(same_loss(arm("fast", 2.0))) == "steps"
    larger = arm("fast", 2.0, batch_tokens=1024)
    assert x_of(same_loss(larger)) == "tokens"
    (arrow,) = arrows_to(answer_of(larger), "tokens")
    assert arrow.factor == pytest.approx(1, abs=0.05)  # half the steps, of twice the tokens
    by_tokens = ReferenceCurve(name="gpt2", losses=LOSSES, tokens=tuple(512 * x for x in AT))
    assert x_of(same_loss(arm("fast", 2.0), elsewhere=(by_tokens,))) == "tokens"
    by_steps = ReferenceCurve(name="gpt2", losses=LOSSES, steps=AT)
    assert x_of(same_loss(arm("fast", 2.0), elsewhere=(by_steps,))) == "steps"
    left_out = same_loss(larger, elsewhere=(by_steps,))
    assert left_out.caption.endswith("these curves count no tokens: gpt2.")
    assert "gpt2" not in set(left_out.frame["curve"])


def test_the_figure_draws_every_curve_and_every_factor() -> None:
    by_steps = ReferenceCurve(name="gpt2 $x_1$ <b>", losses=LOSSES, steps=AT)
    answer = answer_of(arm("fast", 4.0), arm("slow", 0.5), elsewhere=(by_steps,))
    drawn = arrows_to(answer, "steps")
    figure = draw(block_of(answer))
    texts = drawn_texts(figure)
    assert {"dense", "fast", "slow", "gpt2 $x_1$ <b>", "steps (log scale)"} <= texts
    assert {f"{arrow.factor:.3g}x" for arrow in drawn} <= texts
    assert not unlabeled(figure)
    (axes,) = figure.axes
    heads = [child for child in axes.get_children() if isinstance(child, Annotation) and child.arrow_patch is not None]
    assert len(heads) == len(drawn)
    low, high = axes.get_xlim()
    assert all(low < arrow.stop <= arrow.start < high for arrow in drawn)


def test_references_are_dashed_in_the_color_of_their_shape() -> None:
    """Several references can be told apart."""
    pairs = [(arm(name, 2.0), arm(f"sp {name}", 1.0)) for name in ("w32", "w64")]
    lines = {str(line.get_label()): line for line in draw(block_of(compared(pairs, ()))).legends[0].get_lines()}
    looks = {name: (line.get_color(), line.get_linestyle()) for name, line in lines.items()}
    assert len({looks[name] for name in ("w32", "w64", "sp w32", "sp w64")}) == 4
    for name in ("w32", "w64"):
        assert looks[f"sp {name}"] == (looks[name][0], "--")


def test_no_arm_that_has_the_loss_is_said_in_the_title() -> None:
    slow = arm("slow", 0.5)
    assert same_loss(slow).title == "Steps to the same loss, moe: complete-mue never has it"
    assert not arrows(slow)


@pytest.mark.parametrize("scale_name", ["rank", "step", "loss", "noise", "x", "shape", "axis"])
def test_a_scale_of_any_name_changes_no_curve(scale_name: str) -> None:
    """A user's own trainer names its dimensions itself, LoRA's rank for one."""
    lines = [
        [(list(line.get_xdata()), list(line.get_ydata())) for axes in draw(shown(each)).axes for line in axes.lines]
        for each in (whole(scale_name=scale_name), WHOLE)
    ]
    assert lines[0] == lines[1]
    assert f"of {scale_name} 32 to 128 at" in shown(whole(scale_name=scale_name)).title


def test_shapes_of_one_scale_stay_apart() -> None:
    twins = draw(shown(whole(scales=(32.0, 32.0, 128.0))))
    curves = [line for line in twins.axes[0].lines if line.get_marker() != "x"]
    assert [len(line.get_xdata()) for line in curves[:3]] == [4, 4, 2]
    (axes,) = draw(balance(load(32, 0.25, 0.1), load(32, 0.25, 0.2, shape="other", is_base=False))).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1] * 4
