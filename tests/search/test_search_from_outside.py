"""A search that is written outside the package: one file with its row, named by a sweep's plug-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from landscape import Landscape
from searched import searched
from sweep_text import SWEEP

from hpxfer.driver.prepared import prepare
from hpxfer.errors import HpxferError
from hpxfer.plan.text import plan_text
from hpxfer.registry import Registry
from hpxfer.results import load_results
from hpxfer.search.kinds import SEARCHES
from hpxfer.spec import load_sweep
from hpxfer.spec.budget import arm_budget
from hpxfer.testing.searches import SearchSuite

SOURCE = '''
"""Ladder: the learning rate is halved from the highest of the grid until the loss grows."""

from collections import Counter

from hpxfer.search import SearchKind, register_search
from hpxfer.search.rounds import End, Round, lowest_point, mean, search_each_arm
from hpxfer.spec.fields import Count, Section
from hpxfer.trial import base_hps


class LadderSettings(Section):
    """The keys of a ladder."""

    rungs: Count = 4
    """The most learning rates."""


def size(spec):
    return spec.search.settings(LadderSettings).rungs


def ladder(spec):
    lr, losses, points = spec.grid["lr"].numbers()[-1], [], []
    while len(points) < size(spec):
        points.append(base_hps(spec).with_value("lr", lr / 2 ** len(points)))
        (found,) = yield Round(points=(points[-1],), why=f"lr {points[-1].lr:g}")
        losses.append(found)
        if len(losses) > 1 and mean(losses[-1]) > mean(losses[-2]):
            break
    best = lowest_point(list(zip(points, losses)))
    return End(why="the loss grew" if best else "everything diverged", best=best)


def make(expansion, stored):
    return search_each_arm(expansion, "ladder", lambda arm: ladder(expansion.spec), size(expansion.spec))


LADDER = register_search(
    SearchKind(
        name="ladder",
        settings=LadderSettings,
        size=size,
        rounds=lambda spec: Counter({1: size(spec)}),
        make=make,
        tunes="lines",
    )
)
'''
TEXT = SWEEP.replace("[0.01]", "{log2: [-9, -4]}") + "plugins: [./ladder.py]\n"


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Path]:
    """A sweep that names the search of the plug-in beside it. Afterwards the search is forgotten."""
    (tmp_path / "ladder.py").write_text(SOURCE)
    path = tmp_path / "sweep.yaml"
    path.write_text(TEXT + "search: {kind: ladder, rungs: 5}\n")
    yield path
    forget()


def forget() -> None:
    for module in [module for module in sys.modules if module.startswith("hpxfer_plugin_")]:
        Registry.remove_module(module)
        del sys.modules[module]


def test_it_plans_runs_and_is_read_again_without_its_code(sweep: Path, tmp_path: Path) -> None:
    prepared = prepare(sweep, results=tmp_path / "planned", executor="local")
    assert arm_budget(prepared.spec) == 10
    assert "search ladder: at most 10 trials for each arm" in plan_text(prepared.plan)
    known = searched(prepared.expansion, Landscape(optima={"lr": -6.0}), tmp_path / "results")
    values = sorted(known.line("lr")["value"].unique())
    assert values == [2.0**exponent for exponent in (-7, -6, -5, -4)]
    assert len(known.trials) == 3 * 4 * 2
    forget()
    results = load_results(tmp_path / "results")
    assert "ladder" not in SEARCHES
    assert results.spec.search.kind == "ladder"
    assert results.line("lr")["loss"].tolist() == known.line("lr")["loss"].tolist()


def test_it_passes_the_suite(sweep: Path) -> None:
    load_sweep(sweep)
    kind, text = SEARCHES.get("ladder"), sweep.read_text().partition("plugins")[0] + "search: {kind: ladder}\n"
    suite = SearchSuite()
    for name in dir(suite):
        if name == "test_every_key_is_documented":
            suite.test_every_key_is_documented(kind)
        elif name.startswith("test_"):
            getattr(suite, name)(kind, text)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("{kind: ladder, rungs: 0}", "search.rungs: must be greater than or equal to 1, got 0"),
        ("{kind: ladder, rung: 3}", "search.rung: unknown key; did you mean 'rungs'"),
        ("{kind: ladder, points: 3}", "search.points: unknown key; legal: "),
        ("{kind: laddr}", "search.kind: unknown search 'laddr'; did you mean 'ladder'"),
    ],
)
def test_its_keys_are_checked_like_those_of_a_shipped_search(sweep: Path, search: str, message: str) -> None:
    sweep.write_text(TEXT + f"search: {search}\n")
    with pytest.raises(HpxferError) as error:
        load_sweep(sweep)
    assert message in str(error.value)
