"""What is looked at where the transferred HP was run: improvement, collapse, scaling fits, experts, speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hpxfer.analysis.collapse import NO_FLOOR, Collapse, ShapeCurves, collapse
from hpxfer.analysis.cube import Floats
from hpxfer.analysis.experts_size import ExpertsAgainstSize, experts_against_size
from hpxfer.analysis.findings import TransferReport
from hpxfer.analysis.gather import (
    NO_BASE_VALUE,
    Place,
    Stored,
    distinct,
    line_cells,
    one_value,
    params_of,
    places,
    series,
)
from hpxfer.analysis.improvement import Improvement, improvement
from hpxfer.analysis.scaling_fit import (
    COUNTS,
    Count,
    FitPoint,
    LossFit,
    PowerLaw,
    loss_fit,
    pooled_noise,
    power_law,
)
from hpxfer.analysis.speedup import SpeedUp, speed_up
from hpxfer.scaling.shape import Shape

FLOOR_SHARE = 0.98  # of the lowest final loss: a floor above is none of these curves

Series = Mapping[str, tuple[NDArray[np.int64], Floats]]  # trial_id -> (steps, training losses)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The analyses at the transferred HP."""

    improvement: tuple[Improvement, ...] = ()
    collapse: tuple[Collapse, ...] = ()
    loss_fits: tuple[LossFit, ...] = ()
    power_laws: tuple[PowerLaw, ...] = ()
    experts_size: tuple[ExpertsAgainstSize, ...] = ()
    speed_ups: tuple[SpeedUp, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Transferred:
    """What the analyses share: a group is (axis, parameterization)."""

    hp: str
    shapes: Mapping[tuple[str, str], Shape]
    groups: Mapping[tuple[str, str], tuple[Place, ...]]  # at the HP that this axis transferred, by scale
    scale_names: Mapping[tuple[str, str], str]
    values: Mapping[tuple[str, str], float | None]
    all_axes: Mapping[str, tuple[float | None, tuple[Place, ...]]]  # parameterization -> one HP, its places
    curves: Series
    params: Mapping[str, Mapping[str, float]]  # trial_id -> parameters by the way they are counted


def beside(results: Stored, report: TransferReport, shapes: Mapping[tuple[str, str], Shape]) -> Beside:
    """Return the analyses at the HP that each finding of the report transferred."""
    cells = line_cells(results, report.hp, report.loss)
    values = {(one.axis, one.parameterization): one.base_value for one in report.findings}
    known = {key: value for key, value in values.items() if value is not None}
    labels = sorted({label for _, label in values})
    every = places(cells, known)
    all_axes = {}
    for label in labels:
        value = one_value(report.findings, label)
        asked = {} if value is None else {key: value for key in values if key[1] == label}
        all_axes[label] = (value, places(cells, asked))
    of = {run.trial_id for place in every for run in place.runs}
    of |= {run.trial_id for _, found in all_axes.values() for place in found for run in place.runs}
    shared = _Transferred(
        hp=report.hp,
        shapes=shapes,
        groups={key: tuple(group) for key, group in groupby(every, key=lambda one: (one.axis, one.parameterization))},
        scale_names={(one.axis, one.parameterization): one.scale_name for one in report.findings},
        values=values,
        all_axes=all_axes,
        curves=series(results.curves, "train_loss_nats", of),
        params=params_of(results.trials[results.trials["trial_id"].isin(of)]),
    )
    fits = [_fits(shared, label, count) for label in labels for count in COUNTS]
    laws = tuple(law for _, law in fits)
    return Beside(
        improvement=tuple(_improvement(shared, key) for key in sorted(values)),
        collapse=tuple(_collapse(shared, key, _floor(laws, key[1])) for key in sorted(values)),
        loss_fits=tuple(line for line, _ in fits),
        power_laws=laws,
        experts_size=tuple(_experts_size(shared, label) for label in labels),
        speed_ups=tuple(one for key in sorted(values) for one in _speed_ups(shared, key)),
    )


def _improvement(shared: _Transferred, key: tuple[str, str]) -> Improvement:
    bare = Improvement(
        axis=key[0],
        scale_name=shared.scale_names[key],
        parameterization=key[1],
        hp=shared.hp,
        value=shared.values[key],
    )
    if shared.values[key] is None:
        return replace(bare, why_not=NO_BASE_VALUE)
    group = shared.groups[key]
    return improvement([place.scale for place in group], [place.losses for place in group], bare)


def _fits(shared: _Transferred, label: str, count: Count) -> tuple[LossFit, PowerLaw]:
    """Return the fits over the distinct shapes with finite losses, at the schedule of the base."""
    value, found = shared.all_axes[label]
    pairs = distinct(found, shared.shapes)
    base = next((shape for place, shape in pairs if place.is_base), None)
    schedule = None if base is None else (base.batch_tokens, base.steps)
    kept = [place for place, shape in pairs if place.mean is not None and (shape.batch_tokens, shape.steps) == schedule]
    noise, freedom = pooled_noise([list(place.losses.values()) for place in kept])
    points = [
        FitPoint(
            shape=place.shape,
            axis=place.axis,
            params=shared.params[place.runs[0].trial_id][count],
            loss=place.mean or 0.0,
            se=None if noise is None else noise / len(place.runs) ** 0.5,
            num_seeds=len(place.runs),
        )
        for place in kept
    ]
    points = sorted((one for one in points if one.params > 0), key=lambda one: one.params)
    line = LossFit(parameterization=label, hp=shared.hp, value=value, count=count)
    law = PowerLaw(parameterization=label, hp=shared.hp, value=value, count=count)
    if value is None:
        return replace(line, why_not=NO_BASE_VALUE), replace(law, why_not=NO_BASE_VALUE)
    return loss_fit(points, line), power_law(points, freedom, law)


def _experts_size(shared: _Transferred, label: str) -> ExpertsAgainstSize:
    value, found = shared.all_axes[label]
    if value is None:
        return ExpertsAgainstSize(parameterization=label, hp=shared.hp, why_not=NO_BASE_VALUE)
    pairs = distinct(found, shared.shapes)
    return experts_against_size(pairs, parameterization=label, hp=shared.hp, value=value)


def _floor(laws: Sequence[PowerLaw], label: str) -> tuple[float, str]:
    """Return the loss that no scale goes below, and where it is from."""
    for law in laws:
        if law.parameterization == label and law.floor is not None:
            return law.floor, f"the power law of the losses over {law.count} parameters"
    return NO_FLOOR


def _collapse(shared: _Transferred, key: tuple[str, str], floor: tuple[float, str]) -> Collapse:
    bare = Collapse(
        axis=key[0],
        scale_name=shared.scale_names[key],
        parameterization=key[1],
        hp=shared.hp,
        value=shared.values[key],
    )
    if shared.values[key] is None:
        return replace(bare, why_not=NO_BASE_VALUE)
    group = shared.groups[key]
    whole = [_whole(shared, place) for place in group]
    seeds = [set(one) for one in whole if one]
    common = sorted(set.intersection(*seeds)) if seeds else []
    every = [_shape_curves(shared, place, one, common) for place, one in zip(group, whole, strict=True)]
    ends = [float(one.loss_SN[:, -1].mean()) for one in every if one.loss_SN.size and one.diverged_step is None]
    return collapse(every, bare, floor if ends and floor[0] < FLOOR_SHARE * min(ends) else NO_FLOOR)


def _whole(shared: _Transferred, place: Place) -> dict[int, str]:
    """Return seed -> trial of a place's whole curves; none if a seed diverged."""
    if any(run.diverged_step is not None for run in place.runs):
        return {}
    return {run.seed: run.trial_id for run in place.runs if run.trial_id in shared.curves}


def _shape_curves(shared: _Transferred, place: Place, whole: Mapping[int, str], common: Sequence[int]) -> ShapeCurves:
    """Return a place's curves: of the common seeds, or of all seeds as far as they went if one diverged."""
    diverged = [run.diverged_step for run in place.runs if run.diverged_step is not None]
    ids = [whole[seed] for seed in common] if whole else [run.trial_id for run in place.runs]
    found = [shared.curves[one] for one in ids if one in shared.curves]
    steps = np.unique(np.concatenate([at for at, _ in found])) if found else np.zeros(0, dtype=np.int64)
    losses = np.full((len(found), steps.size), np.nan)
    for row, (at, values) in zip(losses, found, strict=True):
        row[np.searchsorted(steps, at)] = values
    return ShapeCurves(
        shape=place.shape,
        scale=place.scale,
        is_base=place.is_base,
        steps_N=steps,
        loss_SN=losses,
        diverged_step=min(diverged, default=None),
    )


def _speed_ups(shared: _Transferred, key: tuple[str, str]) -> list[SpeedUp]:
    """Return each MoE shape of an axis against its dense one: the base, or the smallest."""
    bare = SpeedUp(axis=key[0], parameterization=key[1], hp=shared.hp, value=shared.values[key])
    if shared.values[key] is None:
        return [replace(bare, why_not=NO_BASE_VALUE)]
    group = shared.groups[key]
    dense = [place for place in group if not shared.shapes[key[0], place.shape].num_experts]
    if not dense or len(dense) == len(group):
        return [replace(bare, why_not=f"no {'MoE' if dense else 'dense'} shape on this axis")]
    against = next((place for place in dense if place.is_base), dense[0])
    out = []
    for place in group:
        if place in dense:
            continue
        one = replace(
            bare, dense_shape=against.shape, moe_shape=place.shape, active_ratio=_active_ratio(shared, against, place)
        )
        pair = [
            {seed: shared.curves[trial_id] for seed, trial_id in _whole(shared, at).items()} for at in (against, place)
        ]
        out.append(speed_up(pair[0], pair[1], one))
    return out


def _active_ratio(shared: _Transferred, dense: Place, moe: Place) -> float | None:
    if not dense.runs or not moe.runs:
        return None
    one, two = (shared.params[place.runs[0].trial_id]["active without embedding"] for place in (dense, moe))
    return two / one if one > 0 else None
