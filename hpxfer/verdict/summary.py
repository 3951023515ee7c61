"""The findings on one HP as plain text: the headline, a summary of at most twelve lines, and the full text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from hpxfer.host import aligned
from hpxfer.verdict.findings import Finding, ShapeFinding, Verdict
from hpxfer.verdict.hp_values import value_text
from hpxfer.verdict.loss_grid import JudgedLoss
from hpxfer.verdict.odd_runs import odd_texts
from hpxfer.verdict.shape_names import scale_text
from hpxfer.verdict.text import (
    NOTHING,
    chance_text,
    drift_text,
    has_transferred,
    hp_text,
    interval_text,
    likely_text,
    lost_text,
    misfit_text,
    most_lost,
    most_text,
    move_text,
    number_text,
    optimum_text,
    refuted,
    regret_number_text,
    transferred_text,
    verdict_line,
    verdict_text,
)
from hpxfer.verdict.what_to_add import asks_nothing

MAX_VERDICTS = 9  # lines of a summary; with the headline, the question and the rest in one line that makes twelve
MAX_MOVES = 4  # verdicts that are few enough for the move of each


def summary_text(sweep: str, hp: str, loss: JudgedLoss, findings: Sequence[Finding], *, of_table: bool = False) -> str:
    """Return the verdicts in at most twelve lines, the headline first. `of_table`: others measured the losses."""
    shown = compared(findings)
    odd = _odd(shown)
    most = MAX_VERDICTS - len(odd)
    lines = [headline(hp, findings, of_table=of_table), _question(sweep, hp, loss, of_table=of_table)]
    for finding in shown[:most]:
        lines.append(f"  {_beside_control(finding)}")
        if len(shown) <= MAX_MOVES and (moved := move_text(finding)):
            lines.append(f"    {moved}")
    if more := shown[most:]:
        counts = [f"{sum(finding.verdict == verdict for finding in more)} {verdict}" for verdict in _verdicts(more)]
        lines.append(f"  and {len(more)} more: {', '.join(counts)}")
    return "\n".join([*lines, *odd]) + "\n"


def _odd(findings: Sequence[Finding]) -> list[str]:
    """Return one line on the runs that someone has to look at, or none."""
    found = [f"{one.parameterization}: {text}" for one in findings for text in odd_texts(one, dead=False)]
    texts = list(dict.fromkeys(found))
    more = f"; notes of this kind: {len(texts)}" if len(texts) > 1 else ""
    return [f"  ! {texts[0]}{more}"] if texts else []


def full_text(sweep: str, hp: str, loss: JudgedLoss, findings: Sequence[Finding], *, of_table: bool = False) -> str:
    """Return the headline, and every finding with its reasons and a table of its shapes."""
    lines = [
        headline(hp, findings, of_table=of_table),
        _question(sweep, hp, loss, of_table=of_table),
        f"Loss given up: loss at the base's best {hp} minus the best loss of the shape, with its standard error.",
    ]
    for finding in findings:
        lines += ["", *_section(finding, hp)]
    return "\n".join(lines) + "\n"


def _question(sweep: str, hp: str, loss: JudgedLoss, *, of_table: bool) -> str:
    return f"Does {hp} transfer? {'Table' if of_table else 'Sweep'} {sweep}, judged by {loss.words}."


def _verdicts(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.verdict for finding in findings))


def _beside_control(finding: Finding) -> str:
    chance, control, line = likely_text(finding), finding.control, verdict_line(finding)
    likely = "" if chance is None or "probability" in line else f"; probability {chance}"
    beside = "" if control is None else f"; control {control.parameterization}: {control.verdict}"
    return f"{finding.axis} | {line}{likely}{beside}"


def _section(finding: Finding, hp: str) -> list[str]:
    noise = "unknown" if finding.noise_nats is None else finding.judged.amount(finding.noise_nats)
    likely = likely_text(finding)
    rows = [_cells(shape, finding.judged.unit) for shape in finding.shapes]
    kept = [heading for heading in rows[0] if any(row[heading] not in ("", NOTHING) for row in rows)] if rows else []
    headings = zip(*kept, strict=True)
    table = aligned([*headings, *(tuple(row[heading] for heading in kept) for row in rows)], right_from=1)
    return [
        f"{finding.axis} | {verdict_line(finding)}",
        *(f"  - {reason}" for reason in finding.reasons),
        f"  transferred {hp}: {transferred_text(finding)}; seed noise: {noise}",
        *([f"  probability: {likely}"] if likely else []),
        f"  drift: {drift_text(finding)}",
        *(f"  {row}" for row in table),
    ]


def _cells(shape: ShapeFinding, unit: str) -> dict[tuple[str, str], str]:
    """Return what the table says of a shape, by the two lines of each heading."""
    share = None if shape.regret_octave_share is None else 100 * shape.regret_octave_share
    return {
        ("shape", ""): shape.shape + (" (base)" if shape.is_base else ""),
        ("scale", ""): scale_text(shape.scale),
        ("optimum", ""): optimum_text(shape.optimum),
        ("95% interval", ""): interval_text(shape.optimum),
        ("scatter over", "that of seeds"): misfit_text(shape.optimum) or NOTHING,
        ("best loss,", unit): NOTHING if shape.best_loss is None else f"{shape.best_loss:.4f}",
        ("loss given up,", unit): regret_number_text(shape),
        ("share of", "the loss"): _positive(shape.regret_percent, "{:.2f}%"),
        ("in units of", "seed noise"): _positive(shape.regret_noise_units, "{:.1f}"),
        ("share of what one", "octave costs"): _positive(share, "{:.0f}%"),
        ("limit,", unit): NOTHING if shape.limit_nats is None else f"{shape.limit_nats:.2g}",
        ("seeds", ""): str(shape.num_seeds),
        ("diverged", ""): str(shape.num_diverged),
        ("missing", ""): str(shape.num_missing),
    }


def _positive(value: float | None, form: str) -> str:
    """Return a share of a regret; nothing for a regret of which none was measured."""
    return number_text(value, form) if value is not None and value > 0 else NOTHING


# The headline of a report: what to do with an HP, what that costs, and what the control would cost.
#
# For example: `Use lr 2^-6 tuned at width 32 with completep-moe up to width 128: at most 0.02 nats lost. With sp you
# would lose 0.13 nats at width 128.`


def headline(hp: str, findings: Sequence[Finding], *, is_running: bool = False, of_table: bool = False) -> str:
    """Return the headline on one HP: sentences on each parameterization, and one on the control.

    While `is_running`, trials without a result are still to come. `of_table` is for losses that others measured.
    """
    decides = partial(_what_decides, is_running=is_running, of_table=of_table)
    if not findings:
        return f"No trial lies on a line of {hp}, so nothing can be said about its transfer."
    shown = compared(findings)
    sentences = []
    for _, group in groupby(sorted(shown, key=lambda finding: finding.parameterization), key=_name):
        members = list(group)
        sentences += [*_use(hp, members), *_stay(hp, members), *_tune(hp, members)]
        sentences += [*_say_how(hp, members, decides), *_decide(hp, members, decides)]
    return " ".join([*sentences, *_control(findings, shown)])


def compared(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those on controls, which stand beside the others; all if there are only controls."""
    return [finding for finding in findings if not finding.is_control] or list(findings)


def _use(hp: str, findings: Sequence[Finding]) -> list[str]:
    found = _of("transfers", findings)
    out = []
    for value in dict.fromkeys(finding.base_value for finding in found):
        members = [finding for finding in found if finding.base_value == value]
        most = [loss for finding in members for shape in finding.shapes if (loss := most_lost(shape)) is not None]
        lost = most_text(max(most, default=0.0), members[0].judged)
        reach = _listed([_largest(finding) for finding in members])
        out.append(
            f"Use {hp} {hp_text(value)} tuned at {_base(members)} with {_name(members[0])} up to {reach}: {lost}."
        )
    return out


def _stay(hp: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield that an optimum did not move, what is missing to call that a transfer, and what was measured."""
    for finding in _of("stays", findings):
        lost = f"; {hp} {hp_text(finding.base_value)}, the best at {_base([finding])}: {lost_text(finding)}"
        yield (
            f"With {_name(finding)} along {finding.axis} {verdict_text(finding)} (drift {drift_text(finding)}{lost})."
        )


def _tune(hp: str, findings: Sequence[Finding]) -> list[str]:
    """Return what a reader must do instead of transferring, and what the transferred HP would cost."""
    found = _of("drifts", findings)
    if not found:
        return []
    each = f"at each {found[0].scale_name}" if len(found) == 1 else f"along {_axes(found)}"
    return [f"Tune {hp} again {each} with {_name(found[0])}: {_cost(found, f'the one tuned at {_base(found)}')}."]


def _cost(found: Sequence[Finding], subject: str) -> str:
    """Return what an HP that drifts costs: it diverges, it loses so much, or its optimum moves."""
    worst = [(shape.regret_nats or 0.0, finding.name(shape)) for finding in found for shape in finding.over[:1]]
    lost, where = max(worst, default=(0.0, ""))
    if lost == math.inf:
        return f"{subject} diverges at {where}"
    if lost > 0:
        up_to, judged = "up to " if len(found) > 1 else "", found[0].judged
        return f"{subject} would lose {up_to}{judged.amount(lost)} at {where}"
    moves = [text for finding in found if (text := move_text(finding))]
    return moves[0] if moves else "its optimum moves"


Decides = Callable[[Sequence[Finding], str], str]  # (findings, to do what) -> the sentence on what would do that


def _say_how(hp: str, findings: Sequence[Finding], decides: Decides) -> Iterator[str]:
    """Yield that an HP does not transfer where it is not known how it drifts, and what would tell that."""
    if found := list(filter(refuted, findings)):
        what = f"{hp} {hp_text(found[0].base_value)} tuned at {_base(found)}" if _of_one_value(found) else hp
        likely = f" (probability that it does: {chance_text(found[0])})" if len(found) == 1 else ""
        yield (
            f"{what} does not transfer with {_name(found[0])} along {_axes(found)}{likely}, although no single "
            f"statement on how it drifts is sure. {decides(found, 'say how')}"
        )


def _of_one_value(found: Sequence[Finding]) -> bool:
    return all(map(has_transferred, found)) and len({finding.base_value for finding in found}) == 1


def _decide(hp: str, findings: Sequence[Finding], decides: Decides) -> list[str]:
    """Return that findings are undecided, and what would decide them."""
    found = [finding for finding in _of("undecided", findings) if not refuted(finding)]
    if not found:
        return []
    if len(found) == 1 and _of_one_value(found) and len(found[0].shapes) > 1:
        what = f"{hp} {hp_text(found[0].base_value)} tuned at {_base(found)} holds with {_name(found[0])} "
        what += f"up to {_largest(found[0])}"
    else:
        does = f"the optimum of {hp} stays" if found[0].lacking else f"{hp} transfers"
        what = f"{does} with {_name(found[0])} along {_axes(found)}"
    chance = likely_text(found[0]) if len(found) == 1 else None
    likely = f" (probability {chance})" if chance else ""
    return [f"Whether {what} is undecided{likely}. {decides(found, 'decide')}"]


def _what_decides(found: Sequence[Finding], aim: str, *, is_running: bool, of_table: bool) -> str:
    if doubted := [doubt for finding in found for doubt in finding.doubts]:
        return f"To {aim}, mend the trainer first: {doubted[0]}."
    if not of_table and any(shape.num_missing > shape.num_lost for finding in found for shape in finding.shapes):
        if is_running:
            return f"To {aim}, wait for the run, as trials that it needs are still to come."
        return f"To {aim}, run the sweep again, as trials that it needs have no result."
    if all(_only_diverged(finding) for finding in found):
        return f"To {aim}, find out why trials diverge at every HP value."
    first = list(dict.fromkeys(finding.to_add[0] for finding in found if finding.to_add))
    needs = [need for need in first if not asks_nothing(need)]
    if needs:
        return f"To {aim}, add {'; '.join(need.text for need in needs)}."
    return f"{first[0].text[:1].upper()}{first[0].text[1:]}." if first else "The full report has the reasons."


def _only_diverged(finding: Finding) -> bool:
    """Return whether no HP value of any shape has a loss, because trials diverged."""
    return bool(finding.shapes) and all(shape.best_loss is None and shape.num_diverged for shape in finding.shapes)


def _control(findings: Sequence[Finding], shown: Sequence[Finding]) -> list[str]:
    """Return what each control does on the axes shown: a sentence names axes only where it differs between them."""
    controls = [finding for finding in findings if finding.is_control and finding not in shown]
    if not controls:
        claims = any(finding.verdict == "transfers" and not finding.is_control for finding in shown)
        return ["No control shows whether any optimum moves along this axis."] if claims else []
    groups = groupby(sorted(controls, key=_name), key=_name)  # arms of each name may have their own
    return [_of_control(name, list(group), shown) for name, group in groups]


def _of_control(name: str, controls: Sequence[Finding], shown: Sequence[Finding]) -> str:
    """Return what one control does on its axes, at an HP value of its own if no other base there hands it on."""
    for control in controls:
        handed_on = {other.base_value for other in shown if other.axis == control.axis} - {None}
        if control.base_value is not None and handed_on and control.base_value not in handed_on:
            name += f" at its own {value_text(control.base_value)}"
            break
    drifting, staying, unproved, open_ = (
        _of(verdict, controls) for verdict in ("drifts", "transfers", "stays", "undecided")
    )
    parts = []
    if drifting:
        # One cost names its shape, and so its axis.
        parts.append(_cost_of_control(drifting) + (_where(drifting, controls) if len(drifting) > 1 else ""))
    if staying:
        parts.append(f"it transfers too{_where(staying, controls)}, so that nothing tells the two apart there")
    if unproved:
        parts.append(f"its optimum did not move either{_where(unproved, controls)}")
    if open_:
        parts.append(f"it is undecided{_where(open_, controls)}")
    return f"With {name} {'; '.join(parts)}."


def _cost_of_control(drifting: Sequence[Finding]) -> str:
    text = _cost(drifting, "you")
    if text.startswith("you diverges"):
        return text.replace("you diverges", "training would diverge", 1)
    return text


def _where(found: Sequence[Finding], every: Sequence[Finding]) -> str:
    return "" if len(found) == len(every) else f" along {_axes(found)}"


def _of(verdict: Verdict, findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict == verdict]


def _name(finding: Finding) -> str:
    return finding.parameterization


def _axes(findings: Sequence[Finding]) -> str:
    return _listed([finding.axis for finding in findings])


def _base(findings: Sequence[Finding]) -> str:
    """Return where the HP was tuned: `width 32`, or `the base` of several axes."""
    base = [finding.name(shape) for finding in findings for shape in finding.shapes if shape.is_base]
    return base[0] if len(base) == 1 else "the base"


def _largest(finding: Finding) -> str:
    return f"{finding.scale_name} {scale_text(max(shape.scale for shape in finding.shapes))}"


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence, e.g. `width, depth and experts`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
