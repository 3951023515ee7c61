"""The findings on one HP as plain text: the headline, a summary of at most twelve lines, and the full text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from hpxfer.host import aligned, hp_text, value_text
from hpxfer.verdict.findings import Finding, compared
from hpxfer.verdict.words import (
    chance_text,
    drift_text,
    facts,
    likely_text,
    lost_text,
    most_text,
    move_text,
    odd_texts,
    shape_table,
    verdict_line,
    verdict_text,
)

if TYPE_CHECKING:
    from hpxfer.verdict.report import TransferReport

MAX_VERDICTS = 9  # lines of a summary; with the headline, the question and the rest in one line that makes twelve
MAX_MOVES = 4  # verdicts that are few enough for the move of each
HEADING = 13  # characters of a line of a heading
IN_REASONS = ("move", "scatter about the fit")  # facts that the reasons or the table of a finding have


def summary_text(report: TransferReport) -> str:
    """Return the verdicts in at most twelve lines, the headline first."""
    shown = compared(report.findings)
    # One line is on the runs that someone has to look at.
    odd = [f"{one.parameterization}: {text}" for one in shown for text in odd_texts(one, dead=False)]
    odd = list(dict.fromkeys(odd))
    more = f"; notes of this kind: {len(odd)}" if len(odd) > 1 else ""
    odd = [f"  ! {text}{more}" for text in odd[:1]]
    most = MAX_VERDICTS - len(odd)
    lines = [report.headline, _question(report)]
    for finding in shown[:most]:
        lines.append(f"  {_beside_control(finding)}")
        if len(shown) <= MAX_MOVES and (moved := move_text(finding)):
            lines.append(f"    {moved}")
    if rest := [finding.verdict for finding in shown[most:]]:
        counts = (f"{rest.count(verdict)} {verdict}" for verdict in dict.fromkeys(rest))
        lines.append(f"  and {len(rest)} more: {', '.join(counts)}")
    return "\n".join([*lines, *odd]) + "\n"


def full_text(report: TransferReport) -> str:
    """Return the headline, and every finding with its reasons, what is known beside them, and a table of its shapes."""
    lines = [
        report.headline,
        _question(report),
        f"Loss given up: loss at the base's best {report.hp} minus the shape's best loss, with its standard error.",
    ]
    for finding in report.findings:
        known = {name: text for name, text in facts(finding, report.hp).items() if name not in IN_REASONS}
        lines += ["", f"{finding.axis} | {verdict_line(finding)}"]
        lines += [*(f"  - {reason}" for reason in finding.reasons), *(f"  {name}: {known[name]}" for name in known)]
        lines += [f"  {line}" for line in _table(finding)]
    return "\n".join(lines) + "\n"


def _table(finding: Finding) -> list[str]:
    """Return the table of the shapes as lines, with headings of several lines."""
    table = shape_table(finding)
    headings = [textwrap.wrap(column.name, HEADING) for column in table.columns]
    height = max(map(len, headings), default=0)
    heads = zip(*(heading + [""] * (height - len(heading)) for heading in headings), strict=True)
    rows = [[column.text(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    return aligned([*heads, *rows], right_from=1)


def _question(report: TransferReport) -> str:
    what = "Table" if report.of_table else "Sweep"
    return f"Does {report.hp} transfer? {what} {report.sweep}, judged by {report.judged.words}."


def _beside_control(finding: Finding) -> str:
    likely, control, line = likely_text(finding), finding.control, verdict_line(finding)
    chance = "" if likely is None or "probability" in line else f"; probability {likely}"
    beside = "" if control is None else f"; control {control.parameterization}: {control.verdict}"
    return f"{finding.axis} | {line}{chance}{beside}"


def headline(hp: str, findings: Sequence[Finding], *, is_running: bool = False, of_table: bool = False) -> str:
    """Return what to do with an HP, what that costs, and what the control would cost.

    For example: `Use lr 2^-6 tuned at width 32 with completep-moe up to width 128: at most 0.02 nats lost. With sp you
    would lose 0.13 nats at width 128.`

    While `is_running`, trials without a result are still to come. `of_table` is for losses that others measured.
    """
    if not findings:
        return f"No trial lies on a line of {hp}, so nothing can be said about its transfer."
    shown = compared(findings)
    sentences = []
    for arm, members in groupby(sorted(shown, key=_name), key=_name):
        found = _Arm(hp=hp, name=arm, findings=tuple(members), is_running=is_running, of_table=of_table)
        sentences += found.sentences()
    return " ".join([*sentences, *_controls(findings, shown)])


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """The findings on one HP and one parameterization, along all axes."""

    hp: str
    name: str
    findings: tuple[Finding, ...]
    is_running: bool
    of_table: bool

    def sentences(self) -> list[str]:
        """Return a sentence per verdict: what to do, what the other findings are, and what would decide them."""
        refuted = [finding for finding in self.findings if finding.refuted]
        undecided = [finding for finding in _of("undecided", self.findings) if not finding.refuted]
        return [
            *self._use(_of("transfers", self.findings)),
            *map(self._stays, _of("stays", self.findings)),
            *([self._tune(drifting)] if (drifting := _of("drifts", self.findings)) else []),
            *([self._say_how(refuted)] if refuted else []),
            *([self._decide(undecided)] if undecided else []),
        ]

    def _tuned(self, found: Sequence[Finding]) -> str:
        return f"{self.hp} {hp_text(found[0].base_value)} tuned at {_base(found)}"

    def _use(self, found: Sequence[Finding]) -> list[str]:
        out = []
        for value in dict.fromkeys(finding.base_value for finding in found):
            members = [finding for finding in found if finding.base_value == value]
            most = [loss for each in members for shape in each.others if (loss := shape.most_lost) is not None]
            lost = most_text(max(most, default=0.0), members[0].judged)
            reach = _listed([_largest(finding) for finding in members])
            out.append(f"Use {self._tuned(members)} with {self.name} up to {reach}: {lost}.")
        return out

    def _stays(self, finding: Finding) -> str:
        """Return that an optimum did not move, what is missing to call that a transfer, and what was measured."""
        value = f"{self.hp} {hp_text(finding.base_value)}, the best at {_base([finding])}"
        lost = f"; {value}: {lost_text(finding)}"
        return f"With {self.name} along {finding.axis} {verdict_text(finding)} (drift {drift_text(finding)}{lost})."

    def _tune(self, found: Sequence[Finding]) -> str:
        """Return what a reader must do instead of transferring, and what the transferred HP would cost."""
        each = f"at each {found[0].scale_name}" if len(found) == 1 else f"along {_axes(found)}"
        subject = f"the one tuned at {_base(found)}"
        cost = _cost(found, subject, diverging=f"{subject} diverges")
        return f"Tune {self.hp} again {each} with {self.name}: {cost}."

    def _say_how(self, found: Sequence[Finding]) -> str:
        """Return that an HP does not transfer where it is not known how it drifts, and what would tell that."""
        what = self._tuned(found) if _of_one_value(found) else self.hp
        likely = f" (probability that it does: {chance_text(found[0])})" if len(found) == 1 else ""
        return (
            f"{what} does not transfer with {self.name} along {_axes(found)}{likely}, although no single "
            f"statement on how it drifts is sure. {self._what_decides(found, 'say how')}"
        )

    def _decide(self, found: Sequence[Finding]) -> str:
        """Return that findings are undecided, and what would decide them."""
        if len(found) == 1 and _of_one_value(found) and len(found[0].shapes) > 1:
            what = f"{self._tuned(found)} holds with {self.name} up to {_largest(found[0])}"
        else:
            does = f"the optimum of {self.hp} stays" if found[0].lacking else f"{self.hp} transfers"
            what = f"{does} with {self.name} along {_axes(found)}"
        chance = likely_text(found[0]) if len(found) == 1 else None
        likely = f" (probability {chance})" if chance else ""
        return f"Whether {what} is undecided{likely}. {self._what_decides(found, 'decide')}"

    def _what_decides(self, found: Sequence[Finding], aim: str) -> str:
        if doubted := [doubt for finding in found for doubt in finding.doubts]:
            return f"To {aim}, mend the trainer first: {doubted[0]}."
        shapes = [shape for finding in found for shape in finding.shapes]
        if not self.of_table and any(shape.num_missing > shape.num_lost for shape in shapes):
            if self.is_running:
                return f"To {aim}, wait for the run, as trials that it needs are still to come."
            return f"To {aim}, run the sweep again, as trials that it needs have no result."
        if all(map(_only_diverged, found)):
            return f"To {aim}, find out why trials diverge at every HP value."
        # All seeds, which multiply the size of a sweep, stand beside the most urgent.
        every = [(i, one) for finding in found for i, one in enumerate(finding.to_add)]
        first = list(dict.fromkeys(one for i, one in every if i == 0 or one.seeds))
        if needs := [need.text for need in first if not need.asks_nothing]:
            return f"To {aim}, add {'; '.join(needs)}."
        return f"{first[0].text[:1].upper()}{first[0].text[1:]}." if first else "The full report has the reasons."


def _cost(found: Sequence[Finding], subject: str, *, diverging: str) -> str:
    """Return what an HP that drifts costs: it diverges, it loses so much, or its optimum moves."""
    worst = [(shape.regret_nats or 0.0, finding.name(shape)) for finding in found for shape in finding.over[:1]]
    lost, where = max(worst, default=(0.0, ""))
    if lost == math.inf:
        return f"{diverging} at {where}"
    if lost > 0:
        up_to = "up to " if len(found) > 1 else ""
        return f"{subject} would lose {up_to}{found[0].judged.amount(lost)} at {where}"
    moves = [text for finding in found if (text := move_text(finding))]
    return moves[0] if moves else "its optimum moves"


def _of_one_value(found: Sequence[Finding]) -> bool:
    return all(each.has_transferred for each in found) and len({each.base_value for each in found}) == 1


def _only_diverged(finding: Finding) -> bool:
    """Return whether no HP value of any shape has a loss, because trials diverged."""
    return bool(finding.shapes) and all(shape.best_loss is None and shape.num_diverged for shape in finding.shapes)


def _controls(findings: Sequence[Finding], shown: Sequence[Finding]) -> list[str]:
    """Return what each control does on the axes shown, or that there is none beside an HP that transfers."""
    controls = [finding for finding in findings if finding.is_control and finding not in shown]
    if controls:  # arms of each name may have their own
        groups = groupby(sorted(controls, key=_name), key=_name)
        return [_of_control(name, list(group), shown) for name, group in groups]
    claims = any(finding.verdict == "transfers" and not finding.is_control for finding in shown)
    return ["No control shows whether any optimum moves along this axis."] if claims else []


def _of_control(name: str, controls: Sequence[Finding], shown: Sequence[Finding]) -> str:
    """Return what one control does on its axes, at an HP value of its own if no other base there hands it on.

    Axes are named only where it differs between them.
    """
    for control in controls:
        handed_on = {other.base_value for other in shown if other.axis == control.axis} - {None}
        if control.base_value is not None and handed_on and control.base_value not in handed_on:
            name += f" at its own {value_text(control.base_value)}"
            break
    parts = []
    for verdict in ("drifts", "transfers", "stays", "undecided"):
        if not (found := _of(verdict, controls)):
            continue
        where = "" if len(found) == len(controls) else f" along {_axes(found)}"
        if verdict == "drifts":
            # One cost names its shape, and so its axis.
            cost = _cost(found, "you", diverging="training would diverge")
            parts.append(cost + (where if len(found) > 1 else ""))
        else:
            parts.append(OF_CONTROL[verdict].format(where=where))
    return f"With {name} {'; '.join(parts)}."


OF_CONTROL = {
    "transfers": "it transfers too{where}, so that nothing tells the two apart there",
    "stays": "its optimum did not move either{where}",
    "undecided": "it is undecided{where}",
}


def _of(verdict: str, findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict == verdict]


def _name(finding: Finding) -> str:
    return finding.parameterization


def _axes(findings: Sequence[Finding]) -> str:
    return _listed([finding.axis for finding in findings])


def _base(findings: Sequence[Finding]) -> str:
    """Return where the HP was tuned: `width 32`, or `the base` of several axes."""
    bases = [finding.name(finding.base) for finding in findings if finding.base is not None]
    return bases[0] if len(bases) == 1 else "the base"


def _largest(finding: Finding) -> str:
    return finding.name(max(finding.shapes, key=lambda shape: shape.scale))


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence, e.g. `width, depth and experts`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
