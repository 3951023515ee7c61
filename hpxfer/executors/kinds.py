"""The kinds of executors. Each row makes the executor that `resources.executor` names.

This module is light: a row imports Ray only when it makes its executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpxfer.executors.executor import Executor, Placement
from hpxfer.registry import Rows


@dataclass(frozen=True, kw_only=True)
class ExecutorKind:
    """A way to run stacks, by the name that `resources.executor` gives it."""

    name: str
    make: Callable[[Placement], Executor]
    joins_clusters: bool  # whether it can run on the Ray cluster at an address
    shares_gpus: bool  # whether it gives a GPU as many stacks as fit, each the share that it needs


def _ray(placement: Placement) -> Executor:
    from hpxfer.executors.ray import RayExecutor

    return RayExecutor(placement)


def _local(placement: Placement) -> Executor:
    from hpxfer.executors.local import LocalExecutor

    return LocalExecutor(placement)


RAY = ExecutorKind(name="ray", make=_ray, joins_clusters=True, shares_gpus=True)
LOCAL = ExecutorKind(name="local", make=_local, joins_clusters=False, shares_gpus=False)
EXECUTORS: Rows[ExecutorKind] = Rows("executor", {"ray": f"{__name__}:RAY", "local": f"{__name__}:LOCAL"})


def make_executor(placement: Placement) -> Executor:
    """Return the executor that the sweep's resources name, or Ray's if that one cannot join the cluster."""
    kind = EXECUTORS.get(placement.resources.executor, "resources.executor")
    return (kind if placement.address is None or kind.joins_clusters else RAY).make(placement)
