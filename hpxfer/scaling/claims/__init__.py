"""Claims: what a source says of how features scale. They stand beside a table and are written in its symbols.

A claim holds for the architecture that it was derived for. A quantity without a claim passes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpxfer.scaling.monomial import Monomial
from hpxfer.scaling.roles import HIDDEN

GRADIENT_OVER_EPS = "gradient / eps"
ONE_EPS = "the convention eps=global asks for one factor for all roles"
BASE_EPS = "the convention eps=hidden keeps the base's eps outside hidden matrices"


def eps_by_convention(conventions: Mapping[str, float | str], role: str) -> str | None:
    """Return why the eps of a role does not follow its gradient: a convention asks for another one. None: it does."""
    asked = conventions.get("eps")
    if asked == "global":
        return ONE_EPS
    return BASE_EPS if asked == "hidden" and role not in HIDDEN else None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The size of one quantity of one role is proportional to a monomial in the ratios to the base shape.

    The claim is about steps `first` to `last`. The monomial 0 claims an exact zero. None claims nothing, and `source`
    gives the reason. Where a ratio in `still` changes, the claim is not made, for the reason in `otherwise`.
    """

    quantity: str
    role: str
    size: Monomial | None
    source: str  # paper and table, or the reason why there is no claim
    first: int = 0
    last: int | None = None
    still: tuple[str, ...] = ()
    otherwise: str = ""


# Role -> quantity -> exponents of the width after 0, 1 and 2 updates; the third holds from there on. `zero` is an exact
# zero, `?` no claim. Example: {"readout": {"gradient": "0 0 0"}}.
BlockRows = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class BlockClaims:
    """What a source says of the minimal MLP blocks, for which the papers derive their exponents."""

    rows: BlockRows  # of MSSP's block, which has two matrices per expert
    source: str
    readout: Literal["random", "zero", "any"] = "random"  # the start of the readout for which the rows are derived
    one_draw: bool = False  # few experts, or all from one draw: products of their matrices start at a fluctuation
    sgd_only: bool = False  # derived for SGD; under Adam only the sizes before training are claimed
    # With one matrix per expert: the same rows, those of Why Routers Freeze, or no claim.
    one_matrix: Literal["rows", "why routers freeze"] | None = None
    # Role -> exponent of the eps that the source's Adam has; it should be that of the gradient.
    eps: Mapping[str, str] = field(default_factory=dict)
    is_control: bool = False  # held to flat features, which it must miss, in every block
