"""Ranks of a stack in processes of their own, without an executor."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpxfer.train import trainer
from hpxfer.train.ranks import open_store
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack, Team


def trained_by_ranks(
    stack: Stack, world: int, *, timeout_s: float = 60.0, preludes: Mapping[int, str] | None = None, **options: Any
) -> list[tuple[TrialResult, ...] | str]:
    """Return the results of every rank, `stopped`, or the error that it ended with.

    One process imports torch and becomes all ranks by forks, which cost nothing beside an import. A prelude is code
    that a rank runs before, and it may change `train`. `stop_after` steps the training is asked to stop.
    """
    store, address = open_store(world, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        tasks = []
        for rank in range(world):
            team = Team(rank=rank, world=world, address=address, timeout_s=timeout_s)
            task = Path(folder) / f"{rank}.pickle"
            task.write_bytes(pickle.dumps((stack, team, options, (preludes or {}).get(rank, ""))))
            tasks.append(str(task))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, __file__, *tasks], env=environment, timeout=300, check=False)
        out = [pickle.loads((Path(folder) / f"{rank}.pickle.out").read_bytes()) for rank in range(world)]
    del store
    return out


def main(task: Path) -> None:
    calls = itertools.count(1)
    stack, team, options, prelude = pickle.loads(task.read_bytes())
    out: Any
    try:
        exec(prelude, {})
        after = options.pop("stop_after", math.inf)
        events = list(trainer.train(stack, "cpu", team=team, stop=lambda: next(calls) >= after, **options))
        out = next((event.results for event in events if isinstance(event, Ended)), "stopped")
    except Exception as error:
        out = f"{type(error).__name__}: {error}"
    task.with_name(task.name + ".out").write_bytes(pickle.dumps(out))


def fork(task: Path) -> int:
    """Return the process that runs a task."""
    process = os.fork()
    if process == 0:
        try:
            main(task)
        finally:
            os._exit(0)
    return process


if __name__ == "__main__":
    for started in [fork(Path(task)) for task in sys.argv[1:]]:
        os.waitpid(started, 0)
