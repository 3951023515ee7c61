"""The Ray executor: Ray Tune schedules packages of stacks on persistent workers, on this machine or a cluster.

Tune's folder is temporary and never read back: workers put what they have into a mailbox actor, this process takes it
out and hands it to one callback. The mailbox also knows which stacks are done, so that Tune's retry of a package whose
worker was lost goes on where it stopped. The only module that imports ray.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Read when ray.tune is imported: no CSV/JSON/TensorBoard loggers on Tune's temporary folder, Ctrl-C stays ours.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray turns token authentication on for a cluster it starts, but a driver that joins by address must say so itself.
# Read once, when ray is imported: set later it would reach Ray's processes and not this one.
_TOKENS = (os.environ.get("RAY_AUTH_TOKEN"), os.environ.get("RAY_AUTH_TOKEN_PATH"))
if "ray" not in sys.modules and (any(_TOKENS) or (Path.home() / ".ray" / "auth_token").exists()):
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray import tune

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import TRIES, Train, lost
from hpxfer.executors.worker import guarded
from hpxfer.machine import num_cpus
from hpxfer.stack import Stack
from hpxfer.train.event import Event

# A cluster that has not answered after this long is not going to.
CONNECT_S = 15.0
# Packages a worker: fewer balance worse, each costs Tune about half a second.
PACKAGES_PER_WORKER = 4
_POLL_S = 0.25
# How long a run that is broken off waits for its workers to notice; they speak about every second.
_STOP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RayExecutor:
    """Trains through Ray. Without an address it starts Ray on this machine and ends it again."""

    address: str | None = None  # auto | HOST:PORT | ray://HOST:PORT
    workers: int | None = None  # default: as many as the cluster's CPUs, or GPUs over gpus_per_stack
    device: str = "cpu"  # auto | cpu | cuda
    gpus_per_stack: float = 1.0  # read where stacks run on GPUs

    def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
        """See `Executor.run`."""
        if not stacks:
            return
        with _session(self.address, self.workers), _ray_errors():
            gpus = self._gpus_a_stack()
            workers = self.workers or self._workers_there(gpus)
            waiting = list(stacks)
            while waiting:
                left = _round(_packages(waiting, workers), train, on_event, workers, {"cpu": 1, "gpu": gpus})
                # Tune gives a package up when its worker is lost too often: the stack it was at is to blame, those
                # behind it get another round.
                waiting = []
                for package in left:
                    on_event(lost(package[0], "Ray ended its process"))
                    waiting += package[1:]

    def _gpus_a_stack(self) -> float:
        """Return the GPUs a stack asks for: none on a cluster without any, unless the sweep insists on them."""
        there = _cluster_resources().get("GPU", 0)
        if self.device == "cuda" and not there:
            raise HpxferError("resources.device is cuda, but Ray knows of no GPU here; use auto or cpu")
        return self.gpus_per_stack if there and self.device != "cpu" else 0.0

    @staticmethod
    def _workers_there(gpus: float) -> int:
        there = _cluster_resources()
        return max(1, int(there["GPU"] / gpus if gpus else there.get("CPU", 1)))


def _cluster_resources() -> dict[str, float]:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources


def _round(
    packages: list[list[Stack]],
    train: Train,
    on_event: Callable[[Event], None],
    workers: int,
    resources: dict[str, float],
) -> list[list[Stack]]:
    """Run packages through Ray Tune once; return what is left of those that were given up."""
    mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote()
    pending = {(number, index) for number, package in enumerate(packages) for index in range(len(package))}
    ended = threading.Event()
    errors: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="hpxfer-tune-", ignore_cleanup_errors=True) as scratch:
        tuner = _tuner(packages, train, mailbox, workers, resources, scratch)

        def fit() -> None:
            try:
                errors.extend(error for error in tuner.fit().errors if _is_broken(error))
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        threading.Thread(target=fit, daemon=True, name="tune").start()
        try:
            over = False
            while not over:
                over = ended.is_set()  # looked at before the mailbox: what was sent before the end is still taken
                for number, index, event in ray.get(mailbox.take.remote(_POLL_S)):
                    if isinstance(event, tuple):  # the last word on a stack
                        pending.discard((number, index))
                    on_event(event)
        finally:
            if not ended.is_set():
                mailbox.stop.remote()
                ended.wait(_STOP_S)
    if errors:
        raise errors[0]
    return [
        [package[index] for index in range(len(package)) if (number, index) in pending]
        for number, package in enumerate(packages)
        if any((number, index) in pending for index in range(len(package)))
    ]


def _tuner(
    packages: list[list[Stack]],
    train: Train,
    mailbox: Any,
    workers: int,
    resources: dict[str, float],
    scratch: str,
) -> Any:
    runner = tune.with_parameters(_PackageRunner, packages=packages, train=train, mailbox=mailbox)
    return tune.Tuner(
        tune.with_resources(runner, resources),
        param_space={"package": tune.grid_search(list(range(len(packages))))},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=workers),
        run_config=tune.RunConfig(
            name="hpxfer",
            storage_path=scratch,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=TRIES - 1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


class _Mailbox:
    """An actor beside the driver: events wait here, and the stacks that are done are remembered."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Event]] = []
        self._arrived = asyncio.Event()
        self._done: set[tuple[int, int]] = set()
        self._stopped = False

    async def put(self, number: int, index: int, event: Event) -> bool:
        """Leave an event of a stack; its results are the last. Return whether to go on."""
        if isinstance(event, tuple):
            self._done.add((number, index))
        self._events.append((number, index, event))
        self._arrived.set()
        return not self._stopped

    async def stop(self) -> None:
        """Tell the workers, at their next word, that nobody waits for them any more."""
        self._stopped = True

    async def stopped(self) -> bool:
        """Return whether the driver has left."""
        return self._stopped

    async def done(self, number: int) -> set[int]:
        """Return the stacks of a package that have been trained."""
        return {index for package, index in self._done if package == number}

    async def take(self, timeout_s: float) -> list[tuple[int, int, Event]]:
        """Return all waiting events, after `timeout_s` at the latest."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        self._arrived.clear()
        events, self._events = self._events, []
        return events


class _PackageRunner(tune.Trainable):
    """Tune's view of a package: one step is one event. A process is reused for package after package."""

    def setup(self, config: dict[str, Any], packages: Any = None, train: Any = None, mailbox: Any = None) -> None:
        """Keep what all packages share and start on the first."""
        self._packages, self._train, self._mailbox = packages, train, mailbox
        self._begin(config["package"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start on another package in the same process."""
        self._begin(new_config["package"])
        return True

    def _begin(self, number: int) -> None:
        done, stopped = ray.get([self._mailbox.done.remote(number), self._mailbox.stopped.remote()])
        self._events = iter(()) if stopped else self._all_events(number, done)

    def _all_events(self, number: int, done: set[int]) -> Iterator[tuple[int, int, Event]]:
        for index, stack in enumerate(self._packages[number]):
            if index not in done:
                for event in guarded(self._train, stack):
                    yield number, index, event

    def step(self) -> dict[str, Any]:
        """Send the next event to the mailbox."""
        item = next(self._events, None)
        go_on = item is not None and ray.get(self._mailbox.put.remote(*item))
        return {"done": not go_on}


def _packages(stacks: Sequence[Stack], workers: int) -> list[list[Stack]]:
    """Return the stacks in order, cut where a package has its share of the FLOPs."""
    share = sum(stack.flops for stack in stacks) / (workers * PACKAGES_PER_WORKER)
    out: list[list[Stack]] = []
    filled = share
    for stack in stacks:
        if filled >= share:
            out.append([])
            filled = 0.0
        out[-1].append(stack)
        filled += stack.flops
    return out


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Turn what Ray itself raises, a lost cluster or a refused token, into one message."""
    try:
        yield
    except (ray.exceptions.RayError, tune.TuneError) as error:
        if _is_broken(error):
            why = str(error).strip().splitlines()[-1]
            fix = "every node needs this hpxfer and this Python's packages"
        else:
            why = _first_line(error)
            fix = "the driver's RAY_AUTH_MODE (token or disabled) must be the cluster's"
        raise HpxferError(f"Ray gave up: {why}; what was done is stored, run again to go on ({fix})") from error


def _is_broken(error: Exception) -> bool:
    """Return whether a worker failed by itself, e.g. has no hpxfer to import: no retry helps, unlike a lost worker."""
    return isinstance(error, ray.exceptions.RayTaskError) or "creation task" in str(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _session(address: str | None, workers: int | None) -> Iterator[None]:
    """Join the cluster at `address`, or start one on this machine; a session that was there before is left alone."""
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about its defaults of next year
        if address is None:
            ray.init(
                address="local",
                num_cpus=max(workers or 0, num_cpus()),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        else:
            _join(address)
    try:
        yield
    finally:
        ray.shutdown()


def _join(address: str) -> None:
    """Connect to a running cluster; raise HpxferError if none answers in time."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    fix = "start one with `ray start --head`, or leave --address out to run on this machine"
    if address != "auto":
        if not colon or not host or not port.isdigit():
            raise HpxferError(f"--address must be auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            raise HpxferError(f"no Ray cluster answers at {address}: {error}; {fix}") from None
    outcome: list[BaseException | None] = []

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=connect, daemon=True, name="ray-connect")
    thread.start()
    thread.join(CONNECT_S)
    if not outcome:
        raise HpxferError(f"no Ray cluster answers at {address} within {CONNECT_S:g} s; {fix}")
    if outcome[0] is not None:
        raise HpxferError(f"cannot join the Ray cluster at {address}: {_first_line(outcome[0])}; {fix}")
