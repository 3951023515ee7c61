"""Comparisons: the arms of a sweep beside their limits, a tidy frame per question, and what follows in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from hpxfer.analysis.statistics.statistic import records
from hpxfer.host import json_ready, scale_text, table_of
from hpxfer.limit.deviations import ALPHA, MOST_UNSEEN, RESOLVED, SLOWEST

Verdict = Literal["agrees", "disagrees", "undecided"]
Row = dict[str, Any]
MEANINGS = {"loss": "loss", "logit_variance": "variance of the router's logits"}

_OF_ARM = {"arm": "the parameterization, and the axis along which it grows"}
COLUMNS = {
    "arms": {
        **_OF_ARM,
        "limit": "the regime of the limit, and whose numbers it has",
        "hp": "the HP that the sweep judges",
        "value": "that the compared networks have",
        "updates": "that are compared",
        "seeds": "whose networks finished at every width",
        "seed_numbers": "which seeds these are",
        "limits": "solved, as seeds that saw the same samples share one",
        "exact": "whether nothing was sampled to solve them",
        "verdict": "agrees, disagrees or undecided",
        "p": "the probability of such deviations, if the networks approach the limit, over all quantities",
        "tolerance": "the share of the limit's loss within which a width is large enough",
        "large_enough": "the smallest width from which on all widths are surely within the tolerance",
        "answer": "what follows, in words",
        "from_data": "what the sweep's report says of the width to tune at",
        "left_out": "seeds and passes that are not compared, and why",
        "cautions": "of the solver",
        "network": "the infinite network",
    },
    "widths": {
        **_OF_ARM,
        "width": "of the networks",
        "mean_minus_limit": "the mean loss over seeds minus the limit's, RMS over updates",
        "noise": "what mean_minus_limit is where there is no deviation",
        "one_network": "the same of a single network",
        "largest_z": "the surest deviation of the mean, in standard errors",
        "within": "whether the mean is within the tolerance after every update; None where seeds are too few to say",
    },
    "exponents": {
        **_OF_ARM,
        "distance": "one network, or the mean over seeds",
        "exponent": "of the width N, with which the distance from the limit goes",
        "low": "its 95% interval",
        "high": "its upper end",
        "expected": "near the limit",
    },
    "quantities": {
        **_OF_ARM,
        "quantity": "what is compared",
        "update": "of the surest deviation",
        "held_out": "whether that is on held-out samples",
        "against_width": "the smaller width that the largest one is compared with",
        "deviation_there": "the mean minus the limit at that width",
        "deviation": "the same at the largest width",
        "error": "its standard error",
        "z": "deviation / error",
        "p": f"the probability of such deviations, if they shrink as N^-{SLOWEST:g} or faster",
        "visible_offset": "the offset that would have been seen, as a share of the fall of the limit's loss",
    },
    "updates": {
        **_OF_ARM,
        "quantity": "what is compared",
        "update": "after which it is measured",
        "held_out": "whether on held-out samples",
        "width": "of the networks",
        "mean": "over seeds",
        "spread": "their standard deviation",
        "limit": "the mean over the limits of all seeds",
        "limit_error": "its standard error",
        "deviation": "mean - limit",
        "error": "its standard error",
        "z": "deviation / error",
        "p": "the probability of such deviations of the largest widths at this update",
    },
}
# Frame -> its question, and how the table is read. The JSON has all frames.
TABLES = {
    "arms": ("What is compared?", ""),
    "widths": (
        "How far is each width from the limit?",
        "Root mean squares over updates, as shares of the fall of the limit's loss.",
    ),
    "exponents": (
        "How do distances go with the width N?",
        f"A mean has an exponent where all widths are {RESOLVED:g} times their noise away.",
    ),
    "quantities": ("How sure are the deviations?", "At the update of the surest one."),
}
_PROSE = ["verdict", "p", "tolerance", "large_enough", "answer", "from_data"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparisons:
    """All arms of a sweep beside their limits: a tidy frame per name of COLUMNS."""

    sweep: str
    frames: Mapping[str, pd.DataFrame]

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a reader should know before the numbers."""
        return tuple(f"{row['arm']}: {each}" for row in records(self.frames["arms"]) for each in row["cautions"])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparisons as JSON has them."""
        found = {name: {"columns": COLUMNS[name], "rows": records(frame)} for name, frame in self.frames.items()}
        ready: dict[str, Any] = json_ready({"sweep": self.sweep, **found})
        return ready

    def table(self) -> str:
        """Return the comparisons as text."""
        said = []
        for row in records(self.frames["arms"]):
            left_out = [f"left out: {each}" for each in row["left_out"]]
            from_data = f"From its data the sweep's report says: {row['from_data']}"
            said.append("\n".join([f"{row['arm']}: {row['answer']}", from_data, *left_out]))
        shown = (
            table_of(title, records(self.frames[name].drop(columns=_PROSE if name == "arms" else [])), note)
            .to_text()
            .rstrip()
            for name, (title, note) in TABLES.items()
        )
        return "\n\n".join([*said, *shown])


def verdict_of(quantities: Sequence[Row]) -> tuple[Verdict, float]:
    """Return whether networks approach their limit, and the probability of their deviations, over all quantities."""
    p = min(1.0, len(quantities) * min(row["p"] for row in quantities))
    if p < ALPHA:
        return "disagrees", p
    return "agrees" if quantities[0]["visible_offset"] <= MOST_UNSEEN else "undecided", p


def large_enough(widths: Sequence[Row]) -> float | None:
    """Return the smallest width from which on all widths are surely within the tolerance; None if there is none."""
    out = None
    for row in reversed(widths):
        if not row["within"]:
            break
        out = row["width"]
    return out


def answer_of(
    arm: Row, widths: Sequence[Row], quantities: Sequence[Row], is_trivial: bool, held_out: int | None
) -> str:
    """Return what follows for an arm, in one sentence or two.

    `is_trivial` says whether the loss falls by less than the tolerance, and `held_out` after which update it is that on
    held-out samples.
    """
    last, seen = widths[-1], quantities[0]["visible_offset"]
    if arm["verdict"] == "disagrees":
        worst = min(quantities, key=lambda row: float(row["p"]))
        after = f"after {worst['update']} update{'' if worst['update'] == 1 else 's'}"
        after += " on held-out samples" if worst["update"] == held_out else ""
        return (
            f"the networks do NOT approach the limit of their table: the {MEANINGS[worst['quantity']]} {after} is off "
            f"by {worst['deviation_there']:+.3g} at width {scale_text(worst['against_width'])} and by "
            f"{worst['deviation']:+.3g} at width {scale_text(last['width'])} (z = {worst['z']:+.1f}), which does not "
            "shrink as it must. Look for an initialization, an LR or a forward multiplier that is not what the table "
            "says."
        )
    start = "the networks approach the limit of their table"
    if arm["verdict"] == "undecided":
        is_far = last["within"] is False and last["mean_minus_limit"] > RESOLVED * last["noise"]
        why = "the widths are too small" if is_far else f"{arm['seeds']} seeds are too few"
        start = f"{why} to tell whether the networks approach the limit of their table"
    enough = _enough(widths, arm["large_enough"], f"{arm['tolerance']:.0%}", is_trivial)
    return f"{start} (an offset of {seen:.1%} of the fall of the loss would have been seen). {enough}"


def _enough(widths: Sequence[Row], enough: float | None, share: str, is_trivial: bool) -> str:
    """Return which width is large enough, in words."""
    if is_trivial:
        return f"The loss falls by less than {share}, so that being within {share} says nothing: take more updates."
    if enough is None:
        known = "is not" if widths[-1]["within"] is False else "is not seen to be"
        return f"Width {scale_text(widths[-1]['width'])}, the largest, {known} within {share} of the limit's loss."
    if enough == widths[0]["width"]:
        return f"Width {scale_text(enough)}, the smallest, is within {share} of the limit's loss: large enough."
    below = next(row for row in reversed(widths) if row["width"] < enough)
    why = "is further away" if below["within"] is False else "is left open by its seeds"
    return (
        f"Width {scale_text(enough)} is large enough: it is within {share} of the limit's loss, and width "
        f"{scale_text(below['width'])} {why}."
    )
