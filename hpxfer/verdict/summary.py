"""The findings on one HP as plain text: a summary of at most twelve lines, and the full text with all tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from hpxfer.host.output import aligned
from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.labels import loss_name, scale_text
from hpxfer.verdict.text import (
    NOTHING,
    drift_text,
    headline,
    hp_text,
    interval_text,
    number_text,
    optimum_text,
    regret_nats_text,
)
from hpxfer.verdict.thresholds import NUM_SE, REGRET_SHARE

MAX_VERDICTS = 9  # lines of a summary; with the question, the rest in one line and the advice that makes twelve
COLUMNS = (
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


def summary_text(sweep: str, hp: str, loss: str, findings: Sequence[Finding]) -> str:
    """Return the verdicts in at most twelve lines. The last one says what to do with them."""
    shown = _compared(findings)
    lines = [_question(sweep, hp, loss), *(f"  {_verdict_line(finding)}" for finding in shown[:MAX_VERDICTS])]
    if more := shown[MAX_VERDICTS:]:
        counts = [f"{sum(finding.verdict == verdict for finding in more)} {verdict}" for verdict in _verdicts(more)]
        lines.append(f"  and {len(more)} more: {', '.join(counts)}")
    return "\n".join([*lines, advice(hp, findings)]) + "\n"


def advice(hp: str, findings: Sequence[Finding]) -> str:
    """Return one sentence that says what to do, e.g. `Use lr 2^-6 from the base at every width up to 128.`"""
    if not findings:
        return f"No trial lies on a line of {hp}, so nothing can be said about its transfer."
    parts = []
    shown = sorted(_compared(findings), key=_name)
    several = len({_name(finding) for finding in shown}) > 1
    for name, group in groupby(shown, key=_name):
        members, under = list(group), f" under {name}" if several else ""
        parts += [f"{part}{under}" for part in (*_use(hp, members), *_tune(hp, members), *_decide(members))]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _use(hp: str, findings: Sequence[Finding]) -> list[str]:
    found = [finding for finding in findings if finding.verdict == "transfers"]
    out = []
    for value in dict.fromkeys(finding.base_value for finding in found):
        ranges = [
            f"{finding.scale_name} up to {scale_text(max(shape.scale for shape in finding.shapes))}"
            for finding in found
            if finding.base_value == value
        ]
        out.append(f"use {hp} 2^{math.log2(value or 1.0):.4g} from the base at every {_listed(ranges)}")
    return out


def _tune(hp: str, findings: Sequence[Finding]) -> list[str]:
    axes = [finding.axis for finding in findings if finding.verdict == "drifts"]
    return [f"tune {hp} at each scale along {_listed(axes)}, as its optimum moves"] if axes else []


def _decide(findings: Sequence[Finding]) -> list[str]:
    """Return what would decide the undecided findings."""
    found = [finding for finding in findings if finding.verdict == "undecided"]
    if not found:
        return []
    needs = list(dict.fromkeys(finding.to_add[0] for finding in found if finding.to_add))
    if any(shape.num_missing for finding in found for shape in finding.shapes):
        how = "run the sweep again, as trials that it needs have no result"
    elif all(_only_diverged(finding) for finding in found):
        how = "find out why trials diverge at every HP value"
    elif len(needs) == 1 and not needs[0].values:
        how = f"add {needs[0].text}"
    elif needs:
        how = "run the sweep that `hpxfer report --write-followup` writes"
    else:
        how = "see the reasons in the full report"
    return [f"to decide along {_listed([finding.axis for finding in found])}, {how}"]


def _only_diverged(finding: Finding) -> bool:
    """Return whether no HP value of any shape has a loss, because trials diverged."""
    return bool(finding.shapes) and all(shape.best_loss is None and shape.num_diverged for shape in finding.shapes)


def full_text(sweep: str, hp: str, loss: str, findings: Sequence[Finding]) -> str:
    """Return every finding with its reasons and a table of its shapes."""
    rule = f"max({REGRET_SHARE:.0%} of the loss, {NUM_SE:g} standard errors)"
    lines = [
        _question(sweep, hp, loss),
        f"Regret: loss at the base's best {hp} minus the best loss of the shape; the limit is {rule}.",
    ]
    for finding in findings:
        lines += ["", *_section(finding, hp)]
    if not findings:
        lines += ["", advice(hp, findings)]
    return "\n".join(lines) + "\n"


def _question(sweep: str, hp: str, loss: str) -> str:
    return f"Does {hp} transfer? Sweep {sweep}, judged by {loss_name(loss)}."


def _name(finding: Finding) -> str:
    return finding.parameterization


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence, e.g. `width, depth and experts`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _verdicts(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.verdict for finding in findings))


def _compared(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those on controls, which stand beside the others; all if there are only controls."""
    return [finding for finding in findings if not finding.is_control] or list(findings)


def _verdict_line(finding: Finding) -> str:
    control = finding.control
    beside = "" if control is None else f"; control {control.parameterization}: {control.verdict}"
    return f"{finding.axis} | {headline(finding)}{beside}"


def _section(finding: Finding, hp: str) -> list[str]:
    noise = "unknown" if finding.noise_nats is None else f"{finding.noise_nats:.2g} nats"
    base_value = NOTHING if finding.base_value is None else hp_text(finding.base_value)
    table = aligned([COLUMNS, *(_row(shape) for shape in finding.shapes)], right_from=1)
    return [
        f"{finding.axis} | {headline(finding)}",
        *(f"  - {reason}" for reason in finding.reasons),
        f"  transferred {hp}: {base_value}; seed noise: {noise}",
        f"  drift: {drift_text(finding.drift, finding.scale_name)}",
        *(f"  {row}" for row in table),
    ]


def _row(shape: ShapeFinding) -> tuple[str, ...]:
    return (
        shape.shape + (" (base)" if shape.is_base else ""),
        scale_text(shape.scale),
        optimum_text(shape.optimum),
        interval_text(shape.optimum),
        number_text(shape.best_loss, "{:.4f}"),
        regret_nats_text(shape),
        number_text(shape.regret_percent, "{:.2f}%"),
        number_text(shape.regret_noise_units, "{:.1f}"),
        str(shape.num_seeds),
        str(shape.num_diverged),
        str(shape.num_missing),
    )
