"""The outlook: a sweep that cannot end in a verdict is told so before it runs, and how many seeds it probably takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny

from hpxfer.driver import prepare
from hpxfer.plan.outlook import PUBLISHED_NOISE, Outlook, outlook
from hpxfer.plan.text import plan_text
from hpxfer.search import Outcome
from hpxfer.spec import load_sweep
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses
from hpxfer.verdict.transfer import find

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"
DATA = DataRef(digest="0", tokenizer="bytes", vocab_size=256)


def expected(*edits: str, outcomes: Mapping[str, Outcome] | None = None) -> Outlook:
    found = outlook(expansion(*edits), outcomes or {})
    assert found is not None
    return found


def expansion(*edits: str) -> Expansion:
    return Expansion(load_sweep(SWEEPS / "quickstart.yaml", overrides=edits), DATA)


@pytest.mark.parametrize(
    ("edit", "why", "add"),
    [
        ("axes.width=[32]", "no shape beyond the base", "a shape beyond the base"),
        ("grid.lr=[0.01]", "1 HP value has a finite loss, 3 are needed", "HP values 0.005, 0.02"),
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
    sweep, rng = expansion("seeds=4"), np.random.default_rng(1)
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


def test_a_missing_control_is_said() -> None:
    assert expected().at_best is None
    assert "no arm is the control sp" in expected("parameterizations=[completep-moe]").line()


def test_a_search_without_a_line_has_no_verdict() -> None:
    found = outlook(Expansion(load_sweep(SWEEPS / "search" / "random.yaml"), DATA), {})
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
    assert sum(decided(needed, draw) for draw in range(8)) >= 4
    assert sum(decided(max(needed // 3, 2), draw) for draw in range(8)) <= 2
