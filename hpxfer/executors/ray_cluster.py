"""The resources of a Ray cluster, and whether it can ever hold a worker. Nothing here starts a worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.executors.ray_session import ray_errors, session  # before ray itself: it sets Ray's environment

# ruff: isort: split
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hpxfer.executors.executor import Placement
from hpxfer.host import gpu_bytes
from hpxfer.plan import Device, filled
from hpxfer.registry import PluginFile, load_plugin
from hpxfer.spec import ResourcesSpec

# How long the planner waits for a node to report the memory of its GPUs.
_ASK_S = 30.0
_TYPE = "accelerator_type:"
_HEAD = "node:__internal_head__"
# Resources are sums of fractions: 8 shares of 0.125 fill a GPU.
_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that is alive: its id, and its resources by Ray's names (CPU, GPU, memory, ...)."""

    id: str
    has: Mapping[str, float]

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(sorted(name.removeprefix(_TYPE) for name in self.has if name.startswith(_TYPE)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a worker needs: for each of its ranks, CPUs and a share of a GPU (0: none), perhaps of one type."""

    cpus: float = 1.0
    gpus: float = 0.0
    gpu_type: str | None = None
    ranks: int = 1
    apart: bool = False  # whether each rank has a node of its own

    @property
    def resources(self) -> dict[str, float]:
        """What a rank needs, in the terms of Ray's placement groups."""
        out = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        return {**out, f"{_TYPE}{self.gpu_type}": 0.001} if self.gpus and self.gpu_type else out

    @property
    def options(self) -> dict[str, Any]:
        """What a rank needs, as Ray's options of an actor."""
        out: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        return {**out, "accelerator_type": self.gpu_type} if self.gpu_type and self.gpus else out

    def most(self, found: Sequence[Node]) -> int:
        """Return how many such workers these nodes hold if nothing else is on them."""
        each = [(name, need) for name, need in self.resources.items() if need]
        fits = [min((int(node.has.get(name, 0.0) / need + _EPS) for name, need in each), default=1) for node in found]
        if not self.apart or self.ranks == 1:
            return sum(fits) // self.ranks
        # `most` workers fit if the nodes, each with at most one rank of each worker, hold them all.
        most = range(sum(fits) // self.ranks, -1, -1)
        return next(number for number in most if sum(min(fit, number) for fit in fits) >= number * self.ranks)

    def require(self, found: Sequence[Node]) -> None:
        """Raise HpxferError unless these nodes can hold a worker."""
        if self.most(found):
            return
        if self.apart and self.ranks > 1:
            raise HpxferError(
                f"resources: each trial needs {self} on as many nodes at once; the Ray cluster has {listing(found)}; "
                "change resources.nodes_per_trial, gpus_per_node or cpus_per_stack, or add nodes"
            )
        where = "on one node, and no node of the Ray cluster has that"
        if self.ranks > 1:
            where = "at once, and the Ray cluster has not so much, even with nothing else on it"
        raise HpxferError(
            f"resources: each stack needs {self} {where}; it has {listing(found)}; change resources.cpus_per_stack, "
            "gpus_per_stack or gpu_type, or add such a node"
        )

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPU" + (f" of type {self.gpu_type}" if self.gpu_type else "") if self.gpus else ""
        return (f"{self.ranks} times " if self.ranks > 1 else "") + f"{self.cpus:g} CPU{gpus}"


def claim_of(resources: ResourcesSpec, gpus: float, on_node: float | None) -> Claim:
    """Return what a worker needs, given its share of a GPU or the number of its GPUs.

    A user's own trainer has a rank on each of its nodes, with all its GPUs there: `on_node`.
    """
    return Claim(
        cpus=resources.cpus_per_stack,
        gpus=min(gpus, 1.0) if on_node is None else on_node,
        gpu_type=resources.gpu_type,
        ranks=resources.ranks,
        apart=on_node is not None,
    )


def nodes() -> list[Node]:
    """Return the nodes that are alive."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(id=node["NodeID"], has=node["Resources"]) for node in found if node["Alive"]]


def listing(found: Sequence[Node]) -> str:
    """Return a description of the nodes, e.g. `2 nodes with 8 CPU, 1 node with 16 CPU and 4 GPU (H100)`."""
    counts = Counter[str]()
    for node in found:
        types = f" ({', '.join(node.gpu_types)})" if node.gpu_types else ""
        gpus = f" and {node.has['GPU']:g} GPU{types}" if node.has.get("GPU") else ""
        counts[f"{node.has.get('CPU', 0):g} CPU{gpus}"] += 1
    named = [f"{count} node{'s' if count > 1 else ''} with {text}" for text, count in counts.items()]
    return ", ".join(named) or "no node that is alive"


def beside_driver() -> NodeAffinitySchedulingStrategy | None:
    """Return the scheduling that keeps an actor on the head node, or None if Ray marks no head node."""
    head = next((node for node in nodes() if _HEAD in node.has), None)
    return None if head is None else NodeAffinitySchedulingStrategy(node_id=head.id, soft=True)


@contextmanager
def joined(placement: Placement) -> Iterator[None]:
    """Join the cluster of a placement, or start one here, and check that every node can import the plug-ins."""
    resources = placement.resources
    cpus = resources.cpus_per_stack * resources.ranks * (resources.workers or 1)
    with session(placement.address, cpus), ray_errors():
        require_plugins(placement.plugins)
        yield


def device_at(address: str, resources: ResourcesSpec) -> Device:
    """Return the device of the cluster at `address`, for the planner.

    Raises HpxferError if no cluster answers, or if it has no such GPU as the resources name.
    """
    with session(address, 0), ray_errors():
        return cluster_device(resources)


def cluster_device(resources: ResourcesSpec) -> Device:
    """Return the device of the cluster that this process has joined."""
    device, gpu_type, alive = resources.device, resources.gpu_type, nodes()
    typed = [node for node in alive if node.has.get("GPU", 0) and (not gpu_type or gpu_type in node.gpu_types)]
    wants_type = gpu_type is not None and device != "cpu"
    if not typed and (device == "cuda" or wants_type):
        asked = f"resources.gpu_type is {gpu_type}" if wants_type else "resources.device is cuda"
        raise HpxferError(f"{asked}, but the Ray cluster has {listing(alive)}; change it, or add such a node")
    cuda = bool(typed) and device != "cpu"
    used = typed if cuda else alive
    names = sorted({name for node in typed for name in node.gpu_types})
    found = Device(
        cuda=cuda,
        memory_bytes=_gpu_bytes(typed) if cuda else None,
        num_gpus=math.floor(sum(node.has["GPU"] for node in typed)) if cuda else None,
        num_cpus=math.floor(sum(node.has.get("CPU", 0) for node in used)),
        host_bytes=int(sum(node.has.get("memory", 0) for node in used)) or None,
        name=(gpu_type or "/".join(names) or None) if cuda else None,
    )
    return filled(found)


def require_plugins(files: Sequence[PluginFile]) -> None:
    """Raise HpxferError unless every live node can import the plug-ins, in the driver's version."""
    if not files:
        return
    task = ray.remote(num_cpus=0)(_plugin_problem)
    asked = {node.id: on_node(task, node.id).remote(tuple(files)) for node in nodes()}
    for node_id, answer in asked.items():
        if (problem := ray.get(answer)) is not None:
            raise HpxferError(f"{problem} (node {node_id[:8]} of the Ray cluster)")


def on_node(task: Any, node_id: str) -> Any:
    """Return a task of Ray that runs on this node only."""
    return task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False))


def _plugin_problem(files: tuple[PluginFile, ...]) -> str | None:
    """Return why this node cannot import a plug-in, or None."""
    try:
        for file in files:
            load_plugin(file)
    except HpxferError as error:
        return str(error)
    return None


def _gpu_bytes(with_gpus: Sequence[Node]) -> int | None:
    """Return the memory of the smallest GPU of these nodes in bytes, or None if no node answers."""
    task = ray.remote(num_cpus=0)(gpu_bytes)
    asked = [on_node(task, node.id).remote() for node in with_gpus]
    answered, late = ray.wait(asked, num_returns=len(asked), timeout=_ASK_S)
    for ref in late:
        ray.cancel(ref, force=True)
    found: list[int | None] = []
    for ref in answered:
        try:
            found.append(ray.get(ref))
        # a node that leaves, or that has no hpxfer, is reported when a worker starts there
        except ray.exceptions.RayError:
            found.append(None)
    return min((size for size in found if size), default=None)
