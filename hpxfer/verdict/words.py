"""Words: how what was found is written, phrase by phrase. `summary` makes texts of these phrases.

To a reader a regret is a "loss given up". A regret at or below zero is written as "none measured", with its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from hpxfer.host import NOTHING, Cell, Column, JudgedLoss, Table, hp_text, scale_text, scales_text, value_text
from hpxfer.intervals import CONFIDENCE
from hpxfer.verdict.findings import Finding, OddRun, ShapeFinding
from hpxfer.verdict.optimum import Optimum

SIGN = {"lower_edge": "<= ", "upper_edge": ">= "}
SAME_CELL = "same grid cell"
MISFIT = 1.05  # a misfit is named from here on: below it is rounding
SURE = 0.999  # a probability closer to 0 or 1 than this is written as a bound
MOST_NAMED = 5  # notes on runs and cells of each kind


def optimum_text(optimum: Optimum) -> str:
    """Return an optimum: `2^-6.1`, `>= 2^-4.0` at the upper edge of the grid, or `2^-5.0 (next diverges)`."""
    if optimum.log2_value is None:
        return NOTHING
    after = " (next diverges)" if optimum.kind == "at_divergence" else ""
    return f"{SIGN.get(optimum.kind, '')}2^{optimum.log2_value:.1f}{after}"


def interval_text(optimum: Optimum) -> str:
    """Return the 95% interval of an optimum: `2^-6.8..2^-6.0`, or `..2^-8.5` if one side is open."""
    if optimum.low_log2 is None and optimum.high_log2 is None:
        return NOTHING
    return "..".join("" if end is None else f"2^{end:.1f}" for end in (optimum.low_log2, optimum.high_log2))


def misfit_text(optimum: Optimum) -> str:
    """Return by how much cells scatter about the fit more than seeds do, e.g. `2.3 times`; empty where they do not."""
    return f"{optimum.misfit:.2g} times" if optimum.misfit is not None and optimum.misfit >= MISFIT else ""


def regret_number_text(shape: ShapeFinding) -> str:
    """Return a regret without its unit, with its standard error: `0.017 +- 0.004`, `none +- 0.01`, or `diverges`.

    At the base, where the HP was chosen, nothing is compared: `same grid cell`.
    """
    if shape.regret_nats is None:
        return NOTHING
    if shape.regret_nats == math.inf:
        return "diverges"
    if shape.regret_nats <= 0 and shape.is_base:
        return SAME_CELL
    value = f"{shape.regret_nats:.2g}" if shape.regret_nats > 0 else "none"
    return value + (f" +- {shape.regret_se_nats:.2g}" if shape.regret_se_nats else "")


def regret_text(shape: ShapeFinding, judged: JudgedLoss) -> str:
    """Return a regret in words, e.g. `loss given up 0.017 +- 0.004 nats (0.51% of the loss)`."""
    if shape.regret_nats is None:
        return "loss given up unknown"
    if shape.regret_nats == math.inf:
        return "diverges at the transferred HP"
    notes = []
    if shape.regret_nats <= 0:
        text = "loss given up: none measured"
        if shape.same_cell or shape.regret_nats == 0:
            notes.append(SAME_CELL)
        if shape.regret_se_nats:
            notes.append(f"+- {judged.amount(shape.regret_se_nats)}")
    else:
        text = f"loss given up {regret_number_text(shape)} {judged.unit}"
        if shape.regret_percent is not None:
            notes.append(f"{shape.regret_percent:.2g}% of the loss")
        if (share := shape.regret_octave_share) is not None:
            notes.append(f"{f'{share:.1f} times' if share > 1 else f'{share:.0%} of'} what one octave costs")
    return f"{text} ({', '.join(notes)})" if notes else text


def most_text(most: float, judged: JudgedLoss) -> str:
    """Return in words that no more is lost, e.g. `at most 0.02 nats lost`."""
    return f"at most {judged.amount(most)} lost" if most > 0 else "no loss measured"


def lost_text(finding: Finding) -> str | None:
    """Return what the transferred HP costs at most beyond the base; None if nothing bounds it."""
    most = max((nats for shape in finding.others if (nats := shape.most_lost) is not None), default=math.inf)
    return None if math.isinf(most) else most_text(most, finding.judged)


def move_text(finding: Finding) -> str | None:
    """Return the move in words: `between width 32 and 128 the optimum moves by -0.2 to +0.3 octaves (95%)`.

    The shapes are those that have an optimum. None without a move, and for a move whose interval is open on both sides.
    """
    move = finding.move
    if move is None or (move.low is None and move.high is None):
        return None
    if move.low is None or move.high is None:
        bound, way, other = (move.low, "up", "down") if move.high is None else (-(move.high or 0.0), "down", "up")
        far = f"{abs(bound or 0.0):.2f} octaves"
        by = f"{way} by {far} or more" if (bound or 0.0) > 0 else f"{other} by at most {far}, or {way} by any distance"
    else:
        by = f"by {move.low:+.2f} to {move.high:+.2f} octaves"
    first, last = move.scales[0], move.scales[-1]
    between = (shape.scale for shape in finding.shapes if first < shape.scale < last)
    lacking = [scale_text(scale) for scale in between if scale not in move.scales]
    without = f" (without {', '.join(lacking)})" if lacking else ""
    where = f"{scales_text(finding.scale_name, (first, last))}{without}"
    return f"between {where} the optimum moves {by} ({CONFIDENCE:.0%})"


def drift_text(finding: Finding) -> str:
    """Return the drift with its 95% interval, e.g. `+0.20 [-0.01, +0.41] octaves per doubling of width (5 shapes)`."""
    drift = finding.drift
    if drift is None:
        return "unknown: fewer than two shapes have an interior optimum"
    if drift.bounds and drift.low is None and drift.high is None:
        return f"unknown: of {', '.join(drift.bounds)} only bounds are known"
    if not drift.is_line:
        steps = [
            f"{_with_ends(step.octaves, step.low, step.high)} from {scale_text(step.start)} to {scale_text(step.stop)}"
            for step in drift.steps
        ]
        return f"not a line; in octaves, by {finding.scale_name}: {', '.join(steps)}"
    count = [f"{drift.num_shapes} shape{'' if drift.num_shapes == 1 else 's'}"] if drift.num_shapes else []
    bounds = [f"bounds at {', '.join(drift.bounds)}"] if drift.bounds else []
    without = [f"without {', '.join(drift.left_out)}"] if drift.left_out else []
    slope = _with_ends(drift.octaves_per_doubling, drift.low, drift.high)
    return f"{slope} octaves per doubling of {finding.scale_name} ({', '.join([*count, *bounds, *without])})"


def _with_ends(value: float, low: float | None, high: float | None) -> str:
    """Return a number with its interval, e.g. `+0.20 [-0.01, +0.41]`. An end that nothing bounds is `open`."""
    if low is None and high is None:
        return f"{value:+.2f}"
    return f"{value:+.2f} [{', '.join('open' if end is None else f'{end:+.2f}' for end in (low, high))}]"


def probability_text(chance: float) -> str:
    """Return a probability, e.g. `99.6%` or `over 99.9%`."""
    if chance > SURE:
        return f"over {SURE:.1%}"
    return f"under {1 - SURE:.1%}" if chance < 1 - SURE else f"{chance:.1%}"


def chance_text(finding: Finding) -> str | None:
    """Return the probability that the HP transfers, e.g. `99.6%` or `over 99.9%`; None if it is not known.

    With one shape nothing transfers anywhere, so that there is no such probability. Nor is there one while runs at the
    transferred HP are lost, as what they would have been is not known, or while the base has no optimum to transfer.
    """
    if finding.base is not None and finding.base.optimum.kind == "none":
        return None
    if len(finding.shapes) < 2 or any(shape.transferred_missing for shape in finding.shapes):
        return None
    return None if finding.transfer_chance is None else probability_text(finding.transfer_chance)


def likely_text(finding: Finding) -> str | None:
    """Return the probability with what it is of, e.g. `99.6% that it transfers`; None if it is not known."""
    chance = chance_text(finding)
    return None if chance is None else f"{chance} that it {'stays' if finding.lacking else 'transfers'}"


def lost_runs_text(finding: Finding, shape: ShapeFinding) -> str | None:
    """Return that runs of others have no result at the transferred HP; None if all have one."""
    num = shape.transferred_missing
    runs = "1 run has" if num == 1 else f"{num} runs have"
    return f"{finding.name(shape)}: {runs} no result at the transferred HP" if num else None


def verdict_text(finding: Finding) -> str:
    """Return the verdict. If it is `transfers`, also say whether the control is missing that would support it."""
    if finding.verdict == "stays":
        return f"the optimum did not move: {', '.join(finding.lacking)}"
    if finding.refuted:
        return "does not transfer, undecided how"
    if finding.verdict != "transfers" or finding.is_control:
        return finding.verdict
    if finding.control is None:
        return f"{finding.verdict}, no control"
    return finding.verdict if finding.control.worst_shape else f"{finding.verdict}, control not measured"


def verdict_line(finding: Finding) -> str:
    """Return the verdict in one line, e.g. `completep-moe: transfers (at most 0.017 nats lost)`."""
    why = conclusion(finding)
    return f"{finding.parameterization}: {verdict_text(finding)}" + (f" ({why})" if why else "")


def conclusion(finding: Finding) -> str | None:
    """Return in a few words what a verdict rests on; None if nothing is known."""
    if finding.doubts:
        return finding.doubts[0]
    if finding.rests_on is not None:
        return f"it rests on one run: {finding.rests_on}"
    match finding.verdict:
        case "transfers":
            return lost_text(finding)
        case "stays":
            return "; ".join(text for text in (f"drift {drift_text(finding)}", lost_text(finding)) if text)
        case "undecided":
            why = None if finding.refuted else _open_question(finding)
            likely = likely_text(finding)
            return why or (None if likely is None else f"probability {likely}")
    if not finding.over:
        return move_text(finding)
    worst = finding.over[0]
    lost = "diverges" if worst.regret_nats == math.inf else f"{regret_number_text(worst)} {finding.judged.unit} lost"
    return f"{lost} at {finding.name(worst)}"


def _open_question(finding: Finding) -> str | None:
    """Return in a few words what an undecided finding lacks; None if it lacks nothing but a clearer answer."""
    if finding.base is not None and finding.base.optimum.open_because:
        return f"base: {finding.base.optimum.open_because}"
    if finding.noise_nats is None:
        return "one seed: no noise floor"
    if len(finding.shapes) < 2:
        return "no shape beyond the base"
    for shape in finding.shapes:
        if shape.regret_nats is None:
            return f"{finding.name(shape)}: no result at the transferred HP"
        if why := lost_runs_text(finding, shape):
            return why
    is_sure = (finding.transfer_chance or 0.0) >= 1 - finding.error  # so that no probability is what it lacks
    if is_sure and any(shape.limit_nats is None for shape in finding.others):
        return "the limit is not known"
    for shape in finding.others:
        if shape.limit_nats is not None and shape.known_to_nats > shape.limit_nats:
            known_to = finding.judged.amount(shape.known_to_nats)
            return f"loss given up known to +- {known_to}, limit {shape.limit_nats:.2g}"
    return None if finding.drift or finding.move else "drift unknown"


def transferred_text(finding: Finding) -> str:
    """Return the HP that the base hands on, e.g. `0.01562 (2^-6)`, and why a better one may exist."""
    if finding.base_value is None:
        return "none"
    why = None if finding.base is None else finding.base.optimum.open_because
    return hp_text(finding.base_value) + (f", perhaps not the best: {why}" if why else "")


def facts(finding: Finding, hp: str) -> dict[str, str]:
    """Return what is known of a finding beside its verdict, by name."""
    noise = "unknown" if finding.noise_nats is None else finding.judged.amount(finding.noise_nats)
    misfits = [f"{finding.name(shape)} {text}" for shape in finding.shapes if (text := misfit_text(shape.optimum))]
    found = {
        "probability": likely_text(finding),
        "move": move_text(finding),
        "drift of the optimum": drift_text(finding),
        f"transferred {hp}": None if finding.base_value is None else transferred_text(finding),
        "noise of a seed": noise,
        "scatter about the fit": f"more than seeds, which widens intervals: {', '.join(misfits)}" if misfits else None,
    }
    return {name: text for name, text in found.items() if text is not None}


def shape_table(finding: Finding) -> Table:
    """Return a finding shape by shape, without the columns that hold nothing."""
    unit = finding.judged.unit

    def some(share: float | None) -> float | None:
        """Return a share of a regret; None for a regret of which none was measured."""
        return share if share is not None and share > 0 else None

    columns: dict[Column, Callable[[ShapeFinding], Cell]] = {
        Column(name="shape"): lambda shape: shape.shape + (" (base)" if shape.is_base else ""),
        Column(name="scale", form="{:.9g}"): lambda shape: shape.scale,
        Column(name=f"best loss, {unit}", form="{:.4f}"): lambda shape: shape.best_loss,
        Column(name=f"loss given up +- standard error, {unit}", kept=True): regret_number_text,
        Column(name="share of the loss, %", form="{:.2f}"): lambda shape: some(shape.regret_percent),
        Column(name="in units of seed noise", form="{:.1f}"): lambda shape: some(shape.regret_noise_units),
        Column(name="share of what one octave costs, %", form="{:.0f}"): lambda shape: some(
            None if shape.regret_octave_share is None else 100 * shape.regret_octave_share
        ),
        Column(name=f"limit, {unit}", form="{:.2g}"): lambda shape: shape.limit_nats,
        Column(name="optimum"): lambda shape: optimum_text(shape.optimum),
        Column(name="95% interval"): lambda shape: interval_text(shape.optimum),
        Column(name="scatter about the fit over that of seeds"): lambda shape: misfit_text(shape.optimum) or None,
        Column(name=f"lowest measured loss, {unit}"): lambda shape: (
            None if shape.lowest_loss is None else f"{shape.lowest_loss:.4f} at {hp_text(shape.lowest_value)}"
        ),
        Column(name="from the optimum to divergence, octaves", form="{:.1f}"): lambda shape: shape.edge_octaves,
        Column(name="seeds"): lambda shape: shape.num_seeds,
        Column(name="diverged"): lambda shape: shape.num_diverged,
        Column(name="missing"): lambda shape: shape.num_missing,
    }
    title = f"{finding.axis}, {finding.parameterization}: shape by shape"
    rows = tuple(tuple(cell(shape) for cell in columns.values()) for shape in finding.shapes)
    return Table(title=title, columns=tuple(columns), rows=rows).without_empty_columns()


def run_text(shape: str, value: float, seed: int, run: str | None) -> str:
    """Return what a reader knows a run by, e.g. `the run of width 64, HP 2^-7, seed 1 (row 17 of runs.csv)`."""
    where = f"the run of {shape}, HP {value_text(value)}, seed {seed}"
    return where if run is None else f"{where} ({run})"


def odd_texts(finding: Finding, *, dead: bool = True) -> list[str]:
    """Return a sentence on each run that is left out, each cell whose seeds disagree, and each shape with dead runs.

    Without `dead`, only runs that someone has to look at.
    """
    cells: dict[tuple[str, float], list[OddRun]] = {}
    shapes: dict[str, list[OddRun]] = {}
    for run in finding.odd_runs:
        if run.why == "disagrees":
            cells.setdefault((run.shape, run.value), []).append(run)
        elif run.why == "dead" and dead:
            shapes.setdefault(run.shape, []).append(run)
    apart = [_apart(run, finding.judged) for run in finding.odd_runs if run.why == "apart"]
    return [
        *_few(apart, "runs are left out"),
        *_few([_disagree(runs, finding.judged) for runs in cells.values()], "HPs have seeds that disagree"),
        *map(_dead, shapes.values()),
    ]


def _few(texts: Sequence[str], what: str) -> Iterator[str]:
    yield from texts[:MOST_NAMED]
    if len(texts) > MOST_NAMED:
        yield f"{len(texts) - MOST_NAMED} more {what}"


def _apart(run: OddRun, judged: JudgedLoss) -> str:
    side = "above" if run.away_nats > 0 else "below"
    away = f"{judged.amount(abs(run.away_nats))} {side} the other seeds of its cell"
    name = run_text(run.shape, run.value, run.seed, run.run)
    return f"{name} ends {away} and is left out: check its label, its length and its data"


def _disagree(runs: Sequence[OddRun], judged: JudgedLoss) -> str:
    ends = min(runs, key=lambda run: run.away_nats), max(runs, key=lambda run: run.away_nats)
    apart = f"differ by {judged.amount(max(abs(run.away_nats) for run in runs))}, more than noise"
    ids = [run.run for run in ends if run.run is not None]
    named = f" ({'; '.join(ids)})" if ids else ""
    return (
        f"{runs[0].shape}, HP {value_text(runs[0].value)}: its {len(runs)} seeds {apart}{named}; "
        "none is left out, and the cell counts as known to half of that"
    )


def _dead(runs: Sequence[OddRun]) -> str:
    at = " to ".join(map(value_text, sorted({run.value for run in (runs[0], runs[-1])})))
    losses = [run.loss for run in runs]
    ends = " to ".join(dict.fromkeys(f"{loss:.3g}" for loss in (min(losses), max(losses))))
    count = "1 run counts" if len(runs) == 1 else f"{len(runs)} runs count"
    died = f"training seems to have died, as it ended far above other HPs at {ends}"
    return f"{runs[0].shape}, HP {at}: {died}; {count} as diverged"
