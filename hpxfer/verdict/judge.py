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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hpxfer.host import NOTHING, JudgedLoss, hp_text, name_of, scales_text
from hpxfer.verdict.findings import DEFAULT_RULES, Addition, Control, Finding, Rules, ShapeFinding, Verdict
from hpxfer.verdict.thresholds import MOVE_OCTAVES, NUM_SE
from hpxfer.verdict.words import SURE, lost_runs_text, move_text, probability_text, regret_text

Differ = Callable[[str, str], str | None]  # what tells the base models of two arms apart, in words
NO_NOISE = "one seed: no noise floor, add seeds"
ALMOST_ONE = 0.9995  # a probability that would be rounded to 100.0%


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
    base, others = finding.base, finding.others
    if base is None:
        return "undecided", ("the base shape has no results",)
    drifting = [_why_drifts(finding, shape) for shape in others if finding.is_over(shape)]
    if others and finding.move_chance is not None and finding.move_chance >= 1 - finding.error:
        drifting.append(_moved(finding))
    without = [
        f"{finding.name(shape)}: no optimum inside the grid: {shape.optimum.open_because or 'nothing bounds it'}"
        for shape in others
        if not shape.optimum.inside
    ]
    if drifting:
        return "drifts", (*drifting, *without)
    if base.optimum.open_because:
        return "undecided", (f"nothing to transfer: at the base, {base.optimum.open_because}", *without)
    lacks = ((finding.name(shape), _lacks(shape, finding.judged)) for shape in others)
    doubts = [f"{name}: {why}" for name, why in lacks if why]
    doubts += [why for shape in finding.shapes if (why := lost_runs_text(finding, shape))]
    if finding.noise_nats is None:
        doubts.insert(0, NO_NOISE)
    if not others:
        doubts.append("no shape beyond the base")
    elif finding.noise_nats is not None:
        doubts += _uncertain(finding, rules)
    if doubts or finding.worst is None:
        return "undecided", (*doubts, *without)
    worst = finding.worst
    limit = "" if worst.limit_nats is None else f", within the limit of {_limit(worst)}"
    why = f"worst shape {finding.name(worst)}: {regret_text(worst, finding.judged)}{limit}"
    still = (f"{text}: less than {MOVE_OCTAVES:g} octave",) if (text := move_text(finding)) else ()
    return "transfers", (why, *still, *_caveats(finding))


def _why_drifts(finding: Finding, shape: ShapeFinding) -> str:
    if shape.regret_nats == math.inf:
        return f"{finding.name(shape)}: diverges at the transferred HP"
    sure = _sure(finding, shape.over_chance or 0.0)
    return f"{finding.name(shape)}: {regret_text(shape, finding.judged)}, over the limit of {_limit(shape)} ({sure})"


def _limit(shape: ShapeFinding) -> str:
    return NOTHING if shape.limit_nats is None else f"{shape.limit_nats:.2g}"


def _moved(finding: Finding) -> str:
    moved = move_text(finding) or "the optimum moves"
    between = scales_text(finding.scale_name, finding.move_between or ())
    chance = _sure(finding, finding.move_chance or 0.0)
    return f"{moved}; the optima at {between} differ by {MOVE_OCTAVES:g} octave or more ({chance})"


def _sure(finding: Finding, chance: float) -> str:
    """Return how sure a statement is. Where losses scatter about every basin, nothing is said surely."""
    if chance < ALMOST_ONE:
        return f"probability {chance:.1%}"
    return f"probability over {SURE:.1%}" if any(shape.optimum.misfit for shape in finding.shapes) else "surely"


def _lacks(shape: ShapeFinding, judged: JudgedLoss) -> str | None:
    """Return what a shape lacks for a verdict of `transfers`; None if it lacks nothing."""
    if shape.best_loss is None:
        return "no results"
    if shape.regret_nats is None:
        return "no result at the transferred HP"
    if shape.limit_nats is None:
        return "the limit is not known, as octaves from its optimum cost nothing measured"
    if shape.known_to_nats <= shape.limit_nats:
        return None
    if shape.noise_se is not None and NUM_SE * shape.noise_se <= shape.limit_nats:
        apart = judged.amount(2 * shape.doubt_se)
        return f"seeds of one HP that is compared differ by {apart}: more seeds tell which are right"
    error = f"{NUM_SE:g} standard errors of the loss given up are {judged.amount(shape.known_to_nats)}"
    return f"{error}, over the limit of {_limit(shape)}"


def _uncertain(finding: Finding, rules: Rules) -> Iterator[str]:
    """Yield why it is not sure that the HP transfers; nothing if it is."""
    if finding.transfer_chance is None or finding.move is None:
        yield "drift unknown: fewer than two shapes have an optimum inside the grid"
        return
    if finding.transfer_chance >= 1 - finding.error:
        return
    what = "the optimum stays" if rules.outside else "the HP transfers"
    chance = f"probability {probability_text(finding.transfer_chance)} that {what}, {1 - finding.error:.0%} is needed"
    yield f"{chance}: it does not" if finding.refuted else chance
    if finding.refuted:
        yield f"it is not called drifts, as {_why_open(finding)}"
    if (finding.move_chance or 0.0) > finding.error / 2:
        yield f"{move_text(finding) or 'the move is not bounded'}: perhaps more than {MOVE_OCTAVES:g} octave"
    for shape in finding.others:
        if shape.over_chance is not None and shape.over_chance > finding.error / 2:
            lost = regret_text(shape, finding.judged)
            yield f"{finding.name(shape)}: {lost}, perhaps over the limit of {_limit(shape)}"


def _why_open(finding: Finding) -> str:
    """Return why no single statement shows how an HP that does not transfer drifts: how sure each likely one is."""
    each = [(finding.move_chance or 0.0, f"two shapes differ by {MOVE_OCTAVES:g} octave or more")]
    each += [(shape.over_chance or 0.0, f"{finding.name(shape)} is over its limit") for shape in finding.others]
    likely = [f"{probability_text(chance)} that {what}" for chance, what in each if chance > finding.error]
    seen = "no single statement is that sure and was measured"
    return f"{seen}: the probability is {', '.join(likely)}" if likely else seen


def _caveats(finding: Finding) -> Iterator[str]:
    """Yield the shapes at which the best loss may be lower than the lowest one measured."""
    for shape in finding.others:
        if shape.optimum.open_because:
            yield f"{finding.name(shape)}: the regret may be larger: {shape.optimum.open_because}"
    known = [shape for shape in finding.shapes if shape.optimum.kind != "none"]
    near = [finding.name(shape) for shape in known if shape.optimum.kind == "at_divergence"]
    if near and 2 * len(near) >= len(known):
        yield f"{', '.join(near)}: the loss was not seen to rise before it diverges, so the optimum may be that edge"


def with_own_base(finding: Finding, findings: Sequence[Finding], differ: Differ) -> Finding:
    """Return a finding that names the arms whose base has other trials and hands on another HP value, and why."""
    if finding.base is None or finding.base_value is None:
        return finding
    beside: dict[tuple[str, ...], Finding] = {}
    for other in findings:
        if other.axis == finding.axis and other.base_value not in (None, finding.base_value):
            beside.setdefault(tuple(sorted((other.parameterization, *other.shares_base))), other)
    reasons = []
    for arms, other in beside.items():
        why = differ(finding.parameterization, other.parameterization)
        because = f" ({why})" if why else ""
        theirs, own = hp_text(other.base_value), hp_text(finding.base_value)
        model = f"the model of {', '.join(arms)} is another one there"
        reasons.append(f"{finding.name(finding.base)}: {model}{because}: it hands on {theirs}, not {own}")
    return replace(finding, reasons=(*finding.reasons, *reasons))


def with_control(finding: Finding, findings: Sequence[Finding], rules: Rules = DEFAULT_RULES) -> Finding:
    """Return a finding with the result of its control on its axis, or with what to add.

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
    """Return a finding with its control, or with what to add: one that transfers asks for it: staying may be no merit.

    The control itself stands beside arms that have none of their own name.
    """
    if finding.is_control:
        return finding
    controls = [other for other in findings if other.axis == finding.axis and other.is_control]
    beside = [other for other in controls if name_of(other.parameterization) == name_of(finding.parameterization)]
    beside += [other for other in controls if other.parameterization == rules.control]
    if beside:
        control, worst = beside[0], beside[0].worst
        found = Control(
            parameterization=control.parameterization,
            verdict=control.verdict,
            worst_shape=None if worst is None else worst.shape,
            worst_regret_nats=None if worst is None else worst.regret_nats,
        )
        return replace(finding, control=found, reasons=(*finding.reasons, _control_reason(finding, control)))
    named = "" if rules.control is None else f" ({rules.control})"
    where = "" if rules.outside else " in this sweep"
    reasons = (*finding.reasons, f"no control{named}{where}: whether this axis moves any optimum is not known")
    if rules.outside or finding.verdict != "transfers":  # nobody but those who measured a table can add to it
        return replace(finding, reasons=reasons)
    more = Addition(text=f"the control {rules.control} on the same grid", parameterization=rules.control)
    return replace(finding, reasons=(*reasons, f"to compare: {more.text}"), to_add=(*finding.to_add, more))


def _control_reason(finding: Finding, control: Finding) -> str:
    if (worst := control.worst) is None:
        return f"control {control.parameterization}: no regret could be measured"
    too = ": this axis does not tell them apart" if finding.verdict == control.verdict == "transfers" else ""
    did = "is undecided" if control.verdict == "undecided" else control.verdict
    at_worst = f"worst shape {control.name(worst)}: {regret_text(worst, control.judged)}"
    return f"control {control.parameterization} {did} ({at_worst}){too}"
