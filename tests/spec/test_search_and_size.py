"""Searches, early stopping, and how large a sweep may be: what is read, what it costs, and what is planned at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from sweep_text import edited
from tiny import write_tiny

from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.budget import arm_budget, budget_text

EXAMPLES = Path(__file__).resolve().parents[2] / "sweeps" / "search"
LR = ("[0.01]", "{log2: [-9, -4]}")


def sweep(search: str, *edits: tuple[str, str], more: str = "") -> SweepSpec:
    return parse_sweep(f"{edited(*(edits or (LR,)))}search: {search}\n{more}")


TWO = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: [0.5, 1, 2]")
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
    assert [sweep(kind).search.where for kind in ("{kind: random, points: 1}", "coordinate")] == ["all", "base"]


def test_random_points_of_two_hps_need_no_base_lr() -> None:
    assert sweep("{kind: random, points: 2}", TWO).hps.lr is None


def test_early_stopping_by_asha() -> None:
    asha = sweep("grid", more="early_stopping: {asha: {grace_steps: 20}}\n").early_stopping.asha
    assert asha is not None
    assert (asha.grace_steps, asha.reduction_factor) == (20, 4.0)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_of_a_search_loads_and_states_its_budget(path: Path) -> None:
    spec = load_sweep(path)
    assert spec.search.kind == path.stem.replace("_", "-")
    assert arm_budget(spec) >= 1


DATA = ('data: {source: "builtin:stdlib"}', "data: {source: 'tokens:none.bin', digest: abc}")
LONG = {"context": 16, "batch_tokens": 64, "validation_tokens": 128}
LIST = "[{}]".format(", ".join(f"{{width: {16 * (at % 50 + 1)}, depth: {at // 50 + 1}}}" for at in range(600)))


@pytest.mark.parametrize(
    "edits",
    [
        [("depth: 1", "depth: 10000, dense_ratio: 1"), ("context: 16", "context: 16\n  moe_every: 3")],
        [("num_experts: 2, num_active: 1", "num_experts: 1000000000, num_active: 1000000000, num_groups: 1000000000")],
        [("steps: 6, validation_tokens: 128", f"steps: 1000000000, validation_tokens: {2**53}"), DATA],
        [*((f"{key}: {value}", f"{key}: 999999968") for key, value in LONG.items()), DATA],
        pytest.param(
            [("width: [16, 32]", f"a: {LIST[: LIST.index('{width: 16, depth: 5}') - 2]}]")], marks=pytest.mark.slow
        ),
        pytest.param([("seeds: 2", "seeds: 5000"), ("log2: [-8, -4]", "log2: [-12, -3]")], marks=pytest.mark.slow),
        [("workers: 2", "workers: 1000000000, stack_size: 1000000000")],
        [("seeds: 2", "seeds: 2\nsearch: {kind: coordinate, passes: 1000000000}")],
        pytest.param([("seeds: 2", "seeds: 100\nsearch: {kind: random, points: 240}")], marks=pytest.mark.slow),
    ],
    ids=lambda edits: str(edits[0][1])[-50:],
)
def test_what_is_within_limits(
    edits: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny(tmp_path, *edits)
    code, _, err = hpxfer(capsys, "plan", path, "--results", tmp_path, "--no-strict-memory")
    assert (code, [line for line in err.splitlines() if not line.startswith("warning: ")]) == (0, [])
