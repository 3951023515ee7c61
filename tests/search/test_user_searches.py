"""Every search with a trainer of the user's own, whose FLOPs and whose guess are not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpxfer.driver import prepare
from hpxfer.model.cost import relative_cost, train_flops
from hpxfer.search import Outcome, make_search
from hpxfer.search.verdict_time import affordable
from hpxfer.store import Store
from hpxfer.trial import Trial

SWEEP = """
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "seeds"),
    [
        ("{kind: verdict, budget: 60}", 4),
        ("{kind: verdict, hours: 0.01}", 4),
        ("{kind: refine}", 2),
        ("{kind: coordinate}", 2),
        ("{kind: random, budget: 5}", 1),
        ("{kind: optuna, budget: 8}", 1),
        ("{kind: staged-grid, multipliers: [init_scale], broad: {points: 3, ratio: 16}}", 1),
    ],
)
def test_a_search_comes_to_its_end(search: str, seeds: int, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SWEEP.format(search=search, seeds=seeds))
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
    (tmp_path / "a.yaml").write_text(SWEEP.format(search="{kind: grid}", seeds=1))
    trials = tuple(prepare(tmp_path / "a.yaml", results=tmp_path).missing)
    assert {train_flops(trial.shape, trial.setting) for trial in trials} == {0.0}
    assert {relative_cost(trial.shape, trial.setting) for trial in trials} == {20 * 512.0}
    earlier, rest = trials[:1], [trial for trial in trials if trial.shape != trials[0].shape]
    outcomes = {earlier[0].id: Outcome("finished", 2.5, 36.0)}
    assert len(affordable(rest, earlier, outcomes, hours=0.05)) == 4  # (180 - 36) / 36 s
