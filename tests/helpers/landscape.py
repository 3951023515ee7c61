"""A planted landscape instead of training, and a driver that runs a search on it in any order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sweep_text import edited

from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome, Search, make_search
from hpxfer.spec import parse_sweep
from hpxfer.testing.searches import run_search
from hpxfer.trial import DataRef, Expansion, Trial

LR = ("[0.01]", "{log2: [-9, -4]}")  # the edit that gives the small sweep a line of six
DATA = DataRef(digest="abc", tokenizer="ascii", vocab_size=128)


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Loss = 2 + sum of curvature (log2 HP - optimum)^2 + noise; an HP above its wall diverges."""

    optima: Mapping[str, float] = field(default_factory=dict)  # HP -> octaves
    drift: float = 0.0  # of the LR's optimum, octaves per doubling of the width, under sp
    curvature: float = 0.05
    noise: float = 0.0
    walls: Mapping[str, float] = field(default_factory=dict)
    salt: int = 0  # other luck for the same trials

    def __call__(self, trial: Trial) -> Outcome:
        if any(math.log2(trial.hps.get(hp)) > wall for hp, wall in self.walls.items()):
            return Outcome("diverged")
        loss = 2.0
        for hp, optimum in self.optima.items():
            sp = trial.parameterization is not None and trial.parameterization.name == "sp"
            moved = self.drift * math.log2(trial.shape.width / trial.base.width) if hp == "lr" and sp else 0.0
            loss += self.curvature * (math.log2(trial.hps.get(hp)) - optimum - moved) ** 2
        luck = np.random.default_rng([self.salt, int(trial.id[:12], 16)]).standard_normal()
        return Outcome("finished", loss + self.noise * luck)


def expansion_of(*edits: tuple[str, str], search: str = "grid", more: str = "") -> Expansion:
    """Return the expansion of the small sweep with edits, a search in YAML's flow style, and more keys."""
    return Expansion(parse_sweep(f"{edited(*edits)}search: {search}\n{more}"), DATA)


def search_of(expansion: Expansion) -> Search:
    return make_search(expansion)


def bound_of(expansion: Expansion) -> dict[Shape, int]:
    """Return shape -> the most trials that the search may have there."""
    return {shape: progress.most_left for shape, progress in search_of(expansion).progress().items()}


@dataclass(kw_only=True)
class Ran:
    """What a run of a search came to."""

    search: Search
    outcomes: dict[str, Outcome]
    trials: dict[str, Trial]  # that this run asked for

    def arms(self) -> Counter[tuple[str | None, int]]:
        """Return the trials of each arm, by the parameterization (None at the base) and the width."""
        return Counter(
            (trial.parameterization.name if trial.parameterization else None, trial.shape.width)
            for trial in self.trials.values()
        )

    def values(self, hp: str, width: int = 32) -> list[float]:
        """Return the distinct values of an HP that were tried at a width."""
        return sorted({trial.hps.get(hp) for trial in self.trials.values() if trial.shape.width == width})


def run(expansion: Expansion, landscape: Callable[[Trial], Outcome], **how: Any) -> Ran:
    """Run a search on a landscape, as `run_search` of the conformance suite does."""
    done = run_search(expansion, loss=landscape, **how)
    return Ran(search=done.search, outcomes=done.outcomes, trials=done.trials)
