"""Export: `optuna.db` beside the results, which `optuna-dashboard sqlite:///PATH` opens. Nothing reads it back.

The file holds one study per arm and strategy, for every search that decides in rounds. Each run writes it anew.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpxfer.errors import first_line
from hpxfer.search.kinds import kind_of
from hpxfer.search.protocol import Arm, Search
from hpxfer.search.rounds import ArmStrategy, EndedRound, History, RoundSearch, mean
from hpxfer.search.values import ends_of_box
from hpxfer.trial import Expansion

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FILE = "optuna.db"
TRIALS = "hpxfer_trials"  # attribute of an optuna trial: seed -> hpxfer's trial id
WIDEST = (1e-30, 1e30)  # the range of an HP whose search has no box
MAX_POINTS = 1000  # of a study, first come first written: optuna takes about 5 ms for each, and the run waits
BUSY_S = 10.0  # how long another process, such as a dashboard, may lock the file


class StudyExport:
    """Writes the ended rounds of a search. `problem` says why the file could not be written."""

    def __init__(
        self,
        folder: Path,
        expansion: Expansion,
        allowed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.path = folder / FILE
        self.expansion = expansion
        self._allowed = allowed  # entered for every write; raises where this process may write no more
        self.problem: str | None = None
        self._num_written: dict[str, int] = {}  # study -> its rounds in the file

    def write(self, search: Search) -> None:
        """Write the rounds that ended since the last call."""
        studies = search.arms() if isinstance(search, RoundSearch) else ()
        new = [study for study in studies if len(study[1].rounds) > self._num_written.get(study[0].title, 0)]
        if not new:
            return
        with self._allowed():
            try:
                self._write(new)
                self.problem = None
            except Exception as error:  # whatever optuna, SQLAlchemy or the disk say: no result depends on the file
                self._num_written.clear()
                why = first_line(error)
                self.problem = f"{self.path}: cannot be written ({why}); no result depends on it"

    def _write(self, studies: Sequence[tuple[ArmStrategy, History]]) -> None:
        import optuna
        from sqlalchemy.pool import NullPool

        from hpxfer.search.optuna_study import quiet

        if not self._num_written:
            self.path.unlink(missing_ok=True)

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(self.path, timeout=BUSY_S)
            connection.execute("PRAGMA synchronous=OFF")  # optuna commits several times per trial
            return connection

        # `creator` opens the path, which may hold characters that mean something else in a URL.
        engine = {"creator": connect, "poolclass": NullPool}
        with quiet():
            storage = optuna.storages.RDBStorage("sqlite:///optuna.db", engine_kwargs=engine)
            for strategy, history in studies:
                study = optuna.create_study(study_name=strategy.title, storage=storage, load_if_exists=True)
                start = self._num_written.get(strategy.title, 0)
                sizes = [len(ended.round.points) for ended in history.rounds]
                study.set_user_attr("sweep", self.expansion.spec.name)
                study.set_user_attr("budget", strategy.budget)
                study.set_user_attr("num_points", sum(sizes))
                new = self._trials(strategy.arm, history.rounds[start:], start)
                study.add_trials(list(islice(new, max(0, MAX_POINTS - sum(sizes[:start])))))
                self._num_written[strategy.title] = len(history.rounds)

    def _trials(self, arm: Arm, rounds: Sequence[EndedRound], first: int) -> Iterator[FrozenTrial]:
        """Yield the points of rounds. A point fails where a seed diverged, because no loss is made up."""
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState, create_trial

        spec, kind = self.expansion.spec, kind_of(self.expansion.spec)
        ends = ends_of_box(spec) if kind.is_box else {}
        for batch, ended in enumerate(rounds, start=first):
            for point, losses in ended.pairs:
                loss: Any = mean(losses)
                ids = {str(seed): arm.trial(point, seed).id for seed in spec.seeds}
                yield create_trial(
                    state=TrialState.COMPLETE if math.isfinite(loss) else TrialState.FAIL,
                    value=loss if math.isfinite(loss) else None,
                    params={hp: point.get(hp) for hp in kind.hps(spec)},
                    distributions={hp: FloatDistribution(*ends.get(hp, WIDEST), log=True) for hp in kind.hps(spec)},
                    user_attrs={TRIALS: ids, "batch": batch},
                )
