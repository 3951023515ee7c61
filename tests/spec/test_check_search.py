"""The search and early stopping of a sweep file: what is read, refused, and how large a budget it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.budget import arm_budget, budget_text

EXAMPLES = Path(__file__).resolve().parents[2] / "sweeps" / "search"
LR = ("[0.01]", "{log2: [-9, -4]}")


def sweep(search: str, *edits: tuple[str, str], more: str = "") -> SweepSpec:
    return parse_sweep(f"{edited(*(edits or (LR,)))}search: {search}\n{more}")


TWO = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: [0.5, 1, 2]")
ONE = ("lr: [0.01]", "lr: [0.01]")
NO_GRID = (("grid:\n  lr: [0.01]\n", ""), ("hps:", "hps:\n  lr: 0.01"))


@pytest.mark.parametrize(
    ("search", "edits", "budget"),
    [
        ("grid", (LR,), 12),
        ("{kind: grid, budget: 12}", (LR,), 12),
        ("{kind: random, points: 5}", (LR,), 10),
        ("{kind: random, budget: 11}", (LR,), 10),
        ("{kind: optuna, budget: 8, sampler: TPESampler, batch: 4}", (LR,), 8),
        # Six values, eight more at most, three rounds of two, and the base's best: 19 points.
        ("{kind: refine, until_octaves: 0.25}", (LR,), 42),
        ("{kind: refine, budget: 20}", (LR,), 20),
        ("{kind: coordinate, multipliers: [router.lr_mult]}", (LR,), 2 * (6 + 2 * 3 + 4)),
        ("{kind: coordinate, multipliers: [router.lr_mult], values: [0.5, 1, 2], passes: 3}", NO_GRID, 2 * (1 + 6)),
        ("{kind: staged-grid, multipliers: [init_scale, router.lr_mult], recenters: 0}", (LR,), 2 * (6 + 9 + 25)),
        (
            "{kind: staged-grid, multipliers: [eps + init_scale], broad: {points: 3, ratio: 9}, recenters: 1}",
            (LR,),
            2 * (6 + 3 + 2 * 3 + 2 * 5),
        ),
    ],
)
def test_the_budget_of_an_arm(search: str, edits: tuple[tuple[str, str], ...], budget: int) -> None:
    spec = sweep(search, *edits)
    assert arm_budget(spec) == budget
    assert f"{budget} trials for each arm" in budget_text(spec)
    assert parse_sweep(dump_sweep(spec)) == spec
    assert dump_sweep(spec).startswith(f"# {budget_text(spec)}\n")


def test_a_sweep_that_says_nothing_is_a_grid_that_stops_only_what_diverges() -> None:
    spec = parse_sweep(edited())
    assert (spec.search.kind, spec.search.where, spec.early_stopping.asha) == ("grid", "all", None)
    assert parse_sweep(edited() + "early_stopping: none\n") == spec


@pytest.mark.parametrize(("kind", "where"), [("{kind: random, points: 1}", "all"), ("coordinate", "base")])
def test_where_a_search_searches(kind: str, where: str) -> None:
    assert sweep(kind).search.where == where


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("greed", "search.kind: unknown search 'greed'; did you mean 'grid'?"),
        ("{kind: random, hp: lr}", "search.hp: unknown key; legal: at, budget, kind, points, seed"),
        ("{kind: grid, bugdet: 12}", "search.bugdet: unknown key; did you mean 'budget'?"),
        ("{kind: grid, budget: 11}", "search.budget: must buy the whole grid: at least 12 trials per arm"),
        ("{kind: grid, points: 5}", "search.points: unknown key; legal: at, budget, kind"),
        ("random", "search: random needs one of points and budget"),
        ("{kind: random, points: 4, budget: 8}", "got both"),
        ("{kind: random, budget: 1}", "search.budget: must buy a point with every seed: at least 2 trials"),
        ("{kind: random, points: 4, sequence: halton}", "search.sequence: must be 'sobol' or 'uniform'"),
        ("optuna", "search.budget: must be given with optuna"),
        ("{kind: refine, budget: 13}", "search.budget: must buy the first line of every HP and, beside it, the base's"),
        ("{kind: refine, until_octaves: 0}", "search.until_octaves: must be greater than 0, got 0"),
        ("{kind: coordinate, budget: 11, multipliers: [router.lr_mult]}", "must buy its first round: at least 12"),
        ("{kind: coordinate, multipliers: [lr]}", "search.multipliers[0]: lr and init stay fixed"),
        ("{kind: coordinate, multipliers: [init_scale]}", "lr and init stay fixed"),
        ("{kind: coordinate, multipliers: [ruoter.lr_mult]}", "unknown role 'ruoter'; did you mean 'router'?"),
        ("{kind: coordinate, multipliers: [router.lr_mul]}", "did you mean 'lr_mult'?"),
        ("{kind: coordinate, multipliers: [norm.init_mult]}", "the role starts at exact ones"),
        ("{kind: coordinate, multipliers: [dense_in.lr_mult]}", "no tensor of role dense_in"),
        ("{kind: coordinate, multipliers: [router.lr_mult, attn_q.lr_mult + router.lr_mult]}", "stands twice"),
        ("{kind: coordinate, values: [1]}", "search.values: must hold a ratio other than 1"),
        ("{kind: coordinate, values: [0.5, 0.5]}", "a ratio stands twice"),
        ("{kind: coordinate, values: [-2]}", "a ratio must be above zero"),
        ("{kind: coordinate, values: [0.5, 1.0e+39]}", "search.values: a ratio must be from 2^-126 to 2^127"),
        ("{kind: coordinate, values_of: {init_mult: {log2: [-900, 0]}}}", "init_mult: a ratio must be from 2^-126 to"),
        ("{kind: coordinate, values: {log2: [1]}}", "must be a list of ratios"),
        ("{kind: coordinate, values_of: {router.init: [2]}}", "search.values_of.router.init: must be a multiplier"),
        ("{kind: random, points: 500001}", "search.points: must leave at most 200000 trials in the sweep"),
        ("{kind: optuna, budget: 1000000000}", "search.budget: must leave at most 200000 trials in the sweep"),
        ("staged-grid", "search.multipliers: must name the HPs of the grid with staged-grid"),
        ("{kind: staged-grid, multipliers: [beta1]}", "no multiplicative scale"),
        ("{kind: staged-grid, multipliers: [lr]}", "lr has its own stage"),
        ("{kind: staged-grid, multipliers: [weight_decay]}", "must be above zero to be multiplied"),
        ("{kind: staged-grid, multipliers: [init_scale], fine: {points: 4, ratio: 2}}", "points: must be odd"),
        ("{kind: staged-grid, multipliers: [init_scale], fine: {points: 3, ratio: 1}}", "fine.ratio: must be greater"),
        ("{kind: staged-grid, multipliers: [init_scale], broad: {points: 101, ratio: 1000}}", "within 400 octaves"),
        ("{kind: staged-grid, multipliers: [init_scale], recenters: 1000}", "search.fine: must stay within 400"),
        ("{kind: staged-grid, multipliers: [init_scale], budget: 27}", "must buy each of the three stages once"),
        (
            "{kind: staged-grid, fine: {points: 101, ratio: 2}, multipliers: "
            "[init_scale, router.lr_mult, attn_q.lr_mult, attn_k.lr_mult]}",
            "must leave at most 10000000 points",
        ),
    ],
)
def test_what_is_refused_and_how_it_is_said(search: str, said: str) -> None:
    with pytest.raises(HpxferError) as caught:
        sweep(search)
    assert said in str(caught.value)
    assert str(caught.value).startswith("<sweep>:2"), "the line of the key"


@pytest.mark.parametrize(
    ("search", "edits", "said"),
    [
        (
            "{kind: random, points: 2}",
            (TWO, ("seeds: 2", "product: true\nseeds: 2")),
            "product: is of the search grid, got random",
        ),
        ("{kind: coordinate}", (("seeds: 2", "seeds: 1"),), "needs at least 2, got 1"),
        ("{kind: coordinate}", (TWO, ("hps:", "hps:\n  lr: 0.01")), "grid.init_scale: coordinate scans only lr"),
        ("{kind: staged-grid, multipliers: [init_scale]}", (*NO_GRID, ("seeds", "grid: {eps: [1e-8]}\nseeds")), "grid"),
        (
            "{kind: random, points: 2}",
            (("[0.01]", "[0.01]\n  weight_decay: [0, 0.1]"),),
            "grid.weight_decay: must be above zero to be searched on a log scale, got 0",
        ),
        ("{kind: random, points: 2}", (ONE,), "grid: must have an HP with two ends to draw from"),
        ("{kind: random, points: 2}", (("lr: [0.01]", "lr: {log2: [1]}"),), "grid.lr.log2: must be [low, high]"),
        ("{kind: grid}", (*NO_GRID,), "grid: must scan at least one HP"),
    ],
)
def test_a_search_and_the_rest_of_the_sweep(search: str, edits: tuple[tuple[str, str], ...], said: str) -> None:
    with pytest.raises(HpxferError) as caught:
        sweep(search, *edits)
    assert said in str(caught.value)


def test_random_points_of_two_hps_need_no_base_lr() -> None:
    assert sweep("{kind: random, points: 2}", TWO).hps.lr is None
    with pytest.raises(HpxferError, match="the line of init_scale runs through it"):
        sweep("refine", TWO)


def test_early_stopping_by_asha() -> None:
    asha = sweep("grid", more="early_stopping: {asha: {grace_steps: 20}}\n").early_stopping.asha
    assert asha is not None
    assert (asha.grace_steps, asha.reduction_factor) == (20, 4.0)
    with pytest.raises(HpxferError, match=r"early_stopping\.asha\.grace_steps: must be less than the run's 200 steps"):
        sweep("grid", more="early_stopping: {asha: {grace_steps: 200}}\n")
    with pytest.raises(HpxferError, match=r"early_stopping\.asha: cannot be with search refine, which decides by the"):
        sweep("refine", more="early_stopping: {asha: {grace_steps: 20}}\n")
    with pytest.raises(HpxferError, match="early_stopping"):
        sweep("grid", more="early_stopping: asha\n")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_of_a_search_loads_and_states_its_budget(path: Path) -> None:
    spec = load_sweep(path)
    assert spec.search.kind == path.stem.replace("_", "-")
    assert arm_budget(spec) >= 1
