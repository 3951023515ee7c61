"""The schedule of a recipe at a target, in whole steps."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.scaling.shape import Shape
from hpxfer.spec.recipe_file import RecipeFile
from hpxfer.spec.schedule import Planned, Run, whole_steps


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Linear warm-up, then the decay. `decay` is the name of a schedule of hpxfer, e.g. `cosine`."""

    decay: str
    steps: int
    batch_tokens: int
    warmup_steps: int
    decay_steps: int  # the last steps, in which a `wsd` decays; 0 for others
    final_fraction: float  # of the peak LR, at the last step


def phases(recipe: RecipeFile, target: Shape) -> Phases | None:
    """Return the schedule at the target, or None if the recipe was made by hand and has none.

    A target without batch_tokens and steps is trained as the base was.
    """
    if (training := recipe.training) is None:
        return None
    run: Run = target if target.steps else training
    planned = Planned(schedule=training.schedule, steps=training.steps)
    decay_steps = whole_steps(planned.exact("decay_length", run))
    warmup_steps = min(whole_steps(planned.exact("warmup", run)), run.steps - min(decay_steps, 1))
    return Phases(
        decay=training.schedule.decay,
        steps=run.steps,
        batch_tokens=run.batch_tokens,
        warmup_steps=warmup_steps,
        decay_steps=min(decay_steps, run.steps - warmup_steps),
        final_fraction=training.schedule.final_fraction,
    )
