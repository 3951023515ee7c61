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

from hpxfer.train.ranks import open_store
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack
from hpxfer.trial.team import Team


def trained_by_ranks(
    stack: Stack, world: int, *, timeout_s: float = 60.0, preludes: Mapping[int, str] | None = None, **options: Any
) -> list[tuple[TrialResult, ...] | str]:
    """Return the results of every rank, `stopped`, or the error that it ended with.

    A prelude is code that a rank runs before. `stop_after` steps the training is asked to stop.
    """
    store, address = open_store(world, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(world):
            team = Team(rank=rank, world=world, address=address, timeout_s=timeout_s)
            task = Path(folder) / f"{rank}.pickle"
            task.write_bytes(pickle.dumps((stack, team, options, (preludes or {}).get(rank, ""))))
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            processes.append(subprocess.Popen([sys.executable, __file__, str(task)], env=environment))
        for process in processes:
            process.wait(300)
        out = [pickle.loads((Path(folder) / f"{rank}.pickle.out").read_bytes()) for rank in range(world)]
    del store
    return out


def main(task: Path) -> None:
    calls = itertools.count(1)
    stack, team, options, prelude = pickle.loads(task.read_bytes())
    out: Any
    try:
        exec(prelude, {})
        from hpxfer.train.trainer import train

        after = options.pop("stop_after", math.inf)
        events = list(train(stack, "cpu", team=team, stop=lambda: next(calls) >= after, **options))
        out = next((event.results for event in events if isinstance(event, Ended)), "stopped")
    except Exception as error:
        out = f"{type(error).__name__}: {error}"
    task.with_name(task.name + ".out").write_bytes(pickle.dumps(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
