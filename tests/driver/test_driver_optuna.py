"""A run of a search: it is resumed where it was killed, and leaves optuna.db."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from driver_cases import Made
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.search.export import FILE

OPTUNA = ("seeds: 2", "seeds: 2\nsearch: {kind: optuna, budget: 12, batch: 2}")


@pytest.mark.slow
def test_a_run_writes_it_and_a_killed_one_trains_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    straight = run(write_tiny(tmp_path, OPTUNA), results=tmp_path / "straight", executor=Made())
    killed, sweep = tmp_path / "killed", write_tiny(tmp_path, OPTUNA)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=killed, executor=Made(stop_after=4))
    assert (killed / "tiny" / FILE).exists()
    resumed = run(sweep, results=killed, executor=Made())
    assert set(resumed.trials["trial_id"]) == set(straight.trials["trial_id"])
    storage = optuna.storages.RDBStorage(f"sqlite:///{resumed.folder / FILE}")
    found = optuna.get_all_study_summaries(storage)
    assert sum(study.n_trials for study in found) * 2 == len(resumed.trials)
