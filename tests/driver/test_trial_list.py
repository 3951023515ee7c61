"""The list of a sweep's trials: of a search, what it has and what comes next."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Fails
from tiny import write_tiny

from hpxfer.driver import PreparedSweep, prepare, run
from hpxfer.driver.trial_list import known_trials, trials_of
from hpxfer.errors import HpxferError

REFINE = ("seeds: 2", "seeds: 1\nsearch: {kind: refine, budget: 6}")


def statuses(job: PreparedSweep) -> dict[str, str]:
    return {row["trial_id"]: row["status"] for row in trials_of(job)}


@pytest.mark.slow
def test_a_search_lists_what_it_has_of_every_round_and_what_comes_next(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, REFINE)
    first = prepare(sweep, results=tmp_path)
    assert [row["trial_id"] for row in trials_of(first)] == [trial.id for trial in first.missing]
    with pytest.raises(HpxferError, match="the executor ended with"):  # after the first round
        run(sweep, results=tmp_path, executor=Fails(0))
    second = prepare(sweep, results=tmp_path)
    done, coming = {trial.id for trial in first.missing}, {trial.id for trial in second.missing}
    assert coming
    assert statuses(second) == {**dict.fromkeys(done, "finished"), **dict.fromkeys(coming, "missing")}
    folder = run(sweep, results=tmp_path, executor=Fails(0)).folder
    assert statuses(prepare(sweep, results=tmp_path)) == dict.fromkeys(done | coming, "finished")
    reused = prepare(write_tiny(tmp_path, REFINE, ("name: tiny", "name: other")), results=tmp_path, reuse=[folder])
    assert {folder.id for folder in known_trials(reused)} == done | coming
