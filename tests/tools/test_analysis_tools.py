"""The planted store, and the tools that measure the analysis with it."""

from __future__ import annotations

import math
from pathlib import Path

import analysis_speed
import numpy as np
import pytest
from analysis_speed import measure
from planted_results import DIGEST, planted_results
from planted_store import PlantedStore, planted_result
from sweep_text import edited

from hpxfer.spec import parse_sweep
from hpxfer.trial import DataRef, Expansion

pytestmark = pytest.mark.slow

SPEC = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-9, -4]}")))
DATA = DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)
TRIALS = list(Expansion(SPEC, DATA).trials())


def test_a_trial_has_one_result_and_its_lowest_loss_where_it_was_planted() -> None:
    plan = PlantedStore(middle=-6.0, noise=0.0)
    assert planted_result(TRIALS[3], plan) == planted_result(TRIALS[3], plan)
    base = [trial for trial in TRIALS if trial.shape == trial.base and trial.seed == 0]
    losses = [planted_result(trial, plan).validation_loss_nats or math.inf for trial in base]
    assert math.log2(base[int(np.argmin(losses))].hps.lr) == -6.0


def test_a_cliff_diverges_halfway_and_left_out_trials_are_missing(tmp_path: Path) -> None:
    plan = PlantedStore(cliff=1.0, kept=lambda trial: trial.seed == 0)
    results = planted_results(SPEC, tmp_path, plan)
    cells = results.cells
    assert set(cells.loc[cells["seed"] == 1, "status"]) == {"missing"}
    diverged = results.trials[results.trials["status"] == "diverged"]
    assert set(diverged["lr"]) == {2.0**-5, 2.0**-4}
    assert set(diverged["diverged_step"]) == {100}
    last = results.curves[results.curves["trial_id"] == diverged["trial_id"].iloc[0]]["step"].max()
    assert last < 100


def test_a_seed_of_the_large_sweep_is_as_many_trials_as_the_command_says() -> None:
    expansion = Expansion(parse_sweep(analysis_speed.SWEEP.format(seeds=1)), DATA)
    assert 20 * len(list(expansion.trials())) == 10_500


def test_the_times_come_with_the_size_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = analysis_speed.SWEEP.partition("  depth:")[0] + "hps:" + analysis_speed.SWEEP.partition("\nhps:")[2]
    monkeypatch.setattr(analysis_speed, "SWEEP", small.replace("[32, 64, 96, 128, 192, 256]", "[32, 64, 128]"))
    times = measure(1, tmp_path / "large")
    assert times["trials"] == 5 * 15  # 10 LRs and 6 scales share a point; the base once, two widths for both tables
    assert all(value >= 0 for value in times.values())
    parts = {"imports", "load", "estimate", "load_curves", "analyze"}
    parts |= {"make_figures", "draw_figures", "transfer_figure", "page"}
    assert set(times) == {"trials", "report_command", *parts}
