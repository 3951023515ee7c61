"""The network that the options of `hpxfer limit` ask for."""

from __future__ import annotations

from typing import Any, get_args

from hpxfer.cli.options import read_hps
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.limit import network as words
from hpxfer.limit.given import Loss
from hpxfer.limit.network import ROLES, Network

# Option -> the regimes that read it, and what it is by default there.
ONLY: dict[str, dict[str, Any]] = {
    "experts": {"I": 4},
    "matrices": {"I": 1},
    "kappa": {"II": 0.5, "III": 0.5, "residual": 0.5},
    "expert_width": {"II": 2, "residual": None},
    "iota": {"III": 0.25, "I": 0.25, "residual": 0.25},
    "depth": {"residual": 3},
    "bias": {"I": "none", "residual": "fixed"},
    "bias_std": {"I": 1.0, "residual": 1.0},
}
LEGAL: dict[str, tuple[str, ...]] = {
    "regime": words.REGIMES,
    "parameterization": get_args(words.Style),
    "loss": get_args(Loss),
    "gate": get_args(words.Gate),
    "activation": get_args(words.Activation),
    "input_activation": get_args(words.Activation),
    "aggregation": get_args(words.Aggregation),
    "bias": get_args(words.RouterBias),
}


def network_of(asked: dict[str, Any]) -> Network:
    """Return the network. Raise HpxferError for options that do not go together."""
    for option, legal in LEGAL.items():
        if asked[option] is not None and asked[option] not in legal:
            raise HpxferError(
                f"--{option.replace('_', '-')}: got {shown(asked[option])}; {nearest(asked[option], legal)}"
            )
    regime = asked["regime"]
    if regime is None or asked["parameterization"] is None:
        lacks = "--regime" if regime is None else "--parameterization"
        raise HpxferError(f"limit: needs --regime and --parameterization, or --against, or --bias-rate; got no {lacks}")
    values = {option: _of_regime(option, asked[option], regime) for option in ONLY}
    gate: words.Gate = asked["gate"] or "sigmoid"
    init, lr_mult = _constants(asked["hp"] or ())
    if regime == "residual":
        init = {"router": 0.0, **init}  # as the paper starts it
    if values["matrices"] not in (1, 2, None):
        raise HpxferError(f"--matrices: must be 1 or 2, got {values['matrices']}")
    _require_read(asked, values, init, lr_mult)
    if regime == "I" and values["matrices"] == 1 and asked["iota"] is not None:
        raise HpxferError(
            "--iota: an expert with one matrix has the width of the model; leave it out, or give --matrices 2"
        )
    return Network(
        regime=regime,
        parameterization=asked["parameterization"],
        gate=gate,
        activation=asked["activation"] or "linear",
        input_activation=asked["input_activation"] or "linear",
        aggregation=asked["aggregation"] or ("1/K" if gate == "sigmoid" else "none"),
        num_experts=values["experts"],
        expert_matrices=values["matrices"] or 2,
        expert_ratio=1.0 if values["iota"] is None else values["iota"],
        expert_width=values["expert_width"],
        experts_per_width=1.0 if values["kappa"] is None else values["kappa"],
        depth=1 if values["depth"] is None else values["depth"],
        router_bias=values["bias"] or "none",
        router_bias_std=1.0 if values["bias_std"] is None else values["bias_std"],
        init_mult=init,
        lr_mult=lr_mult,
        **_active(asked["top_k"], regime, values["experts"]),
    )


def _require_read(asked: dict[str, Any], values: dict[str, Any], init: dict[Any, float], lr: dict[Any, float]) -> None:
    """Raise HpxferError for constants of what the network does not have: they would change nothing."""
    if asked["bias_std"] is not None and values["bias"] == "none":
        raise HpxferError("--bias-std: the router has no bias; leave it out, or give --bias fixed")
    if "router_bias" in init:
        raise HpxferError("--hp router_bias: its multipliers of the start are not read; the std is --bias-std")
    if "router_bias" in lr and (asked["regime"], values["bias"]) != ("I", "learned"):
        raise HpxferError("--hp router_bias.lr_mult: read in regime I with --bias learned alone; leave it out")
    if values["matrices"] == 1 and "expert_in" in {*init, *lr}:
        raise HpxferError("--hp expert_in: an expert with one matrix has expert_out alone; or give --matrices 2")


def _of_regime(option: str, value: Any, regime: str) -> Any:
    """Return an option that only some regimes read, or its default there."""
    if regime in ONLY[option]:
        return ONLY[option][regime] if value is None else value
    if value is not None:
        *others, last = ONLY[option]
        readers = f"{', '.join(others)} and {last}" if others else last
        name = f"--{option.replace('_', '-')}"
        raise HpxferError(f"{name}: read in regime {readers}, got regime {regime}; leave it out")
    return None


def _active(top_k: float | None, regime: str, experts: int | None) -> dict[str, Any]:
    """Return which experts are active, as a number in regime I and as a share elsewhere."""
    if top_k is None:
        return {}
    if regime != "I" or experts is None:
        if not 0 < top_k <= 1:
            raise HpxferError(f"--top-k: must be the share of active experts, above 0 and at most 1, got {top_k:g}")
        return {"active_share": top_k}
    number = top_k * experts if top_k < 1 else top_k
    if not 1 <= number <= experts or number != round(number):
        raise HpxferError(
            f"--top-k: must be a whole number of the {experts} experts, or a share of them, got {top_k:g}"
        )
    return {"num_active": round(number)}


def _constants(given: Any) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return the factors of init std and of LR by role. A forward multiplier m is the factors m and m^2."""
    init: dict[Any, float] = {}
    lr: dict[Any, float] = {}
    legal = [f"{role}.{kind}" for role in ROLES for kind in ("init_mult", "lr_mult", "forward_mult")]
    for name, value in read_hps(given).items():
        if name not in legal:
            raise HpxferError(f"--hp: unknown multiplier {shown(name)}; {nearest(name, legal)}")
        role, _, kind = name.partition(".")
        if kind != "lr_mult":
            init[role] = init.get(role, 1.0) * value
        if kind != "init_mult":
            lr[role] = lr.get(role, 1.0) * (value * value if kind == "forward_mult" else value)  # inf is refused later
    return init, lr
