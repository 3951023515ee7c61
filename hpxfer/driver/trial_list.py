"""The trials of a sweep: their ids, statuses, shapes and HPs for `hpxfer plan --trials`, and their order in a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.host import aligned
from hpxfer.plan import Packer, nearest_first
from hpxfer.scaling.shape import Shape
from hpxfer.search import kind_of, searched_cells
from hpxfer.spec import Axis
from hpxfer.store import Store
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial import Stack, Trial


def known_trials(prepared: PreparedSweep) -> list[Trial]:
    """Return the trials of a grid; of an adaptive search, those it has and those it would start now."""
    if kind_of(prepared.spec).lists_trials:
        return list(prepared.expansion.trials())
    found: dict[str, Trial] = {}
    for store in (Store.open(prepared.folder, write=False), *prepared.reuse.stores):
        cells = searched_cells(prepared.expansion, store.read_trials().to_pandas())
        found.update((cell.trial.id, cell.trial) for cell in cells if cell.trial.id in prepared.known)
    return list({**found, **{trial.id: trial for trial in prepared.missing}}.values())


def trials_of(prepared: PreparedSweep) -> list[dict[str, Any]]:
    """Return one JSON-ready row per trial. The status of a trial that a run would train is `missing`."""
    # The HPs in which the trials differ.
    given = (arm.given() for arm in prepared.spec.parameterizations)
    own = ((name for name, _ in trial.hps.multipliers) for trial in prepared.missing)
    shown = dict.fromkeys(itertools.chain(prepared.spec.grid, *given, *own))
    several = len({(shape.batch_tokens, shape.steps) for shape in prepared.expansion.shapes}) > 1
    return [
        {
            "trial_id": trial.id,
            "status": prepared.known[trial.id].status if trial.id in prepared.known else "missing",
            "shape": trial.shape.label(schedule=several),
            "parameterization": None if trial.parameterization is None else trial.parameterization.label(),
            **{name: trial.hps.get(name) for name in shown},
            "seed": trial.seed,
        }
        for trial in known_trials(prepared)
    ]


def trials_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as an aligned table."""
    if not rows:
        return ""
    # rich.table takes seconds where a sweep has tens of thousands of rows.
    return "\n".join(aligned([tuple(rows[0]), *(tuple(map(_spelled, row.values())) for row in rows)]))


def _spelled(value: Any) -> str:
    if value is None:
        return "any"  # at the base shape, where parameterizations agree
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def stacks_in_order(
    trials: Iterable[Trial], prepared: PreparedSweep, checkpoints: Checkpoints | None = None
) -> list[Stack]:
    """Return the stacks of trials, those of the base first, then those of the shapes beside it, so that a verdict can
    form early.

    Trials that share a checkpoint stay in one stack and resume from it.
    """
    resumed, fresh = ([], trials) if checkpoints is None else checkpoints.resumable(trials)
    packer = Packer.of(prepared.spec, prepared.real.device, prepared.real.workers, prepared.measured)
    stacks = [*map(packer.with_way, resumed), *packer.pack(fresh)]
    distances = _distances(prepared.expansion.axes, prepared.spec.base_shape)
    return nearest_first(stacks, distances, prepared.real.workers)


def _distances(axes: Iterable[Axis], base: Shape) -> dict[Shape, int]:
    """Return shape -> how many points from the base it is, on the axis on which it is nearest."""
    out: dict[Shape, int] = {}
    for axis in axes:
        shapes = [point.shape for point in axis.points]
        at_base = shapes.index(base)
        for index, shape in enumerate(shapes):
            out[shape] = min(out.get(shape, len(shapes)), abs(index - at_base))
    return out
