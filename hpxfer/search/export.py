"""Export: `optuna.db` beside the results, which `optuna-dashboard sqlite:///PATH` opens. Nothing reads it back.

The file holds one study per arm and strategy, for every search that decides in rounds. A run writes it anew.
"""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import Search
from hpxfer.search.rounds import ArmHistory, RoundSearch, mean
from hpxfer.trial import Expansion

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FILE = "optuna.db"
TRIALS = "hpxfer_trials"  # attribute of an optuna trial: seed -> hpxfer's trial id
WIDEST = (1e-30, 1e30)  # the range of an HP whose search has no box
BUSY_S = 10.0  # how long another process, such as a dashboard, may lock the file


class StudyExport:
    """Writes the ended rounds of a search. `problem` says why the file could not be written."""

    def __init__(self, folder: Path, expansion: Expansion) -> None:
        self.path = folder / FILE
        self.expansion = expansion
        self.problem: str | None = None
        self._num_written: dict[str, int] = {}  # study -> its rounds in the file

    def write(self, search: Search) -> None:
        """Write the rounds that ended since the last call."""
        if not isinstance(search, RoundSearch):
            return
        ended = {f"{each.strategy.arm.name}: {each.strategy.name}": each for each in search.play() if each.rounds}
        new = {name: each for name, each in ended.items() if len(each.rounds) != self._num_written.get(name, 0)}
        if not new:
            return
        try:
            self._write(new)
            self.problem = None
        except Exception as error:  # whatever optuna, SQLAlchemy or the disk say: no result depends on the file
            self._num_written.clear()
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.problem = f"{self.path}: cannot be written ({why}); no result depends on it"

    def _write(self, studies: dict[str, ArmHistory]) -> None:
        import optuna
        from sqlalchemy.pool import NullPool

        from hpxfer.search.samplers import quiet

        if not self._num_written:
            self.path.unlink(missing_ok=True)

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(self.path, timeout=BUSY_S)
            connection.execute("PRAGMA synchronous=OFF")
            return connection

        with quiet():
            # `creator` opens the path, which may hold characters that mean something else in a URL.
            storage = optuna.storages.RDBStorage(
                "sqlite:///optuna.db", engine_kwargs={"creator": connect, "poolclass": NullPool}
            )
            for name, played in studies.items():
                study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
                for key, value in {"sweep": self.expansion.spec.name, "budget": played.strategy.budget}.items():
                    study.set_user_attr(key, value)
                for number in range(self._num_written.get(name, 0), len(played.rounds)):
                    study.add_trials(self._trials(played, number))
                self._num_written[name] = len(played.rounds)

    def _trials(self, played: ArmHistory, number: int) -> list[FrozenTrial]:
        """Return the points of a round. A point fails where a seed diverged, because no loss is made up."""
        from optuna.distributions import BaseDistribution, FloatDistribution
        from optuna.trial import TrialState, create_trial

        spec, arm, ended = self.expansion.spec, played.strategy.arm, played.rounds[number]
        kind, out = kind_of(spec), []
        ends = {hp: (values.numbers()[0], values.numbers()[-1]) for hp, values in spec.grid.items() if kind.is_box}
        for point, losses in zip(ended.round.points, ended.losses, strict=True):
            params, value = {hp: point.get(hp) for hp in kind.hps(spec)}, mean(losses)
            ids = {str(seed): self.expansion.trial(arm.choice, arm.shape, point, seed).id for seed in spec.seeds}
            ranges: dict[str, BaseDistribution] = {
                hp: FloatDistribution(*ends.get(hp, WIDEST), log=True) for hp in params
            }
            ended = {"value": value} if math.isfinite(value) else {"state": TrialState.FAIL}
            out.append(
                create_trial(params=params, distributions=ranges, user_attrs={TRIALS: ids, "batch": number}, **ended)
            )
        return out
