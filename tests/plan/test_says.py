"""What a plan says beside its numbers: cautions, base values off the grid, active parameters, the verdict to expect."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import hpxfer
from made_results import DATA
from planted_lines import line
from sweep_text import SWEEP, edited, with_keys
from tiny import write_tiny

from hpxfer.driver import prepare
from hpxfer.model.cost import active_without_embeddings, optimizer_flops, optimizer_share
from hpxfer.plan.cautions import active_lines, cautions
from hpxfer.plan.make import make_plan, optimizer_lines
from hpxfer.plan.outlook import PUBLISHED_NOISE, Outlook, outlook
from hpxfer.plan.text import plan_text
from hpxfer.search import Outcome
from hpxfer.spec import load_sweep, parse_sweep
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses, loss_grids
from hpxfer.verdict.transfer import find

TABLES = "[completep-moe, sp]"
AXIS = "  width: [32, 64]"
TWO = ("num_experts: 4, num_active: 1", "num_experts: 8, num_active: 2")
NORMALIZED = ("context: 64", "context: 64\n  gate: normalized_sigmoid")
SOFTMAX = ("context: 64", "context: 64\n  gate: softmax")
ALL_ACTIVE = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 4")


def said(*edits: tuple[str, str]) -> tuple[str, ...]:
    return cautions(Expansion(parse_sweep(edited(*edits)), DATA))


def test_nothing_is_said_of_a_sweep_inside_its_table() -> None:
    assert said() == ()
    assert said(TWO, NORMALIZED, (TABLES, "[complete-mue, sp]")) == ()


def test_one_line_for_a_table_and_an_axis() -> None:
    (line,) = said((AXIS, "  duration: [400, 800]"))
    assert line == "completep-moe along duration: completep-moe does not cover duration: it changes by a factor of 4"
    several = "  long: [{steps: 400}, {steps: 800, num_groups: 2}]\n  duration: [400]"
    first, second = said((AXIS, several), TWO)
    assert first.startswith("completep-moe along long: completep-moe does not cover duration: ")
    assert "completep-moe does not cover groups: it goes from 1 to 2" in first
    assert second.startswith("completep-moe along duration: ")
    (line,) = said((AXIS, "  capacity: {values: [8], allow_kappa_change: true}"))
    assert line.startswith("completep-moe along capacity: completep-moe holds kappa fixed: it goes from 0.25 to 0.125")


@pytest.mark.parametrize(
    ("edits", "more"),
    [
        ((), "; and at 1 more shape"),
        (((AXIS, "  width: [64, 128]"),), "; and at 2 more shapes"),
        ((TWO, (AXIS, "  experts: [4]")), ""),
    ],
)
def test_a_gate_that_is_constant(edits: tuple[tuple[str, str], ...], more: str) -> None:
    first, *_ = said(NORMALIZED, *edits, (TABLES, "[complete-mue]"))
    assert first == (
        "gate normalized_sigmoid with num_active 1 (w32 d2 E4A1 h32): the gate is constant, the router does not learn"
        + more
    )


def test_a_zero_router_is_cautioned_of_where_ties_go_to_the_lowest_index() -> None:
    tables, untied = (TABLES, "[mssp-i, sp]"), ("context: 64", "context: 64\n  tied_embeddings: false")
    regime_i = (AXIS, "  width: [64]")
    by_index = (untied[0], f"{untied[1]}\n  ties: {{mssp-i: index}}")
    assert said(tables, untied, regime_i) == ()
    (line,) = said(tables, by_index, regime_i)
    assert line.startswith("mssp-i starts from a zero router: where ties go to the lowest index, all tokens go to the ")
    assert "same 1 of 4 experts at first" in line


def test_what_the_control_holds_along_experts() -> None:
    experts = (AXIS, "  experts: [4, 16]")
    (line,) = said(experts)
    assert line.startswith(
        "sp along experts: sp keeps the base's divisor of the experts' sum: it divides the sum of 4 "
    )
    wider = (AXIS, "  experts: [8, 32]")
    assert said(wider, TWO, (TABLES, "[complete-mue, sp]"), NORMALIZED) == ()


def test_what_is_wrong_at_the_base_is_said_once_and_of_no_axis() -> None:
    axes = (AXIS, "  width: [64]\n  wide: [{width: 64}]")
    soft = ("context: 64", "context: 64\n  gate: softmax\n  tied_embeddings: false")
    zero_router = ("[completep-moe, sp]", "[mssp-i, sp]")
    (line,) = said(ALL_ACTIVE, soft, axes, zero_router)
    assert line.startswith("mssp-i starts from a zero router, all 4 experts are active")
    sigmoid = ("context: 64", "context: 64\n  tied_embeddings: false")
    assert said(ALL_ACTIVE, sigmoid, axes, zero_router) == ()  # whose router moves
    both = said(ALL_ACTIVE, SOFTMAX, axes, zero_router)  # tied: a second line, and none of an axis
    assert len(both) == 2
    assert not any(" along " in caution for caution in both)


HPS, GRID = "  router_bias_lr: 0.01", "  lr: [0.01]"
BOTH = "  lr: {log2: [-9, -4]}\n  init_scale: [0.5, 1, 2]"


def scanned(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> Expansion:
    return Expansion(parse_sweep(edited((HPS, f"{HPS}\n{hps}" if hps else HPS), (GRID, grid), *more)), DATA)


def said_of(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> tuple[str, ...]:
    return cautions(scanned(hps, grid, *more))


def num_trials(made: Expansion) -> int:
    return sum(1 for _ in made.trials())


def test_a_value_that_the_grid_has_not_is_named_with_the_nearest_that_it_has() -> None:
    (line,) = said_of("  lr: 0.0156")
    assert line == (
        "hps.lr: 0.0156 is no point of grid.lr, of which the nearest is 0.015625; the lines of init_scale run through "
        "it, and meet that of lr nowhere"
    )
    assert num_trials(scanned("  lr: 0.0156")) - num_trials(scanned("  lr: {log2: -6}")) == 6
    assert said_of("  lr: {log2: -6}") == said_of("  lr: 0.015625") == ()


@pytest.mark.parametrize(
    ("hps", "grid", "key"),
    [
        ("  lr: 0.01\n  init_scale: 1.01", "  lr: [0.01, 0.02]\n  init_scale: [0.5, 1, 2]", "hps.init_scale: 1.01"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  init_scale: [0.5, 2]", "hps.init_scale: 1.0"),  # by default
        (
            "  lr: 0.01\n  multipliers: {router.lr_mult: 0.2501}",
            "  lr: [0.01, 0.02]\n  router.lr_mult: [0.25, 1]",
            "hps.multipliers.router.lr_mult: 0.2501",
        ),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  weight_decay: [0.1, 0.2]", "training.weight_decay: 0.0"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  eps: [1.0e-8, 1.0e-6]", "training.eps: 1e-12"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  beta2: [0.9501, 0.99]", "training.betas[1]: 0.95"),
    ],
)
def test_every_hp_is_looked_at(hps: str, grid: str, key: str) -> None:
    (line,) = said_of(hps, grid)
    assert line.startswith(f"{key} ")


@pytest.mark.parametrize(
    ("hps", "grid", "more"),
    [
        ("  lr: {log2: -6}", "  lr: {log2: [-9, -4]}", ()),
        ("  lr: 0.01", "  init_scale: [0.5, 2]", ()),  # 1 by default
        ("  lr: {log2: -6}", BOTH, (("seeds: 2", "seeds: 2\nproduct: true"),)),
        ("", BOTH, (("seeds: 2", "seeds: 2\nproduct: true"),)),
        ("", BOTH, (("seeds: 2", "seeds: 2\nsearch: {kind: random, points: 4}"),)),  # points in a box
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  router.lr_mult: [0.5, 1]", ()),  # 1 by default
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  beta2: [0.95, 0.99]", ()),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  weight_decay: [0, 0.1]", ()),
    ],
)
def test_no_false_alarm(hps: str, grid: str, more: tuple[tuple[str, str], ...]) -> None:
    assert said_of(hps, grid, *more) == ()


@pytest.mark.parametrize(
    ("hps", "grid"),
    [("  lr: 0.5", "  lr: {log2: [-9, -4]}"), ("  init_scale: 0.7\n  lr: 0.01", "  init_scale: [0.5, 1]")],
)
def test_a_value_that_no_line_runs_through_has_no_effect(hps: str, grid: str) -> None:
    (line,) = said_of(hps, grid)
    key, _, value = hps.splitlines()[0].strip().partition(": ")
    assert line.startswith(f"hps.{key}: {value} is no point of grid.{key}, ")
    assert line.endswith("; no other line runs through it, so it has no effect")
    assert list(scanned(hps, grid).trials()) == list(scanned(hps.replace(value, "0.123"), grid).trials())


def test_a_run_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("  lr: {log2: [-8, -4]}", "  lr: {log2: [-8, -4]}\n  init_scale: [1, 2]\nhps: {lr: 0.0156}")
    sweep = write_tiny(tmp_path, lines)
    within = ("--hardware", "h200", "--max-gpu-hours", "0")  # so that `run` ends before it trains
    _, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path / "results", *within)
    assert "warning: hps.lr: 0.0156 is no point of grid.lr" in err


TO_DENSE = (
    "  width: [32, 64]",
    "  width: [32, 64]\n  dense: {shapes: [{num_experts: 0}, {num_experts: 0, dense_ratio: 4}], "
    "allow_kappa_change: true}",
)


def test_moe_shapes_are_given_relative_to_the_nearest_dense_one() -> None:
    expansion = Expansion(parse_sweep(edited(TO_DENSE)), DATA)
    # attention 4 x 32^2, FFN 2 x 32 x H, two norms of 2 x 32, in 2 blocks; the final norm; routers 2 x 32 x 4
    dense = 2 * (4 * 32**2 + 2 * 32 * 32)
    small, large = active_lines(expansion)
    count = active_without_embeddings(expansion.shapes[-2], expansion.setting_at(expansion.shapes[-2]))
    assert dense <= count < 1.05 * dense
    assert small == (
        f"active parameters without embeddings, relative to the dense w32 d2 D32 ({count:,}): "
        f"w32 d2 E4A1 h32 {(count + 2 * 32 * 4) / count:.3g}"
    )
    assert large.startswith("active parameters without embeddings, relative to the dense w32 d2 D128 (")
    plan = make_plan(expansion, ())
    assert plan.notes["active"] == (small, large)
    assert small in plan_text(plan)
    assert plan.to_dict()["active"] == [small, large]
    assert active_lines(Expansion(parse_sweep(edited()), DATA)) == ()


SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
HALVES = tuple(exponent / 2 for exponent in range(-16, -7))
BYTES = DataRef(digest="0", tokenizer="bytes", vocab_size=256)


def expected(*edits: str, outcomes: Mapping[str, Outcome] | None = None) -> Outlook:
    found = outlook(quickstart(*edits), outcomes or {})
    assert found is not None
    return found


def quickstart(*edits: str) -> Expansion:
    return Expansion(load_sweep(SWEEPS / "quickstart.yaml", overrides=edits), BYTES)


@pytest.mark.parametrize(
    ("edit", "why", "add"),
    [
        ("axes.width=[32]", "no shape beyond the base", "a shape beyond the base"),
        ("grid.lr=[0.01, 0.02]", "2 HP values have a finite loss, 3 are needed", "HP values 0.005, 0.04"),
        ("grid.lr=[0.001, 0.01, 0.1]", "probability", "next to the best one"),
    ],
)
def test_what_a_sweep_lacks_is_what_its_verdict_would_lack(edit: str, why: str, add: str) -> None:
    found = expected(edit)
    assert why in (found.why_not or "")
    assert add in "".join(found.to_add)
    assert found.line().startswith("verdict: this sweep cannot end in one: ")


def test_one_seed_ends_in_no_verdict_and_one_number_of_seeds_is_asked_for() -> None:
    one, six = expected("seeds=1"), expected("seeds=6")
    assert "one seed" in (one.why_not or "")
    assert one.to_add == ()
    assert one.seeds_needed is not None
    assert six.seeds_needed is not None
    assert np.abs(np.subtract(one.seeds_needed, six.seeds_needed)).max() <= 1  # of 18, rounding


@pytest.mark.parametrize(
    ("seeds", "said"), [(2, "will probably not decide"), (8, "may decide"), (30, "probably decide")]
)
def test_the_seeds_of_a_sweep_are_compared_with_what_published_noise_asks_for(seeds: int, said: str) -> None:
    found = expected(f"seeds={seeds}")
    assert (found.why_not, found.noise) == (None, PUBLISHED_NOISE)
    assert said in found.line()


def test_stored_trials_replace_the_published_noise() -> None:
    sweep, rng = quickstart("seeds=4"), np.random.default_rng(1)
    outcomes = {
        cell.trial.id: Outcome(
            status="finished",
            loss=2.0 + 0.04 * (math.log2(cell.trial.hps.lr) + 6) ** 2 + 0.006 * float(rng.standard_normal()),
        )
        for cell in sweep.cells()
    }
    found = outlook(sweep, outcomes)
    assert found is not None
    assert found.noise is not None
    assert found.noise[0] == found.noise[1] == pytest.approx(0.003, rel=0.3)
    assert "that of the stored trials" in found.line()
    assert found.seeds_needed is not None
    assert found.seeds_needed[0] <= 3


@pytest.mark.parametrize(("drift", "verb"), [(0.28, "will probably"), (0.44, "will probably not")])
def test_the_plan_of_a_follow_up_says_what_the_report_says(drift: float, verb: str) -> None:
    """By noise alone 10 seeds would decide in both cases. In one a regret lies close to its limit."""
    frame = line({"completep-moe": lambda doublings: -6 + drift * doublings}, grid=HALVES, seeds=6, noise=0.03)
    (more,) = find(loss_grids(frame))[0].to_add
    edits = "parameterizations=[completep-moe]", f"grid.lr.values={[2.0**exponent for exponent in HALVES]}"
    loss = {(row["scale"], row["value"], row["seed"]): row["loss"] for row in frame.to_dict("records")}
    outcomes = {
        trial.id: Outcome(status="finished", loss=loss[trial.shape.width, trial.hps.lr, trial.seed])
        for trial in quickstart(*edits).trials()
    }
    assert f"{more.seeds} seeds {verb} decide" in expected(f"seeds={more.seeds}", *edits, outcomes=outcomes).line()
    assert more.text.endswith("which will probably not decide") == verb.endswith("not")


def test_a_sweep_of_fixed_hps_is_not_asked_for_a_verdict() -> None:
    assert outlook(Expansion(parse_sweep(edited()), DATA), {}) is None
    assert outlook(Expansion(parse_sweep(edited(("lr: [0.01]", "lr: [0.01, 0.02]"))), DATA), {}) is not None


def test_a_search_without_a_line_has_no_verdict() -> None:
    found = outlook(Expansion(load_sweep(SWEEPS / "search" / "random.yaml"), BYTES), {})
    assert found is not None
    assert "there is no line of lr to judge" in (found.why_not or "")


def test_the_plan_says_it_in_one_line_and_as_data(tmp_path: Path) -> None:
    plan = prepare(write_tiny(tmp_path), results=tmp_path).plan
    assert plan.outlook is not None
    assert plan_text(plan).splitlines()[-1] == plan.outlook.line()
    assert plan.to_dict()["outlook"]["text"] == plan.outlook.line()


def test_so_many_seeds_decide_and_a_third_of_them_rarely_does() -> None:
    """The sweep is planted apart from the outlook: other losses, an optimum between two values, a draw of noise."""

    def decided(num_seeds: int, draw: int) -> bool:
        rng = np.random.default_rng([draw, num_seeds])
        rows = [
            ShapeLosses(
                axis="width",
                scale_name="width",
                scale=width,
                shape=f"w{width}",
                is_base=width == 32,
                parameterization="planted",
                cells=tuple(
                    SeedLosses(
                        value=2.0**x,
                        seeds=tuple(range(num_seeds)),
                        losses=tuple(2.4 + 0.05 * (x + 6.3) ** 2 + 2.4 * share * rng.standard_normal(num_seeds)),
                        num_missing=0,
                    )
                    for x in range(-9, -3)
                ),
            )
            for width in (32, 64, 128)
        ]
        return find([LossGrid(rows=tuple(rows))])[0].verdict == "transfers"

    share = PUBLISHED_NOISE[0]
    needed = (expected().seeds_needed or (0, 0))[0]
    assert sum(decided(needed, draw) for draw in range(4)) >= 2
    assert sum(decided(max(needed // 3, 2), draw) for draw in range(4)) <= 1


def test_the_share_of_muon_is_a_quarter_at_the_batch_that_the_plan_names() -> None:
    spec = parse_sweep(with_keys(SWEEP, "training.optimizer: muon", "hps.adamw_lr: 0.01"))
    made = Expansion(spec, DATA)
    (line,) = optimizer_lines(made)
    large, setting = made.shapes[-1], made.setting_at(made.shapes[-1])
    found = re.search(rf"{large.label()} from ([\d,]+) tokens", line)
    assert found is not None, line
    tokens = int(found[1].replace(",", ""))
    assert optimizer_share(large, replace(setting, batch_tokens=tokens)) <= 0.25
    assert optimizer_share(large, replace(setting, batch_tokens=tokens - 1)) > 0.25
    # Five steps of three products on square matrices: 5 (4 + 2) width^3 for each of q, k, v, o, and two of each expert.
    count = large.depth * (4 + 2 * large.num_experts)
    assert optimizer_flops(large, setting) == pytest.approx(count * 30 * large.width**3)
    assert optimizer_lines(Expansion(parse_sweep(SWEEP), DATA)) == ()
