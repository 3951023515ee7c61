"""The findings on one HP as plain text: a summary of at most twelve lines, and the full text with all tables."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.host.output import aligned
from hpxfer.verdict.findings import Finding, ShapeFinding
from hpxfer.verdict.headline import compared, headline
from hpxfer.verdict.labels import scale_text
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.odd_text import odd_texts
from hpxfer.verdict.text import (
    NOTHING,
    drift_text,
    interval_text,
    likely_text,
    misfit_text,
    move_text,
    number_text,
    optimum_text,
    regret_number_text,
    transferred_text,
    verdict_line,
)

MAX_VERDICTS = 9  # lines of a summary; with the headline, the question and the rest in one line that makes twelve
MAX_MOVES = 4  # verdicts that are few enough for the move of each


def _columns(unit: str) -> tuple[tuple[str, str], ...]:
    """Return the two lines of each heading."""
    return (
        ("shape", ""),
        ("scale", ""),
        ("optimum", ""),
        ("95% interval", ""),
        ("scatter over", "that of seeds"),
        ("best loss,", unit),
        ("loss given up,", unit),
        ("share of", "the loss"),
        ("in units of", "seed noise"),
        ("share of what one", "octave costs"),
        ("limit,", unit),
        ("seeds", ""),
        ("diverged", ""),
        ("missing", ""),
    )


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
    rows = [_row(shape) for shape in finding.shapes]
    columns = _columns(finding.judged.unit)
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", NOTHING) for row in rows)]
    headings = [tuple(columns[i][line] for i in kept) for line in (0, 1)]
    table = aligned([*headings, *(tuple(row[i] for i in kept) for row in rows)], right_from=1)
    return [
        f"{finding.axis} | {verdict_line(finding)}",
        *(f"  - {reason}" for reason in finding.reasons),
        f"  transferred {hp}: {transferred_text(finding)}; seed noise: {noise}",
        *([f"  probability: {likely}"] if likely else []),
        f"  drift: {drift_text(finding)}",
        *(f"  {row}" for row in table),
    ]


def _row(shape: ShapeFinding) -> tuple[str, ...]:
    share = None if shape.regret_octave_share is None else 100 * shape.regret_octave_share
    return (
        shape.shape + (" (base)" if shape.is_base else ""),
        scale_text(shape.scale),
        optimum_text(shape.optimum),
        interval_text(shape.optimum),
        misfit_text(shape.optimum) or NOTHING,
        NOTHING if shape.best_loss is None else f"{shape.best_loss:.4f}",
        regret_number_text(shape),
        _positive(shape.regret_percent, "{:.2f}%"),
        _positive(shape.regret_noise_units, "{:.1f}"),
        _positive(share, "{:.0f}%"),
        NOTHING if shape.limit_nats is None else f"{shape.limit_nats:.2g}",
        str(shape.num_seeds),
        str(shape.num_diverged),
        str(shape.num_missing),
    )


def _positive(value: float | None, form: str) -> str:
    """Return a share of a regret; nothing for a regret of which none was measured."""
    return number_text(value, form) if value is not None and value > 0 else NOTHING
