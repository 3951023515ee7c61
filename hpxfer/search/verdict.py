"""Verdict: train the cells of the grid that decide whether an HP transfers, and no more than that takes.

The grid and the seeds of the sweep file are the candidates. The search goes in rounds, and looks at the verdicts after
each one. A look may be wrong with a chance of `error` times the share of the line's FLOPs that were spent, so a look at
few trials must be surer. The chance of a verdict is a probability given the data, and does not depend on how often one
looks. So the looks need no further correction as far as that probability is right. The stricter early looks are for the
case that it is not, and so is the second look that a drift must stand. A line has at most LOOKS looks.

The control is looked at where another parameterization transfers on its axis: only there does it tell something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from hpxfer.scaling.shape import Shape
from hpxfer.search.grid import grid_size
from hpxfer.search.kinds import SearchKind, Stored
from hpxfer.search.protocol import Outcome, Progress, arms_of, countable, on_log_scale
from hpxfer.search.verdict_lines import MIN_SEEDS, lines_of_grid
from hpxfer.search.verdict_plan import LARGEST_FIRST
from hpxfer.search.verdict_rounds import MAX_ROUNDS, Look, Rounds
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.spec import SweepSpec
from hpxfer.spec.budget import arm_budget
from hpxfer.spec.fields import Problem, Section, WhyNot
from hpxfer.trial import Expansion, Trial


class VerdictSettings(Section):
    """The keys of a verdict search."""

    hours: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """verdict: the most worker hours, by the measured times of its trials. Give this or `budget`."""
    error: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """verdict: the largest chance of a wrong verdict, for each axis and parameterization. The report on the sweep
    judges with it too."""


class VerdictSearch:
    """Rounds of trials that end when the verdicts are decided. They are played from their start."""

    def __init__(self, expansion: Expansion) -> None:
        spec = expansion.spec
        settings = spec.search.settings(VerdictSettings)
        self.expansion = expansion
        self.rounds = Rounds(
            lines_of_grid(expansion, rules_of(spec).control),
            arm_budget(spec),
            rules_of(spec),
            settings.hours,
            judged_by(spec),
        )
        self._known: Mapping[str, Outcome] = {}
        self._num_known = 0
        self._start()

    def _start(self) -> None:
        self._played: Generator[Look, Mapping[str, Outcome], Look] = self.rounds.play()
        self._ended: dict[str, Outcome] = {}  # of the rounds that have ended
        self.looks: list[Look] = [next(self._played)]

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return what the open round still needs."""
        self.play(outcomes)
        return tuple(trial for trial in self.looks[-1].trials if trial.id not in outcomes and trial.id not in running)

    def play(self, outcomes: Mapping[str, Outcome]) -> Sequence[Look]:
        """Return the looks as far as the outcomes are known, the last one with the round that waits for them.

        It goes on from where it was if outcomes were only added since the last call. Otherwise it starts anew.
        """
        same = outcomes is self._known and len(outcomes) >= self._num_known
        if not same and not self._known.items() <= outcomes.items():
            self._start()
        self._known, self._num_known = outcomes, len(outcomes)
        while (open_trials := self.looks[-1].trials) and all(trial.id in outcomes for trial in open_trials):
            self._ended.update((trial.id, outcomes[trial.id]) for trial in open_trials)
            try:
                self.looks.append(self._played.send(self._ended))
            except StopIteration as stop:
                self.looks.append(stop.value)
        return tuple(self.looks)

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> its trials that ended, and the most that may follow."""
        done = Counter(trial.shape for look in self.looks for trial in look.trials if trial.id in self._known)
        arms = Counter(arm.shape for arm in arms_of(self.expansion))
        most = arm_budget(self.expansion.spec) if self.looks[-1].trials else 0
        return {shape: Progress(done[shape], max(0, number * most - done[shape])) for shape, number in arms.items()}

    def why(self) -> str:
        """Return the decisions up to the last `ask`, one line per decision, round by round."""
        return "\n".join(text for look in self.looks for text in look.why)


def _rounds(spec: SweepSpec) -> Counter[int]:
    # Stacks are most if all rounds but one train a single trial of the arm, and largest if one round trains them all.
    return Counter({1: MAX_ROUNDS - 1}) + Counter({arm_budget(spec): 1})


def _problems(spec: SweepSpec, why_not: WhyNot) -> Iterator[Problem]:
    hours = spec.search.settings(VerdictSettings).hours
    if (spec.search.budget is None) == (hours is None):
        got = "neither" if hours is None else "both"
        text = f"must have budget (trials per arm, seeds counted) or hours (of workers), got {got}"
        yield ("search",) if hours is None else ("search", "hours"), f"{text}; give one of them"
    if len(spec.seeds) < MIN_SEEDS:
        yield ("seeds",), f"must be at least {MIN_SEEDS} for a verdict, got {len(spec.seeds)}; give more"
    if spec.search.where == "base":
        yield ("search", "at"), "must be all: a verdict compares shapes, got base; take it out"
    least = max((len(values.numbers()) for values in spec.grid.values()), default=0) + LARGEST_FIRST
    budget = spec.search.budget
    if budget is not None and budget < min(least, grid_size(spec) * len(spec.seeds)):
        text = f"must buy the first line and what follows it: at least {least} trials per arm, got {budget}"
        yield ("search", "budget"), f"{text}; raise it, or scan less"
    yield from countable(spec, ("grid",))
    yield from on_log_scale(spec)


def _error(spec: SweepSpec) -> float:
    return spec.search.settings(VerdictSettings).error


def _also_limited(spec: SweepSpec) -> str:
    hours = spec.search.settings(VerdictSettings).hours
    return "" if hours is None else f"at most {hours:g} worker hours in all"


def _make(expansion: Expansion, stored: Stored) -> VerdictSearch:
    return VerdictSearch(expansion)


VERDICT = SearchKind(
    name="verdict",
    settings=VerdictSettings,
    problems=_problems,
    size=grid_size,
    rounds=_rounds,
    splits_seeds=True,
    error=_error,
    also_limited=_also_limited,
    make=_make,
    tunes="lines",
    replays=False,
)
