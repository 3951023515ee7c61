"""Soak: a sweep whose processes are killed, at random moments and after checkpoints, and what must hold in the end.

    python tests/tools/soak.py --kills 30 --seed 0 --executor local
    python tests/tools/soak.py --kills 30 --seed 0 --executor ray
    python tests/tools/soak.py --kills 30 --seed 0 --ranks 2
    python tests/tools/soak.py --kills 30 --seed 0 --sweep any-trainer-command

With `--sweep any-trainer-command` a user's own trainer of two ranks trains, whose supervisors, trainers and ranks are
killed too, and workers together with their supervisors. With `--ranks` a batch has pieces in lanes, and each start of
the driver draws how many ranks share a stack, and how many pieces are computed at once. Bits must not depend on either.

Real processes and kill -9: of workers and of the driver, which also dies within appends to the store and within its
compaction; with ray of a whole node and of the head too. Now and then SIGTERM interrupts the driver instead. Whoever
dies is started again as a user would: by the same command. A sweep that is done before all kills are spent is checked
and begun anew. Linux only: processes are found by a variable in their environment.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from soak_checks import RESUMED, Check, History, checks, history_of
from soak_cluster import ROLE, TOKEN, Cluster, Process, kill, processes, supervisors, wait_until
from soak_driver import APPEND, COMPACTION, MOMENTS
from soak_sweeps import ANY_TRAINER, SWEEPS, TRAINER, sweep_text

# Of a soak with ranks: 8 pieces in 4 lanes.
PIECES = ", accumulation_tokens: 32, accumulation_lanes: 4"
HPXFER_RUN = (sys.executable, "-m", "hpxfer.cli", "run")
DRIVER = (sys.executable, str(Path(__file__).with_name("soak_driver.py")))
# Before a kill the soak waits for at most so long, at random. Every third one is aimed instead: it comes as soon as a
# checkpoint is written and takes all workers, or chance would decide whether any trial ever goes on from one.
PAUSE_S = 2.0
CHECKPOINT_S = 0.2
AIMED = "all workers"
AIMED_EVERY = 3
WAIT_S = 120.0
WEIGHTS = {"worker": 5, "driver": 3, APPEND: 2, COMPACTION: 1, "interrupt": 1, "node": 2, "head": 1}
WEIGHTS |= {"supervisor": 2, "trainer": 2, "rank": 2, "worker and supervisor": 2}
OF_RAY = ("node", "head")
OF_OWN = ("supervisor", "trainer", "rank", "worker and supervisor")  # of a sweep with a user's own trainer
TRIALS_FAILED = 1  # the exit code of a run with failed trials: some lost their worker too often
BAD_INPUT = 2  # so ends a driver whose cluster is gone
# What it says then: where it notices, where a call of Ray's fails first, and where it was about to join.
HEAD_GONE = (
    "the head of the Ray cluster is gone",
    "Ray failed: ",
    "no Ray cluster answers at",
    "cannot join the Ray cluster",
)
INTERRUPTED = (128 + signal.SIGTERM, -signal.SIGTERM)  # the second before it listens
# Nothing here takes as long on any machine.
LIMIT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a soak did, and what held."""

    kills: Counter[str]
    starts: int  # of drivers
    rounds: int  # how often the sweep was begun from nothing
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        killed = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        lines = [f"killed: {killed}; rounds: {self.rounds}; the driver was started {self.starts} times"]
        width = max(len(check.name) for check in self.checks)
        lines += [f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.found}" for check in self.checks]
        return "\n".join(lines)


@dataclass(kw_only=True)
class _Soak:
    """A soak under way. Its folder holds the sweep, the results of each round, a log and a temporary folder."""

    folder: Path
    undisturbed: Path  # the results of a run that nothing happened to
    token: str
    rng: random.Random
    targets: tuple[str, ...]  # of each kill
    sweep: Callable[[], str]  # the text of the sweep file for the next start
    changes: bool = False  # whether that text differs from start to start
    patience_s: float = 0.0  # of drivers whose cluster's head is lost; 0: as users have it
    cluster: Cluster | None = None
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    rounds: int = 0
    history: History = field(default_factory=History)

    @property
    def results(self) -> Path:
        return self.folder / f"round-{self.rounds}" / "soak"

    def environment(self, role: str) -> dict[str, str]:
        """Return the environment of a process, by which it and all its children are known."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        own = {TOKEN: self.token, ROLE: role, "TMPDIR": str(self.folder / "tmp"), "PYTHONWARNINGS": "ignore"}
        return {**os.environ, **own, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token * 2}

    def log(self) -> str:
        """Return the end of what the drivers said."""
        return (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-4000:]

    def round(self, kills: int) -> tuple[Check, ...]:
        """Run the sweep from nothing to its end, killing what is left of so many; return what held."""
        self.rounds, self.history = self.rounds + 1, History()
        driver = self._started()
        while driver.returncode is None and self.kills.total() < kills:
            driver = self._killed_one(driver)
        kill([driver.pid])
        self._ended(driver)
        for _ in ("last run", "nothing to do"):
            before = history_of(self.results)
            self._ended(self._started())
        wait_until(lambda: not self._left(), WAIT_S)
        held = checks(self.undisturbed, self.results, self.history, before, has_changed=self.changes)
        return (*held, *self._leftovers())

    def _killed_one(self, driver: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Kill what is next; return the driver that is at work then, or one that has ended well."""
        kind = self.targets[self.kills.total()]
        if kind == AIMED:
            before = self._written()
            wait_until(lambda: bool(self._written() - before) or driver.poll() is not None, WAIT_S)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(0.0 if kind == AIMED else self.rng.uniform(0.0, PAUSE_S))
            self._ended(driver)
            return self._started() if driver.returncode == TRIALS_FAILED else driver
        if kind in ("worker", AIMED, *OF_OWN):
            if not (found := self._found(kind)):
                return driver
            kill(found)
        elif kind == "node":
            self.cluster.pull_node()
            self.cluster.start_node()
        elif kind == "head":
            self.cluster.pull_head()
            driver.wait(LIMIT_S)
            self._ended(driver, BAD_INPUT)
            if not any(words in self.log().rpartition("--- start")[2] for words in HEAD_GONE):
                raise AssertionError(f"the driver does not say that the head is gone:\n{self.log()}")
            self.cluster.restart()
        elif kind in MOMENTS:
            if not self._killed_itself(driver, kind):
                return self._started() if driver.returncode == TRIALS_FAILED else driver
        elif kind == "interrupt":
            driver.terminate()
            self._ended(driver, *INTERRUPTED)
        else:
            kill([driver.pid])
            self._ended(driver)
        self.kills[kind] += 1
        return driver if driver.returncode is None else self._started()

    def _found(self, kind: str) -> list[int]:
        """Return the processes that a kill takes. There may be none at the moment."""
        there = processes(self.token)
        if kind == AIMED:
            return [process.pid for process in there if process.kind == "worker"]
        above = supervisors(self.folder)
        choice: dict[str, list[tuple[int, ...]]] = {
            "supervisor": [(pid,) for pid in above],
            "worker and supervisor": [(parent, pid) for pid, parent in above.items() if parent > 1],
        }
        found = choice.get(kind) or [(process.pid,) for process in there if process.kind == kind]
        return list(self.rng.choice(found)) if found else []

    def _killed_itself(self, driver: subprocess.Popen[bytes], kind: str) -> bool:
        """Let the driver die within its next write of a kind. Return False if it ended before."""
        moment = self.folder / "moment"
        moment.with_suffix(".tmp").write_text(f"{kind} {self.rng.randint(1, MOMENTS[kind])}", encoding="utf-8")
        moment.with_suffix(".tmp").rename(moment)
        self._ended(driver)
        moment.unlink(missing_ok=True)
        return driver.returncode == -signal.SIGKILL

    def _started(self) -> subprocess.Popen[bytes]:
        """Start the driver as a user would, its words going to a log."""
        self.starts += 1
        (self.folder / "soak.yaml").write_text(self.sweep(), encoding="utf-8")
        command = [*DRIVER, str(self.folder / "moment"), str(self.patience_s), "run", "soak.yaml"]
        command += ["--results", str(self.results.parent)]
        command += ["--address", self.cluster.address] if self.cluster else []
        given = {"env": self.environment("driver"), "start_new_session": True, "cwd": self.folder}
        with open(self.folder / "log.txt", "ab") as log:
            log.write(f"\n--- start {self.starts}\n".encode())
            log.flush()
            return subprocess.Popen(command, stdout=log, stderr=log, **given)

    def _ended(self, driver: subprocess.Popen[bytes], *codes: int) -> None:
        """Look at what is stored, while nobody writes. Raises AssertionError if a driver ended as none may.

        `codes` are exit codes that it may have beside the usual ones.
        """
        code = driver.wait(LIMIT_S)
        if code not in (0, TRIALS_FAILED, -signal.SIGKILL, *codes):
            raise AssertionError(f"the driver ended with exit code {code}:\n{self.log()}")
        self.history.add(self.results)

    def _written(self) -> set[tuple[str, int]]:
        """Return the checkpoints that are there, and when they were written."""
        out = set()
        for path in (*self.results.glob("checkpoints/*.safetensors"), *self.results.glob("runs/*/ckpt/step-*")):
            with suppress(OSError):
                out.add((path.name, path.stat().st_mtime_ns))
        return out

    def _left(self) -> list[Process]:
        """Return the drivers, workers and supervisors that are there."""
        there = [one for one in processes(self.token) if one.kind not in ("head", "node")]
        return there + [Process(pid=pid, command="a supervisor", role="") for pid in supervisors(self.folder)]

    def _leftovers(self) -> tuple[Check, ...]:
        left = ", ".join(f"{one.pid} {one.command[:60]}" for one in self._left())
        temporary = ", ".join(sorted(path.name for path in (self.folder / "tmp").iterdir()))
        return (
            Check("no process is left", not left, left or "none"),
            Check("no temporary file is left", not temporary, temporary or "none"),
        )


def soak(
    folder: Path,
    *,
    kills: int = 30,
    seed: int = 0,
    executor: str = "local",
    steps: int = 300,
    undisturbed: Path | None = None,
    kinds: Sequence[str] | None = None,
    patience_s: float = 0.0,
    ranks: int = 1,
    sweep: str = "gpt",
) -> Report:
    """Return what happened to a sweep in `folder`, which is made. Raises AssertionError where no run could go on.

    `sweep` is one of `SWEEPS`. `undisturbed` is what `run_undisturbed` returned for as many steps; made if it is not
    given. `kinds` are what is killed; by default everything that the executor has. With more `ranks` than one, the
    batch has pieces.
    """
    folder.mkdir(parents=True)
    pieces = PIECES if ranks > 1 else ""
    undisturbed = undisturbed or run_undisturbed(folder, steps, pieces, sweep)
    shutil.copy(TRAINER, folder)
    rng = random.Random(seed)

    def text() -> str:
        way = ""
        if ranks > 1:
            drawn = rng.choice([number for number in (1, 2, 4) if number <= ranks]), rng.choice([32, 64])
            way = f", device: cpu, cpus_per_stack: 0.4, gpus_per_stack: {drawn[0]}, micro_batch_tokens: {drawn[1]}"
        how = {"executor": executor, "checkpoint_s": CHECKPOINT_S, "pieces": pieces, "way": way}
        return sweep_text(sweep, steps=steps, **how)

    left_out = (*(() if executor == "ray" else OF_RAY), *(() if sweep == ANY_TRAINER else OF_OWN))
    kinds = kinds or [kind for kind in WEIGHTS if kind not in left_out]
    soak = _Soak(
        folder=folder,
        undisturbed=undisturbed,
        token=uuid.uuid4().hex,
        rng=rng,
        targets=_targets(kills, kinds, rng),
        sweep=text,
        changes=ranks > 1,
        patience_s=patience_s,
    )
    with ExitStack() as stack:
        stack.callback(lambda: kill([process.pid for process in processes(soak.token)]))
        if executor == "ray":
            soak.cluster = stack.enter_context(Cluster.started(soak.environment, soak.token))
        held: list[Check] = []
        while soak.kills.total() < kills:
            new = soak.round(kills)
            # Of the rounds one is enough in which some trial went on; all else must hold in each.
            held = [
                Check(old.name, (any if old.name == RESUMED else all)((old.ok, one.ok)), f"{old.found}; {one.found}")
                for old, one in zip(held or new, new, strict=True)
            ]
    return Report(kills=soak.kills, starts=soak.starts, rounds=soak.rounds, checks=tuple(held))


def _targets(kills: int, kinds: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """Return what each kill takes: one of each kind in random order, then by weight; every third is an aimed one.

    The last kill falls into a compaction, for which the sweep must be done.
    """
    rest = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=kills)
    first = [kind for kind in kinds if kind != COMPACTION]
    chosen = iter([*rng.sample(first, len(first)), *rest])
    targets = [AIMED if index % AIMED_EVERY == AIMED_EVERY - 1 else next(chosen) for index in range(kills)]
    return (*targets[:-1], COMPACTION) if COMPACTION in kinds else tuple(targets)


def run_undisturbed(folder: Path, steps: int, pieces: str = "", sweep: str = "gpt") -> Path:
    """Return the results folder of the same sweep where nothing is killed, and nothing kept but results."""
    how = {"executor": "local", "checkpoint_s": 0, "pieces": pieces, "way": ""}
    shutil.copy(TRAINER, folder)
    (folder / "undisturbed.yaml").write_text(sweep_text(sweep, steps=steps, **how))
    command = [*HPXFER_RUN, "undisturbed.yaml", "--results", "undisturbed"]
    end = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    if end.returncode != 0:
        raise AssertionError(f"the undisturbed run ended with exit code {end.returncode}:\n{end.stderr[-4000:]}")
    return folder / "undisturbed" / "soak"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a soak and print its report; return 0 if all held."""
    parser = argparse.ArgumentParser(prog="python tests/tools/soak.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--steps", type=int, default=300, help="of each trial")
    parser.add_argument("--ranks", type=int, default=1, help="the most that share a stack")
    parser.add_argument("--sweep", choices=tuple(SWEEPS), default="gpt", help="what is trained")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scratch = Path(tempfile.mkdtemp(prefix="hpxfer-soak-"))
    try:
        how = {"kills": given.kills, "seed": given.seed, "executor": given.executor, "steps": given.steps}
        report = soak(scratch / "soak", ranks=given.ranks, sweep=given.sweep, **how)
    finally:
        if given.keep:
            sys.stdout.write(f"{scratch}\n")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(f"{report}\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
