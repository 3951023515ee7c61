"""Searches of arms with HPs of their own, with a trainer of the user's own, and written outside the package."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from landscape import Landscape
from searched import searched
from sweep_text import SWEEP as PLAIN_SWEEP

from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.model.cost import relative_cost, train_flops
from hpxfer.plan.text import plan_text
from hpxfer.recipe import recipe_of
from hpxfer.registry import Registry
from hpxfer.report.provenance import provenance_table
from hpxfer.results import load_results
from hpxfer.search import Outcome, make_search
from hpxfer.search.kinds import SEARCHES, SearchKind
from hpxfer.search.verdict_plan import affordable
from hpxfer.spec import load_sweep, parse_sweep
from hpxfer.spec.budget import arm_budget
from hpxfer.spec.sweep import parts_of
from hpxfer.store import Store
from hpxfer.testing.searches import SWEEP, SearchSuite, loss_of, run_search
from hpxfer.trial import DataRef, Expansion, Trial

DATA = DataRef(digest="suite", tokenizer="ascii", vocab_size=128)
BOX = SWEEP.replace("{lr: {log2: [-9, -4]}}", "{lr: {log2: [-9, -4]}, init_scale: {log2: [-1, 2]}}")
CASES = {
    "grid": SWEEP,
    "random": BOX + "search: {kind: random, budget: 8}\n",
    "optuna": BOX + "search: {kind: optuna, budget: 8}\n",
    "refine": SWEEP + "search: {kind: refine, max_octaves: 2}\n",
    "coordinate": SWEEP + "search: {kind: coordinate, multipliers: [router.lr_mult]}\n",
    "staged-grid": SWEEP + "search: {kind: staged-grid, multipliers: [init_scale]}\n",
    "verdict": SWEEP + "search: {kind: verdict, budget: 12}\n",
}
HPS = "hps: {lr: {log2: -7}}\n"
ARM = "{{table: {}, name: tuned, hps: {{multipliers: {{attn_q.lr_mult: 4}}}}, balance: {{bias: sign}}}}"
TABLES = "[completep-moe, sp]"
ARMS = f"[completep-moe, sp, {ARM.format('completep-moe')}, {ARM.format('sp')}]"
MULT = "attn_q.lr_mult"


@pytest.mark.first
@pytest.mark.parametrize("kind", CASES)
def test_every_arm_is_searched_as_in_a_sweep_of_its_own_and_reads_back(kind: str, tmp_path: Path) -> None:
    spec = parse_sweep(CASES[kind].replace(TABLES, ARMS) + HPS)
    expansion = Expansion(spec, DATA)
    ran = run_search(expansion)
    alone = [run_search(Expansion(under, DATA)).trials for _, under in parts_of(spec)]
    if kind != "verdict":  # which looks at all arms together
        assert set(ran.trials) == {*alone[0], *alone[1]}
    assert {trial.hps.get(MULT) for trial in ran.trials.values()} == {1.0, 4.0}
    assert set(alone[0]).isdisjoint(alone[1])
    results = searched(expansion, loss_of, tmp_path)
    mult_of = {trial.id: trial.hps.get(MULT) for trial in ran.trials.values()}
    cells = results.cells[results.cells["status"] != "missing"]
    assert set(cells["parameterization"]) >= {"completep-moe", "completep-moe (tuned)"}
    for label, trial_id in zip(cells["parameterization"], cells["trial_id"], strict=True):
        assert mult_of[trial_id] == (4.0 if label.endswith("(tuned)") else 1.0)
    for label, mult, rule in (("completep-moe", 1.0, "proportional"), ("completep-moe (tuned)", 4.0, "sign")):
        made = recipe_of(results, label)
        assert (made.hps.get(MULT), made.file.model.bias_rule) == (mult, rule)
    assert ("completep-moe (tuned)", f"{MULT} 4") in provenance_table(results).rows


USER_SWEEP = """
name: searched
trainer:
  command: [python3, train.py]
  version: '1'
  arms: {{scaled: {{args: {{power: 1}}}}, plain: {{args: {{power: 0}}}}}}
  control: plain
model: {{family: user, own: {{d_model: 64}}}}
training: {{steps: 20, batch_tokens: 512}}
axes: {{d_model: [128, 256]}}
grid: {{lr: {{log2: [-9, -3]}}}}
search: {search}
seeds: {seeds}
"""


def losses(trials: tuple[Trial, ...]) -> Mapping[str, Outcome]:
    """Return outcomes with a basin that moves in the plain arm; the highest LR diverges."""
    out = {}
    for trial in trials:
        dims = dict(trial.shape.own_dims)
        power = 1 if "scaled" in trial.setting.trainer or '"power":1' in trial.setting.trainer else 0
        best = -6 - (1 - power) * math.log2(dims["d_model"] / 64)
        off = math.log2(trial.hps.get("lr")) - best
        loss = 2.5 + 0.05 * off**2 + 0.001 * trial.seed
        diverged = trial.hps.get("lr") >= 0.125
        out[trial.id] = Outcome("diverged" if diverged else "finished", None if diverged else loss, 1.0)
    return out


@pytest.mark.parametrize(
    ("search", "seeds"),
    [
        ("{kind: verdict, budget: 30}", 2),
        pytest.param("{kind: verdict, hours: 0.01}", 4, marks=pytest.mark.slow),
        ("{kind: refine}", 2),
        ("{kind: coordinate}", 2),
        ("{kind: random, budget: 5}", 1),
        ("{kind: optuna, budget: 8}", 1),
        ("{kind: staged-grid, multipliers: [init_scale], broad: {points: 3, ratio: 16}}", 1),
    ],
)
def test_a_search_comes_to_its_end(search: str, seeds: int, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(USER_SWEEP.format(search=search, seeds=seeds))
    expansion = prepare(tmp_path / "a.yaml", results=tmp_path).expansion
    store = Store.open(tmp_path, write=False)
    asked, known = make_search(expansion, lambda: store.read_trials().to_pandas()), dict[str, Outcome]()
    rounds = 0
    while new := tuple(asked.ask(known, ())):
        known.update(losses(new))
        rounds += 1
        assert rounds < 100
    assert len(known) >= 5


def test_a_token_costs_the_same_where_flops_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(USER_SWEEP.format(search="{kind: grid}", seeds=1))
    trials = tuple(prepare(tmp_path / "a.yaml", results=tmp_path).missing)
    assert {train_flops(trial.shape, trial.setting) for trial in trials} == {0.0}
    assert {relative_cost(trial.shape, trial.setting) for trial in trials} == {20 * 512.0}
    earlier, rest = trials[:1], [trial for trial in trials if trial.shape != trials[0].shape]
    outcomes = {earlier[0].id: Outcome("finished", 2.5, 36.0)}
    assert len(affordable(rest, earlier, outcomes, hours=0.05)) == 4  # (180 - 36) / 36 s


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
    return search_each_arm(expansion, "ladder", lambda arm: ladder(expansion.spec))


LADDER = register_search(
    SearchKind(
        name="ladder",
        settings=LadderSettings,
        rounds=lambda spec: Counter({1: size(spec)}),
        make=make,
        tunes="lines",
    )
)
'''
TEXT = PLAIN_SWEEP.replace("[0.01]", "{log2: [-9, -4]}") + "plugins: [./ladder.py]\n"


@pytest.fixture
def ladder_sweep(tmp_path: Path) -> Iterator[Path]:
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


def test_it_plans_runs_and_is_read_again_without_its_code(ladder_sweep: Path, tmp_path: Path) -> None:
    prepared = prepare(ladder_sweep, results=tmp_path / "planned", executor="local")
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


class TestLadder(SearchSuite):
    @pytest.fixture
    def kind(self, ladder_sweep: Path) -> SearchKind:
        load_sweep(ladder_sweep)
        return SEARCHES.get("ladder")

    @pytest.fixture
    def sweep(self, ladder_sweep: Path) -> str:
        return ladder_sweep.read_text().partition("plugins")[0] + "search: {kind: ladder}\n"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("{kind: ladder, rungs: 0}", "search.rungs: must be greater than or equal to 1, got 0"),
        ("{kind: ladder, rung: 3}", "search.rung: unknown key; did you mean 'rungs'"),
        ("{kind: ladder, points: 3}", "search.points: unknown key; legal: at, budget, kind, rungs"),
        ("{kind: laddr}", "search.kind: unknown search 'laddr'; did you mean 'ladder'"),
    ],
)
def test_its_keys_are_checked_like_those_of_a_shipped_search(ladder_sweep: Path, search: str, message: str) -> None:
    ladder_sweep.write_text(TEXT + f"search: {search}\n")
    with pytest.raises(HpxferError) as error:
        load_sweep(ladder_sweep)
    assert message in str(error.value)
