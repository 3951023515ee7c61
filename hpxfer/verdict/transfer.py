"""The transfer: the HP that the base hands to every shape, its regret there, and the finding with its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hpxfer.host import is_control, value_text
from hpxfer.intervals import ENDS, Floats
from hpxfer.verdict.chances import chances, weakest
from hpxfer.verdict.drift import regret_trend
from hpxfer.verdict.estimate import Estimates, best_cell, estimate_all, octave_cost
from hpxfer.verdict.findings import DEFAULT_RULES, Finding, Rules, ShapeFinding
from hpxfer.verdict.judge import judge
from hpxfer.verdict.loss_grid import LossGrid, ShapeLosses
from hpxfer.verdict.odd_runs import odd_runs
from hpxfer.verdict.thresholds import WIDTH_SHARES
from hpxfer.verdict.what_to_add import what_to_add
from hpxfer.verdict.words import odd_texts, run_text

TIGHT_OCTAVES = 0.25  # a limit that so small a distance from the optimum uses up is none that a grid can meet


Cells = tuple[int | None, int | None]  # of a row, which its regret compares: the best, and that of the transferred HP


def find(grids: Sequence[LossGrid], rules: Rules = DEFAULT_RULES) -> tuple[Finding, ...]:
    """Return the finding of each grid, not yet compared with the control. The noise of seeds is pooled over all."""
    return tuple(finding_of(estimates, rules) for estimates in estimate_all(grids, extra_sd=rules.extra_sd))


def finding_of(estimates: Estimates, rules: Rules = DEFAULT_RULES) -> Finding:
    """Return the finding of one parameterization along one axis, not yet compared with the control."""
    grid = estimates.grid
    base = next((i for i, row in enumerate(grid.rows) if row.is_base), None)
    base_value = None if base is None else _base_value(estimates, base, rules)
    cells = [_cells(estimates, i, base_value) for i in range(len(grid.rows))]
    shapes = tuple(_shape(estimates, i, cells[i], rules) for i in range(len(grid.rows)))
    noise = estimates.noise
    finding = Finding(
        axis=grid.axis,
        scale_name=grid.scale_name,
        parameterization=grid.parameterization,
        base_value=base_value,
        shapes=shapes,
        drift=estimates.drift,
        move=estimates.move,
        noise_nats=None if noise is None else noise.sd,
        verdict="undecided",
        reasons=(),
        judged=grid.judged,
        is_control=is_control(grid.parameterization, rules.control),
        error=rules.error,
        doubts=_doubts(estimates, rules),
        shares_base=_sharing(estimates),
        odd_runs=tuple(run for i in range(len(grid.rows)) for run in odd_runs(estimates.measured(i))),
        regret_trend=regret_trend(
            [shape.scale for shape in shapes],
            [shape.best_loss for shape in shapes],
            [shape.regret_nats for shape in shapes],
            [shape.regret_se_nats for shape in shapes],
        ),
    )
    if base is not None and noise is not None and not finding.doubts:  # no chance is known of losses in doubt
        finding = _with_chances(finding, estimates, base, cells[base][1])
    verdict, reasons = judge(finding, rules)
    if base is not None and verdict != "undecided":
        finding = _without_one(finding, estimates, base, [moved for _, moved in cells], drifts=verdict == "drifts")
        verdict, reasons = judge(finding, rules)
    judged = replace(finding, verdict=verdict, reasons=reasons)
    to_add = what_to_add(judged, grid, rules) if verdict == "undecided" else ()
    needs = tuple(one.text if one.asks_nothing else f"to decide: {one.text}" for one in to_add)
    return replace(judged, reasons=(*reasons, *needs, *_notes(judged, estimates, rules)), to_add=to_add)


def _without_one(
    finding: Finding, estimates: Estimates, base: int, moved: Sequence[int | None], *, drifts: bool
) -> Finding:
    """Return a decided finding; if one run decides it, with the name of that run and the chances without it."""
    found = weakest(estimates, base, moved, [shape.limit_nats for shape in finding.shapes], drifts=drifts)
    if found is None:
        return finding
    (i, k, s), left = found
    row = estimates.grid.rows[i]
    cell, seed = row.cells[k], row.seeds[s]
    finding = replace(finding, rests_on=run_text(row.name, cell.value, seed, cell.trial_of.get(seed)))
    return finding if left is None else replace(finding, transfer_chance=left.transfers, move_chance=left.moved)


def _doubts(estimates: Estimates, rules: Rules) -> tuple[str, ...]:
    """Return why the losses cannot be believed: what the rules say, and seeds that change nothing."""
    ignored = estimates.ignored_seeds if rules.seeds_differ else None
    return (*rules.doubts, *([] if ignored is None else [ignored]))


def _sharing(estimates: Estimates) -> tuple[str, ...]:
    arms = {grid.parameterization for grid in estimates.sharing}
    return tuple(sorted(arms - {estimates.grid.parameterization}))


def _base_value(estimates: Estimates, base: int, rules: Rules) -> float | None:
    """Return the HP that is transferred: the best of the base, and the same in every arm and on every axis that has it.

    A search that refines each shape by itself tries other HPs at each. If not every shape has the best HP, but every
    shape has the one with the lowest measured loss at the base, that one is transferred. A control does not decide it.
    """
    arms = [grid for grid in estimates.sharing if not is_control(grid.parameterization, rules.control)]
    rows = [row for grid in arms or estimates.sharing for row in grid.rows]
    best = estimates.optima[base].grid_value
    if best is None or all(row.cell(best) for row in rows):
        return best
    lowest = estimates.measured(base).lowest
    measured = best if lowest is None else estimates.grid.rows[base].cells[lowest].value
    return measured if all(row.cell(measured) for row in rows) else best


def _cells(estimates: Estimates, i: int, base_value: float | None) -> Cells:
    """Return the cells that the regret of a row compares. The transferred HP is the best where it measured lower."""
    measured, row = estimates.measured(i), estimates.grid.rows[i]
    best = best_cell(estimates, i)
    moved = next((k for k, cell in enumerate(row.cells) if cell.value == base_value), None)
    if best is not None and moved is not None and measured.stable_K[moved]:
        best = moved if measured.mean_K[moved] <= measured.mean_K[best] else best
    return best, moved


def _shape(estimates: Estimates, i: int, cells: Cells, rules: Rules) -> ShapeFinding:
    """Return the finding at row `i`. A regret compares means of measured cells; nothing is interpolated.

    The regret is +inf if the transferred HP diverges, even if every other HP does too.
    """
    measured, row, optimum = estimates.measured(i), estimates.grid.rows[i], estimates.optima[i]
    best, moved = cells
    best_loss = None if best is None else float(measured.mean_K[best])
    moved_loss = None  # +inf if at least half of its seeds diverged
    if moved is not None and measured.has_result_K[moved]:
        moved_loss = math.inf if measured.diverges_K[moved] else float(measured.mean_K[moved])
    finite = moved_loss - best_loss if moved_loss not in (None, math.inf) and best_loss is not None else None
    noise = None if estimates.noise is None else estimates.noise_at(i)
    se, doubt_se = None, 0.0
    if finite is not None and noise is not None and best is not None and moved is not None:
        se, doubt_se = noise.cells_se(measured, moved, best), noise.doubt_se(measured, moved, best)
    edge, at, octave = stability_edge(row), optimum.log2_value, octave_cost(estimates, i)
    return ShapeFinding(
        shape=row.shape,
        scale=row.scale,
        is_base=row.is_base,
        optimum=optimum,
        best_value=None if best is None else row.cells[best].value,
        best_loss=best_loss,
        transferred="missing" if moved_loss is None else "diverged" if moved_loss == math.inf else "measured",
        transferred_loss=moved_loss,
        regret_nats=math.inf if moved_loss == math.inf else finite,
        regret_percent=100 * finite / abs(best_loss) if finite is not None and best_loss else None,
        regret_noise_units=finite / noise.sd if finite is not None and noise is not None and noise.sd else None,
        regret_se_nats=se,
        doubt_se=doubt_se,
        num_seeds=max((len(cell.seeds) for cell in row.cells), default=0),
        num_diverged=row.num_diverged,
        num_missing=row.num_missing,
        transferred_missing=row.cells[moved].num_missing if rules.outside and moved is not None else 0,
        num_lost=sum(cell.num_lost for cell in row.cells),
        width_quarter_octaves=basin_width(estimates, i, WIDTH_SHARES[0]),
        width_one_octaves=basin_width(estimates, i, WIDTH_SHARES[1]),
        edge_log2=edge,
        edge_octaves=edge - at if edge is not None and at is not None else None,
        same_cell=best is not None and best == moved,
        limit_nats=None if best_loss is None else _limit(estimates, i, best_loss, rules),
        octave_nats=octave,
        regret_octave_share=finite / octave if finite is not None and octave else None,
        lowest_value=None if measured.lowest is None else row.cells[measured.lowest].value,
        lowest_loss=None if measured.lowest is None else float(measured.mean_K[measured.lowest]),
        curve=curve_of(estimates, i) if optimum.inside else (),
    )


def _limit(estimates: Estimates, i: int, best_loss: float, rules: Rules) -> float | None:
    """Return the largest regret that counts as none; None if it is not known."""
    if rules.loss is not None:
        return rules.loss * abs(best_loss)
    return octave_cost(estimates, i, rules.octaves or 0.0)


def _with_chances(finding: Finding, estimates: Estimates, base: int, cell: int | None) -> Finding:
    found = None
    if cell is not None:
        found = chances(estimates, base, cell, [shape.limit_nats for shape in finding.shapes])
    if found is None:
        return finding
    shapes = []
    for i, shape in enumerate(finding.shapes):
        if math.isnan(found.over_I[i]) or shape.regret_nats is None:
            shapes.append(shape)
            continue
        low, high = np.quantile(found.regret_BI[:, i], ENDS, method="nearest").tolist()
        low, high = min(low, shape.regret_nats), max(high, shape.regret_nats)  # what was measured is possible
        over = float(found.over_I[i])
        shapes.append(replace(shape, regret_low_nats=low, regret_high_nats=high, over_chance=over))
    apart = None if found.between is None else sorted(finding.shapes[i].scale for i in found.between)
    return replace(
        finding,
        shapes=tuple(shapes),
        transfer_chance=found.transfers,
        move_chance=found.moved,
        move_between=None if apart is None else (apart[0], apart[1]),
    )


def _notes(finding: Finding, estimates: Estimates, rules: Rules) -> Iterator[str]:
    """Yield what a reader should know besides the verdict."""
    grid = estimates.grid
    yield from odd_texts(finding)
    for i, row in enumerate(grid.rows):
        measured, lowest, best = estimates.measured(i), estimates.measured(i).lowest, estimates.optima[i].grid_value
        expected = next((k for k, cell in enumerate(row.cells) if cell.value == best), None)
        if row.is_base and expected is not None and lowest is not None and expected != lowest:
            lower = grid.judged.amount(float(measured.mean_K[expected] - measured.mean_K[lowest]))
            yield (
                f"{row.name}: {value_text(row.cells[lowest].value)} has the lowest mean loss, by {lower}, but "
                f"{value_text(row.cells[expected].value)} is expected to be the best, by the values around it"
            )
    if finding.base is not None and finding.base.optimum.kind == "at_divergence":
        yield "the base optimum sits next to divergence: a finer grid would place it better"
    for shape in finding.shapes:
        if shape.optimum.misfit is not None:
            scatter = f"cells scatter about every basin {shape.optimum.misfit:.2g} times as much as seeds do"
            yield f"{finding.name(shape)}: {scatter}; the intervals are wider by what that allows"
    if missing := sum(row.num_missing for row in grid.rows):
        yield f"{missing} of {sum(row.num_trials for row in grid.rows)} trials have no result"
    yield from _off_axis(finding, estimates)
    tight = [
        finding.name(shape)
        for shape in finding.shapes
        if rules.loss is not None and shape.limit_nats is not None and shape.octave_nats is not None
        if shape.limit_nats < TIGHT_OCTAVES**2 * shape.octave_nats
    ]
    if tight:  # a share of the loss is no fair limit where the loss is close to zero
        yield (
            f"{', '.join(tight)}: the loss is so close to zero that {rules.loss:.0%} of it allows less than "
            f"{TIGHT_OCTAVES:g} octaves from the optimum: the rule regret_limit may be octaves and no share of the loss"
        )


def _off_axis(finding: Finding, estimates: Estimates) -> Iterator[str]:
    """Yield how each HP that a log2 axis cannot show compares with the best HP of every shape, at the seeds of both.

    The error is that of `SeedNoise.cells_se` without the slopes of seeds, as the HP has no distance in octaves.
    """
    rows = estimates.grid.rows
    for value in sorted({cell.value for row in rows for cell in row.off_axis}):
        found = []
        for i, (row, shape) in enumerate(zip(rows, finding.shapes, strict=True)):
            loss_of = next((cell.by_seed for cell in row.off_axis if cell.value == value), {})
            best = row.cell(shape.best_value)
            above = [loss - best.by_seed[seed] for seed, loss in loss_of.items() if best and seed in best.by_seed]
            if above and math.isfinite(sum(above)):
                noise = "" if estimates.noise is None else math.sqrt(2 / len(above)) * estimates.noise_at(i).sd
                error = f" +- {noise:.2g}" if noise else ""
                found.append(f"{np.mean(above):+.2g}{error} {finding.judged.unit} at {row.name}")
            elif math.inf in loss_of.values():
                found.append(f"a divergence at {row.name}")
        said = f"; its loss minus that of the best HP is {', '.join(found)}" if found else ""
        yield f"HP {value:g} has no place on a log2 axis, so no basin is fitted to it{said}"


STEPS = 129  # the points at which a basin is evaluated for its width
POINTS = 33  # of a curve
BESIDE = 0.5  # octaves by which a curve goes beyond the fitted cells


def basin_width(estimates: Estimates, i: int, share: float) -> float | None:
    """Return over how many octaves the loss of row `i` exceeds its minimum by at most `share` of it.

    The basin is the mean of the draws. None without draws, and if the basin is wider than the cells fitted: a width
    is never extrapolated.
    """
    if not estimates.known(i):
        return None
    x = _fitted(estimates, i)
    fine = np.linspace(x[0], x[-1], STEPS)
    loss = estimates.curve(i, fine)
    least = float(loss.min())
    inside = np.flatnonzero(loss <= least + share * abs(least))
    if inside[0] == 0 or inside[-1] == STEPS - 1:
        return None
    return float(fine[inside[-1]] - fine[inside[0]])


def curve_of(estimates: Estimates, i: int) -> tuple[tuple[float, float], ...]:
    """Return (log2 HP, loss) of the mean of the drawn basins of row `i`, around the fitted cells."""
    if not estimates.known(i):
        return ()
    measured, x = estimates.measured(i), _fitted(estimates, i)
    low, high = max(x[0] - BESIDE, measured.low), min(x[-1] + BESIDE, measured.high)
    fine = np.linspace(low, high, POINTS)
    return tuple(zip(fine.tolist(), estimates.curve(i, fine).tolist(), strict=True))


def _fitted(estimates: Estimates, i: int) -> Floats:
    measured = estimates.measured(i)
    return measured.x_K[measured.cells_N]


def stability_edge(row: ShapeLosses) -> float | None:
    """Return log2 of the largest HP up to which no seed diverged, itself included.

    None if no seed diverged at any HP; -inf if one diverged already at the smallest. HPs without a result are skipped.
    """
    edge = -math.inf
    for cell in row.cells:
        if len(cell.finite) < len(cell.losses):
            return edge
        if cell.losses:
            edge = cell.log2
    return None
