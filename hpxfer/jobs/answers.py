"""What the head of a cluster answers: whether a sweep can run there, and the files of a job's results.

Before a sweep is submitted, its versions, its plan and its data are checked on every node that can train. A task
without resources checks each node, so that busy nodes answer, too.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpxfer.executors.ray_session import ray_errors, session  # before ray, whose environment it sets

# isort: split
import ray

import hpxfer
from hpxfer.data import data_ref, is_here
from hpxfer.driver import preflight, prepare
from hpxfer.errors import HpxferError, last_line
from hpxfer.executors.ray_cluster import on_node, require_plugins
from hpxfer.host import locked, parse_root, read_bytes, read_text
from hpxfer.jobs.request import Request, where
from hpxfer.plan import plan_text
from hpxfer.spec import DataSpec, PointData, SweepSpec, load_sweep, points_with_data
from hpxfer.store import location_at
from hpxfer.trial import TRAINER_VERSION

JOBS_FILE = "jobs.txt"
# The most that a log can carry: Ray reads a job's log whole and sends it through three servers.
MAX_FETCH_BYTES = 256 * 2**20
_STORE_FILES = ("sweep.yaml", "sweep-*.yaml", "trials*.parquet", "curves*.parquet")
# How long a node may take. A worker process starts within seconds on an idle node, and much later on a loaded one.
NODE_S = 90.0


def answer(request: Request, sweep: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the data and the files that answer a request. An error is an answer too: `error` in the data says it."""
    known: dict[str, Any] = {}
    try:
        if request.action == "fetch":
            return {}, files_of(location_at(request.where, request.name).folder)
        known = {"versions": versions(), "host": socket.gethostname(), "root": request.where}
        return {**known, **check(request, sweep)}, {}
    except HpxferError as error:
        return {**known, "error": str(error)}, {}
    except Exception as error:
        traceback.print_exc()
        return {**known, "error": f"{type(error).__name__}: {error}"}, {}


def versions() -> dict[str, Any]:
    """Return the versions that must be equal on this machine and on the cluster."""
    return {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION, "python": platform.python_version()}


def check(request: Request, sweep: Path) -> dict[str, Any]:
    """Return what the cluster finds about a sweep. Raise HpxferError if the sweep cannot run there."""
    spec = load_sweep(sweep)
    if isinstance(found := parse_root(request.where), Path):
        require_writable(found)
    with session("auto", 0), ray_errors():
        job = prepare(
            spec,
            results=request.where,
            address="auto",
            reuse=[where(folder) for folder in request.reuse],
            price_per_hour=request.price_per_hour,
        )
        cleared = preflight(job, strict_memory=request.strict_memory, strict_code=request.strict_code)
        require_plugins(cleared.plugins)
        nodes = node_answers(spec, triton=job.real.device.cuda and spec.resources.kernels != "torch")
    return {
        "plan": job.plan.to_dict(),
        "text": "\n".join([plan_text(job.plan), *job.reuse.lines()]),
        "warnings": [*job.problems, *job.plan.cautions, *job.plan.unfit],
        "precision": job.spec.precision,
        "digest": job.expansion.data.digests,
        "nodes": nodes,
    }


def require_writable(root: Path) -> None:
    """Raise HpxferError unless a results folder can be made below `root`. It makes none."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise HpxferError(f"--results: must be a folder that can be written, got {root}; name another")


def node_answers(spec: SweepSpec, *, triton: bool) -> list[dict[str, Any]]:
    """Return what each live node that can train reports about itself and the data. `triton`: whether it needs it."""
    task = ray.remote(num_cpus=0, max_retries=1)(_node_answer)
    data = spec.data.model_dump(mode="json")
    points = [own.model_dump(mode="json") for _, _, own in points_with_data(spec)]
    nodes = capable_nodes(ray.nodes(), spec)  # type: ignore[no-untyped-call]
    asked = [(node, on_node(task, node["NodeID"]).remote(data, triton, points)) for node in nodes]
    return [{"host": node["NodeManagerHostname"], "node": node["NodeID"], **_result(answer)} for node, answer in asked]


def capable_nodes(nodes: list[dict[str, Any]], spec: SweepSpec) -> list[dict[str, Any]]:
    """Return the live nodes that a stack of the sweep fits on. Raise HpxferError if there are none."""
    device, alive = spec.resources.device, [node for node in nodes if node["Alive"]]
    has_gpu = any(node["Resources"].get("GPU", 0) > 0 for node in alive)
    needed = "GPU" if device == "cuda" or (device == "auto" and has_gpu) else "CPU"
    found = [node for node in alive if node["Resources"].get(needed, 0) > 0]
    if not found:
        raise HpxferError(
            f"resources: the cluster must have a {needed} to train on, got {len(alive)} nodes without any; "
            f"start Ray with --num-{needed.lower()}s, or set resources.device"
        )
    return found


def _node_answer(data: dict[str, Any], triton: bool, points: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return this node's versions, and the digests of its copy of the data, or None if it lacks some.

    A node that needs triton and lacks it says so instead.
    """
    if triton and importlib.util.find_spec("triton") is None:
        return {**versions(), "error": "triton is not installed; pip install 'hpxfer[triton]'"}
    spec, others = DataSpec.model_validate(data), [PointData.model_validate(point) for point in points]
    try:
        names = [spec.source, *([] if spec.validation is None else [spec.validation]), *(own.source for own in others)]
        has_data = all(map(is_here, names))
        return {**versions(), "digest": data_ref(spec, [("data", own) for own in others]).digests if has_data else None}
    except HpxferError as error:
        return {**versions(), "error": str(error)}


def _result(answer: Any) -> dict[str, Any]:
    try:
        return dict(ray.get(answer, timeout=NODE_S))
    except Exception as error:  # a node without hpxfer, or one that left: the error is that node's answer
        return {"error": last_line(error)}


def leave_mark(folder: Path, job: str) -> None:
    """Write the job's id into its results folder. A machine that finds the id there sees the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / JOBS_FILE, "a", encoding="utf-8") as file:
            file.write(f"{job}\n")
    except OSError as error:
        raise HpxferError(f"{folder}: cannot be written: {error.strerror}; name another with --results") from None


def has_mark(folder: Path, job: str) -> bool:
    """Return whether a folder is the results folder of a job, and not another of that name on another machine."""
    try:
        return job in read_text(folder / JOBS_FILE).split()
    except (OSError, ValueError):
        return False


def is_store_file(name: str) -> bool:
    """Return whether a file that a job sent may be a file of a store. A name with a path in it never is."""
    return any(PurePosixPath(name).match(pattern) for pattern in _STORE_FILES) and "/" not in name


def files_of(folder: Path) -> dict[str, bytes]:
    """Return name -> content of the store's files in a results folder, as they are at one moment. It may have none."""
    with locked(folder, exclusive=False):
        found = [path for pattern in _STORE_FILES for path in sorted(folder.glob(pattern))]
        size = sum(path.stat().st_size for path in found)
        if size > MAX_FETCH_BYTES:
            raise HpxferError(
                f"{folder}: holds {size / 2**20:.0f} MiB, and a job's log carries at most "
                f"{MAX_FETCH_BYTES / 2**20:.0f}; copy the folder itself, or submit with --results on a shared folder "
                "or a storage URI"
            )
        return {path.name: read_bytes(path, MAX_FETCH_BYTES) for path in found}
