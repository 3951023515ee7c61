"""Which base is large enough? Every measured shape as the base, what tuning there costs, and the one to choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.errors import HpxferError
from hpxfer.model.cost import train_flops
from hpxfer.registry import registry
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO
from hpxfer.verdict import BaseReading, Finding, JudgedLine, LossGrid, Rules, read_bases


def _bases(inputs: Inputs) -> list[BaseReading]:
    unscaled, flops = set[str](), dict[tuple[str, str], float | None]()
    if inputs.of_sweep is not None:
        arms = inputs.results.expansion.arms
        unscaled = {label for label, (_, choice) in arms.items() if not scales_training(choice)}
        flops = _trial_flops(inputs)
    return [reading for line in inputs.lines for reading in _of_line(line, inputs.rules, unscaled, flops)]


def _of_line(
    line: JudgedLine, rules: Rules, unscaled: set[str], flops: Mapping[tuple[str, str], float | None]
) -> list[BaseReading]:
    """Return the readings of one line. Grids without a base are read too, as the noise of seeds is pooled over all."""
    grids = [estimates.grid for estimates in line.estimates]
    finding_of = {finding.key: finding for finding in line.report.findings}
    readings = read_bases(line.estimates, [finding_of[grid.key] for grid in grids], line.hp, rules)
    return [
        replace(_blank(grid, line.hp), why_not=why)
        if (why := _why_not(finding_of[grid.key], unscaled))
        else _with_flops(reading, grid, flops)
        for reading, grid in zip(readings, grids, strict=True)
    ]


def _why_not(finding: Finding, unscaled: Collection[str]) -> str | None:
    """Return why no base is named for an arm; None if one may be."""
    if finding.parameterization in unscaled:
        return f"{finding.parameterization} has no base: nothing scales with it"
    if finding.lacking:
        return f"no base is seen to be large enough: {', '.join(finding.lacking)}"
    return None


def _blank(grid: LossGrid, hp: str) -> BaseReading:
    return BaseReading(axis=grid.axis, parameterization=grid.parameterization, hp=hp)


def scales_training(choice: Parameterization) -> bool:
    """Return whether a table scales an LR, an eps, a weight decay or an output with the ratios shape/base.

    A table that scales none of them, such as `sp`, trains every shape with the same numbers, whatever the base is. Its
    initialization alone depends on the shape, by the fan-in. The table of a plug-in that is not loaded counts as one
    that scales.
    """
    if choice.name not in registry("parameterization"):
        return True
    table = choice.table
    factors = [table.route_scale, table.one_minus_beta]
    for column in table.rows:
        for row in choice.rows(column):
            factors += [row.lr, row.eps, row.weight_decay, row.forward]
    return any(factor not in (ONE, ZERO) for factor in factors)


def _trial_flops(inputs: Inputs) -> dict[tuple[str, str], float | None]:
    """Return (axis, name of a shape) -> the FLOPs of one trial.

    None if they are not known: those of a plug-in that is not loaded, or of a user's own trainer.
    """
    expansion = inputs.results.expansion
    out: dict[tuple[str, str], float | None] = {}
    for key, shape in inputs.shapes.items():
        try:
            out[key] = train_flops(shape, expansion.setting_at(shape)) or None  # 0: a user's own trainer
        except HpxferError:
            out[key] = None
    return out


def _with_flops(reading: BaseReading, grid: LossGrid, flops: Mapping[tuple[str, str], float | None]) -> BaseReading:
    """Return a reading with the FLOPs of all planned trials of the line at each shape."""
    num_trials = {row.shape: row.num_trials for row in grid.rows}
    bases = [
        replace(base, tuning_flops=None if each is None else each * num_trials[base.shape])
        for base in reading.bases
        for each in (flops.get((reading.axis, base.shape)),)
    ]
    return replace(reading, bases=tuple(bases))


BASES = Statistic(
    name="bases",
    title="Which base is large enough?",
    note="A row tunes the HP at one shape and uses it at all larger ones. In brief: the smallest shape to tune at, and "
    "what the steps of the optimum from shape to shape do. The verdict is on this shape and all larger ones, the loss "
    "is given up at the largest one, and intervals hold 95%. The tuned value is in units of the sweep's base.",
    compute=_bases,
    parts="bases",
    answer="in_brief",
    of_lines=True,
)
