"""Retrain: a run of exactly the trials whose curves are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.driver.restoring import NUMBERS, Restoring
from hpxfer.driver.reuse import Reuse
from hpxfer.driver.trial_list import known_trials
from hpxfer.plan.hardware import Hardware
from hpxfer.plan.make import Counts, make_plan
from hpxfer.plan.plan import Plan
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome, Progress
from hpxfer.store import Store
from hpxfer.store.lost_curves import LostCurves, lost_curves
from hpxfer.trial import Trial


@dataclass(frozen=True)
class These:
    """A search that asks for these trials once, and for nothing else."""

    trials: tuple[Trial, ...]

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return those of the trials that are neither done nor running."""
        return [trial for trial in self.trials if trial.id not in outcomes and trial.id not in running]

    def progress(self) -> Mapping[Shape, Progress]:
        """Return nothing: no choice depends on a loss."""
        return {}

    def why(self) -> str:
        """Return nothing: nothing is decided."""
        return ""


def retraining(prepared: PreparedSweep) -> tuple[PreparedSweep, list[str]]:
    """Return a run that trains the trials again that lost their curves, and what to say before it.

    It trains no other trial, not even one that is missing. A run of it stores curves only, see `Restoring`.
    """
    store = Store.open(prepared.folder, write=False)
    lost = lost_curves(store, prepared.spec.name)
    ids = set() if lost is None else set(lost.all_ids())
    trials = known_trials(prepared)
    again = tuple(trial for trial in trials if trial.id in ids)
    left = {trial_id: outcome for trial_id, outcome in prepared.outcomes.items() if trial_id not in ids}
    rows = store.read_trials(["trial_id", *NUMBERS]).to_pylist()
    counts = Counts(
        total=Counter(trial.shape for trial in trials if trial.id in prepared.outcomes),
        done=Counter(trial.shape for trial in trials if trial.id in left),
    )

    def plan(hardware: Hardware | None) -> Plan:
        found = make_plan(
            prepared.expansion,
            left,
            prepared.real.device,
            measured=prepared.measured,
            counts=counts,
            hardware=hardware,
            price_per_hour=prepared.cost.price_per_hour,
        )
        return replace(found, chosen=prepared.real.chosen)

    run = replace(
        prepared,
        search=These(again),
        outcomes=left,
        reuse=Reuse(),
        real=plan(None),
        plan=plan(prepared.cost.hardware),
        restoring=Restoring(stored={row["trial_id"]: row for row in rows if row["trial_id"] in ids}),
    )
    return run, _said(lost, again)


def _said(lost: LostCurves | None, again: Sequence[Trial]) -> list[str]:
    if lost is None:
        return ["no trial has lost its curves; nothing is trained"]
    out = [lost.text()]
    if others := len(lost) - len(again):
        out.append(f"{others} of them are no trials of this sweep file any more and stay without curves")
    return out
