"""Comparisons: the arms of a sweep beside their limits, a tidy frame per question, and what follows in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from hpxfer.analysis.statistics.statistic import records
from hpxfer.host import json_ready, scale_text, table_of
from hpxfer.limit.deviations import ALPHA, MOST_UNSEEN, RESOLVED, SLOWEST

Verdict = Literal["agrees", "disagrees", "undecided", "not judged"]
Row = dict[str, Any]
MEANINGS = {"loss": "loss", "logit_variance": "variance of the router's logits"}  # what a limit is judged by

_OF_ARM = {"arm": "the parameterization, and the axis along which it grows"}
COLUMNS = {
    "arms": {
        **_OF_ARM,
        "limit": "the regime of the limit, and whose numbers it has; or the largest shape, which stands for it",
        "size": "what grows from shape to shape: width, num_experts or expert_width",
        "hp": "the HP that the sweep judges",
        "value": "that the compared networks have",
        "updates": "that are compared",
        "seeds": "whose networks finished at every size",
        "seed_numbers": "which seeds these are",
        "limits": "solved, as seeds that saw the same samples share one",
        "exact": "whether nothing was sampled to solve them",
        "verdict": "agrees, disagrees or undecided; not judged where the largest shape stands for the limit",
        "p": "the probability of such deviations, if the networks approach the limit, over all quantities",
        "tolerance": "the share of the limit's loss within which a size is large enough",
        "large_enough": "the smallest size from which on all sizes are surely within the tolerance",
        "answer": "what follows, in words",
        "from_data": "what the sweep's report says of the width to tune at",
        "left_out": "seeds and passes that are not compared, and why",
        "cautions": "of the solver",
        "network": "the infinite network",
    },
    "sizes": {
        **_OF_ARM,
        "size": "of the networks",
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
        "against_size": "the smaller size that the largest one is compared with",
        "deviation_there": "the mean minus the limit at that size",
        "deviation": "the same at the largest size",
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
        "size": "of the networks",
        "mean": "over seeds",
        "spread": "their standard deviation",
        "limit": "the mean over the limits of all seeds",
        "limit_error": "its standard error",
        "deviation": "mean - limit",
        "error": "its standard error",
        "z": "deviation / error",
        "p": "the probability of such deviations of the largest sizes at this update",
    },
}
# Frame -> its question, and how the table is read. The JSON has all frames.
TABLES = {
    "arms": ("What is compared?", ""),
    "sizes": (
        "How far is each size from the limit?",
        "Root mean squares over updates, as shares of the fall of the limit's loss.",
    ),
    "exponents": (
        "How do distances go with the width N?",
        f"A mean has an exponent where all sizes are {RESOLVED:g} times their noise away.",
    ),
    "quantities": ("How sure are the deviations?", "At the update of the surest one."),
}
_PROSE = ["verdict", "p", "tolerance", "large_enough", "answer", "from_data", "network"]


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
            if len(self.frames[name])
        )
        return "\n\n".join([*said, *shown])


def verdict_of(quantities: Sequence[Row]) -> tuple[Verdict, float]:
    """Return whether networks approach their limit, and the probability of their deviations, over all quantities."""
    p = min(1.0, len(quantities) * min(row["p"] for row in quantities))
    if p < ALPHA:
        return "disagrees", p
    return "agrees" if quantities[0]["visible_offset"] <= MOST_UNSEEN else "undecided", p


def large_enough(sizes: Sequence[Row]) -> float | None:
    """Return the smallest size from which on all sizes are surely within the tolerance; None if there is none."""
    out = None
    for row in reversed(sizes):
        if not row["within"]:
            break
        out = row["size"]
    return out


def answer_of(arm: Row, sizes: Sequence[Row], quantities: Sequence[Row], is_trivial: bool, held_out: int | None) -> str:
    """Return what follows for an arm, in one sentence or two.

    `is_trivial` says whether the loss falls by less than the tolerance, and `held_out` after which update it is that on
    held-out samples.
    """
    last, seen = sizes[-1], quantities[0]["visible_offset"]
    if arm["verdict"] == "disagrees":
        worst = min(quantities, key=lambda row: float(row["p"]))
        after = f"after {worst['update']} update{'' if worst['update'] == 1 else 's'}"
        after += " on held-out samples" if worst["update"] == held_out else ""
        return (
            f"the networks do NOT approach the limit of their table: the {MEANINGS[worst['quantity']]} {after} is off "
            f"by {worst['deviation_there']:+.3g} at {arm['size']} {scale_text(worst['against_size'])} and by "
            f"{worst['deviation']:+.3g} at {arm['size']} {scale_text(last['size'])} (z = {worst['z']:+.1f}), which "
            "does not shrink as it must. Look for an initialization, an LR or a forward multiplier that is not what "
            "the table says."
        )
    start = "the networks approach the limit of their table"
    if arm["verdict"] == "undecided":
        is_far = last["within"] is False and last["mean_minus_limit"] > RESOLVED * last["noise"]
        why = "the widths are too small" if is_far else f"{arm['seeds']} seeds are too few"
        start = f"{why} to tell whether the networks approach the limit of their table"
    enough = _enough(arm, sizes, is_trivial)
    return f"{start} (an offset of {seen:.1%} of the fall of the loss would have been seen). {enough}"


def answer_beside_largest(arm: Row, sizes: Sequence[Row], why: str, is_trivial: bool) -> str:
    """Return what follows for an arm whose largest shape stands for the limit, where `why` says what stays."""
    of_sizes = ", ".join(f"{row['one_network']:.2g} at {arm['size']} {scale_text(row['size'])}" for row in sizes)
    return (
        f"compared with {arm['limit']}, as {why}. A single network is away from it by {of_sizes}, as a share "
        f"of the fall of the loss. {_enough(arm, sizes, is_trivial, 'the loss of the largest shape')}"
    )


def _enough(arm: Row, sizes: Sequence[Row], is_trivial: bool, of: str = "the limit's loss") -> str:
    """Return which size is large enough, in words."""
    share, enough = f"{arm['tolerance']:.0%}", arm["large_enough"]

    def named(row: Row) -> str:
        return f"{arm['size']} {scale_text(row['size'])}"

    if is_trivial:
        return f"The loss falls by less than {share}, so that being within {share} says nothing: take more updates."
    if enough is None:
        known = "is not" if sizes[-1]["within"] is False else "is not seen to be"
        return f"The largest compared, {named(sizes[-1])}, {known} within {share} of {of}."
    if enough == sizes[0]["size"]:
        return f"The smallest, {named(sizes[0])}, is within {share} of {of}: large enough."
    at = next(index for index in reversed(range(len(sizes))) if sizes[index]["size"] < enough)
    why = "is further away" if sizes[at]["within"] is False else "is left open by its seeds"
    return f"Large enough is {named(sizes[at + 1])}: it is within {share} of {of}, and {named(sizes[at])} {why}."
