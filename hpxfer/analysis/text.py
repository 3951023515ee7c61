"""The words of a report: how optima, regrets and verdicts are written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpxfer.analysis.thresholds import NUM_SE, REGRET_SHARE

if TYPE_CHECKING:
    from hpxfer.analysis.drift import Drift
    from hpxfer.analysis.findings import Finding, ShapeFinding, TransferReport
    from hpxfer.analysis.optimum import Optimum

LOSS_NAMES = {"validation": "validation loss", "final_window": "training loss over the last steps"}
SIGN = {"lower_edge": "<= ", "upper_edge": ">= "}
NOTHING = "-"
MOST_IN_FULL = 1e12


def scale_text(scale: float) -> str:
    """Return a scale as it is read: a count in full, `2359296` and not `2.3593e+06`."""
    return f"{scale:.0f}" if float(scale).is_integer() and abs(scale) < MOST_IN_FULL else f"{scale:g}"


def loss_name(loss: str) -> str:
    """Return a judged loss in words."""
    return LOSS_NAMES.get(loss, loss)


def optimum_text(optimum: Optimum) -> str:
    """Return an optimum, e.g. `2^-6.1`, `>= 2^-4.0` on the grid's upper edge, `2^-5.0 (next diverges)`."""
    if optimum.log2_value is None:
        return NOTHING
    after = " (next diverges)" if optimum.kind == "at_divergence" else ""
    return f"{SIGN.get(optimum.kind, '')}2^{optimum.log2_value:.1f}{after}"


def regret_text(shape: ShapeFinding) -> str:
    """Return a regret with its error, e.g. `regret 0.017 +- 0.004 nats (0.51% of the loss)`; `diverges ...` if inf."""
    if shape.regret_nats is None:
        return "regret unknown"
    if shape.regret_nats == 0:
        return "regret 0, the transferred HP is the best there"
    if shape.regret_nats == math.inf:
        return "diverges at the transferred HP"
    percent = "" if shape.regret_percent is None else f" ({shape.regret_percent:.2g}% of the loss)"
    return f"regret {_regret(shape)} nats{percent}"


def interval_text(optimum: Optimum) -> str:
    """Return the 95% interval, e.g. `2^-6.8..2^-6.0`; `..2^-8.5` if one side is open."""
    if optimum.low_log2 is None and optimum.high_log2 is None:
        return NOTHING
    return "..".join("" if end is None else f"2^{end:.1f}" for end in (optimum.low_log2, optimum.high_log2))


def drift_text(drift: Drift | None, scale_name: str) -> str:
    """Return a drift, e.g. `+0.20 [-0.01, +0.41] octaves per doubling of width (5 shapes)`, with its 95% interval."""
    if drift is None:
        return "unknown: fewer than two shapes have an interior optimum"
    ends = "[" + ", ".join(NOTHING if end is None else f"{end:+.2f}" for end in (drift.low, drift.high)) + "] "
    interval = "" if drift.low is None and drift.high is None else ends
    beside = f", bounds at {', '.join(drift.bounds)}" if drift.bounds else ""
    without = f", without {', '.join(drift.left_out)}" if drift.left_out else ""
    slope = f"{drift.octaves_per_doubling:+.2f} {interval}octaves per doubling of {scale_name}"
    return f"{slope} ({drift.num_shapes} shapes{beside}{without})"


def verdict_text(finding: Finding) -> str:
    """Return the verdict, and if it transfers, whether a control is lacking that tells if the axis moves optima."""
    if finding.verdict != "transfers" or finding.is_control:
        return finding.verdict
    if finding.control is None:
        return f"{finding.verdict}, no control"
    return finding.verdict if finding.control.worst_shape else f"{finding.verdict}, control not measured"


def headline(finding: Finding) -> str:
    """Return the conclusion in one line, e.g. `completep-moe: transfers (regret at most 0.017 nats)`."""
    start = f"{finding.parameterization}: {verdict_text(finding)}"
    worst = finding.worst
    if finding.verdict == "undecided" and (why := _open_question(finding)):
        return f"{start} ({why})"
    if worst is None or worst.regret_nats is None:
        return start
    if worst.regret_nats == math.inf:
        return f"{start} (diverges at {finding.name(worst)})"
    if worst.regret_nats == 0:
        return f"{start} (regret 0 at every shape)"
    bound = "at most" if finding.verdict == "transfers" else "up to"
    return f"{start} (regret {bound} {worst.regret_nats:.2g} nats)"


def _open_question(finding: Finding) -> str | None:
    """Return in a few words what keeps a finding undecided; None if it is the size of the regret."""
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
    return None if finding.drift else "drift unknown"


def summary(report: TransferReport) -> str:
    """Return a report as plain text with aligned columns."""
    rule = f"max({REGRET_SHARE:.0%} of the loss, {NUM_SE:g} standard errors)"
    lines = [
        f"Does {report.hp} transfer? Sweep {report.sweep}, judged by {loss_name(report.loss)}.",
        f"Regret: loss at the base's best {report.hp} minus the best loss of the shape; the limit is {rule}.",
    ]
    for finding in report.findings:
        lines += ["", *_section(finding, report.hp)]
    if not report.findings:
        lines += ["", f"No trial lies on a line of {report.hp}, so nothing can be said of its transfer."]
    return "\n".join(lines) + "\n"


def _section(finding: Finding, hp: str) -> list[str]:
    noise = "unknown" if finding.noise_nats is None else f"{finding.noise_nats:.2g} nats"
    moved = NOTHING
    if finding.base_value is not None:
        moved = f"{finding.base_value:.4g} (2^{math.log2(finding.base_value):.4g})"
    return [
        f"{finding.axis} | {headline(finding)}",
        *(f"  - {reason}" for reason in finding.reasons),
        f"  transferred {hp}: {moved}; seed noise: {noise}",
        f"  drift: {drift_text(finding.drift, finding.scale_name)}",
        *_aligned([_HEADER, *(_row(shape) for shape in finding.shapes)]),
    ]


_HEADER = (
    "shape",
    "scale",
    "optimum",
    "95%",
    "best loss",
    "regret, nats",
    "of loss",
    "in noise",
    "seeds",
    "diverged",
    "missing",
)


def _row(shape: ShapeFinding) -> tuple[str, ...]:
    return (
        shape.shape + (" (base)" if shape.is_base else ""),
        scale_text(shape.scale),
        optimum_text(shape.optimum),
        interval_text(shape.optimum),
        _number(shape.best_loss, "{:.4f}"),
        _regret(shape),
        _number(shape.regret_percent, "{:.2f}%"),
        _number(shape.regret_noise_units, "{:.1f}"),
        str(shape.num_seeds),
        str(shape.num_diverged),
        str(shape.num_missing),
    )


def _regret(shape: ShapeFinding) -> str:
    if shape.regret_nats == math.inf:
        return "diverges"
    se = "" if shape.regret_se_nats is None else f" +- {shape.regret_se_nats:.2g}"
    return _number(shape.regret_nats, "{:.2g}") + se


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None or not math.isfinite(value) else form.format(value)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows as lines: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = [
        [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))] for row in rows
    ]
    return ["  " + "  ".join(row) for row in cells]
