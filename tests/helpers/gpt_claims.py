"""What papers claim of the built-in GPT, as data: exponents that the rows of the tables must imply.

A stable table keeps activations and what is learned at one size. `Stable` has the exceptions of each paper. Sizes are
per coordinate, RMS, in the ratios to the base. Sources: MSSP (HiLD 2026), sections 3 and 4, Tables B.1, B.2; Why
Routers Freeze (HiLD 2026), section 3, Tables 1, 2; 2601.20205, Table 1; 2605.23893, Table 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paper_claims import Claim

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, active, active_width, depth, expert_ratio, experts, width
from hpxfer.scaling.table import Column, Conventions

SMALL = width**-0.5
ATTENTION = ("attn_q", "attn_k", "attn_v")
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")
DOWN = ("expert_out", "shared_out", "dense_out")
RATIOS = ("expert_ratio", "dense_ratio")
LAYOUT = ("experts", "active", "active_width", *RATIOS)  # what describes a MoE layer
SLOW = ("width", "kappa")  # where these change, an SGD step is as small as a first gradient that is a fluctuation


@dataclass(frozen=True, kw_only=True)
class Stable:
    """The claims in which one stable table differs from the others, without the depth factor of every branch."""

    source: str
    # The router's logits before training: of order 1, of order width^-1/2, or exactly zero.
    logits: Monomial = ONE
    # The output of a single expert, without gate and multiplier: by W_0, and by what training adds to W.
    start: Monomial = ONE
    update: Monomial = ONE
    # The gated sum of the experts, by W_0 and by W - W_0.
    sum_start: Monomial = ONE
    sum_update: Monomial = ONE
    # Role -> gradient, where it differs from width^-1; and role -> ratios that must not change for the claim.
    gradients: Mapping[str, Monomial] = field(default_factory=dict)
    gradients_still: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    faint: tuple[str, ...] = ()  # roles whose first gradient is mainly a part that fades as width^-1/2


def of_experts(router: Any, up: Any, down: Any) -> dict[str, Any]:
    """Return role -> value: of the router, of the matrices that read the stream, and of the output matrix."""
    return {"router": router, "expert_in": up, "expert_gate": up, "expert_out": down}


MSSP = "MSSP 3, Tables B.1 and B.2, Q.4"
ROUTER_STILL = of_experts(("width",), (), ())
_I = Stable(source=MSSP, logits=SMALL, gradients_still=ROUTER_STILL, gradients=of_experts(ONE, width**-1, width**-1))
_II = of_experts(width**-1, width**-1, width**-2)
_III = Stable(source=MSSP, gradients=of_experts(width**-1, width**-2, width**-2), gradients_still=ROUTER_STILL)
START = expert_ratio**0.5 * active_width**0.5
COMPLETEP_MOE = Stable(
    source="2601.20205 Table 1",
    logits=SMALL,
    start=expert_ratio**-0.5,  # the source's choice: fan-in breaks the collapse of loss curves (Fig. 11)
    sum_start=active**-0.5 * expert_ratio**-0.5,
    gradients=of_experts(active**-1, width**-1 * experts**-1 * expert_ratio**-1, width**-1 * experts**-1),
    gradients_still=of_experts(("width", "expert_ratio"), (), ()),
)
# By fan-in the random part of the output keeps its size, and so does what it sends back to the matrix before it.
OF_FAN_IN = replace(
    COMPLETEP_MOE,
    source="2601.20205 Fig. 11",
    start=ONE,
    sum_start=active**-0.5,
    gradients_still=of_experts(("width", "expert_ratio"), ("expert_ratio",), ()),
)
STABLE: Mapping[str, Stable] = {
    "mup": Stable(
        source="2203.03466 Table 3",
        logits=SMALL,
        gradients_still={**of_experts(("width", *RATIOS), RATIOS, ()), "dense_in": RATIOS, "dense_gate": RATIOS},
    ),
    "mup-moe": Stable(
        source="Why Routers Freeze Tables 1 and 2",
        logits=SMALL,
        gradients=of_experts(ONE, width**-1, width**-1),
        gradients_still=ROUTER_STILL,
    ),
    "completep": Stable(source="2505.01618 Table 1"),
    "completep-moe": COMPLETEP_MOE,
    "complete-mue": Stable(
        source="2605.23893 Table 2",
        start=START,
        update=expert_ratio,
        sum_start=active**0.5 * active_width**-1 * START,
        sum_update=active * active_width**-1 * expert_ratio,
        gradients_still={
            **of_experts(("width", *LAYOUT), LAYOUT, LAYOUT),
            **dict.fromkeys(("dense_in", "dense_gate", "dense_out", "shared_in", "shared_gate", "shared_out"), LAYOUT),
        },
    ),
    "mup-i": _I,
    "mup-ii": Stable(
        source=MSSP,
        sum_start=experts**-0.5,
        gradients=_II,
        gradients_still=of_experts(("width",), ("width",), ()),
        faint=("expert_in", "expert_gate"),  # W3_0 W4_0 is the largest of the four parts of df/dh2 (MSSP I.6.1)
    ),
    "mup-iii": replace(_III, sum_start=experts**-0.5),
    "mssp-i": replace(_I, logits=ZERO),
    "mssp-ii": Stable(source=MSSP, start=experts**0.5, gradients=_II),
    "mssp-iii": _III,
}


def claims_of(choice: Parameterization, optimizer: Column) -> tuple[Claim, ...]:
    """Return what is claimed of a table; nothing of the control."""
    conventions, name = dict(choice.conventions), choice.name
    if name == "ntp":
        return tuple(_lazy(conventions))
    if name not in STABLE:
        return ()
    table = OF_FAN_IN if conventions.get("expert_out_init") == "fan_in" else STABLE[name]
    exponent = conventions.get("router_init_exponent")
    if exponent == "inf" or conventions.get("router_init") == "zero":
        table = replace(table, logits=ZERO)
    elif exponent is not None:
        table = replace(table, logits=width ** (0.5 - float(exponent)))
    return tuple(_stable(table, conventions, optimizer))


def _lazy(conventions: Conventions) -> Iterator[Claim]:
    """Yield the claims of NTP (MSSP Table G.1): activations of order 1, and what is learned vanishes."""
    source, maps = "MSSP Table G.1", (*ATTENTION, "attn_out", *UP, *DOWN)
    vectors = ("embedding", "position", "norm", "hidden_bias", "final_norm")
    for role in ("embedding", "position", *maps, "router", "readout"):
        yield Claim(quantity="activation", role=role, size=ONE, source=source)
    for quantity, roles in (("change", vectors[:2]), ("weight change", vectors[2:]), ("effective", maps)):
        yield from (Claim(quantity=quantity, role=role, size=SMALL, source=source) for role in roles)
    yield from (Claim(quantity="gradient", role=role, size=SMALL, source=source) for role in (*maps, *vectors))
    size = SMALL if conventions["readout"] == "forward" else ONE
    yield Claim(quantity="gradient", role="readout", size=size, source=source)


def _stable(table: Stable, conventions: Conventions, optimizer: Column) -> Iterator[Claim]:
    alpha, tied = float(conventions.get("depth_alpha", 1.0)), conventions.get("embeddings") == "tied"
    branch, inner = depth**-alpha, depth ** (alpha - 1)  # multiplier of a branch; LR inside it
    zero_readout = conventions.get("readout_init") == "zero"
    gains = ONE if conventions.get("depth_lr") == "matrices" else inner
    readout = ZERO if zero_readout else SMALL

    def claim(quantity: str, role: str, size: Monomial, *still: str) -> Claim:
        # Behind a zero readout nothing but the readout moves in the first update, and no gradient reaches the others.
        if zero_readout and role != "readout" and "activation" not in quantity and quantity != "aggregate init":
            size, still = ZERO, ()
        return Claim(quantity=quantity, role=role, size=size, source=table.source, still=still)

    for role in ("embedding", "position", "stream", "final_norm", "gates", *ATTENTION, *UP):
        yield claim("activation", role, ONE)
    for role in ("embedding", "position"):
        yield claim("change", role, ONE)
    yield claim("weight change", "norm", gains)
    yield claim("weight change", "hidden_bias", gains, *(LAYOUT if optimizer == "sgd" else ()))
    yield claim("weight change", "final_norm", ONE)
    for role in (*ATTENTION, *UP):
        slow = optimizer == "sgd" and role in table.faint
        yield claim("effective", role, inner, *(SLOW if slow else ("kappa",) if role.startswith("expert") else ()))
    yield claim("activation", "attn_out", branch)
    yield claim("effective", "attn_out", branch * inner)
    for role, start, update, still in (
        ("expert_out", table.start, table.update * inner, ()),
        ("dense_out", branch, branch * inner, ()),
        ("shared_out", branch, branch * inner, LAYOUT),
    ):
        yield claim("activation", role, start, *still)
        yield claim("effective", role, update, *(still or (("kappa",) if role == "expert_out" else ())))
    yield claim("aggregate init", "expert_out", branch * table.sum_start)
    yield claim("aggregate effective", "expert_out", branch * inner * table.sum_update)
    yield claim("effective", "router", inner, *(SLOW if optimizer == "sgd" else ("kappa",)))
    yield claim("activation", "router", table.logits)
    yield claim("effective", "readout", ONE, *(("width",) if tied else ()))
    if not tied:
        yield claim("activation", "readout", readout)
    forward = conventions.get("readout") == "forward"
    yield claim("gradient", "readout", width**-1 if forward else ONE)
    for role in ("embedding", "position", "final_norm"):
        yield claim("gradient", role, width**-1)
    for role in (*ATTENTION, "attn_out", "norm", *UP, *DOWN, "router"):
        # What training aligns in the experts is smaller by `inner` than their random part.
        fading = ("depth",) if role == "router" and inner != ONE else ()
        size = branch * table.gradients.get(role, width**-1)
        yield claim("gradient", role, size, *table.gradients_still.get(role, ()), *fading)
