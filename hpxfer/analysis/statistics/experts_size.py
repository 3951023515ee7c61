"""Number of experts against their size: at equal parameters, are many small experts better than few large ones?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.scaling_fit import pooled_noise
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, frame_of, listed
from hpxfer.analysis.statistics.transferred import TrainedShape, transferred
from hpxfer.intervals import mean_interval
from hpxfer.scaling.shape import Shape

NO_GROUP = "no two shapes with finite losses hold the same expert parameters in other experts"
COLUMNS = {
    "parameterization": "the arm",
    "hp": "the judged HP",
    "value": "of the HP, transferred from the base",
    "group": "number of the group, whose shapes differ only in the number and the size of experts",
    "width": "of the model",
    "depth": "of the model",
    "expert_features": "num_experts * expert_width",
    "active_features": "num_active * expert_width",
    "shape": "the name of the shape",
    "num_experts": "of a layer",
    "num_active": "of a token",
    "expert_width": "of one expert",
    "loss_nats": "mean over seeds at the transferred HP",
    "se_nats": "its standard error, from seeds, pooled over shapes; None with one seed",
    "num_seeds": "of the mean",
    "slope_nats_per_doubling": "of the group: nats per doubling of the experts at equal parameters",
    "slope_low": "its 95% interval; None with one seed",
    "slope_high": "its upper end",
}


def experts_against_size(every: Sequence[TrainedShape]) -> list[dict[str, Any]]:
    """Return a row per shape of each group of equal expert parameters, of distinct shapes."""
    groups: dict[Shape, list[TrainedShape]] = defaultdict(list)
    for trained in every:
        if trained.shape.num_experts and trained.cell.mean is not None:
            groups[_rest(trained.shape)].append(trained)
    found = [_equal_size(group) for group in groups.values() if len(group) > 1]
    found.sort(key=lambda rows: [rows[0][key] for key in ("width", "depth", "expert_features", "active_features")])
    return [{"group": number, **row} for number, rows in enumerate(found) for row in rows]


def _rest(shape: Shape) -> Shape:
    """Return the shape with all its experts merged, which the members of a group have in common."""
    return replace(
        shape,
        num_experts=1,
        num_active=shape.num_active * shape.expert_width,
        expert_width=shape.num_experts * shape.expert_width,
        num_groups=1,
    )


def _equal_size(members: Sequence[TrainedShape]) -> list[dict[str, Any]]:
    group = sorted(members, key=lambda trained: trained.shape.num_experts)
    noise, _ = pooled_noise([trained.cell.losses for trained in group])
    slope, low, high = _slope(group)
    return [
        {
            "width": shape.width,
            "depth": shape.depth,
            "expert_features": shape.num_experts * shape.expert_width,
            "active_features": shape.num_active * shape.expert_width,
            "shape": trained.row.shape,
            "num_experts": shape.num_experts,
            "num_active": shape.num_active,
            "expert_width": shape.expert_width,
            "loss_nats": trained.cell.mean,
            "se_nats": None if noise is None else noise / math.sqrt(len(trained.cell.losses)),
            "num_seeds": len(trained.cell.losses),
            "slope_nats_per_doubling": slope,
            "slope_low": low,
            "slope_high": high,
        }
        for trained in group
        for shape in (trained.shape,)
    ]


def _slope(group: Sequence[TrainedShape]) -> tuple[float | None, float | None, float | None]:
    """Return the slope over log2 num_experts and its 95% interval, from the slopes of seeds that all shapes have."""
    x = np.log2([trained.shape.num_experts for trained in group])
    dx = x - x.mean()
    losses = [trained.cell.by_seed for trained in group]
    seeds = [seed for seed in losses[0] if all(seed in by_seed for by_seed in losses)]
    if not seeds or not dx.any():
        return None, None, None
    slopes = np.array([[by_seed[seed] for by_seed in losses] for seed in seeds]) @ dx / float(dx @ dx)
    return mean_interval(slopes)


def _experts_sizes(inputs: Inputs) -> Found:
    rows, unknown = list[dict[str, Any]](), []
    for label, (value, every) in inputs.once(transferred).over_all.items():
        found = [] if value is None else experts_against_size(every)
        rows += [{"parameterization": label, "hp": inputs.hp, "value": value, **row} for row in found]
        if not found:
            unknown.append((f"{label} {inputs.hp}", NO_BASE_VALUE if value is None else NO_GROUP))
    frame = frame_of(rows, COLUMNS)
    return Found(frame=frame, title=listed(list(slopes_of(frame))), unknown=tuple(unknown))


def slopes_of(frame: pd.DataFrame) -> Iterator[str]:
    """Yield the slope of each group, e.g. `mup -0.012 nats per doubling of experts`."""
    for name, rows in arms(frame.drop_duplicates(["parameterization", "group"])):
        slopes = [f"{slope:+.3f}" for slope in rows["slope_nats_per_doubling"].dropna()]
        yield f"{name} {', '.join(slopes) or 'unknown'} nats per doubling of experts"


EXPERTS_SIZE = Statistic(
    name="experts_size",
    title="Many small experts or few large ones?",
    note="At equal parameters: nats per doubling of the number of experts.",
    compute=_experts_sizes,
    columns=COLUMNS,
)
