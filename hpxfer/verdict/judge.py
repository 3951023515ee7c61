"""The verdict: does an HP transfer? A pure rule over the findings of every shape, and its reasons in words.

The control does not change the verdict. `transfers` says that the optimum stayed, and how surely. Only the intervals of
this parameterization decide that, so its error rates hold with and without a control. The control shows whether this
axis moves any optimum, and so whether staying is a merit of the parameterization. A control that stays too shows no
more than a missing one. Without a control the first line is `transfers, no control`, the finding's `control` is None,
and the follow-up sweep adds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hpxfer.verdict.findings import Addition, Control, Finding, ShapeFinding, Verdict
from hpxfer.verdict.labels import scale_text
from hpxfer.verdict.text import regret_text
from hpxfer.verdict.thresholds import CONTROL, ERROR_RATE, MOVE_OCTAVES, NUM_SE, REGRET_SHARE

NO_NOISE = "one seed: no noise floor, add seeds"


def regret_limit(shape: ShapeFinding) -> float:
    """Return the largest regret in nats at which the HP still counts as transferred to this shape."""
    return max(REGRET_SHARE * (shape.best_loss or 0.0), NUM_SE * (shape.regret_se_nats or 0.0))


def move(finding: Finding) -> tuple[float, float] | None:
    """Return the interval of the optimum's move over the measured scales, in octaves, with ERROR_RATE on each side.

    An end that bounds leave open is infinite. None without a drift, or without its interval.
    """
    interval = None if finding.drift is None else finding.drift.interval(1 - 2 * ERROR_RATE)
    if interval is None or finding.drift is None:
        return None
    return interval[0] * finding.drift.doublings, interval[1] * finding.drift.doublings


def judge(finding: Finding) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on the shapes of a finding, and its reasons.

    - `undecided` if the base optimum is not bracketed: the HP transferred is then not known to be the optimum.
    - `drifts` if one shape shows it, or if the optimum surely moved by MOVE_OCTAVES.
    - `transfers` if no shape is in doubt, the optimum surely moved by less, and it is distinct from the divergence
      edge. The regret at a shape whose own optimum is not bracketed is a lower bound, and the reasons say so.
    """
    base = next((shape for shape in finding.shapes if shape.is_base), None)
    others = [shape for shape in finding.shapes if not shape.is_base]
    if base is None:
        return "undecided", ("the base shape has no results",)
    if base.optimum.open_because:
        return "undecided", (f"nothing to transfer: at the base, {base.optimum.open_because}",)
    moved = move(finding) if others and finding.noise_nats is not None else None
    drifting = [why for shape in others if (why := _why_drifts(finding, shape))]
    if moved and (moved[0] > MOVE_OCTAVES or moved[1] < -MOVE_OCTAVES):
        drifting.append(f"{move_text(finding, moved)}: surely more than {MOVE_OCTAVES:g}")
    if drifting:
        return "drifts", tuple(drifting)
    doubts = [why for shape in others for why in _doubts(finding, shape)]
    if finding.noise_nats is None:
        doubts.insert(0, NO_NOISE)
    elif others and moved is None:
        doubts.append("drift unknown: fewer than two shapes have an optimum inside the grid")
    elif moved and max(-moved[0], moved[1]) > MOVE_OCTAVES:
        doubts.append(f"{move_text(finding, moved)}: perhaps more than {MOVE_OCTAVES:g}")
    if near := _at_edge(finding):
        doubts.append(near)
    if not others:
        doubts.append("no shape beyond the base")
    if doubts or finding.worst is None:
        return "undecided", tuple(doubts)
    worst = finding.worst
    limit = f"within the limit of {regret_limit(worst):.2g}"
    why = f"worst shape {finding.name(worst)}: {regret_text(worst)}, {limit}"
    still = (f"{move_text(finding, moved)}: surely less than {MOVE_OCTAVES:g}",) if moved else ()
    return "transfers", (why, *still, *_caveats(finding, others))


def move_text(finding: Finding, moved: tuple[float, float]) -> str:
    """Return a move in words, e.g. `between width 32 and 128 the optimum moves by -0.7 to +0.6 octaves (98%)`."""
    scales = sorted(shape.scale for shape in finding.shapes)
    ends = f"{finding.scale_name} {scale_text(scales[0])} and {scale_text(scales[-1])}"
    return f"between {ends} the optimum moves by {moved[0]:+.2f} to {moved[1]:+.2f} octaves ({1 - 2 * ERROR_RATE:.0%})"


def with_control(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return a finding with the result of the control on the same axis; without a control, with what to add."""
    if finding.is_control:
        return finding
    control = next((other for other in findings if other.axis == finding.axis and other.is_control), None)
    if control is None:
        return _uncontrolled(finding)
    worst = control.worst
    found = Control(
        parameterization=CONTROL,
        verdict=control.verdict,
        worst_shape=None if worst is None else worst.shape,
        worst_regret_nats=None if worst is None else worst.regret_nats,
    )
    return replace(finding, control=found, reasons=(*finding.reasons, _control_reason(finding, control)))


def _uncontrolled(finding: Finding) -> Finding:
    """Return a finding with the request for a control. A finding that drifts needs none: its axis moves optima."""
    why = f"no control ({CONTROL}) in this sweep: whether this axis moves any optimum is not known"
    if finding.verdict == "drifts":
        return replace(finding, reasons=(*finding.reasons, why))
    more = Addition(text=f"the control {CONTROL} on the same grid", parameterization=CONTROL)
    reasons = (*finding.reasons, why, f"to compare: {more.text}")
    return replace(finding, reasons=reasons, to_add=(*finding.to_add, more))


def _control_reason(finding: Finding, control: Finding) -> str:
    worst = control.worst
    if worst is None:
        return f"control {CONTROL}: no regret could be measured"
    too = ": this axis does not tell them apart" if finding.verdict == control.verdict == "transfers" else ""
    did = "is undecided" if control.verdict == "undecided" else control.verdict
    return f"control {CONTROL} {did} (worst shape {control.name(worst)}: {regret_text(worst)}){too}"


def _at_edge(finding: Finding) -> str | None:
    """Return why the optima may be the divergence edge; None if they are distinct from it at most of the shapes.

    They are distinct where the loss was seen to rise before it diverged. That the divergence edge stays put does not
    show that the optimum does.
    """
    known = [shape for shape in finding.shapes if shape.optimum.kind != "none"]
    near = [shape for shape in known if shape.optimum.kind == "at_divergence"]
    if not near or 2 * len(near) < len(known):
        return None
    names = ", ".join(finding.name(shape) for shape in near)
    return f"{names}: the loss does not rise before it diverges, so the optimum may be the divergence edge"


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
    """Return why a shape does not show transfer, although it shows no drift either."""
    if shape.best_loss is None:
        return [f"{finding.name(shape)}: no results"]
    out = []
    if shape.regret_nats is None:
        out.append(f"{finding.name(shape)}: no result at the transferred HP")
    elif shape.regret_nats > regret_limit(shape):
        by_se = "" if shape.regret_se_nats is None else f", but not by {NUM_SE:g} SE"
        limit = f"over the limit of {regret_limit(shape):.2g}{by_se}"
        out.append(f"{finding.name(shape)}: {regret_text(shape)}, {limit}")
    return out


def _caveats(finding: Finding, shapes: Sequence[ShapeFinding]) -> list[str]:
    """Return the shapes at which the best loss may be lower than the lowest one measured."""
    return [
        f"{finding.name(shape)}: the regret may be larger: {shape.optimum.open_because}"
        for shape in shapes
        if shape.optimum.open_because
    ]
