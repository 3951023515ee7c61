"""Check: train short trials where the sweep trains, and store what they show in the sweep's results folder."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpxfer.driver.drive import placement_of
from hpxfer.driver.own_trainer import train_user
from hpxfer.driver.prepared import PreparedSweep
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor, once
from hpxfer.executors.kinds import make_executor
from hpxfer.spec.load import plugin_files
from hpxfer.storage.lease import leased
from hpxfer.store.trainer_checks import CheckedFact, TrainerChecks, write_checks
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.setting import trainer_code
from hpxfer.trial.stack import Stack
from hpxfer.trust.evaluate import Checks, Evidence, evaluate
from hpxfer.trust.text import checks_table
from hpxfer.trust.trials import BASE, STEPS, check_trials

FOLDER = "check-runs"  # beside `runs`: the folders of the short trials, which the next check removes


@dataclass(frozen=True, kw_only=True)
class CheckedTrainer:
    """What a check of a trainer found, and where it is stored."""

    checks: Checks
    stored: TrainerChecks
    wall_s: Mapping[str, float]  # trial -> seconds
    runs: Path  # the folders of the trials
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**self.stored.to_dict(), "passed": self.checks.passed, "wall_s": dict(self.wall_s)}

    def table(self) -> str:
        """Return the table of the outcomes, and what they mean for verdicts."""
        why, lines = self.checks.undecided_because, [checks_table(self.checks.outcomes), ""]
        if why is not None:
            lines.append(f"Every verdict on this trainer is undecided until this is mended: {why}")
        if self.checks.extra_sd:
            lines.append(
                f"Verdicts add {self.checks.extra_sd:.3g} to the noise of a seed, as one seed does not repeat."
            )
        total = sum(self.wall_s.values())
        lines.append(
            f"{len(self.wall_s)} trials of {self.stored.steps} steps, {total:.0f} s in all; their logs: {self.runs}"
        )
        return "\n".join(lines)


def check_trainer(
    prepared: PreparedSweep, *, steps: int | None = None, executor: Executor | None = None, address: str | None = None
) -> CheckedTrainer:
    """Run short trials of the trainer of a sweep, evaluate every check, and store the outcomes beside its results.

    `steps` is the most of each trial, by default STEPS. `executor` replaces the one that the sweep names. The trials
    are no results of the sweep. Raises HpxferError if the sweep has no trainer of its own, or if the base fails.
    """
    spec = prepared.spec
    if spec.trainer is None:
        where = f"{prepared.file}: " if prepared.file else ""
        raise HpxferError(
            f"{where}trainer: must be given for a check of it, got none; to check how the model of this sweep "
            "scales, use hpxfer check --sweep"
        )
    trials = check_trials(prepared.expansion, STEPS if steps is None else steps)
    train = train_user(prepared)
    runs = Path(train.runs).with_name(FOLDER)
    shutil.rmtree(runs, ignore_errors=True)
    how = executor or make_executor(placement_of(prepared, address, plugin_files(spec), train))
    results = _train(how, trials, replace(train, runs=str(runs), judged=None, check=True))
    found = {name: Evidence.read(trial, results[trial.id], runs) for name, trial in trials.items()}
    if found[BASE].failure is not None:
        raise HpxferError(f"the base must train for a check, got: {found[BASE].result.error}\nits logs: {runs}")
    checks = evaluate(found)
    stored = TrainerChecks(
        code=trainer_code(spec.trainer),
        steps=found[BASE].trial.setting.steps,
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        outcomes=tuple(
            CheckedFact(check=each.check, status=each.status, reason=each.reason) for each in checks.outcomes
        ),
        undecided_because=checks.undecided_because,
        extra_sd=checks.extra_sd,
    )
    with _writing(prepared):
        file = write_checks(prepared.folder, stored)
    seconds = {name: each.result.wall_s or 0.0 for name, each in found.items()}
    return CheckedTrainer(checks=checks, stored=stored, wall_s=seconds, runs=runs, files=(file,))


def _train(executor: Executor, trials: Mapping[str, Trial], train: Any) -> dict[str, TrialResult]:
    """Return id -> result of every trial."""
    results: dict[str, TrialResult] = {}

    def take(stack: Stack, event: Event) -> None:
        if isinstance(event, Ended):
            results.update({each.trial_id: each for each in event.results})

    executor.run(once([Stack(trials=(trial,)) for trial in trials.values()]), train, take)
    return results


@contextmanager
def _writing(prepared: PreparedSweep) -> Iterator[None]:
    """Make the file that is written meanwhile reach an object store. A folder needs nothing: the file is replaced."""
    location = prepared.location
    if not location.is_remote:
        yield
        return
    with leased(location.lease_storage, location.where) as lease:
        location.begin(lease.check)
        yield
        location.push(lease.check)
