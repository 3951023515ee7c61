"""Submit a sweep to a cluster, and fetch its results.

A job's metadata names its sweep and its results. `fetch` needs nothing else of the submission.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hpxfer
from hpxfer.driver import located, overridden
from hpxfer.errors import HpxferError, shown
from hpxfer.host import parse_root
from hpxfer.jobs import DEFAULT_ROOT, ray_job
from hpxfer.jobs.answers import has_mark, is_store_file
from hpxfer.jobs.client import Cluster
from hpxfer.jobs.request import Request
from hpxfer.jobs.travel import files_of
from hpxfer.recipe import load_sweep
from hpxfer.spec import AUTO, SweepSpec, digested, dump_sweep, with_precision
from hpxfer.storage import LeaseFile, leased
from hpxfer.store import SWEEP_FILE, ResultsLocation, Store, load_stored, location_at
from hpxfer.trial import TRAINER_VERSION

SWEEP_KEY, ROOT_KEY = "hpxfer_sweep", "hpxfer_root"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A sweep that the cluster has checked and can run: its plan there, and where its results will be."""

    spec: SweepSpec
    request: Request  # of its run; the job gets its id when it is submitted
    host: str  # name of the head, where a root lies that is no URI
    plan: dict[str, Any]
    text: str
    warnings: tuple[str, ...]

    @property
    def root(self) -> str:
        """The folder or URI that holds the results folder of the sweep."""
        return self.request.root

    @property
    def costs(self) -> Any:
        """What the run will cost, for `hpxfer.cli.consent`. JSON has no NaN for a time that is not known."""
        hours = {name: self.plan[name] for name in ("gpu_hours", "worker_hours")}
        known = {name: math.nan if value is None else value for name, value in hours.items()}
        return SimpleNamespace(**{**self.plan, **known})


def offer(
    cluster: Cluster,
    sweep: Path,
    results: str | None,
    *,
    reuse: Sequence[str] = (),
    early_stopping: str | None = None,
    plugins: Sequence[str] = (),
    overrides: Sequence[str] = (),
    **asked: Any,
) -> Offer:
    """Return what the cluster finds about a sweep. Raise HpxferError if its versions, data or folder do not fit.

    A relative data path starts at the sweep file's folder on this machine. The data must be at the same absolute path
    on every node. `results` is the root on the cluster; the default is the sweep's `storage`, else DEFAULT_ROOT.
    `reuse` names results folders there. For the other options see `hpxfer.driver.prepare`; `asked` are those that a
    `Request` has, as `strict_memory`.
    """
    spec = overridden(load_sweep(sweep, plugins=plugins, overrides=overrides), None, early_stopping)
    with located(sweep, overrides):
        spec = digested(spec)
    root = cluster_folder("--results", results or spec.storage or DEFAULT_ROOT)
    request = Request(
        action="check",
        job="none",
        root=root,
        name=spec.name,
        sweep=dump_sweep(spec),
        nonce=secrets.token_hex(8),
        reuse=tuple(cluster_folder("--reuse", folder) for folder in reuse),
        files=files_of(spec),
        **asked,
    )
    answer, _ = cluster.ask(request)
    if refused := list(refusals(answer, cluster.address)):
        raise HpxferError("\n".join([*refused, "nothing was submitted"]))
    # The job trains what was planned: the cluster has decided `precision: auto`, and the run does not ask again.
    spec = with_precision(spec, answer["precision"]) if spec.precision == AUTO else spec
    run = {"action": "run", "root": answer["root"], "sweep": dump_sweep(spec), "nonce": "", "price_per_hour": None}
    said = {name: answer[name] for name in ("host", "plan", "text")}
    return Offer(spec=spec, request=request.model_copy(update=run), warnings=tuple(answer["warnings"]), **said)


def submit(cluster: Cluster, offered: Offer) -> str:
    """Start the sweep as a job and return its id."""
    job = f"hpxfer-{offered.spec.name}-{secrets.token_hex(4)}"
    metadata = {SWEEP_KEY: offered.spec.name, ROOT_KEY: offered.root}
    cluster.submit(offered.request.model_copy(update={"job": job}), job=job, metadata=metadata)
    return job


def refusals(answer: dict[str, Any], address: str) -> Iterator[str]:
    """Yield the reasons why a sweep cannot run on the cluster that gave this answer, one line each."""
    here = {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION}
    if other := _difference(here, answer.get("versions", {})):
        yield f"{address}: its head has {other}; install the same hpxfer on both"
        return
    if "error" in answer:
        host = answer.get("host")
        yield f"{address}: on the head{f' ({host})' if host else ''}: {answer['error']}"
    for node in answer.get("nodes", ()):
        where = f"{address}: node {node['host']} ({node['node'][:8]})"
        if "error" in node:
            yield f"{where}: {node['error']}; every node needs this hpxfer and the sweep's data"
        elif other := _difference({**here, "python": answer["versions"]["python"]}, node):
            yield f"{where} has {other}; every node needs the same"
        elif node["digest"] is None:
            yield f"{where}: the sweep's data is not there; copy it to the same path on every node, or share its folder"
        elif node["digest"] != answer["digest"]:
            digests = f"{node['digest']}, not {answer['digest']}"
            yield f"{where}: holds other data than the head (digest {digests}); copy it again"


def _difference(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Return the versions that differ, e.g. `hpxfer 0.1.0, not 0.2.0`."""
    names = [name for name, version in here.items() if there.get(name) != version]
    return ", ".join(f"{name} {there.get(name, 'unknown')}, not {here[name]}" for name in names)


def cluster_folder(option: str, folder: str) -> str:
    """Return a folder on the cluster as given. Raise HpxferError if the cluster would read it as another folder."""
    try:
        found = parse_root(folder)
    except HpxferError as error:
        raise HpxferError(f"{option}: {error}") from None
    if isinstance(found, Path) and not found.is_absolute() and not folder.startswith("~/"):
        raise HpxferError(
            f"{option} must be a URI or an absolute path on the cluster, got {shown(folder)}: a job runs in a folder "
            f"of Ray's own"
        )
    return folder


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What `fetch` did: how many trials in `folder` are new, and how many it had before."""

    folder: Path
    num_new: int
    num_known: int
    problems: tuple[str, ...] = ()


def fetch(cluster: Cluster, job: str, results: Path, on_wait: Callable[[str], None] | None = None) -> Fetched:
    """Fetch what a job has stored so far into `results`/SWEEP. Raise HpxferError if no trial of it has finished.

    Stored results stay: finished trials are not replaced, and a different sweep.yaml is kept beside the new one.
    """
    info = cluster.info(job)
    metadata = info.metadata or {}
    if SWEEP_KEY not in metadata:
        raise HpxferError(
            f"{job}: must be a job of `hpxfer submit`, got another, which has no results to fetch; "
            f"`{ray_job('list', address=cluster.address)}` lists the jobs"
        )
    target = results / metadata[SWEEP_KEY]
    with _stored(cluster, job, metadata) as source:
        fetched = Store.open(source, write=False)
        done = fetched.done_ids()
        if not done or not (source / SWEEP_FILE).is_file():
            seen = ray_job("logs", job, address=cluster.address)
            nothing = f"{job}: is {info.status}, and no trial of it has finished; see `{seen}`"
            raise HpxferError("\n".join([nothing, *fetched.problems]))
        if target.exists() and target.samefile(source):
            return Fetched(folder=target, num_new=0, num_known=len(done))
        spec, own = load_stored(source), Store.open(target, write=True)
        with leased(LeaseFile(target), str(target), on_wait=on_wait) as lease:
            own.guard = lease.check
            known = own.done_ids()
            own.save_sweep(spec, spec.data.digest or "")
            new = own.adopt(fetched, done - known)
            own.compact()
    problems = (*fetched.problems, *own.problems)
    return Fetched(folder=target, num_new=len(new), num_known=len(known), problems=problems)


@contextmanager
def _stored(cluster: Cluster, job: str, metadata: dict[str, str]) -> Iterator[Path]:
    """Yield a folder on this machine with a job's results: its own, a copy of its storage, or what it sent."""
    if (location := _visible_location(job, metadata)) is not None:
        yield location.folder
        return
    root, name = metadata[ROOT_KEY], metadata[SWEEP_KEY]
    request = Request(action="fetch", job=job, root=root, name=name, nonce=secrets.token_hex(8))
    data, files = cluster.ask(request)
    if "error" in data:
        raise HpxferError(f"{cluster.address}: {data['error']}")
    with tempfile.TemporaryDirectory(prefix="hpxfer-fetch-") as scratch:
        for name, content in files.items():
            if not is_store_file(name):
                raise HpxferError(f"{cluster.address}: sent a file of another name than the store's: {shown(name)}")
            (Path(scratch) / name).write_bytes(content)
        yield Path(scratch)


def _visible_location(job: str, metadata: dict[str, str]) -> ResultsLocation | None:
    """Return the location of a job's results if this machine can see it: in storage, or in a folder with its mark."""
    location = location_at(metadata[ROOT_KEY], metadata[SWEEP_KEY])
    return location if location.is_remote or has_mark(location.folder, job) else None
