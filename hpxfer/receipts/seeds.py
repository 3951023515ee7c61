"""Do seeds differ, and does one seed repeat? Pure.

If the seed is ignored, the scatter of seeds is 0 and a verdict is falsely sure. If one seed does not repeat, the noise
is larger than the scatter of seeds says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from hpxfer.receipts.entries import Entry
from hpxfer.receipts.outcome import REPEAT, SEEDS, Outcome

PARTS = {"init": "the initial weights", "batch": "the first batch", "loss": "the loss"}
SMALL = 0.3  # of the noise of seeds


def init_digest(groups: Sequence[Entry]) -> str | None:
    """Return one hash of all initial weights in a receipt, or None if it has none."""
    found = sorted((str(each.get("name")), str(each["digest"])) for each in groups if each.get("digest") is not None)
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest() if found else None


def seeds_differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> Outcome:
    """Return whether two runs that differ in the seed alone differ in init, first batch and loss.

    Args:
        one: of one seed `init` and `batch`, any values that are equal for equal bits, such as digests, and `loss`, a
            number or a list. What is absent or None is unknown.
        other: the same of another seed, at the same shape and HPs.
    """
    known = [part for part in PARTS if _shows(one.get(part)) and _shows(other.get(part))]
    alike = [PARTS[part] for part in known if one[part] == other[part]]
    unknown = [PARTS[part] for part in PARTS if part not in known]
    note = f"; not reported: {', '.join(unknown)}" if unknown else ""
    if alike:
        reason = f"two seeds have the same {', '.join(part.removeprefix('the ') for part in alike)}; pass the seed on"
        return Outcome(check=SEEDS, status="failed", reason=reason + note)
    if not known:
        return Outcome(check=SEEDS, status="not possible", reason="needs two runs with different seeds" + note)
    differ = ", ".join(PARTS[part] for part in known)
    return Outcome(check=SEEDS, status="passed", reason=f"two seeds differ in {differ}{note}")


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """How well one seed repeats. `extra_sd` is to be added to the noise of a loss, in quadrature; 0 if it is small."""

    outcome: Outcome
    spread: float | None  # standard deviation of a loss over runs of one seed, in the loss's unit
    extra_sd: float


def base_repeats(losses: Sequence[float], seed_losses: Sequence[float]) -> Repeat:
    """Return how the base repeats with one seed.

    Args:
        losses: final losses of two or more runs of the base with one seed.
        seed_losses: final losses of the base with different seeds, which give the noise of seeds.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 2:
        reason = f"needs two finished runs of the base with one seed, got {len(finite)}"
        return Repeat(outcome=Outcome(check=REPEAT, status="not possible", reason=reason), spread=None, extra_sd=0.0)
    if all(loss == finite[0] for loss in finite):
        outcome = Outcome(check=REPEAT, status="passed", reason="the base repeats with the same bits")
        return Repeat(outcome=outcome, spread=0.0, extra_sd=0.0)
    spread = stdev(finite)
    seeds = [loss for loss in seed_losses if math.isfinite(loss)]
    if len(seeds) < 2:
        reason = f"one seed repeats up to {spread:.3g}, and the noise of seeds is unknown; the spread is added to it"
        return Repeat(
            outcome=Outcome(check=REPEAT, status="not possible", reason=reason), spread=spread, extra_sd=spread
        )
    noise = stdev(seeds)
    if spread < SMALL * noise:
        reason = f"one seed repeats up to {spread:.3g}, less than {SMALL:g} of the noise of seeds {noise:.3g}"
        return Repeat(outcome=Outcome(check=REPEAT, status="passed", reason=reason), spread=spread, extra_sd=0.0)
    reason = f"one seed repeats up to {spread:.3g} beside a noise of seeds of {noise:.3g}; the spread is added to it"
    return Repeat(outcome=Outcome(check=REPEAT, status="failed", reason=reason), spread=spread, extra_sd=spread)


def _shows(value: Any) -> bool:
    """Return whether a value can tell two runs apart. A loss that is not finite cannot."""
    values = value if isinstance(value, list | tuple) else [value]
    return bool(values) and not any(
        each is None or (isinstance(each, float) and not math.isfinite(each)) for each in values
    )
