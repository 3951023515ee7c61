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
    stops_early: bool  # whether it can stop trials that fall behind
    shares_gpus: bool  # whether it gives a GPU as many stacks as fit, each the share that it needs


def _ray(placement: Placement) -> Executor:
    if placement.stopping is not None:
        from hpxfer.executors.tune import TuneExecutor

        return TuneExecutor(placement)
    from hpxfer.executors.ray import RayExecutor

    return RayExecutor(placement)


def _local(placement: Placement) -> Executor:
    from hpxfer.executors.local import LocalExecutor

    resources = placement.resources
    return LocalExecutor(
        workers=placement.workers,
        ranks=resources.ranks,
        rank_timeout_s=resources.rank_timeout_s,
        gpus=resources.gpus_on_node if placement.own_trainer else 0.0,
        reached=placement.reached,
        stop_s=placement.stop_s,
    )


RAY = ExecutorKind(name="ray", make=_ray, joins_clusters=True, stops_early=True, shares_gpus=True)
LOCAL = ExecutorKind(name="local", make=_local, joins_clusters=False, stops_early=False, shares_gpus=False)
EXECUTORS: Rows[ExecutorKind] = Rows("executor", {"ray": f"{__name__}:RAY", "local": f"{__name__}:LOCAL"})


def make_executor(placement: Placement) -> Executor:
    """Return the executor that the sweep's resources name.

    Ray takes over where the named one cannot join the cluster at an address, or cannot stop trials early.
    """
    kind = EXECUTORS.get(placement.resources.executor, "resources.executor")
    joins = placement.address is None or kind.joins_clusters
    stops = placement.stopping is None or kind.stops_early
    return (kind if joins and stops else RAY).make(placement)
