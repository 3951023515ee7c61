"""The analyses beside the verdict as tables, and why others have no result. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hpxfer.figures.text import listed
from hpxfer.report.tables import Table, table_of

if TYPE_CHECKING:
    from hpxfer.analysis.everything import Analysis

REASONS = ("why_not", "why_no_hp", "why_no_loss", "why_no_optimum")
# What tells one analysis of a kind from another.
LABELS = ("axis", "parameterization", "hp", "first", "second", "shape", "count", "dense_shape", "moe_shape")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the analyses in one field of `Analysis` become a table: a row each, or a row for each of its `parts`.

    `answer` is what the whole says of its title's question, told in every row of its parts.
    """

    field: str
    title: str
    note: str
    parts: str | None = None
    answer: str | None = None


KINDS = (
    Kind(
        field="search_best",
        title="The best of each arm, at equal budgets",
        note="Arms of a shape are compared over as many trials as each has had, in the order in which they ended. Mean "
        "and standard error over seeds; behind: the shape's best arm, paired over seeds. The best of many points is "
        "partly luck: its loss is too low by about the noise of a point. An HP on the edge of its box is a bound.",
    ),
    Kind(
        field="search_steps",
        title="Constant multipliers, one after the other",
        note="Each ratio's gain over what was kept before, paired over seeds, with its standard error (arXiv "
        "2601.20205, Appendix D.1).",
    ),
    Kind(
        field="joint",
        title="Drift along all axes at once",
        note="Octaves by which the optimum moves per doubling of one dimension, the others held; 95% intervals.",
        parts="slopes",
    ),
    Kind(
        field="fast",
        title="Is the transfer fast?",
        note="Whether what the transferred HP costs vanishes faster with scale than the loss gap does (arXiv "
        "2512.22768). Slopes of log2 nats per doubling, measured from the largest shape. The powers take its own "
        "distance from the limit into account: optima close in as scale^-p, losses as scale^-q; fast is 2p > q and "
        "p > 0 (p = 0 is a steady drift); excess is 2p - q.",
    ),
    Kind(
        field="comparisons",
        title="The optimum by other fits",
        note="Drift in octaves per doubling by the verdict's own fit, by an Akima spline and with one curvature for "
        "all shapes; how far apart they are at most.",
    ),
    Kind(
        field="surfaces",
        title="Two HPs at once",
        note="The interaction is by how many octaves the first HP's optimum moves per octave of the second.",
    ),
    Kind(
        field="improvement",
        title="Does a larger model always win?",
        note="Gain in nats from one scale to the next at the same HPs, paired over seeds; 95% intervals. Monotone: yes "
        "if every step is surely a gain, no if one is surely a loss, empty if the seeds do not tell.",
        parts="steps",
        answer="monotone",
    ),
    Kind(
        field="collapse",
        title="Loss collapse",
        note="Until which step the curves of all shapes are one, and how much of training they follow one normalized "
        "curve (arXiv 2507.02119).",
    ),
    Kind(
        field="balance",
        title="Load balance",
        note="The largest deviation of an expert's load from the fair one, over training.",
        parts="lines",
    ),
    Kind(
        field="stability",
        title="Stability edge",
        note="The largest HP at which all seeds stay finite is no optimum: how it moves is told beside it.",
    ),
    Kind(field="loss_fits", title="Loss against log parameters", note="A straight line; nats per doubling."),
    Kind(
        field="power_laws",
        title="Saturating power law",
        note="loss = floor + (2^log2_scale / parameters)^exponent; 95% intervals.",
    ),
    Kind(
        field="experts_size",
        title="Many small experts or few large ones?",
        note="At equal parameters: nats per doubling of the number of experts.",
        parts="groups",
    ),
    Kind(
        field="speed_ups",
        title="MoE against dense",
        note="Steps of the dense model over those of the MoE model to the same loss.",
    ),
    Kind(
        field="held_out",
        title="Held-out extrapolation",
        note="The largest shape, predicted from the others and then compared.",
    ),
)


def analysis_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Return one table per kind of analysis that has results."""
    out = []
    for kind in KINDS:
        rows = [row for result in getattr(analysis, kind.field) if not result.why_not for row in _rows(result, kind)]
        if rows:
            names = dict.fromkeys(name for row in rows for name in row)
            kept = [name for name in names if any(row.get(name) not in (None, "") for row in rows)]
            out.append(table_of(kind.title, [{name: row.get(name) for name in kept} for row in rows], kind.note))
    return tuple(out)


def unknown(analysis: Analysis) -> tuple[str, ...]:
    """Return what is not known and why, one line per reason: `Loss collapse (width sp): one shape`."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        for result in getattr(analysis, kind.field):
            for name in REASONS:
                if why := getattr(result, name, None):
                    labels = [str(value) for label in LABELS if (value := getattr(result, label, None))]
                    found.setdefault((kind.title, why), []).append(" ".join(labels))
    return tuple(f"{title} ({listed(which)}): {why}" for (title, why), which in found.items())


def _rows(result: Any, kind: Kind) -> Iterator[dict[str, Any]]:
    label = {name: getattr(result, name) for name in LABELS if hasattr(result, name)}
    if kind.parts is None:
        yield {**label, **_scalars(result)}
        return
    answer = {} if kind.answer is None else {kind.answer: getattr(result, kind.answer)}
    for part in getattr(result, kind.parts):
        yield {**label, **answer, **_scalars(part)}


def _scalars(result: Any) -> dict[str, Any]:
    values = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in REASONS}
    return {
        name: _text(value)
        for name, value in values.items()
        if value is None or isinstance(value, str | int | float) or _fits_cell(value)
    }


def _fits_cell(value: Any) -> bool:
    """Return whether a tuple is short enough for one cell."""
    return isinstance(value, tuple) and 0 < len(value) <= 8 and all(isinstance(x, str | float | int) for x in value)


def _text(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return ", ".join(f"{part:.4g}" if isinstance(part, float) else str(part) for part in value)
