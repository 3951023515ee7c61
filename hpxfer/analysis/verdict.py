"""The verdict: does an HP transfer? A pure rule over the findings of every shape, and its reasons in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.analysis.findings import Finding, ShapeFinding, Verdict
from hpxfer.analysis.text import regret_text
from hpxfer.analysis.thresholds import CONTROL, NUM_SE, REGRET_SHARE

NO_NOISE = "one seed: no noise floor, add seeds"


def regret_limit(shape: ShapeFinding) -> float:
    """Return the regret in nats up to which a shape counts as transferred to."""
    return max(REGRET_SHARE * (shape.best_loss or 0.0), NUM_SE * (shape.regret_se_nats or 0.0))


def judge(finding: Finding) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on a finding's shapes, and why.

    A base optimum that is not bracketed comes first: what was transferred is then not the optimum. Drift needs one
    shape that shows it; transfer needs every shape. The regret at a shape whose own optimum is not bracketed is a
    lower bound, which the reasons say.
    """
    base = next((shape for shape in finding.shapes if shape.is_base), None)
    others = [shape for shape in finding.shapes if not shape.is_base]
    if base is None:
        return "undecided", ("the base shape has no results",)
    if base.optimum.open_because:
        return "undecided", (f"nothing to transfer: at the base, {base.optimum.open_because}",)
    if drifting := [why for shape in others if (why := _why_drifts(finding, shape))]:
        return "drifts", tuple(drifting)
    doubts = [why for shape in others for why in _doubts(finding, shape)]
    if finding.noise_nats is None:
        doubts.insert(0, NO_NOISE)
    if not others:
        doubts.append("no shape beyond the base")
    if doubts or finding.worst is None:
        return "undecided", tuple(doubts)
    worst = finding.worst
    limit = f"within the limit of {regret_limit(worst):.2g}"
    why = f"worst shape {finding.name(worst)}: {regret_text(worst)}, {limit}"
    return "transfers", (why, *_caveats(finding, others))


def control_reason(finding: Finding, findings: Sequence[Finding]) -> str | None:
    """Return how the control did on the same axis; None if the finding is the control."""
    if finding.parameterization == CONTROL:
        return None
    control = next((one for one in findings if one.axis == finding.axis and one.parameterization == CONTROL), None)
    if control is None:
        return f"no control ({CONTROL}) in this sweep"
    worst = control.worst
    if worst is None:
        return f"control {CONTROL}: no regret could be measured"
    too = ": this axis does not tell them apart" if finding.verdict == control.verdict == "transfers" else ""
    did = "is undecided" if control.verdict == "undecided" else control.verdict
    return f"control {CONTROL} {did} (worst shape {control.name(worst)}: {regret_text(worst)}){too}"


def _why_drifts(finding: Finding, shape: ShapeFinding) -> str | None:
    if shape.regret_nats == math.inf:
        return f"{finding.name(shape)}: diverges at the transferred HP"
    if shape.regret_nats is None or shape.regret_se_nats is None:
        return None
    limit = regret_limit(shape)
    if shape.regret_nats <= limit + NUM_SE * shape.regret_se_nats:
        return None
    return f"{finding.name(shape)}: {regret_text(shape)}, over the limit of {limit:.2g} by more than {NUM_SE:g} SE"


def _doubts(finding: Finding, shape: ShapeFinding) -> list[str]:
    """Return what keeps a shape from being transferred to, short of drift."""
    if shape.best_loss is None:
        return [f"{finding.name(shape)}: no results"]
    out = []
    if shape.regret_nats is None:
        out.append(f"{finding.name(shape)}: no result at the transferred HP")
    elif shape.regret_nats > regret_limit(shape):
        short = "" if shape.regret_se_nats is None else f", but not by {NUM_SE:g} SE"
        limit = f"over the limit of {regret_limit(shape):.2g}{short}"
        out.append(f"{finding.name(shape)}: {regret_text(shape)}, {limit}")
    return out


def _caveats(finding: Finding, shapes: Sequence[ShapeFinding]) -> list[str]:
    """Return where the best loss may be lower than the lowest one measured."""
    return [
        f"{finding.name(shape)}: the regret may be larger: {shape.optimum.open_because}"
        for shape in shapes
        if shape.optimum.open_because
    ]
