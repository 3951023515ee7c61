"""TrainUser: train a trial with the user's own trainer, on one node or on several, and turn its end into a result.

A trial is a stack of one. Several nodes are the ranks of a worker: each runs the command, and the first one reads what
it reports. They agree on attempts through the store of their team.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hpxfer
from hpxfer.errors import RankLost, first_line
from hpxfer.host import cpu_name, remove_half_written, write_files
from hpxfer.spec import LEAST_IN_WINDOW, TrainerSpec
from hpxfer.trainer.ending import Ending
from hpxfer.trainer.follow import SLACK_S, follow
from hpxfer.trainer.job import (
    CONFIG,
    ENDED,
    Job,
    attempt_folder,
    attempt_numbers,
    config_of,
    fill,
    next_attempt,
    placeholders,
)
from hpxfer.trainer.lines import Point, reached, read_attempts
from hpxfer.trainer.own_code import require_files
from hpxfer.trial import MEMBER, STOP, Curve, Ended, Event, Points, Progress, Stack, Team, Trial, TrialResult

# A trial may end in these ways once, and is then tried elsewhere. `lost` is counted by the executor.
_ONCE_MORE = ("memory", "timeout")
# How long another node waits for the first one to say how the attempt ended, beyond the time that a command may take
# to end.
_WORD_S = 60.0
_PROGRESS_S = 1.0
# How torchrun finds the ranks on other nodes.
_ON_NODES = (
    *("--nnodes", "{nodes}", "--node-rank", "{node_rank}", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "{rdzv_endpoint}", "--rdzv-id", "{rdzv_id}", "--rdzv-conf", "is_host={rdzv_is_host}"),
)


@dataclass(frozen=True, kw_only=True)
class TrainUser:
    """Trains one trial through the user's own trainer. `runs` holds a folder for each trial."""

    trainer: TrainerSpec
    sweep: str
    runs: str
    multipliers: tuple[str, ...] = ()  # that the sweep names
    judged: str | None  # the loss that the sweep is judged by: validation or final_window; None: any will do
    node_gpus: float = 0.0  # on each node
    nodes: int = 1
    curves: bool = True
    provenance: str | None = None  # JSON: of the user's code
    sent: Mapping[str, bytes] = field(default_factory=dict)  # files of the trainer that came with a job
    check: bool = False  # whether these are short trials that check the trainer: the config says so

    def __call__(self, stack: Stack) -> Iterator[Event]:
        (trial,) = stack.trials
        require_files(self.trainer, self.sent)
        meeting, folder = _meeting(MEMBER.team), Path(self.runs) / trial.id
        again = True
        while again:
            attempt, endpoint = meeting.attempt(trial.id, folder)
            ending = yield from self._attempt(trial, folder, attempt, endpoint, meeting.rank)
            again = meeting.rank == 0 and self._goes_on(ending, folder)
            if STOP.is_set and ending.kind == "lost":
                return  # `guarded` sends no end of a stack that was stopped
            again = meeting.goes_on(again, ending, wait_s=self.trainer.timeouts.grace_s + _WORD_S)
        yield Ended(results=(self._result(trial, ending),))

    @property
    def stop_s(self) -> float:
        """How long an interrupted run waits for it."""
        return self.trainer.timeouts.grace_s + SLACK_S

    def reached(self, stack: Stack) -> int:
        """Return the latest step of which a trial has a checkpoint, at most its number of steps; -1 without any.

        On a machine that does not see the folders of the trials it is always -1.
        """
        (trial,) = stack.trials
        return reached(read_attempts(Path(self.runs) / trial.id, trial_id=trial.id, steps=trial.setting.steps))

    def _attempt(
        self, trial: Trial, folder: Path, attempt: int, endpoint: str, rank: int
    ) -> Generator[Event, None, Ending]:
        """Run an attempt on this node, and yield its progress."""
        gpus, steps = max(1, round(self.node_gpus)) if self.node_gpus else 0, trial.setting.steps
        config = config_of(
            trial, self.trainer, sweep=self.sweep, gpus=gpus, nodes=self.nodes, multipliers=self.multipliers
        )
        config |= {"check": True} if self.check else {}
        at, limits = Path(os.path.abspath(folder)), self.trainer.timeouts
        values = placeholders(
            trial,
            config,
            config_json=at / CONFIG,
            run_dir=at,
            gpus=max(1, gpus),
            nodes=self.nodes,
            node_rank=rank,
            rdzv_endpoint=endpoint,
            rdzv_is_host="true" if rank == 0 else "false",  # torchrun's own guess compares names of this machine
            rdzv_id=f"{trial.id[:16]}-{attempt}",
        )
        job = Job(
            argv=fill(self._command(gpus), values),
            folder=folder,
            trial_id=trial.id,
            steps=steps,
            config=config,
            cwd=Path(self.trainer.folder or "."),
            env={name: os.environ[name] for name in self.trainer.env if name in os.environ},
            timeouts=limits,
            nan_exit=tuple(self.trainer.nan_exit),
            grace_s=limits.grace_s,
            attempt=attempt,
            node_rank=rank,
            nodes=self.nodes,
            speaks=rank == 0,
        )
        events = follow(job, stop=STOP.check)
        told, at_s, kept = 0, 0.0, list[Point]()

        def progress(last: int) -> Progress:
            """Return a report of the steps up to the last one that was reported."""
            nonlocal told
            first, done = told, min(steps, last + 1)
            told = max(told, done)
            new = Points(first=first, stop=told, curves={trial.id: _curves(kept)}) if kept else None
            loss = kept[-1].loss if kept else math.nan
            return Progress(tokens=(told - first) * trial.setting.batch_tokens, step=done, losses=(loss,), points=new)

        try:
            while True:
                kept += next(events)
                if time.monotonic() - at_s >= _PROGRESS_S:
                    yield progress(kept[-1].step)
                    at_s, kept = time.monotonic(), []
        except StopIteration as end:
            ending: Ending = end.value
        finally:
            events.close()
        if ending.points:
            yield progress(ending.points[-1].step)
        if rank == 0:
            _note(folder, ending)
        return ending

    def _command(self, gpus: int) -> tuple[str, ...]:
        """Return the command, unfilled. That of a function runs it in a fresh process, or in one for each GPU."""
        if self.trainer.command is not None:
            return self.trainer.command
        launch: tuple[str, ...] = ()
        if gpus > 1 or self.nodes > 1:
            meet = _ON_NODES if self.nodes > 1 else ("--standalone",)
            launch = ("-m", "torch.distributed.run", *meet, "--nproc-per-node", "{gpus}", "--max-restarts", "0")
        return (sys.executable, *launch, "-m", "hpxfer.trainer", "{config_json}")

    def _goes_on(self, ending: Ending, folder: Path) -> bool:
        """Return whether the first node tries again by itself. Raise RankLost if another worker shall try.

        An attempt that was lost costs no try if it wrote a checkpoint of a later step than all before.
        """
        if ending.status != "failed" or STOP.is_set:
            return False
        if ending.kind == "lost" and ending.advanced:
            return True
        if ending.kind == "lost" or (ending.kind in _ONCE_MORE and _num_ended(folder, ending.kind) < 2):
            raise RankLost(ending.message.partition("\n")[0])
        return False

    def _result(self, trial: Trial, ending: Ending) -> TrialResult:
        setting, loss = trial.setting, self.trainer.loss
        last = max([setting.steps - 1, *(point.step for point in ending.points[-1:])])  # from 1 on, it is `steps`
        window = [point.loss for point in ending.points if point.step > last - setting.final_window_steps]
        final = math.fsum(window) / len(window) if len(window) >= LEAST_IN_WINDOW else None
        status, kind, error = ending.status, ending.kind, ending.message if ending.status == "failed" else None
        judged = ending.validation_loss if self.judged == "validation" else final
        if status == "finished" and MEMBER.is_first and self.judged is not None and judged is None:
            status, kind, error = "failed", "bug", _no_loss(self.judged, len(window), setting.final_window_steps)
        finished, diverged = status == "finished", status == "diverged"
        return TrialResult(
            trial_id=trial.id,
            status=status,
            final_window_loss_nats=final if finished else None,
            validation_loss_nats=ending.validation_loss if finished else None,
            diverged_step=ending.diverged_step if diverged else None,
            last_finite_loss_nats=ending.points[-1].loss if diverged and ending.points else None,
            error=error,
            error_kind=kind,
            curves=_curves(ending.points) if self.curves else (),
            wall_s=ending.wall_s,
            tokens_per_s=setting.batch_tokens * setting.steps / ending.wall_s if finished and ending.wall_s else None,
            stack_size=1,
            resumes=int(ending.resumed),
            loss_name=loss.name,
            loss_unit=None if loss.unit == "nats" else loss.unit,
            attempts=len(attempt_numbers(Path(self.runs) / trial.id)),
            num_gpus=round(self.node_gpus * self.nodes) or None,
            num_nodes=self.nodes,
            provenance=self.provenance,
            device="cuda" if self.node_gpus else "cpu",
            cpu=None if self.node_gpus else cpu_name(),
            host=socket.gethostname(),
            versions=json.dumps({"hpxfer": hpxfer.__version__, "python": platform.python_version()}),
            finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        )


class _Meeting:
    """How the nodes of a trial agree on its attempts, through the store that the first has opened."""

    def __init__(self, team: Team | None) -> None:
        self.rank, self._host, self._count = 0, "127.0.0.1", 0
        self._store: Any = None
        if team is not None:
            import torch.distributed as dist

            self.rank, (self._host, _, port) = team.rank, team.address.rpartition(":")
            timeout = datetime.timedelta(seconds=team.timeout_s)
            self._store = dist.TCPStore(self._host, int(port), None, False, timeout)  # type: ignore[attr-defined]

    def attempt(self, trial_id: str, folder: Path) -> tuple[int, str]:
        """Return the number of the next attempt, and where its ranks meet (HOST:PORT)."""
        self._count += 1
        if self.rank == 0:
            number, endpoint = next_attempt(folder), f"{self._host}:{_free_port(self._host)}"
            self._set("attempt", [trial_id, number, endpoint])
            return number, endpoint
        named, number, endpoint = self._get("attempt")
        if named != trial_id:
            raise RankLost(f"node {self.rank} was given another trial than the first")
        return int(number), str(endpoint)

    def goes_on(self, again: bool, ending: Ending, *, wait_s: float) -> bool:
        """Return whether the nodes try again: what the first one says.

        Raise RankLost on another node that failed, if the first one says nothing of it.
        """
        if self.rank == 0:
            self._set("again", again)
            return again
        if ending.status != "failed":
            return bool(self._get("again"))
        try:
            return bool(self._get("again", wait_s))
        except RankLost:
            raise RankLost(f"node {self.rank}: {ending.message.splitlines()[0]}") from None

    def _set(self, key: str, value: object) -> None:
        if self._store is not None:
            with suppress(RuntimeError):  # a node that is gone is noticed elsewhere
                self._store.set(f"{self._count}/{key}", json.dumps(value))

    def _get(self, key: str, wait_s: float | None = None) -> Any:
        try:
            if wait_s is not None:
                self._store.wait([f"{self._count}/{key}"], datetime.timedelta(seconds=wait_s))
            return json.loads(self._store.get(f"{self._count}/{key}"))
        except RuntimeError as error:
            raise RankLost(f"node {self.rank} heard nothing of the first: {first_line(error)}") from None


@cache
def _meeting(team: Team | None) -> _Meeting:
    """Return the meeting of this process, one for each team."""
    return _Meeting(team)


def _free_port(host: str) -> int:
    """Return a port that nothing listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def _no_loss(judged: str, reported: int, window: int) -> str:
    if judged == "validation":
        return (
            "the sweep is judged by the validation loss, and the trainer gave none; return {'validation': x}, write it "
            "as validation_loss of the result line, or set judge.loss: final_window"
        )
    return (
        f"the sweep is judged by the mean of the final window of {window} steps, and the trainer reported {reported} "
        f"losses in it; report at least {LEAST_IN_WINDOW}, or widen training.final_window_steps"
    )


def _note(folder: Path, ending: Ending) -> None:
    """Write into the folder of an attempt how it ended, for people and for the next attempt.

    A worker that was killed while it wrote that of an earlier attempt has left a temporary file, which goes.
    """
    text = json.dumps({"status": ending.status, "kind": ending.kind, "message": ending.message}, indent=1)
    path = attempt_folder(folder, ending.attempt) / ENDED
    with suppress(OSError):
        for number in attempt_numbers(folder):
            remove_half_written(attempt_folder(folder, number))
        write_files({path: lambda file: file.write(text.encode())})


def _num_ended(folder: Path, kind: str) -> int:
    """Return how many attempts at a trial ended so."""
    found = 0
    for number in attempt_numbers(folder):
        with suppress(OSError, ValueError, TypeError):
            found += json.loads((attempt_folder(folder, number) / ENDED).read_text()).get("kind") == kind
    return found


def _curves(points: Sequence[Point]) -> tuple[Curve, ...]:
    """Return the training loss, and every other number that was reported, over the steps."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for point in points:
        for metric, value in {**point.metrics, "train_loss_nats": point.loss}.items():
            steps.setdefault(metric, []).append(point.step)
            values.setdefault(metric, []).append(value)
    return tuple(Curve(metric=name, steps=tuple(steps[name]), values=tuple(values[name])) for name in steps)
