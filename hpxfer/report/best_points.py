"""What a report says of a sweep that tunes points at the base alone, where nothing transfers yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.analysis.statistics.search_best import ArmBest
from hpxfer.analysis.statistics.search_best import search_best as best_of_arms
from hpxfer.analysis.statistics.search_progress import search_progress
from hpxfer.results import Results
from hpxfer.search.tuned import is_base_alone, tunes_points
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import SweepSpec
from hpxfer.verdict.loss import JudgedLoss


def asks_for_points(spec: SweepSpec) -> bool:
    """Return whether a sweep asks for the best point of its base, and not whether an HP transfers."""
    return tunes_points(spec) and is_base_alone(spec)


def points_headline(arms: Sequence[ArmBest], judged: JudgedLoss) -> str:
    """Return the best point of each arm, with the HPs that are bounds there."""
    return " ".join(_sentence(arm, judged) for arm in arms) or "No trial of the search has ended."


def _sentence(arm: ArmBest, judged: JudgedLoss) -> str:
    where = f"At the base, {arm.parameterization}"
    if arm.best_nats is None:
        return f"{where}: {arm.why_not or 'no point has ended'}."
    diverged = f", {arm.num_diverged} points diverged" if arm.num_diverged else ""
    loss = judged.level(arm.best_nats)
    best = f"{where} is best at {arm.at} ({loss}, {arm.num_trials} trials{diverged})."
    kept = f"The search keeps {arm.kept}." if arm.kept else ""
    bounds = f"Bounds, no optima: {arm.on_edge}." if arm.on_edge else ""
    return " ".join(part for part in (best, kept, bounds) if part)


def points_question(judged: JudgedLoss, sweep: str = "") -> str:
    """Return the question that the sweep asks, and by which loss. `sweep` is named where it is given."""
    of = f"Sweep {sweep}, judged" if sweep else "Judged"
    return f"Which HPs are best at the base? {of} by {judged.words}. There is no larger shape, so nothing transfers."


def points_text(results: Results) -> str:
    """Return the headline and the question as text for a terminal."""
    arms = best_of_arms(search_progress(results), results.spec)
    judged = judged_by(results.spec)
    return f"{points_headline(arms, judged)}\n{points_question(judged, results.name)}\n"
