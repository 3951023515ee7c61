"""Does the forward pass multiply by the recipe's numbers, once, in training and in evaluation? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpxfer.receipts.entries import FORWARD, Outcome, listed, number, same

TOLERANCE = 1e-3


def forward_factors(
    outputs: Sequence[Mapping[str, Any]], expected: Mapping[str, float], *, tolerance: float = TOLERANCE
) -> Outcome:
    """Return whether every multiplier acts once, by the ratio of an output with it and without it.

    Args:
        outputs: `{"key": "readout", "mode": "train", "with": 0.5, "without": 1.0}`: the RMS of the output at the site
            of a multiplier, on one batch and with the same weights. `mode` is `train` or `eval`.
        expected: key -> the multiplier, as `recipe.forward_multipliers(shape)` gives it.
        tolerance: relative.
    """
    seen, wrong = set[str](), []
    for each in outputs:
        key, mode = str(each["key"]), each.get("mode", "train")
        with_it, without = number(each, "with"), number(each, "without")
        if key not in expected or with_it is None or not without:
            continue
        seen.add(key)
        ratio, by = with_it / without, expected[key]
        if not same(ratio, by, tolerance):
            wrong.append(
                f"{key} in {mode} multiplies by {ratio:.4g} in place of {by:.4g}{_guess(ratio, by, tolerance)}"
            )
    if wrong:
        return Outcome(check=FORWARD, status="failed", reason=listed(wrong))
    if unseen := [key for key, by in expected.items() if by != 1.0 and key not in seen]:
        reason = f"no output with and without it was reported for {listed(unseen)}"
        return Outcome(check=FORWARD, status="not possible", reason=reason)
    return Outcome(check=FORWARD, status="passed", reason=f"{len(seen)} multipliers act once")


def _guess(ratio: float, by: float, tolerance: float) -> str:
    """Return in words what happened, where the ratio shows it."""
    if same(ratio, 1.0, tolerance):
        return " (missing)"
    return " (applied twice)" if same(ratio, by**2, tolerance) else ""
