"""Check a user's own trainer: short trials of it where the sweep trains, and what they show, beside its results."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpxfer.driver.drive import placement_of
from hpxfer.driver.prepared import PreparedSweep
from hpxfer.errors import HpxferError
from hpxfer.executors import Executor, make_executor, once
from hpxfer.spec import plugin_files
from hpxfer.storage import leased
from hpxfer.store import TrainerChecks, write_checks
from hpxfer.trainer import BASE, STEPS, Evidence, OwnTrainer, check_trials, evaluate
from hpxfer.trial import Ended, Event, Stack, TrialResult, trainer_code

FOLDER = "check-runs"  # beside `runs`: the folders of the short trials, which the next check removes
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class CheckedTrainer:
    """What a check of a trainer found, and where it is stored."""

    checks: TrainerChecks
    wall_s: Mapping[str, float]  # trial -> seconds
    runs: Path  # the folders of the trials
    file: Path

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.checks.faults

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**self.checks.to_dict(), "passed": self.passed, "wall_s": dict(self.wall_s)}

    def table(self) -> str:
        """Return the table of the outcomes, and what they mean for verdicts. A long reason goes on under its start."""
        rows = [("check", "result", "why"), *((each.check, each.status, each.reason) for each in self.checks.outcomes)]
        first, second = (max(len(row[at]) for row in rows) for at in (0, 1))
        lines = []
        for check, status, why in rows:
            start = f"{check:<{first}}  {status:<{second}}  "
            indent = " " * len(start)
            lines += textwrap.wrap(why, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)
        lines.append("")
        if (because := self.checks.undecided_because) is not None:
            lines.append(f"Every verdict on this trainer is undecided until this is mended: {because}")
        if spread := self.checks.extra_sd:
            lines.append(f"Verdicts add {spread:.3g} to the noise of a seed, as one seed does not repeat.")
        of = f"{len(self.wall_s)} trials of {self.checks.steps} steps"
        lines.append(f"{of}, {sum(self.wall_s.values()):.0f} s in all; their logs: {self.runs}")
        return "\n".join(lines)


def check_trainer(
    prepared: PreparedSweep, *, steps: int | None = None, executor: Executor | None = None, address: str | None = None
) -> CheckedTrainer:
    """Run short trials of the trainer of a sweep, evaluate every check, and store the outcomes beside its results.

    `steps` is the most of each trial, by default STEPS. `executor` replaces the one that the sweep names. The trials
    are no results of the sweep. Raises HpxferError if the sweep has no trainer of its own, or if the base fails.
    """
    spec, location = prepared.spec, prepared.location
    if spec.trainer is None:
        where = f"{prepared.given.file}: " if prepared.given.file else ""
        raise HpxferError(f"{where}trainer: must be given for a check of it, got none; hpxfer check --sweep needs none")
    trials = check_trials(prepared.expansion, STEPS if steps is None else steps)
    train = OwnTrainer(spec, spec.trainer).training(prepared.lasting_folder)
    runs = Path(train.runs).with_name(FOLDER)
    shutil.rmtree(runs, ignore_errors=True)
    prepared = replace(prepared, given=replace(prepared.given, address=address))
    how = executor or make_executor(placement_of(prepared, plugin_files(spec)))
    results: dict[str, TrialResult] = {}

    def take(stack: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            results.update({each.trial_id: each for each in event.results})

    stacks = [Stack(trials=(trial,)) for trial in trials.values()]
    how.run(once(stacks), replace(train, runs=str(runs), judged=None, check=True), take)
    found = {name: Evidence(trial, results[trial.id], runs) for name, trial in trials.items()}
    if found[BASE].failure is not None:
        raise HpxferError(f"the base must train for a check, got: {found[BASE].result.error}\nits logs: {runs}")
    checks = evaluate(found, trainer_code(spec.trainer))
    # A folder on this machine needs no lease: the file is replaced.
    with leased(location.lease_storage, location.where) if location.is_remote else nullcontext() as lease:
        if lease is not None:
            location.begin(lease.check)
        file = write_checks(prepared.folder, checks)
        if lease is not None:
            location.push(lease.check)
    seconds = {name: each.result.wall_s or 0.0 for name, each in found.items()}
    return CheckedTrainer(checks=checks, wall_s=seconds, runs=runs, file=file)
