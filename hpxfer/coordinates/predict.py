"""Turn claims, which are monomials, into the exponents that they imply along a path of shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpxfer.coordinates.measure import Prediction
from hpxfer.scaling.claims import Claim

SAME = 1e-9


def predict(
    claims: Iterable[Claim], scales: Sequence[float], ratios: Sequence[Mapping[str, float]]
) -> tuple[Prediction, ...]:
    """Return what the claims predict along a path. `ratios[i]` are the ratios to the base at `scales[i]`.

    The `still` of a claim may name any ratio, and `kappa`, the share of active experts.
    """
    ratios = [{**at, "kappa": at["active"] / at["experts"]} for at in ratios]
    values = {name: [at[name] for at in ratios] for name in ratios[0]}
    moving = {name for name, found in values.items() if max(found) > (1 + SAME) * min(found)}
    return tuple(_prediction(claim, scales, ratios, moving) for claim in claims)


def _prediction(
    claim: Claim, scales: Sequence[float], ratios: Sequence[Mapping[str, float]], moving: set[str]
) -> Prediction:
    size, source = claim.size, claim.source
    if moving.intersection(claim.still):
        size, source = None, claim.otherwise
    zero = size is not None and not size.coefficient
    return Prediction(
        quantity=claim.quantity,
        role=claim.role,
        exponent=None if size is None or zero else exponent_of([size(at) for at in ratios], scales),
        source=source,
        zero=zero,
        first=claim.first,
        last=claim.last,
    )


def exponent_of(sizes: Sequence[float], scales: Sequence[float]) -> float:
    """Return the slope of log size on log scale, by least squares as the measured slope is."""
    slope = np.polyfit(np.log(scales), np.log(sizes), 1)[0]
    return round(float(slope), 9) + 0.0  # no -0
