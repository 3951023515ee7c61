"""Everything that a store lets one say: the transfer reports and every analysis beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from typing import Any

from hpxfer.analysis import at_transferred
from hpxfer.analysis.balance import LoadBalance, load_balance
from hpxfer.analysis.basin import Basin, basins
from hpxfer.analysis.bootstrap import SeedNoise, pool_noise
from hpxfer.analysis.collapse import Collapse
from hpxfer.analysis.comparison import FitComparison, compare_fits
from hpxfer.analysis.estimate import fitted
from hpxfer.analysis.experts_size import ExpertsAgainstSize
from hpxfer.analysis.extrapolation import HeldOut, held_out, noise_of_smaller
from hpxfer.analysis.fast_transfer import FastTransfer, fast_transfer
from hpxfer.analysis.findings import TransferReport, json_ready
from hpxfer.analysis.followup import FollowUp, followup_sweep
from hpxfer.analysis.gather import Stored, line_cells, shapes_of
from hpxfer.analysis.improvement import Improvement
from hpxfer.analysis.joint import JointDrift, joint_drift
from hpxfer.analysis.report import report_line
from hpxfer.analysis.scaling_fit import LossFit, PowerLaw
from hpxfer.analysis.search_best import ArmBest, search_best
from hpxfer.analysis.search_progress import search_progress
from hpxfer.analysis.search_steps import CoordinateStep, coordinate_steps
from hpxfer.analysis.speedup import SpeedUp
from hpxfer.analysis.stability import StabilityMap, stability_map
from hpxfer.analysis.surface import Surface, fit_surface
from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All analyses of one sweep. One that cannot be said stands in its place with `why_not`; nothing is left out."""

    sweep: str
    hp: str  # judged
    loss: str  # judged by: validation | final_window
    reports: tuple[TransferReport, ...]  # a report for each HP scanned, the judged one first
    joint: tuple[JointDrift, ...]  # for each HP and parameterization
    comparisons: tuple[FitComparison, ...]  # for each HP, axis and parameterization, as the next two
    fast: tuple[FastTransfer, ...]
    stability: tuple[StabilityMap, ...]
    surfaces: tuple[Surface, ...]  # for each pair of HPs scanned as a product, shape and parameterization
    improvement: tuple[Improvement, ...]  # for each axis and parameterization, as all below if not said
    collapse: tuple[Collapse, ...]
    balance: tuple[LoadBalance, ...]
    loss_fits: tuple[LossFit, ...]  # for each parameterization and way to count
    power_laws: tuple[PowerLaw, ...]
    experts_size: tuple[ExpertsAgainstSize, ...]  # for each parameterization
    speed_ups: tuple[SpeedUp, ...]  # for each axis, parameterization and MoE shape beside a dense one
    held_out: tuple[HeldOut, ...]
    follow_up: FollowUp
    search_best: tuple[ArmBest, ...] = ()  # of a search that is no grid: for each shape and parameterization
    search_steps: tuple[CoordinateStep, ...] = ()  # of search: coordinate
    notes: tuple[str, ...] = ()  # what is missing from the store, and HPs whose line cannot be read, with the reason

    @property
    def report(self) -> TransferReport | None:
        """The report on the judged HP; None if its line cannot be read, which the notes say."""
        return next((one for one in self.reports if one.hp == self.hp), None)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; None stands for what is missing and for +inf."""
        out: dict[str, Any] = json_ready(asdict(self))
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class _Line:
    """The line of one HP: its report, and its basins by axis and parameterization."""

    hp: str
    report: TransferReport
    groups: dict[tuple[str, str], tuple[Basin, ...]]


def analyze(results: Stored, loss: str | None = None) -> Analysis:
    """Return everything that can be said of a sweep, and why the rest cannot. Raises nothing on a partial store."""
    spec = results.spec
    judged, loss = spec.judged_hp, loss or spec.judge.loss
    lines, notes = _lines(results, loss)
    shapes = shapes_of(spec)
    first = next((one for one in lines if one.hp == judged), None)
    reports = [one.report for one in lines]
    beside = at_transferred.Beside() if first is None else at_transferred.beside(results, first.report, shapes)
    return Analysis(
        sweep=spec.name,
        hp=judged,
        loss=loss,
        reports=tuple(reports),
        joint=tuple(one for line in lines for one in _joint(line, shapes)),
        comparisons=tuple(compare_fits(one, line.hp) for line in lines for one in line.report.findings),
        fast=tuple(one for line in lines for one in _fast(line)),
        stability=tuple(one for line in lines for one in _stability(line)),
        surfaces=tuple(_surfaces(results, loss)),
        improvement=beside.improvement,
        collapse=beside.collapse,
        balance=() if first is None else _balance(results, judged, loss, shapes),
        loss_fits=beside.loss_fits,
        power_laws=beside.power_laws,
        experts_size=beside.experts_size,
        speed_ups=beside.speed_ups,
        held_out=tuple(_held_out(first)) if first else (),
        follow_up=followup_sweep(spec, reports),
        search_best=search_best(search_progress(results), spec),
        search_steps=coordinate_steps(results),
        notes=(*notes, *_missing(results)),
    )


def _lines(results: Stored, loss: str) -> tuple[list[_Line], list[str]]:
    """Return the line of each HP of the grid, the judged one first, and why others cannot be read."""
    spec, out, notes = results.spec, [], []
    for hp in sorted(spec.grid, key=lambda name: name != spec.judged_hp):
        try:
            line = results.line(hp, loss)
        except HpxferError as error:
            notes.append(f"{hp}: {error}")
            continue
        if line.empty:
            notes.append(f"{hp}: no trial lies on a line of it, so nothing can be said of its transfer")
            continue
        every = basins(line)
        groups = {key: tuple(group) for key, group in groupby(every, key=lambda one: (one.axis, one.parameterization))}
        report = report_line(line, sweep=spec.name, hp=hp, loss=loss)
        out.append(_Line(hp=hp, report=report, groups=groups))
    return out, notes


def _balance(results: Stored, hp: str, loss: str, shapes: dict[tuple[str, str], Shape]) -> tuple[LoadBalance, ...]:
    return load_balance(line_cells(results, hp, loss), results.curves, shapes, hp)


def _fast(line: _Line) -> list[FastTransfer]:
    noise = _noise(list(line.groups.values()))
    of = [line.groups[one.axis, one.parameterization] for one in line.report.findings]
    return [fast_transfer(group, noise, line.hp) for group in of]


def _noise(groups: Sequence[Sequence[Basin]]) -> SeedNoise | None:
    fits = [fitted(group) for group in groups]
    return pool_noise([(one.cube, one.fit) for one in fits if one.fit is not None])


def _stability(line: _Line) -> list[StabilityMap]:
    return [stability_map(line.groups[one.axis, one.parameterization], one, line.hp) for one in line.report.findings]


def _joint(line: _Line, shapes: dict[tuple[str, str], Shape]) -> list[JointDrift]:
    """Return the joint drift of each parameterization, over its distinct shapes."""
    out = []
    by_label: dict[str, dict[Shape, Basin]] = {}
    for (axis, label), group in line.groups.items():
        for basin in sorted(group, key=lambda one: not one.is_base):
            by_label.setdefault(label, {}).setdefault(shapes[axis, basin.shape], basin)
    ordered = {label: sorted(found.items(), key=lambda pair: not pair[1].is_base) for label, found in by_label.items()}
    groups = [[basin for _, basin in pairs] for pairs in ordered.values()]
    for pairs in ordered.values():
        out.append(joint_drift([(basin, shape) for shape, basin in pairs], groups, line.hp))
    return out


def _held_out(line: _Line) -> list[HeldOut]:
    noise = noise_of_smaller(list(line.groups.values()))
    return [
        held_out(line.groups[one.axis, one.parameterization], one.base_value, noise, line.hp)
        for one in line.report.findings
    ]


def _surfaces(results: Stored, loss: str) -> list[Surface]:
    """Return a surface for each pair of HPs, shape and parameterization; the base once, if its trials are the same."""
    spec, out = results.spec, []
    seen: set[tuple[str, str, frozenset[str]]] = set()
    for first, second in combinations(spec.grid, 2):
        if not spec.product:
            why = f"{first} and {second} are scanned as two lines, which do not fix a surface: set product: true"
            out.append(Surface(first=first, second=second, why_not=why))
            continue
        cells = line_cells(results, first, loss, beside=second)
        for (label, shape), rows in cells.groupby(["parameterization", "shape"], sort=True):
            rows = rows.drop_duplicates("trial_id")
            key = (first, second, frozenset(rows["trial_id"]))
            if key in seen:
                continue
            seen.add(key)
            bare = Surface(
                first=first,
                second=second,
                shape=str(shape),
                is_base=bool(rows["is_base"].iloc[0]),
                parameterization=str(label),
            )
            first_hp, second_hp, losses = (rows[name].to_list() for name in ("value", second, "loss"))
            out.append(fit_surface(first_hp, second_hp, losses, bare))
    return out


_LACKING = (
    *(("missing", "have not been run"), ("failed", "failed"), ("diverged", "diverged")),
    ("stopped", "were stopped early, so that losses at the end are known of the others alone"),
)


def _missing(results: Stored) -> list[str]:
    """Return in words how much of the sweep has no result."""
    trials = results.cells.drop_duplicates("trial_id")
    counts = trials["status"].value_counts()
    out = []
    for status, said in _LACKING:
        if number := int(counts.get(status, 0)):
            out.append(f"{number} of {len(trials)} trials {said}")
    return out
