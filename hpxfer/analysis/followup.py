"""The follow-up: a sweep that adds what undecided verdicts and a missing control need, and keeps every cell.

A trial's id is a hash of what determines its numbers, so the larger sweep, run into the same folder, trains only what
is new: it keeps the sweep's name, which is the folder's. The grid of a sweep is one for all shapes: values that one
shape asks for are added at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.analysis.findings import Addition, Finding, TransferReport
from hpxfer.errors import HpxferError
from hpxfer.spec.axes import paths
from hpxfer.spec.load import dump_sweep, parse_sweep

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec

SAME = 1e-6  # values closer than this, relatively, are one


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """A sweep to run next. `yaml` loads as a sweep; None with `why_not` if there is nothing to add to the file."""

    yaml: str | None
    added: tuple[str, ...] = ()  # in words: values, seeds, shapes
    not_added: tuple[str, ...] = ()  # what was asked for and has to be written by hand, with the reason
    num_new_cells: int = 0
    why_not: str | None = None


def followup_sweep(spec: SweepSpec, reports: Sequence[TransferReport]) -> FollowUp:
    """Return the sweep with all that the findings of the reports ask for."""
    findings = [(report.hp, finding) for report in reports for finding in report.findings]
    asking = [(hp, one) for hp, one in findings if one.verdict == "undecided" or one.to_add]
    if not asking:
        why = "no verdict is undecided or lacks a control" if reports else "no HP could be judged"
        return FollowUp(yaml=None, why_not=why)
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    added = [*_add_values(data, spec, asking), *_add_seeds(data, spec, asking)]
    not_added: list[str] = []
    for more in (_add_shapes, _add_parameterizations):
        found, left = more(data, spec, asking)
        added += found
        not_added += left
    if not added:
        rerun = any(one.values for _, _, one in _asked(asking))
        why = "all that is asked for is in this sweep: run it again" if rerun else "nothing that a sweep file can add"
        return FollowUp(yaml=None, not_added=tuple(not_added), why_not=why)
    new = spec.model_validate(data, strict=False)
    text = dump_sweep(new)
    try:
        parse_sweep(text)
    except HpxferError as error:
        return FollowUp(yaml=None, not_added=(*added, *not_added), why_not=f"no legal sweep holds it: {error}")
    return FollowUp(
        yaml=text, added=tuple(added), not_added=tuple(not_added), num_new_cells=_num_cells(new) - _num_cells(spec)
    )


def _asked(asking: Iterable[tuple[str, Finding]]) -> Iterator[tuple[str, Finding, Addition]]:
    for hp, finding in asking:
        for one in finding.to_add:
            yield hp, finding, one


def _add_values(data: dict[str, Any], spec: SweepSpec, asking: Sequence[tuple[str, Finding]]) -> list[str]:
    """Add HP values to the grid in `data`; return in words what was added."""
    said = []
    for hp, grid in spec.grid.items():
        old = grid.numbers()
        wanted = {value for name, _, one in _asked(asking) if name == hp for value in one.values}
        new: list[float] = []
        for value in sorted(wanted):
            if not any(math.isclose(value, other, rel_tol=SAME) for other in (*old, *new)):
                new.append(value)
        if new:
            data["grid"][hp] = {"values": sorted((*old, *new))}
            said.append(f"{hp}: {', '.join(f'2^{math.log2(value):g}' for value in new)} at every shape")
    return said


def _add_seeds(data: dict[str, Any], spec: SweepSpec, asking: Sequence[tuple[str, Finding]]) -> list[str]:
    """Add seeds, the lowest ones that are free, up to the largest count asked for."""
    wanted = max((one.seeds or 0 for _, _, one in _asked(asking)), default=0)
    missing = wanted - len(spec.seeds)
    if missing <= 0:
        return []
    free = (seed for seed in range(wanted + len(spec.seeds)) if seed not in spec.seeds)
    data["seeds"] = [*spec.seeds, *(next(free) for _ in range(missing))]
    return [f"{missing} more seeds, {wanted} in all"]


def _add_shapes(
    data: dict[str, Any], spec: SweepSpec, asking: Sequence[tuple[str, Finding]]
) -> tuple[list[str], list[str]]:
    """Add shapes to axes that are given as values; return in words what was added, and what could not be."""
    said, left = [], []
    scales_of: dict[str, set[float]] = {}
    for _, finding, one in _asked(asking):
        if one.new_scales:
            scales_of.setdefault(finding.axis, set()).add(max(one.new_scales))
    for path in paths(spec):
        if path.name not in scales_of:
            continue
        values, largest = spec.axes[path.name].values, max(point.scale for point in path.points)
        wanted = max(scales_of[path.name])
        if not values:
            left.append(f"{path.name}: a shape at {path.scale_name} {wanted:g}: write it into axes.{path.name}")
            continue
        value = max(values) * wanted / largest
        longer = {**data["axes"][path.name], "values": [*values, value]}
        if (why := _refused({**data, "axes": {**data["axes"], path.name: longer}}, spec)) is not None:
            left.append(f"{path.name} {value:g}: {why}")
            continue
        data["axes"][path.name] = longer
        said.append(f"{path.name}: {value:g}")
    return said, left


def _add_parameterizations(
    data: dict[str, Any], spec: SweepSpec, asking: Sequence[tuple[str, Finding]]
) -> tuple[list[str], list[str]]:
    """Add parameterizations; return in words what was added, and what no legal sweep can have."""
    said, left = [], []
    for name in dict.fromkeys(one.parameterization for _, _, one in _asked(asking) if one.parameterization):
        more = [*data["parameterizations"], {"name": name}]
        if (why := _refused({**data, "parameterizations": more}, spec)) is not None:
            left.append(f"parameterization {name}: {why}")
            continue
        data["parameterizations"] = more
        said.append(f"parameterization {name} on the same grid")
    return said, left


def _refused(data: dict[str, Any], spec: SweepSpec) -> str | None:
    """Return why a sweep file may not say this; None if it may."""
    try:
        parse_sweep(dump_sweep(spec.model_validate(data, strict=False)))
    except HpxferError as error:
        return str(error)
    return None


def _num_cells(spec: SweepSpec) -> int:
    counts = [len(grid.numbers()) for grid in spec.grid.values()]
    points = math.prod(counts) if spec.product else sum(counts)
    return sum(len(path.points) for path in paths(spec)) * len(spec.parameterizations) * points * len(spec.seeds)
