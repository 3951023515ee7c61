"""What the tables say of a GPT where they differ: how routers start, what experts add up to, how gradients scale.

Sizes are per coordinate, RMS, in the ratios to the base. Those of the MoE layer are without the depth factor that every
residual branch has. Sources: MSSP (HiLD 2026), sections 3 and 4, Tables B.1, B.2; Why Routers Freeze (HiLD 2026),
section 3, Tables 1, 2; 2601.20205, Table 1; 2605.23893, Table 2. `chain rule`: derived from the table's own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hpxfer.scaling.monomial import ONE, ZERO, Monomial, active, active_width, expert_ratio, experts, width

SMALL = width**-0.5

ALIGNED = "in part a fluctuation width^-1/2 below the part that training aligns (Why Routers Freeze, Remark 26)"
FADING = "two parts: what the random start puts there, which fades with size, and what is learned"
ROUTER_PATHS = "two paths: through the router's own gradient of order 1, through the experts' width^-1/2 (MSSP App. C)"
TWO_PARTS = (
    "two parts: one that is random in every expert, and one that all hidden features share, which grows by more but is "
    "far smaller at sizes like these"
)
TIED = "two parts: by the gradient of what is embedded, a fluctuation width^-1/2 in what is read out, and by its own"
NO_SOURCE = "the source's one eps says nothing of how the gradients of experts scale"


@dataclass(frozen=True, kw_only=True)
class Family:
    """The claims in which one table differs from the others."""

    source: str
    # The router's logits before training: of order 1, width^-1/2, or exactly zero.
    logits: Monomial = ONE
    # One expert's output, without gate and multiplier: W_0 on what it reads, and what training adds to W.
    start: Monomial = ONE
    update: Monomial = ONE
    # The gated sum of the experts, by W_0 a_0, (W - W_0) a and W_0 (a - a_0).
    sum_start: Monomial = ONE
    sum_update: Monomial = ONE
    sum_moved: Monomial = ONE
    # Where one of these ratios moves, nothing is claimed of W_0 (a - a_0), of one expert and of the sum.
    still: tuple[str, ...] = ()
    sum_still: tuple[str, ...] = ()
    # Role -> gradient, for what differs from width^-1; and the ratios that must not move for it.
    gradients: Mapping[str, Monomial] = field(default_factory=dict)
    gradients_still: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    otherwise: str = ALIGNED
    # Roles whose gradient is led at first by a part that fades as width^-1/2; an SGD step is as small as it is.
    faint: tuple[str, ...] = ()
    shared: bool = False  # the sum of shared and routed experts starts at one size, whatever their shares


def _moe(router: Monomial, up: Monomial, down: Monomial) -> dict[str, Monomial]:
    return {"router": router, "expert_in": up, "expert_gate": up, "expert_out": down}


def _still(router: tuple[str, ...], up: tuple[str, ...] = (), down: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    return {"router": router, "expert_in": up, "expert_gate": up, "expert_out": down}


_MSSP = "MSSP 3, Tables B.1 and B.2"
_FREEZE = "Why Routers Freeze Tables 1 and 2"
# MSSP Q.4, and as eps in Table B.1: gradients of the router and of the experts' matrices.
_I = _moe(ONE, width**-1, width**-1)
_II = _moe(experts**-1, experts**-1, width**-1 * experts**-1)
_III = _moe(experts**-1, width**-1 * experts**-1, width**-1 * experts**-1)
_ROUTER = _still(("width",))
# An FFN of another ratio to the width, at the fan-in init of its output matrix.
_RATIO = ("expert_ratio", "dense_ratio")
LAYOUT = ("experts", "active", "active_width", *_RATIO)
_FFN = ("dense_in", "dense_gate", "dense_out", "shared_in", "shared_gate", "shared_out")

_MUP_I = Family(source=_MSSP, logits=SMALL, gradients=_I, gradients_still=_ROUTER)
_MUP_II = Family(
    source=_MSSP,
    sum_start=experts**-0.5,
    sum_moved=experts**-0.5,
    gradients=_II,
    gradients_still=_still(("width",), ("width",)),
    faint=("expert_in", "expert_gate"),  # of the four parts of df/dh2, W3_0 W4_0 leads (MSSP I.6.1)
)
_MUP_III = Family(source=_MSSP, sum_start=experts**-0.5, sum_still=("width",), gradients=_III, gradients_still=_ROUTER)
_COMPLETEP_MOE = Family(
    source="2601.20205 Table 1",
    logits=SMALL,
    start=expert_ratio**-0.5,  # the source's choice: fan-in breaks the collapse of loss curves (Fig. 11)
    sum_start=active**-0.5 * expert_ratio**-0.5,
    still=("expert_ratio",),
    sum_still=("active", "expert_ratio"),
    gradients=_moe(active**-1, width**-1 * experts**-1 * expert_ratio**-1, width**-1 * experts**-1),
    gradients_still=_still(("width", "expert_ratio")),
)
_COMPLETE_MUE_START = expert_ratio**0.5 * active_width**0.5
_COMPLETE_MUE = Family(
    source="2605.23893 Table 2",
    start=_COMPLETE_MUE_START,
    update=expert_ratio,
    sum_start=active**0.5 * active_width**-1 * _COMPLETE_MUE_START,
    sum_update=active * active_width**-1 * expert_ratio,
    sum_moved=active**0.5 * active_width**-1 * _COMPLETE_MUE_START,
    still=_RATIO,
    sum_still=("active", *_RATIO),
    gradients_still={**_still(("width", *LAYOUT), LAYOUT, LAYOUT), **dict.fromkeys(_FFN, LAYOUT)},
    otherwise=NO_SOURCE,
    shared=True,
)

FAMILIES: dict[str, Family] = {
    "mup": Family(
        source="2203.03466 Table 3",
        logits=SMALL,
        still=_RATIO,
        sum_still=_RATIO,
        gradients_still={
            **_still(("width", *_RATIO), _RATIO),
            "dense_in": _RATIO,
            "dense_gate": _RATIO,
        },
    ),
    "completep": Family(source="2505.01618 Table 1"),
    "completep-moe": _COMPLETEP_MOE,
    "complete-mue": _COMPLETE_MUE,
    "mup-moe": Family(source=_FREEZE, logits=SMALL, gradients=_I, gradients_still=_ROUTER),
    "mup-i": _MUP_I,
    "mup-ii": _MUP_II,
    "mup-iii": _MUP_III,
    "mssp-i": replace(_MUP_I, logits=ZERO),
    "mssp-ii": Family(source=_MSSP, start=experts**0.5, gradients=_II),
    "mssp-iii": Family(source=_MSSP, gradients=_III, gradients_still=_ROUTER),
}


def family(name: str, conventions: Mapping[str, float | str]) -> Family | None:
    """Return the family of a table under its conventions, or None if nothing is known of it."""
    found = FAMILIES.get(name)
    if found is None:
        return None
    exponent = conventions.get("router_init_exponent")
    if exponent == "inf" or conventions.get("router_init") == "zero":
        return replace(found, logits=ZERO)
    if exponent is not None:
        found = replace(found, logits=width ** (0.5 - float(exponent)))
    return found
