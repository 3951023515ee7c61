"""How optima, regrets, drifts and verdicts are written. `summary` puts these phrases together."""

from __future__ import annotations

import math

from hpxfer.verdict.drift import Drift
from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.optimum import Optimum

SIGN = {"lower_edge": "<= ", "upper_edge": ">= "}
NOTHING = "-"


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


def hp_text(value: float) -> str:
    """Return an HP of the grid as a number and as a power of two, e.g. `0.01562 (2^-6)`."""
    return f"{value:.4g} (2^{math.log2(value):.4g})"


def regret_nats_text(shape: ShapeFinding) -> str:
    """Return a regret in nats with its standard error, `0.017 +- 0.004`, or `diverges`."""
    if shape.regret_nats == math.inf:
        return "diverges"
    se = "" if shape.regret_se_nats is None else f" +- {shape.regret_se_nats:.2g}"
    return number_text(shape.regret_nats, "{:.2g}") + se


def regret_text(shape: ShapeFinding) -> str:
    """Return a regret in words, e.g. `regret 0.017 +- 0.004 nats (0.51% of the loss)`."""
    if shape.regret_nats is None:
        return "regret unknown"
    if shape.regret_nats == 0:
        return "regret 0, the transferred HP is the best there"
    if shape.regret_nats == math.inf:
        return "diverges at the transferred HP"
    percent = "" if shape.regret_percent is None else f" ({shape.regret_percent:.2g}% of the loss)"
    return f"regret {regret_nats_text(shape)} nats{percent}"


def drift_text(drift: Drift | None, scale_name: str) -> str:
    """Return a drift with its 95% interval, e.g. `+0.20 [-0.01, +0.41] octaves per doubling of width (5 shapes)`."""
    if drift is None:
        return "unknown: fewer than two shapes have an interior optimum"
    ends = "[" + ", ".join(NOTHING if end is None else f"{end:+.2f}" for end in (drift.low, drift.high)) + "] "
    interval = "" if drift.low is None and drift.high is None else ends
    bounds = f", bounds at {', '.join(drift.bounds)}" if drift.bounds else ""
    without = f", without {', '.join(drift.left_out)}" if drift.left_out else ""
    slope = f"{drift.octaves_per_doubling:+.2f} {interval}octaves per doubling of {scale_name}"
    return f"{slope} ({drift.num_shapes} shapes{bounds}{without})"


def verdict_text(finding: Finding) -> str:
    """Return the verdict. If it is `transfers`, also say whether the control is missing that would support it."""
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
    """Return in a few words why a finding is undecided; None if the size of the regret is the reason."""
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


def number_text(value: float | None, form: str) -> str:
    """Return a number in a format such as `{:.4f}`, and `-` for one that is missing or not finite."""
    return NOTHING if value is None or not math.isfinite(value) else form.format(value)
