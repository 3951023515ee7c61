"""optuna as a search: any of its samplers, a study an arm, every arm with the same budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.arms import Arm, arms_of
from hpxfer.search.optuna_arm import ArmStudy, Rules
from hpxfer.search.optuna_study import STUDY_FILE, StudyFile
from hpxfer.search.protocol import Outcome, Progress
from hpxfer.search.replay import hps_of_row
from hpxfer.spec.samplers import sampler_name
from hpxfer.spec.search_defaults import num_points, optuna_batch, setting
from hpxfer.store import SHAPE_COLUMNS, Store
from hpxfer.trial import Expansion, Trial

# What a batch needs that not every version of optuna does by itself: not to propose the same place many times.
ARGUMENTS: dict[str, dict[str, Any]] = {"TPESampler": {"constant_liar": True}}


class OptunaSearch:
    """optuna's answers, asked in batches so that stacks stay full. The folder's `optuna.db` records them.

    The file is written once something has been seen to run, so that planning leaves no trace.
    """

    def __init__(self, expansion: Expansion, folder: Path, metric: str) -> None:
        spec = expansion.spec
        sampler = sampler_name(setting(spec, "sampler"))
        assert sampler is not None, "checked with the sweep"
        self.expansion = expansion
        self.metric = metric
        self.rules = Rules(
            expansion=expansion,
            sampler=sampler,
            arguments={**ARGUMENTS.get(sampler, {}), **setting(spec, "sampler_args")},
            seed=setting(spec, "seed"),
            batch=optuna_batch(spec),
            most=num_points(spec),
        )
        self._arms = arms_of(expansion)
        self._folder = folder
        self._file = StudyFile(folder / STUDY_FILE)
        self._studies: list[ArmStudy] | None = None
        self._running = False

    def ask(self, outcomes: Mapping[str, Outcome], out: Collection[str], most: int | None) -> Sequence[Trial]:
        """Return what the arms' open batches still need, one arm's first, then the next one's first, and so on."""
        if self._studies is None:
            self._studies = self._restored(outcomes)
        for study in self._studies:
            study.advance(outcomes)
        self._running = self._running or bool(out)
        if self._running:
            self._record()
        lines = [[trial for trial in study.awaited() if trial.id not in out] for study in self._studies]
        in_turn = (trial for row in zip_longest(*lines) for trial in row if trial is not None)
        return tuple(islice(in_turn, most))

    def bound(self) -> Mapping[Shape, int]:
        """Return shape -> the trials of its arms' budgets."""
        counts = Counter(arm.shape for arm in self._arms)
        return {shape: num * self.rules.most * len(self.expansion.spec.seeds) for shape, num in counts.items()}

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> what its arms' studies have had, and what their budgets still pay for."""
        if self._studies is None:
            return {shape: Progress(0, most) for shape, most in self.bound().items()}
        done: Counter[Shape] = Counter()
        left: Counter[Shape] = Counter()
        for study in self._studies:
            done[study.arm.shape] += len(study.done())
            left[study.arm.shape] += study.most_left()
        return {shape: Progress(num, left[shape]) for shape, num in done.items()}

    def why(self) -> str:
        """Return a line a batch, and what is wrong with the study's file."""
        lines = [line for study in self._studies or () for line in study.lines()]
        return "\n".join([*lines, *([self._file.problem] if self._file.problem else [])])

    def _restored(self, outcomes: Mapping[str, Outcome]) -> list[ArmStudy]:
        """Return the arms' studies with what the file and the store know of them."""
        studies = [ArmStudy(self.rules, arm) for arm in self._arms]
        recorded = self._file.read([study.name for study in studies])
        stored = self._stored(outcomes)
        for study, arm in zip(studies, self._arms, strict=True):
            study.restore(recorded.get(study.name, ()), stored.get(arm, ()))
        return studies

    def _stored(self, outcomes: Mapping[str, Outcome]) -> dict[Arm, list[dict[str, float]]]:
        """Return arm -> the points of its box that the store has a result of, whoever asked for them."""
        found: dict[Arm, dict[HPs, dict[str, float]]] = {}
        for row in self._rows(outcomes):
            hps = hps_of_row(row)
            params = {name: hps.get(name) for name in self.rules.box}
            # What lies outside the box, or differs in other HPs, is of no use to a sampler of the box.
            if not self.rules.has(params) or self.rules.hps(params) != hps:
                continue
            for arm in self._arms:
                same = all(getattr(arm.shape, name) == row[name] for name in SHAPE_COLUMNS)
                if same and self.expansion.trial(arm.choice, arm.shape, hps, row["seed"]).id == row["trial_id"]:
                    found.setdefault(arm, {})[hps] = params
        return {arm: list(points.values()) for arm, points in found.items()}

    def _rows(self, outcomes: Mapping[str, Outcome]) -> Iterator[dict[str, Any]]:
        if not self._folder.is_dir() or not outcomes:
            return
        columns = ["trial_id", "seed", "multipliers", *SCALARS, *SHAPE_COLUMNS]
        for row in Store.open(self._folder, write=False).read_trials().select(columns).to_pylist():
            if row["trial_id"] in outcomes:
                yield row

    def _record(self) -> None:
        spec, rules = self.expansion.spec, self.rules
        about = {
            "hpxfer": "the results folder holds the losses; this file records what was asked",
            "sweep": spec.name,
            "loss": f"{self.metric}, mean over seeds",
            "budget": rules.most * len(spec.seeds),
            "sampler": rules.sampler,
        }
        studies = self._studies or []
        self._file.write(
            {study.name: study.entries() for study in studies},
            rules.box,
            {study.name: {**about, "arm": study.arm.name} for study in studies},
        )
