"""What a report says of two HPs that were refined together: their optima, for there is no line to judge. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.analysis.statistics.joint_optimum import JointOptimum
from hpxfer.host.output import aligned
from hpxfer.results import Results
from hpxfer.verdict.text import NOTHING


def no_verdict(results: Results) -> str | None:
    """Return that the sweep has no transfer verdict, and why; None if its search scans a line of the judged HP."""
    why = results.why_no_line()
    return None if why is None else f"There is no transfer verdict: {why}."


def joint_headline(optima: Sequence[JointOptimum]) -> str:
    """Return what the search found at the base, and what the base's best point costs at each other shape."""
    parts = [f"At the base, {one.sentence}." for one in optima if one.is_base]
    costs = [
        f"{one.given_up()} with {one.parameterization} at {one.shape}" for one in optima if one.regret_nats is not None
    ]
    if costs:
        parts.append(f"The base's best point gives up {', '.join(costs)}.")
    elif any(not one.is_base for one in optima):
        parts.append("What the base's best point gives up at another shape is not known.")
    return " ".join(parts) or ". ".join(one.sentence for one in optima)


def joint_question(optima: Sequence[JointOptimum], sweep: str = "") -> str:
    """Return the question that the search answers, and by which loss. `sweep` is named where it is given."""
    of = f"Sweep {sweep}, judged" if sweep else "Judged"
    return (
        f"Where is the optimum of {optima[0].first} and {optima[0].second} together? {of} by {optima[0].judged.shown}."
    )


def joint_text(optima: Sequence[JointOptimum], results: Results) -> str:
    """Return the headline, why there is no verdict, and what was found in each arm, as text for a terminal."""
    lines = [joint_headline(optima), no_verdict(results) or ""]
    lines.append(joint_question(optima, results.name))
    lines += [f"  {one.sentence}" for one in optima]
    return "\n".join(line for line in lines if line) + "\n"


def joint_table(optima: Sequence[JointOptimum]) -> list[str]:
    """Return the optima as aligned text, one line per arm below a heading."""
    first, second, judged = optima[0].first, optima[0].second, optima[0].judged
    optimum = (f"optimum log2 {first}, 95%", f"optimum log2 {second}, 95%")
    best = (f"best {first}", f"best {second}", f"{judged.noun}, {judged.level_unit}", judged.given_up)
    head = ("shape", "parameterization", *optimum, *best)
    return aligned([head, *(_row(one) for one in optima)])


def _row(one: JointOptimum) -> tuple[str, ...]:
    return (
        f"{one.shape} (base)" if one.is_base else one.shape,
        one.parameterization,
        _ends(one.log2_first, one.half_first),
        _ends(one.log2_second, one.half_second),
        _number(one.best_first, ".4g"),
        _number(one.best_second, ".4g"),
        NOTHING if one.best_nats is None else one.judged.level(one.best_nats),
        NOTHING if one.regret_nats is None else one.given_up(" +- ", unit=False),
    )


def _ends(log2: float | None, half: float | None) -> str:
    return NOTHING if log2 is None or half is None else f"{log2:.2f} [{log2 - half:.2f}..{log2 + half:.2f}]"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"
