"""The client of a cluster's job server. It talks HTTP through Ray's own client, from a shell outside the cluster.

Ray's client prefers an address from the environment to the one it is given, waits for a silent server for ever, and
raises a different exception for each mistake. This module ends all of that in `HpxferError`.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from hpxfer.errors import HpxferError, last_line, shown
from hpxfer.host import read_text
from hpxfer.jobs import DEFAULT_ADDRESS, ray_job
from hpxfer.jobs.request import ENTRYPOINT, ID, VARIABLE, Request, packed, read_answer

# Per request. The server answers from memory, but uploads and long logs take a while.
ANSWER_S = 120.0
# For the first answer of a server. One that is silent for longer is no job server.
FIRST_ANSWER_S = 15.0
# For an answer of a job on the cluster: its processes start, import hpxfer and read data, perhaps on loaded machines.
ASK_S = 300.0
# How long a stopped job may take to store its results before Ray kills it. Ray's default is 3 s.
STOP_S = 60
# How long after its start a head may refuse jobs, and the message that it refuses them with.
STARTING_S = 90.0
_STARTING = "No available agent to submit job"
_POLL_S = 0.3
_TOKEN_FIX = "copy ~/.ray/auth_token from the cluster's head, or name it with RAY_AUTH_TOKEN_PATH"


class _Client(JobSubmissionClient):
    """Ray's client with a time limit: it gives up on a silent server."""

    answer_s: float | None = None  # None: until the first answer

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", (FIRST_ANSWER_S, self.answer_s or FIRST_ANSWER_S))
        return super()._do_request(method, endpoint, **kwargs)


class Cluster:
    """The job server of a Ray cluster. Made by `connect`."""

    def __init__(self, address: str, client: JobSubmissionClient) -> None:
        self.address, self._client = address, client

    def submit(self, request: Request, *, job: str, metadata: dict[str, str] | None = None) -> None:
        """Start a job under the id that we chose. Wait for a head that has just started."""
        variables = {VARIABLE: packed(request), "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
        deadline = time.monotonic() + STARTING_S
        while time.monotonic() <= deadline:
            with _client_errors(self.address):
                try:
                    self._client.submit_job(
                        entrypoint=ENTRYPOINT,
                        submission_id=job,
                        runtime_env={"env_vars": variables},
                        metadata=metadata or {},
                    )
                    return
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
            time.sleep(_POLL_S)
        raise HpxferError(
            f"{self.address}: the head has had no agent that takes jobs for {STARTING_S:g} s; if another Ray "
            f"runs on that machine, start this one with a --dashboard-agent-listen-port of its own"
        )

    def info(self, job: str) -> JobDetails:
        """Return what the cluster knows of a job. Raise HpxferError if no job has that id."""
        if not re.fullmatch(ID, job):
            raise HpxferError(f"JOB must be an id that `hpxfer submit` printed, got {shown(job)}")
        with _client_errors(self.address, job):
            return self._client.get_job_info(job)

    def ask(self, request: Request) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the data and the files that a short job on the head answers.

        The job stays in the cluster's list of jobs. If it were deleted early, Ray's monitor would bring it back as
        failed.
        """
        job = f"hpxfer-{request.action}-{request.nonce}"
        self.submit(request, job=job)
        deadline = time.monotonic() + ASK_S
        while not (info := self.info(job)).status.is_terminal():
            if time.monotonic() > deadline:
                with _client_errors(self.address, job):
                    self._client.stop_job(job)
                raise HpxferError(
                    f"{self.address}: the cluster has not answered within {ASK_S:g} s; see whether it is busy"
                )
            time.sleep(_POLL_S)
        with _client_errors(self.address, job):
            log = str(self._client.get_job_logs(job))
        if (answer := read_answer(log, request.nonce)) is None:
            raise HpxferError(f"{self.address}: {_why_no_answer(info.message or '')}")
        return answer


def connect(address: str) -> Cluster:
    """Return the cluster whose job server is at `address`, e.g. http://127.0.0.1:8265.

    Raise HpxferError unless a job server answers there and accepts the token.
    """
    if not _is_dashboards(address):
        raise HpxferError(f"--address must be that of Ray's dashboard, e.g. {DEFAULT_ADDRESS}, got {shown(address)}")
    for name in ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Ray takes a scheme that is not in small letters for the name of a module.
    address, headers = urlsplit(address).geturl().rstrip("/"), _headers()
    with _client_errors(address), _no_other_address():
        try:
            client = _Client(address, headers=headers)
        except (requests.HTTPError, requests.JSONDecodeError, LookupError, TypeError, RuntimeError) as error:
            raise HpxferError(
                f"{address}: answers, but not as Ray's job server ({last_line(error)}); give the dashboard's address, "
                "and install ray[default] on the cluster's head: without it a dashboard takes no jobs"
            ) from None
    client.answer_s = ANSWER_S
    return Cluster(address, client)


def _is_dashboards(address: str) -> bool:
    """Return whether an address has http or https, a host, perhaps a port, and nothing more."""
    try:
        parts = urlsplit(address)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half of an IPv6 address
        return False
    return legal and not (parts.username or parts.path not in ("", "/") or parts.query or parts.fragment)


def _headers() -> dict[str, str]:
    """Return the header with Ray's token, if there is one and authentication is on."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return {}
    token, named = os.environ.get("RAY_AUTH_TOKEN"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    if not token and (named or path.exists()):
        try:
            token = read_text(path)
        except (OSError, ValueError) as error:
            raise HpxferError(f"{'RAY_AUTH_TOKEN_PATH: ' if named else ''}{path} cannot be read: {error}") from None
    token = (token or "").strip()
    if not token.isascii() or not (token.isprintable() or not token):
        raise HpxferError("Ray's token must be one line of plain text; copy ~/.ray/auth_token from the cluster's head")
    return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def _client_errors(address: str, job: str = "") -> Iterator[None]:
    """Turn the errors of Ray's client and of HTTP into one message."""
    try:
        yield
    except AuthenticationError as error:
        has_token = "Authentication failed" in str(error)  # status 403, and not 401
        what = (
            "does not accept this shell's Ray token" if has_token else "requires Ray's token, and this shell has none"
        )
        raise HpxferError(f"the cluster {what}; {_TOKEN_FIX}") from None
    except requests.exceptions.Timeout:
        raise HpxferError(
            f"{address}: the server is silent; see whether it is Ray's dashboard and its head is alive"
        ) from None
    except requests.exceptions.SSLError as error:
        raise HpxferError(f"{address}: the server's certificate is not accepted: {error}") from None
    except (requests.exceptions.RequestException, ConnectionError) as error:
        found = re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", f"{error} {error.__context__}")
        why = found[1] if found else "it speaks no HTTP"  # in the system's words, e.g. `Connection refused`
        raise HpxferError(
            f"no Ray dashboard answers at {address}: {why}; start one with `ray start --head "
            f"--dashboard-host 127.0.0.1 --disable-usage-stats`, or name another with --address"
        ) from None
    except RuntimeError as error:
        if job and "does not exist" in str(error):
            raise HpxferError(
                f"{address}: knows no job {job}; give the id that `hpxfer submit` printed and the address it was "
                f"submitted to (a cluster that was restarted forgets its jobs, but not their results); "
                f"`{ray_job('list', address=address)}` lists the jobs"
            ) from None
        raise HpxferError(f"{address}: the job server refused: {last_line(error)}") from None


@contextmanager
def _no_other_address() -> Iterator[None]:
    """Keep Ray's client from taking another address from the environment."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    removed = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(removed)


def _why_no_answer(message: str) -> str:
    """Return why a job on the head ended without an answer, and what to do."""
    lines = message.strip().splitlines()
    if any("No module named" in line and "hpxfer" in line for line in lines):
        return (
            "the cluster's Python has no hpxfer, or an older one; install this version on every node, and start Ray "
            "there with that environment's bin folder first in PATH"
        )
    if any("python: not found" in line or "python: command not found" in line for line in lines):
        return "the cluster has no `python` in the PATH that Ray was started with; start it from hpxfer's environment"
    said = next((line for line in reversed(lines) if line.startswith("hpxfer: ")), None)
    return said.removeprefix("hpxfer: ") if said else "the check on the cluster failed: " + (lines or ["no reason"])[-1]
