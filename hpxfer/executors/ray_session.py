"""Join a Ray cluster, or start one on this machine, and say in words what goes wrong. This module imports ray.

Import it before ray: Ray reads part of its environment when it is imported.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A Ray call after the cluster was lost must not start another cluster on this machine.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Ray turns token authentication on for a cluster that it starts. A driver that joins by address must turn it on itself,
# before ray is imported: a later setting reaches Ray's processes but not this one.
if "ray" not in sys.modules and (
    os.environ.get("RAY_AUTH_TOKEN")
    or os.environ.get("RAY_AUTH_TOKEN_PATH")
    or (Path.home() / ".ray" / "auth_token").exists()
):
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray

from hpxfer.errors import HpxferError, first_line, shown
from hpxfer.host import num_cpus

# How long a server at a port may take to speak Ray's protocol (HTTP/2). A silent one is not Ray.
SPEAK_S = 15.0
# How long joining may take. A cluster on a loaded machine is slow; one that takes longer will not answer.
CONNECT_S = 90.0

_SLOW = "Initialization failure"  # in the words of Ray Client

_log = logging.getLogger(__name__)


@contextmanager
def session(address: str | None, cpus: float) -> Iterator[None]:
    """Join the cluster at `address`, or start one on this machine with at least this many CPUs.

    If this process has joined a session before, that session is used and stays open.
    """
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _own_sigterm(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's warning about its future defaults
        if address is None:
            _start(cpus)
        else:
            _join(address)
    try:
        with _quiet():
            yield
    finally:
        ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Restore this process's answer to SIGTERM at the end. Ray's start installs two others.

    Theirs end the process at once, or abort it after three seconds. A SIGTERM that one of them took gets this process's
    own answer after all.
    """
    before, taken = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit:  # Ray raises it for nothing else
        taken = True
        raise
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
            if taken:
                signal.raise_signal(signal.SIGTERM)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's messages about its processes off stdout, where reports go. Ray has no option for it."""
    module: Any = ray._private.worker
    before = getattr(module, "print_to_stdstream", None)
    if before is None:
        yield
        return
    module.print_to_stdstream = lambda data, ignore_prefix: _log.debug("%s", data)
    try:
        yield
    finally:
        module.print_to_stdstream = before


@contextmanager
def ray_errors() -> Iterator[None]:
    """Turn Ray's own errors, such as a lost cluster or a refused token, into one message."""
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        if isinstance(error, ray.exceptions.AuthenticationError):
            fix = "the driver's RAY_AUTH_MODE (token or disabled) and token must be the cluster's"
        else:
            fix = "check that the cluster is still running: `ray status`"
        raise HpxferError(
            f"Ray failed: {first_line(error)}; {fix}. The finished trials are stored; run again to train the rest"
        ) from error


def _start(cpus: float) -> None:
    """Start Ray on this machine. Raise HpxferError if it does not come up."""
    try:
        ray.init(
            address="local",
            num_cpus=max(-int(-cpus // 1), num_cpus()),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises a bare one if its processes are not up in time
        fix = "run again when the machine is less busy, or without Ray: resources: {executor: local}"
        raise HpxferError(f"Ray did not start on this machine: {first_line(error)}; {fix}") from error


def _join(address: str) -> None:
    """Connect to a running cluster. Raise HpxferError if none answers in time."""
    fix = "start one with `ray start --head --disable-usage-stats`, or leave --address out to run on this machine"
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise HpxferError(f"--address must be auto, HOST:PORT or ray://HOST:PORT, got {shown(address)}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            raise HpxferError(f"no Ray cluster answers at {address}: {error}; {fix}") from None
        if not _speaks_grpc(f"{host}:{port}"):
            raise HpxferError(f"the server at {address} is not Ray: it does not speak gRPC within {SPEAK_S:g} s; {fix}")
    outcome: list[BaseException | None] = []

    deadline = time.monotonic() + CONNECT_S

    def connect() -> None:
        try:
            while True:
                try:
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                    break
                except ConnectionError as error:
                    # On a loaded machine, a client's server may need longer than Ray's own 30 s to start.
                    if _SLOW not in str(error) or time.monotonic() > deadline:
                        raise
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=connect, daemon=True, name="ray-connect")
    thread.start()
    thread.join(CONNECT_S)
    if not outcome:
        raise HpxferError(f"no Ray cluster answers at {address} within {CONNECT_S:g} s; {fix}")
    if outcome[0] is not None:
        raise HpxferError(f"cannot join the Ray cluster at {address}: {first_line(outcome[0])}; {fix}")


def _speaks_grpc(target: str) -> bool:
    """Return whether a gRPC server answers. Return True where this cannot be seen from here."""
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError:  # it comes with ray[default]
        return True
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):  # Ray has the certificates
        return True
    channel: Any = grpc.insecure_channel(target)
    try:
        grpc.channel_ready_future(channel).result(timeout=SPEAK_S)
    except grpc.FutureTimeoutError:
        return False
    finally:
        channel.close()
    return True


class ClusterMonitor:
    """Whether the cluster's head answers. Ray's own calls wait for a lost head, and end this process after a minute."""

    # A head that restarts within this time is found again. Ray itself waits 60 s.
    PATIENCE_S = 40.0
    _ANSWER_S = 2.0

    def __init__(self, where: tuple[str, int] | None) -> None:
        self._where = where
        self._last_answer = time.monotonic()

    @classmethod
    def of_cluster(cls) -> ClusterMonitor:
        """Return the monitor of the cluster that this process has joined."""
        # Ray Client raises by itself. From then on Ray counts as not started.
        if ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
            return cls(None)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        return cls((host.strip("[]"), int(port)))

    def is_alive(self) -> bool:
        """Return whether the head answers. If it does not, calls that need it must be avoided, because they do not
        return.

        Raises ConnectionError if Ray Client has given up.
        """
        if self._where is None:
            if not ray.is_initialized():
                raise ConnectionError("Ray Client has lost the cluster")
            return True
        try:
            socket.create_connection(self._where, timeout=self._ANSWER_S).close()
        except OSError:
            return False
        self._last_answer = time.monotonic()
        return True

    def require(self) -> None:
        """Raise HpxferError if the head has not answered for too long."""
        if time.monotonic() - self._last_answer > self.PATIENCE_S and not self.is_alive():
            where = ":".join(str(part) for part in self._where or ())
            raise HpxferError(
                f"the head of the Ray cluster is gone: nothing answers at {where}; the finished trials are stored. "
                f"Start the cluster again, then run again to train the rest"
            )


def mapped(
    numbers: Sequence[int], rows_of: Callable[[Any], Any], *, address: str, workers: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows that `rows_of` makes of each number, in order, computed by Ray Data on the cluster at `address`.

    `rows_of` gets the column `number` and yields batches of columns. It travels to the nodes, so it is a function of
    a module. At most `workers` of it run at once.
    """
    if not numbers:
        return
    with session(address, 0), ray_errors():
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        given = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        yield from given.map_batches(rows_of, batch_size=1, concurrency=workers).iter_rows()
