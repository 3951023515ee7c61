"""The verdict: does an HP transfer? A pure rule over the findings of every shape, and its reasons in words.

The HP transfers if two things hold: at every shape it costs no more than the limit, and the optima of any two shapes
differ by less than MOVE_OCTAVES. The verdict says so, or the opposite, once the chance of being wrong is small
(`Rules.error`).

The control does not change the verdict. `transfers` says that the optimum stayed, and how surely. Only the draws of
this parameterization decide that, so its error rates hold with and without a control. The control shows whether this
axis moves any optimum, and so whether staying is a merit of the parameterization. A control that stays too shows no
more than a missing one. Without a control the first line is `transfers, no control`, the finding's `control` is None,
and the follow-up sweep adds one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpxfer.verdict.findings import Addition, Control, Finding, ShapeFinding, Verdict
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.rules import DEFAULT_RULES, Rules
from hpxfer.verdict.text import NOTHING, move_text, regret_text
from hpxfer.verdict.thresholds import MOVE_OCTAVES, NUM_SE

NO_NOISE = "one seed: no noise floor, add seeds"


def judge(finding: Finding, rules: Rules = DEFAULT_RULES) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on the shapes of a finding, and its reasons.

    - `undecided` if the losses cannot be believed, see `Rules.doubts`, or if one run decides (`one_run`).
    - `drifts` if one shape diverges at the transferred HP, or if a single statement is sure: that one regret exceeds
      its limit, and was measured, or that two optima differ by MOVE_OCTAVES. A base that is not bracketed does not
      prevent it.
    - `transfers` if it is sure that all regrets are within their limits and no two optima differ by MOVE_OCTAVES, and
      nothing else is in doubt. The regret at a shape whose own optimum is not bracketed is a lower bound, and the
      reasons say so.
    """
    if finding.doubts:
        return "undecided", finding.doubts
    if finding.rests_on is not None:
        rests = f"it rests on one run: without {finding.rests_on} no verdict is likely; check what that run is"
        return "undecided", (rests,)
    base = next((shape for shape in finding.shapes if shape.is_base), None)
    others = [shape for shape in finding.shapes if not shape.is_base]
    if base is None:
        return "undecided", ("the base shape has no results",)
    drifting = [why for shape in others if (why := _why_drifts(finding, shape, rules))]
    if others and finding.move_chance is not None and finding.move_chance >= 1 - rules.error:
        drifting.append(_moved(finding))
    if drifting:
        return "drifts", tuple(drifting)
    if base.optimum.open_because:
        return "undecided", (f"nothing to transfer: at the base, {base.optimum.open_because}",)
    doubts = [why for shape in others for why in _doubts(finding, shape)]
    if finding.noise_nats is None:
        doubts.insert(0, NO_NOISE)
    if not others:
        doubts.append("no shape beyond the base")
    elif finding.noise_nats is not None:
        doubts += _uncertain(finding, others, rules)
    if doubts or finding.worst is None:
        return "undecided", tuple(doubts)
    worst = finding.worst
    limit = "" if worst.limit_nats is None else f", within the limit of {_limit(finding, worst)}"
    why = f"worst shape {finding.name(worst)}: {regret_text(worst, finding.judged)}{limit}"
    still = (f"{text}: less than {MOVE_OCTAVES:g} octave",) if (text := move_text(finding)) else ()
    return "transfers", (why, *still, *_caveats(finding, others))


def _why_drifts(finding: Finding, shape: ShapeFinding, rules: Rules) -> str | None:
    if shape.regret_nats == math.inf:
        return f"{finding.name(shape)}: diverges at the transferred HP"
    if shape.over_chance is None or shape.over_chance < 1 - rules.error:
        return None
    if (shape.regret_nats or 0.0) <= NUM_SE * (shape.regret_se_nats or 0.0):
        return None  # what was measured does not show it
    limit = f"over the limit of {_limit(finding, shape)} ({_sure(shape.over_chance)})"
    return f"{finding.name(shape)}: {regret_text(shape, finding.judged)}, {limit}"


def _limit(finding: Finding, shape: ShapeFinding) -> str:
    return NOTHING if shape.limit_nats is None else finding.judged.number(shape.limit_nats)


def _moved(finding: Finding) -> str:
    chance = _sure(finding.move_chance or 0.0)
    moved = move_text(finding) or "the optimum moves"
    return f"{moved}; two shapes differ by {MOVE_OCTAVES:g} octave or more ({chance})"


def _sure(chance: float) -> str:
    return "surely" if chance >= 0.9995 else f"probability {chance:.1%}"


def _doubts(finding: Finding, shape: ShapeFinding) -> list[str]:
    """Return what a shape lacks for a verdict of `transfers`."""
    if shape.best_loss is None:
        return [f"{finding.name(shape)}: no results"]
    if shape.regret_nats is None:
        return [f"{finding.name(shape)}: no result at the transferred HP"]
    if not finding.judged.has_learned(shape.best_loss):
        return [f"{finding.name(shape)}: no HP value learns anything: the best error is that of guessing"]
    if shape.limit_nats is None:
        return [f"{finding.name(shape)}: the limit is not known, as octaves from its optimum cost nothing measured"]
    if shape.regret_se_nats is None or NUM_SE * shape.regret_se_nats <= shape.limit_nats:
        return []
    judged = finding.judged
    if shape.noise_se is not None and NUM_SE * shape.noise_se <= shape.limit_nats:
        away = judged.amount(2 * shape.doubt_se)
        return [
            f"{finding.name(shape)}: seeds of one HP that is compared differ by {away}: more seeds tell which are right"
        ]
    error = (
        f"{NUM_SE:g} standard errors of the {judged.noun} given up are {judged.amount(NUM_SE * shape.regret_se_nats)}"
    )
    limit = f"over the limit of {judged.number(shape.limit_nats)}"
    return [f"{finding.name(shape)}: {error}, {limit}: about {what_decides(shape, judged)} decide"]


def what_decides(shape: ShapeFinding, judged: JudgedLoss) -> str:
    """Return how many seeds lower the error of a regret to its limit or, if no number does, how many samples."""
    assert shape.noise_se is not None
    assert shape.limit_nats is not None
    least, allowed = shape.samples_se**2, (shape.limit_nats / NUM_SE) ** 2
    if least < allowed:  # the rest of the error falls with the root of the number of seeds
        return f"{math.ceil(shape.num_seeds * (shape.noise_se**2 - least) / (allowed - least))} seeds"
    return f"{math.ceil((judged.num_samples or 0) * 2 * least / allowed)} held-out samples"


def _uncertain(finding: Finding, others: Sequence[ShapeFinding], rules: Rules) -> list[str]:
    """Return why it is not sure that the HP transfers; empty if it is."""
    if finding.transfer_chance is None or finding.move is None:
        return ["drift unknown: fewer than two shapes have an optimum inside the grid"]
    if finding.transfer_chance >= 1 - rules.error:
        return []
    what = "the optimum stays" if rules.outside else "the HP transfers"
    out = [f"probability {finding.transfer_chance:.1%} that {what}, {1 - rules.error:.0%} is needed"]
    if (finding.move_chance or 0.0) > rules.error / 2:
        moved = move_text(finding) or "the move is not bounded"
        out.append(f"{moved}: perhaps more than {MOVE_OCTAVES:g} octave")
    out += [
        f"{finding.name(shape)}: {regret_text(shape, finding.judged)}, "
        f"perhaps over the limit of {_limit(finding, shape)}"
        for shape in others
        if shape.over_chance is not None and shape.over_chance > rules.error / 2
    ]
    return out


def _caveats(finding: Finding, shapes: Sequence[ShapeFinding]) -> list[str]:
    """Return the shapes at which the best loss may be lower than the lowest one measured."""
    out = [
        f"{finding.name(shape)}: the regret may be larger: {shape.optimum.open_because}"
        for shape in shapes
        if shape.optimum.open_because
    ]
    known = [shape for shape in finding.shapes if shape.optimum.kind != "none"]
    near = [shape for shape in known if shape.optimum.kind == "at_divergence"]
    if near and 2 * len(near) >= len(known):
        names = ", ".join(finding.name(shape) for shape in near)
        out.append(f"{names}: the loss was not seen to rise before it diverges, so the optimum may be that edge")
    return out


def with_control(finding: Finding, findings: Sequence[Finding], rules: Rules = DEFAULT_RULES) -> Finding:
    """Return a finding with the result of the control on its axis and under its variant, or with what to add.

    One that lacks what `Rules.outside` asks for stays instead of transferring.
    """
    compared = _compared(finding, findings, rules)
    lacking = tuple(_lacking(compared, findings, rules)) if rules.outside else ()
    if not lacking:
        return compared
    verdict = "stays" if compared.verdict == "transfers" else compared.verdict
    return replace(compared, verdict=verdict, lacking=lacking)


def _lacking(finding: Finding, findings: Sequence[Finding], rules: Rules) -> Iterator[str]:
    """Yield what would show that staying is a merit of the arm, and is not there."""
    if finding.is_control:
        if all(other.is_control for other in findings if other.axis == finding.axis):
            yield "no arm beside the control"
    elif finding.control is None:
        yield "no control"
    elif finding.control.worst_shape is None:
        yield "control not measured"
    if finding.axis in rules.assumed_bases:
        yield "no base named"


def _compared(finding: Finding, findings: Sequence[Finding], rules: Rules) -> Finding:
    if finding.is_control:
        return finding
    controls = [other for other in findings if other.axis == finding.axis and other.is_control]
    beside = [other for other in controls if other.variant == finding.variant]
    if rules.outside:  # the arm that the user names stands beside arms that have no control of their own variant
        beside += [other for other in controls if other.parameterization == rules.control]
    if not beside:
        return _uncontrolled(finding, rules)
    control = beside[0]
    worst = control.worst
    found = Control(
        parameterization=control.parameterization,
        verdict=control.verdict,
        worst_shape=None if worst is None else worst.shape,
        worst_regret_nats=None if worst is None else worst.regret_nats,
    )
    return replace(finding, control=found, reasons=(*finding.reasons, _control_reason(finding, control)))


def _uncontrolled(finding: Finding, rules: Rules) -> Finding:
    """Return a finding that says that it has no control. One that transfers asks for it: staying may be no merit."""
    named = "" if rules.control is None else f" ({rules.control})"
    where = "" if rules.outside else " in this sweep"
    why = f"no control{named}{where}: whether this axis moves any optimum is not known"
    if rules.outside:  # nothing can be added to a table that others measured but by them
        return replace(finding, reasons=(*finding.reasons, why))
    if finding.verdict != "transfers":
        return replace(finding, reasons=(*finding.reasons, why))
    more = Addition(text=f"the control {rules.control} on the same grid", parameterization=rules.control)
    reasons = (*finding.reasons, why, f"to compare: {more.text}")
    return replace(finding, reasons=reasons, to_add=(*finding.to_add, more))


def _control_reason(finding: Finding, control: Finding) -> str:
    worst = control.worst
    if worst is None:
        return f"control {control.parameterization}: no regret could be measured"
    too = ": this axis does not tell them apart" if finding.verdict == control.verdict == "transfers" else ""
    did = "is undecided" if control.verdict == "undecided" else control.verdict
    at_worst = f"worst shape {control.name(worst)}: {regret_text(worst, control.judged)}"
    return f"control {control.parameterization} {did} ({at_worst}){too}"
