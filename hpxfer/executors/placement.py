"""Placement: where and how wide a run trains. It is what an executor is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hpxfer.executors.executor import Reached
from hpxfer.executors.stopping import Stopping
from hpxfer.plan.packing import Measured
from hpxfer.registry import PluginFile
from hpxfer.scaling.shape import Shape
from hpxfer.spec.resources_section import ResourcesSpec


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how wide a run trains."""

    resources: ResourcesSpec = field(default_factory=ResourcesSpec)  # of the sweep
    own_trainer: bool = False  # whether a user's own trainer trains, which gets whole nodes or GPUs
    reached: Reached | None = None  # how far a stack has come; a loss after which it has come further costs no try
    stop_s: float | None = None  # how long an interrupted run waits for its workers; None: as long as a training step
    workers: int | None = None  # stacks that run at once, for an executor that stays on this machine; None: per core
    address: str | None = None  # of a Ray cluster to join: auto | HOST:PORT | ray://HOST:PORT; None starts Ray here
    stopping: Stopping | None = None  # when trials that fall behind are stopped; None stops none
    plugins: tuple[PluginFile, ...] = ()  # every node must be able to import them
    measured: Mapping[Shape, Measured] = field(default_factory=dict)  # what stored trials say that stacks need
