"""How optima, regrets, moves and verdicts are written. `headline` and `summary` put these phrases together.

To a reader a regret is a "loss given up". A regret at or below zero is written as "none measured", with its error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.hp_values import value_text
from hpxfer.verdict.loss_grid import JudgedLoss
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.shape_names import scale_text
from hpxfer.verdict.thresholds import CONFIDENCE, NUM_SE

SIGN = {"lower_edge": "<= ", "upper_edge": ">= "}
NOTHING = "-"
SAME_CELL = "same grid cell"
MISFIT = 1.05  # a misfit is named from here on: below it is rounding
LIKELY = 0.5  # wide intervals make a transfer improbable too: a drift is seen if a single statement is likely
SURE = 0.999  # a probability closer to 0 or 1 than this is written as a bound


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


def hp_text(value: float | None) -> str:
    """Return an HP of the grid: `2^-6.5`, or `0.0003 (2^-11.7)` for a number that is no such power; `-` without one."""
    if value is None:
        return NOTHING
    text = value_text(value)
    return text if text.startswith("2^") else f"{text} (2^{math.log2(value):.3g})"


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
    if shape.regret_nats <= 0:
        error = f"+- {judged.amount(shape.regret_se_nats)}" if shape.regret_se_nats else ""
        notes = [note for note in (SAME_CELL if _is_same_cell(shape) else "", error) if note]
        return "loss given up: none measured" + (f" ({', '.join(notes)})" if notes else "")
    shares = []
    if shape.regret_percent is not None:
        shares.append(f"{shape.regret_percent:.2g}% of the loss")
    if shape.regret_octave_share is not None:
        shares.append(f"{_share_text(shape.regret_octave_share)} what one octave costs")
    return f"loss given up {regret_number_text(shape)} {judged.unit}" + (f" ({', '.join(shares)})" if shares else "")


def _share_text(share: float) -> str:
    return f"{share:.1f} times" if share > 1 else f"{share:.0%} of"


def _is_same_cell(shape: ShapeFinding) -> bool:
    return shape.same_cell or shape.regret_nats == 0


def most_lost(shape: ShapeFinding) -> float | None:
    """Return the upper end of the 95% interval of a regret, at least 0; None if the regret is not known."""
    if shape.regret_nats is None:
        return None
    high = shape.regret_high_nats
    if high is None:
        high = shape.regret_nats + NUM_SE * (shape.regret_se_nats or 0.0)
    return max(high, 0.0)


def lost_text(finding: Finding) -> str | None:
    """Return what the transferred HP costs at most beyond the base, e.g. `at most 0.02 nats lost`; None if unknown."""
    most = [nats for shape in finding.shapes if not shape.is_base and (nats := most_lost(shape)) is not None]
    if not most or math.isinf(max(most)):
        return None
    return most_text(max(most), finding.judged)


def most_text(most: float, judged: JudgedLoss) -> str:
    """Return in words that no more is lost, e.g. `at most 0.02 nats lost`."""
    if most <= 0:
        return "no loss measured"
    return f"at most {judged.amount(most)} lost"


def move_text(finding: Finding) -> str | None:
    """Return the move in words: `between width 32 and 128 the optimum moves by -0.2 to +0.3 octaves (95%)`.

    The shapes are those that have an optimum. None without a move, and for a move whose interval is open on both sides.
    """
    by = move_interval(finding, " octaves")
    if by is None or finding.move is None:
        return None
    first, last = finding.move.scales[0], finding.move.scales[-1]
    lacking = [
        shape for shape in finding.shapes if first < shape.scale < last and shape.scale not in finding.move.scales
    ]
    without = f" (without {', '.join(scale_text(shape.scale) for shape in lacking)})" if lacking else ""
    between = f"{scales_text(finding.scale_name, (first, last))}{without}"
    return f"between {between} the optimum moves by {by} ({CONFIDENCE:.0%})"


def move_interval(finding: Finding, unit: str = "") -> str | None:
    """Return the interval of the move, e.g. `-0.20 to +0.30` or `-1.20 or less`; None as for `move_text`."""
    low, high = (None, None) if finding.move is None else (finding.move.low, finding.move.high)
    if low is None:
        return None if high is None else f"{high:+.2f}{unit} or less"
    return f"{low:+.2f}{unit} or more" if high is None else f"{low:+.2f} to {high:+.2f}{unit}"


def scales_text(scale_name: str, scales: Sequence[float]) -> str:
    """Return the names of shapes as one, e.g. `width 32 and 128`."""
    return f"{scale_name} {' and '.join(map(scale_text, scales))}"


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


def chance_text(finding: Finding) -> str | None:
    """Return the probability that the HP transfers, e.g. `99.6%` or `over 99.9%`; None if it is not known.

    With one shape nothing transfers anywhere, so that there is no such probability. Nor is there one while runs at the
    transferred HP are lost, as what they would have been is not known, or while the base has no optimum to transfer.
    """
    chance = finding.transfer_chance
    if any(shape.is_base and shape.optimum.kind == "none" for shape in finding.shapes):
        return None
    if chance is None or len(finding.shapes) < 2 or any(shape.transferred_missing for shape in finding.shapes):
        return None
    return probability_text(chance)


def probability_text(chance: float) -> str:
    """Return a probability, e.g. `99.6%` or `over 99.9%`."""
    if chance > SURE:
        return f"over {SURE:.1%}"
    return f"under {1 - SURE:.1%}" if chance < 1 - SURE else f"{chance:.1%}"


def refuted(finding: Finding) -> bool:
    """Return whether an HP surely does not transfer, although no single statement is sure enough for `drifts`.

    What is not measured yet, at the base or elsewhere, leaves that open.
    """
    if finding.verdict != "undecided" or finding.doubts or not has_transferred(finding):
        return False
    if finding.transfer_chance is None or any(shape.regret_nats is None for shape in finding.shapes):
        return False
    likely = max(finding.move_chance or 0.0, *(shape.over_chance or 0.0 for shape in finding.shapes))
    return finding.transfer_chance <= finding.error and likely >= LIKELY


def lost_runs_text(finding: Finding, shape: ShapeFinding) -> str | None:
    """Return that runs of others have no result at the transferred HP; None if all have one."""
    num = shape.transferred_missing
    runs = "1 run has" if num == 1 else f"{num} runs have"
    return f"{finding.name(shape)}: {runs} no result at the transferred HP" if num else None


def has_transferred(finding: Finding) -> bool:
    """Return whether the base has a best HP. It has none while a better one may lie where nothing was run."""
    base = next((shape for shape in finding.shapes if shape.is_base), None)
    return base is not None and finding.base_value is not None and base.optimum.bracketed


def transferred_text(finding: Finding) -> str:
    """Return the HP that the base hands on, e.g. `0.01562 (2^-6)`, and why a better one may exist."""
    if finding.base_value is None:
        return "none"
    why = next((shape.optimum.open_because for shape in finding.shapes if shape.is_base), None)
    return hp_text(finding.base_value) + (f", perhaps not the best: {why}" if why else "")


def likely_text(finding: Finding) -> str | None:
    """Return the probability with what it is of, e.g. `99.6% that it transfers`; None if it is not known."""
    chance = chance_text(finding)
    return None if chance is None else f"{chance} that it {'stays' if finding.lacking else 'transfers'}"


def verdict_text(finding: Finding) -> str:
    """Return the verdict. If it is `transfers`, also say whether the control is missing that would support it."""
    if finding.verdict == "stays":
        return f"the optimum did not move: {', '.join(finding.lacking)}"
    if refuted(finding):
        return "does not transfer, undecided how"
    if finding.verdict != "transfers" or finding.is_control:
        return finding.verdict
    if finding.control is None:
        return f"{finding.verdict}, no control"
    return finding.verdict if finding.control.worst_shape else f"{finding.verdict}, control not measured"


def verdict_line(finding: Finding) -> str:
    """Return the verdict in one line, e.g. `completep-moe: transfers (at most 0.017 nats lost)`."""
    start = f"{finding.parameterization}: {verdict_text(finding)}"
    why = conclusion(finding)
    return f"{start} ({why})" if why else start


def conclusion(finding: Finding) -> str | None:
    """Return in a few words what a verdict rests on; None if nothing is known."""
    if finding.doubts:
        return finding.doubts[0]
    if finding.rests_on is not None:
        return f"it rests on one run: {finding.rests_on}"
    if finding.verdict == "transfers":
        return lost_text(finding)
    if finding.verdict == "stays":
        return "; ".join(text for text in (f"drift {drift_text(finding)}", lost_text(finding)) if text)
    if finding.verdict == "undecided" and not refuted(finding) and (why := _open_question(finding)):
        return why
    if finding.verdict == "undecided":
        likely = likely_text(finding)
        return None if likely is None else f"probability {likely}"
    if not finding.over:
        return move_text(finding)
    worst = finding.over[0]
    if worst.regret_nats == math.inf:
        return f"diverges at {finding.name(worst)}"
    lost = f"{regret_number_text(worst)} {finding.judged.unit} lost"
    return f"{lost} at {finding.name(worst)}"


def _open_question(finding: Finding) -> str | None:
    """Return in a few words what an undecided finding lacks; None if it lacks nothing but a clearer answer."""
    for shape in finding.shapes:
        if shape.is_base and shape.optimum.open_because:
            return f"base: {shape.optimum.open_because}"
    if finding.noise_nats is None:
        return "one seed: no noise floor"
    if len(finding.shapes) < 2:
        return "no shape beyond the base"
    for shape in finding.shapes:
        if shape.regret_nats is None:
            return f"{finding.name(shape)}: no result at the transferred HP"
        if why := lost_runs_text(finding, shape):
            return why
    for shape in finding.shapes:
        error = NUM_SE * (shape.regret_se_nats or 0.0)
        if not shape.is_base and shape.limit_nats is not None and error > shape.limit_nats:
            judged = finding.judged
            return f"loss given up known to +- {judged.amount(error)}, limit {shape.limit_nats:.2g}"
    return None if finding.drift or finding.move else "drift unknown"


def number_text(value: float | None, form: str) -> str:
    """Return a number in a format such as `{:.4f}`, and `-` for one that is missing or not finite."""
    return NOTHING if value is None or not math.isfinite(value) else form.format(value)
