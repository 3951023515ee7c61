"""Why a sweep in which every trial diverged cannot be judged, and what to look at. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpxfer.spec.plugins import used_rows

if TYPE_CHECKING:
    from hpxfer.results import Results


def all_diverged(results: Results) -> str | None:
    """Return that every trial of the sweep diverged, and what to look at. Return None if one did not.

    For example: `all 12 trials diverged: look at the LRs, 0.004 to 0.06, as even the smallest may be too large`.
    """
    trials = results.cells.drop_duplicates("trial_id")
    if trials.empty or not (trials["status"] == "diverged").all():
        return None
    return f"all {len(trials)} trials diverged: look at {', and at '.join(_causes(results))}"


def _causes(results: Results) -> Iterator[str]:
    """Yield what may make every trial diverge: the LRs, and the rows of plug-ins that the trials use."""
    spec = results.spec
    lrs = results.trials.loc[results.trials["trial_id"].isin(results.cells["trial_id"]), "lr"]
    if lrs.nunique() > 1:
        yield f"the LRs, {lrs.min():.4g} to {lrs.max():.4g}, as even the smallest may be too large"
    else:
        yield f"the LR, {lrs.min():.4g}, as it may be too large"
    used = set(used_rows(spec))
    for plugin in spec.plugins or ():
        for kind, names in (plugin.registers or {}).items():
            yield from (f"{kind} {name!r} of the plug-in {plugin.name}" for name in names if (kind, name) in used)
