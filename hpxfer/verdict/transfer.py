"""The transfer: the HP that the base hands to every shape, its regret there, and the finding with its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hpxfer.verdict.basin import basin_width, curve_of, stability_edge
from hpxfer.verdict.chances import chances
from hpxfer.verdict.drift import ENDS, regret_trend
from hpxfer.verdict.estimate import Estimates, best_cell, estimate_all, octave_cost
from hpxfer.verdict.findings import Finding, ShapeFinding, Transferred
from hpxfer.verdict.hp_values import value_text
from hpxfer.verdict.judge import judge
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import odd_runs, odd_texts, run_text
from hpxfer.verdict.one_run import weakest
from hpxfer.verdict.rules import DEFAULT_RULES, Rules
from hpxfer.verdict.shape_names import is_control
from hpxfer.verdict.thresholds import WIDTH_SHARES
from hpxfer.verdict.what_to_add import asks_nothing, what_to_add

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
    needs = tuple(one.text if asks_nothing(one) else f"to decide: {one.text}" for one in to_add)
    notes = (*odd_texts(judged), *_notes(estimates), *_limit_note(judged, rules))
    return replace(judged, reasons=(*reasons, *needs, *notes), to_add=to_add)


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
    """Return the finding at row `i`. A regret compares means of measured cells; nothing is interpolated."""
    measured, row, optimum = estimates.measured(i), estimates.grid.rows[i], estimates.optima[i]
    best, moved = cells
    best_loss = None if best is None else float(measured.mean_K[best])
    moved_loss = _loss(measured, moved)
    regret = _regret(best_loss, moved_loss)
    finite = regret if regret is not None and math.isfinite(regret) else None
    se, doubt_se = None, 0.0
    if finite is not None and estimates.noise is not None and best is not None and moved is not None:
        noise = estimates.noise_at(i)
        se = noise.cells_se(measured, moved, best)
        doubt_se = noise.doubt_se(measured, moved, best)
    depth = None if best_loss is None else abs(best_loss)
    sd = None if estimates.noise is None else estimates.noise_at(i).sd
    edge, at = stability_edge(row), optimum.log2_value
    octave = octave_cost(estimates, i)
    return ShapeFinding(
        shape=row.shape,
        scale=row.scale,
        is_base=row.is_base,
        optimum=optimum,
        best_value=None if best is None else row.cells[best].value,
        best_loss=best_loss,
        transferred=_transferred(moved_loss),
        transferred_loss=moved_loss,
        regret_nats=regret,
        regret_percent=100 * finite / depth if finite is not None and depth else None,
        regret_noise_units=finite / sd if finite is not None and sd else None,
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
        limit_nats=_limit(estimates, i, best_loss, rules),
        octave_nats=octave,
        regret_octave_share=finite / octave if finite is not None and octave else None,
        lowest_value=None if measured.lowest is None else row.cells[measured.lowest].value,
        lowest_loss=None if measured.lowest is None else float(measured.mean_K[measured.lowest]),
        curve=curve_of(estimates, i) if optimum.kind in ("interior", "at_divergence") else (),
    )


def _limit(estimates: Estimates, i: int, best_loss: float | None, rules: Rules) -> float | None:
    """Return the largest regret that counts as none; None if it is not known."""
    if best_loss is None:
        return None
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


def _loss(measured: Measured, cell: int | None) -> float | None:
    """Return the mean loss of a cell, +inf if at least half of its seeds diverged, None without a result."""
    if cell is None or not measured.has_result_K[cell]:
        return None
    return math.inf if measured.diverges_K[cell] else float(measured.mean_K[cell])


def _regret(best_loss: float | None, moved_loss: float | None) -> float | None:
    """Return the regret: +inf if the transferred HP diverges, even if every other HP does too."""
    if moved_loss is None or moved_loss == math.inf:
        return moved_loss
    return None if best_loss is None else moved_loss - best_loss


def _transferred(moved_loss: float | None) -> Transferred:
    if moved_loss is None:
        return "missing"
    return "diverged" if moved_loss == math.inf else "measured"


def _lowest_at_base(estimates: Estimates) -> Iterator[str]:
    """Yield that the cell with the lowest mean at the base is not the one that is expected to be the best."""
    for i, row in enumerate(estimates.grid.rows):
        measured = estimates.measured(i)
        best = next((k for k, cell in enumerate(row.cells) if cell.value == estimates.optima[i].grid_value), None)
        if row.is_base and best is not None and measured.lowest is not None and best != measured.lowest:
            lower = float(measured.mean_K[best] - measured.mean_K[measured.lowest])
            lowest, expected = (value_text(row.cells[k].value) for k in (measured.lowest, best))
            yield (
                f"{row.name}: {lowest} has the lowest mean loss, by {estimates.grid.judged.amount(lower)}, but "
                f"{expected} is expected to be the best, by the values around it"
            )


def _limit_note(finding: Finding, rules: Rules) -> list[str]:
    """Return that a share of the loss is no fair limit where the loss is close to zero, and which rule is."""
    tight = [
        finding.name(shape)
        for shape in finding.shapes
        if rules.loss is not None and shape.limit_nats is not None and shape.octave_nats is not None
        if shape.limit_nats < TIGHT_OCTAVES**2 * shape.octave_nats
    ]
    if not tight:
        return []
    return [
        f"{', '.join(tight)}: the loss is so close to zero that {rules.loss:.0%} of it allows less than "
        f"{TIGHT_OCTAVES:g} octaves from the optimum: the rule regret_limit may be octaves and no share of the loss"
    ]


def _notes(estimates: Estimates) -> list[str]:
    """Return what a reader should know besides the verdict."""
    grid, notes = estimates.grid, list(_lowest_at_base(estimates))
    if any(row.is_base and at.kind == "at_divergence" for row, at in zip(grid.rows, estimates.optima, strict=True)):
        notes.append("the base optimum sits next to divergence: a finer grid would place it better")
    for row, optimum in zip(grid.rows, estimates.optima, strict=True):
        if optimum.misfit is not None:
            notes.append(
                f"{row.name}: cells scatter about every basin {optimum.misfit:.2g} times as much as seeds do; "
                "the intervals are wider by what that allows"
            )
    if missing := sum(row.num_missing for row in grid.rows):
        notes.append(f"{missing} of {sum(row.num_trials for row in grid.rows)} trials have no result")
    if values := sorted({cell.value for row in grid.rows for cell in row.off_axis}):
        listed = ", ".join(f"{value:g}" for value in values)
        notes.append(f"left out, as a log2 axis cannot show it: HP {listed}")
    return notes
