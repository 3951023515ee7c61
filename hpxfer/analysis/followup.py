"""The follow-up: the sweep with everything added that undecided verdicts and a missing control need.

The follow-up keeps every cell and the sweep's name, and so its results folder. The id of a trial is a hash of what
determines its numbers, so running the follow-up trains only what is new. A sweep has one grid for all shapes: a value
that one shape needs is added at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.spec.axes import axes_of
from hpxfer.spec.load import dump_sweep, parse_sweep
from hpxfer.spec.plugins import stored_names
from hpxfer.verdict.findings import Addition, Finding
from hpxfer.verdict.report import TransferReport

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec

SAME = 1e-6  # values with a smaller relative difference count as equal


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """The sweep to run next. `yaml` loads as a sweep. It is None if nothing can be added to the file; see `why_not`."""

    yaml: str | None
    added: tuple[str, ...] = ()  # in words: values, seeds, shapes
    not_added: tuple[str, ...] = ()  # what has to be added by hand, and why
    num_new_cells: int = 0
    why_not: str | None = None


def followup_sweep(spec: SweepSpec, reports: Sequence[TransferReport]) -> FollowUp:
    """Return the sweep with everything added that the findings of the reports need."""
    findings = [(report.hp, finding) for report in reports for finding in report.findings]
    needing = [(hp, finding) for hp, finding in findings if finding.verdict == "undecided" or finding.to_add]
    if not needing:
        why = "no verdict is undecided or lacks a control" if reports else "no HP could be judged"
        return FollowUp(yaml=None, why_not=why)
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    added = [*_add_values(data, spec, needing), *_add_seeds(data, spec, needing)]
    not_added: list[str] = []
    for add in (_add_shapes, _add_parameterizations):
        found, by_hand = add(data, spec, needing)
        added += found
        not_added += by_hand
    if not added:
        rerun = any(addition.values for _, _, addition in _additions(needing))
        why = "everything needed is in this sweep: run it again" if rerun else "nothing that a sweep file can add"
        return FollowUp(yaml=None, not_added=tuple(not_added), why_not=why)
    new = _changed(spec, data)
    text = dump_sweep(new)
    try:
        parse_sweep(text, trusted=False)
    except HpxferError as error:
        return FollowUp(yaml=None, not_added=(*added, *not_added), why_not=f"no legal sweep holds it: {error}")
    return FollowUp(
        yaml=text, added=tuple(added), not_added=tuple(not_added), num_new_cells=_num_cells(new) - _num_cells(spec)
    )


def _additions(needing: Iterable[tuple[str, Finding]]) -> Iterator[tuple[str, Finding, Addition]]:
    for hp, finding in needing:
        for addition in finding.to_add:
            yield hp, finding, addition


def _add_values(data: dict[str, Any], spec: SweepSpec, needing: Sequence[tuple[str, Finding]]) -> list[str]:
    """Add HP values to the grid in `data`; return in words what was added."""
    words = []
    for hp, grid in spec.grid.items():
        old = grid.numbers()
        wanted = {value for name, _, addition in _additions(needing) if name == hp for value in addition.values}
        new: list[float] = []
        for value in sorted(wanted):
            if not any(math.isclose(value, other, rel_tol=SAME) for other in (*old, *new)):
                new.append(value)
        if new:
            data["grid"][hp] = {"values": sorted((*old, *new))}
            words.append(f"{hp}: {', '.join(f'2^{math.log2(value):g}' for value in new)} at every shape")
    return words


def _add_seeds(data: dict[str, Any], spec: SweepSpec, needing: Sequence[tuple[str, Finding]]) -> list[str]:
    """Add the lowest seeds that are not in the sweep, up to the largest number needed."""
    wanted = max((addition.seeds or 0 for _, _, addition in _additions(needing)), default=0)
    missing = wanted - len(spec.seeds)
    if missing <= 0:
        return []
    free = (seed for seed in range(wanted + len(spec.seeds)) if seed not in spec.seeds)
    data["seeds"] = [*spec.seeds, *(next(free) for _ in range(missing))]
    return [f"{missing} more seeds, {wanted} in all"]


def _add_shapes(
    data: dict[str, Any], spec: SweepSpec, needing: Sequence[tuple[str, Finding]]
) -> tuple[list[str], list[str]]:
    """Add shapes to axes that are given as values; return in words what was added, and what must be added by hand."""
    words, by_hand = [], []
    scales_of: dict[str, set[float]] = {}
    for _, finding, addition in _additions(needing):
        if addition.new_scales:
            scales_of.setdefault(finding.axis, set()).add(max(addition.new_scales))
    for path in axes_of(spec):
        if path.name not in scales_of:
            continue
        values, largest = spec.axes[path.name].values, max(point.scale for point in path.points)
        wanted = max(scales_of[path.name])
        if not values:
            by_hand.append(f"{path.name}: a shape at {path.scale_name} {wanted:g}: write it into axes.{path.name}")
            continue
        value = max(values) * wanted / largest
        longer = {**data["axes"][path.name], "values": [*values, value]}
        if (why := _refused({**data, "axes": {**data["axes"], path.name: longer}}, spec)) is not None:
            by_hand.append(f"{path.name} {value:g}: {why}")
            continue
        data["axes"][path.name] = longer
        words.append(f"{path.name}: {value:g}")
    return words, by_hand


def _add_parameterizations(
    data: dict[str, Any], spec: SweepSpec, needing: Sequence[tuple[str, Finding]]
) -> tuple[list[str], list[str]]:
    """Add parameterizations; return in words what was added, and what no legal sweep can hold."""
    words, by_hand = [], []
    names = [addition.parameterization for _, _, addition in _additions(needing) if addition.parameterization]
    for name in dict.fromkeys(names):
        more = [*data["parameterizations"], {"name": name}]
        if (why := _refused({**data, "parameterizations": more}, spec)) is not None:
            by_hand.append(f"parameterization {name}: {why}")
            continue
        data["parameterizations"] = more
        words.append(f"parameterization {name} on the same grid")
    return words, by_hand


def _changed(spec: SweepSpec, data: dict[str, Any]) -> SweepSpec:
    """Return the sweep with this data. Names that its plug-ins register are legal without the plug-ins."""
    return spec.model_validate(data, strict=False, context=stored_names(spec.plugins or ()))


def _refused(data: dict[str, Any], spec: SweepSpec) -> str | None:
    """Return why no sweep file may hold this data; None if one may."""
    try:
        parse_sweep(dump_sweep(_changed(spec, data)), trusted=False)
    except HpxferError as error:
        return str(error)
    return None


def _num_cells(spec: SweepSpec) -> int:
    counts = [len(grid.numbers()) for grid in spec.grid.values()]
    points = math.prod(counts) if spec.product else sum(counts)
    return sum(len(path.points) for path in axes_of(spec)) * len(spec.parameterizations) * points * len(spec.seeds)
