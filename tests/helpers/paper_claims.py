"""Claims: what a paper says of how features scale, in the symbols of a table, and the exponents along a path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.path_facts import exponent_of
from hpxfer.scaling.monomial import Monomial

SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The size of one quantity of one role is proportional to a monomial in the ratios to the base shape.

    The claim is about steps `first` to `last`. The monomial 0 claims an exact zero, and None claims nothing. Where a
    ratio in `still` changes, the claim is not made.
    """

    quantity: str
    role: str
    size: Monomial | None
    source: str
    first: int = 0
    last: int | None = None
    still: tuple[str, ...] = ()


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
    size = None if moving.intersection(claim.still) else claim.size
    zero = size is not None and not size.coefficient
    return Prediction(
        quantity=claim.quantity,
        role=claim.role,
        exponent=None if size is None or zero else exponent_of([size(at) for at in ratios], scales),
        source=claim.source,
        zero=zero,
        first=claim.first,
        last=claim.last,
    )
