"""The residual limit is the mean of finite networks, extrapolated in 1/N. What is left out is detected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from residual_net import Net

from hpxfer.limit import residual
from hpxfer.limit.given import Batch, Given
from hpxfer.limit.network import Network
from hpxfer.limit.residual_draws import Experts

pytestmark = pytest.mark.slow

Numbers = Mapping[str, np.ndarray]  # [seeds, passes] of every number

LR = 0.1
SITES = 2**15
SOLVER_SEEDS = 4
SQUARES = ("h1_rms", "h3_rms")  # whose squares are means over coordinates, and so nearly linear in 1/N
START = {"router": 0.0}


def batches(steps: int, *, same: bool = True, classes: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, out = np.random.default_rng(0), []
    for _ in range(1 if same else steps + 1):
        x = rng.standard_normal((4, 3))
        y = np.stack([x[:, 0] * x[:, 1] + 0.5, x[:, 2]], axis=1)
        out.append((x, np.array([0, 1, 1, 0]) if classes else y))
    return out * (steps + 1) if same else out


def collected(runs: Sequence[Sequence[Mapping[str, float]]]) -> Numbers:
    def power(name: str) -> int:
        return 2 if name in SQUARES else 1

    return {name: np.array([[at[name] for at in run] for run in runs]) ** power(name) for name in runs[0][0]}


def limit(network: Network, steps: int, **of_batches: bool) -> Numbers:
    """Return the numbers of the solver."""
    data = batches(steps, **of_batches)
    classes = 2 if of_batches.get("classes") else 0
    given = Given(
        batches=tuple(Batch(inputs=x, targets=y) for x, y in data),
        lrs=(LR,) * steps,
        loss="cross_entropy" if classes else "squared_error",
        num_classes=classes,
    )
    runs = [residual.passes(network, given, sites=SITES, seed=seed) for seed in range(SOLVER_SEEDS)]
    return collected([[each.numbers for each in run] for run in runs])


def finite(net: Net, steps: int, seeds: int, **of_batches: bool) -> Numbers:
    """Return the numbers of finite networks."""
    data = [(torch.tensor(x), torch.tensor(y)) for x, y in batches(steps, **of_batches)]
    loss = "cross_entropy" if of_batches.get("classes") else "squared_error"
    return collected([net.train(data, LR, seed, loss) for seed in range(seeds)])


def deviations(solved: Numbers, small: Numbers, large: Numbers) -> dict[str, float]:
    """Return the largest |z| over passes of every number. `large` has twice the width of `small`: c/N is taken out."""
    out = {}
    for name, numbers in solved.items():
        few, many = small[name], large[name]
        off = 2 * many.mean(0) - few.mean(0) - numbers.mean(0)
        variance = 4 * many.var(0, ddof=1) / len(many) + few.var(0, ddof=1) / len(few)
        variance += numbers.var(0, ddof=1) / len(numbers)
        out[name] = float(np.max(np.abs(off) / np.sqrt(variance + 1e-18)))
    return out


WIDE = {"expert_in": 16.0, "expert_out": 16.0, "router": 16.0}
DEEP = {"expert_in": 12.0, "expert_out": 12.0, "router": 12.0}
CASES: dict[str, dict[str, Any]] = {
    "tanh": {"network": {"activation": "tanh"}, "net": {"act": "tanh"}, "rates": WIDE},
    "relu, 3 blocks": {
        "network": {"activation": "relu", "depth": 3},
        "net": {"act": "relu", "depth": 3},
        "rates": DEEP,
        "sizes": (16, 32),
        "seeds": 200,
    },
    "gelu, top-K": {
        "network": {"activation": "gelu", "active_share": 0.25},
        "net": {"act": "gelu", "share": 0.25},
        "rates": {"router": 4.0},
    },
    "linear, readout 0, iota, kappa, beta, 1/M": {
        "network": {
            "expert_ratio": 0.5,
            "experts_per_width": 2.0,
            "inverse_temperature": 2.0,
            "aggregation": "1/M",
            "active_share": 0.5,
            "init_mult": {**START, "readout": 0.0, "embedding": 1.5},
        },
        "net": {
            "iota": 0.5,
            "kappa": 2,
            "beta": 2.0,
            "over_all": True,
            "share": 0.5,
            "std": {"readout": 0.0, "embedding": 1.5},
        },
        "rates": WIDE,
    },
    "other samples at every step, learned bias": {
        "network": {"activation": "tanh", "router_bias": "learned"},
        "net": {"act": "tanh", "is_bias_trained": True},
        "rates": WIDE,
        "batches": {"same": False},
    },
    "cross entropy, no bias": {
        "network": {"activation": "gelu", "router_bias": "none"},
        "net": {"act": "gelu", "bias_std": 0.0},
        "rates": WIDE,
        "batches": {"classes": True},
    },
}


def net_of(
    width: int, rates: Mapping[str, float], *, iota: float = 1.0, kappa: int = 1, share: float = 1.0, **rest: Any
) -> Net:
    experts = kappa * width
    return Net(width, experts, int(iota * width), num_active=int(share * experts), rate=dict(rates), **rest)


@cache
def nets_of(name: str, steps: int = 5) -> tuple[Numbers, Numbers]:
    case = CASES[name]
    few, many = case.get("sizes", (24, 48))
    return tuple(  # type: ignore[return-value]
        finite(net_of(width, case["rates"], **case["net"]), steps, case.get("seeds", 100), **case.get("batches", {}))
        for width in (few, many)
    )


def network_of(name: str, **changed: Any) -> Network:
    case = CASES[name]
    known = {"router_bias": "fixed", "init_mult": START, "lr_mult": case["rates"], **case["network"], **changed}
    return Network(regime="residual", parameterization="mup", **known)


@pytest.mark.parametrize("name", CASES)
def test_the_limit_is_the_mean_of_finite_networks(name: str) -> None:
    found = deviations(limit(network_of(name), 5, **CASES[name].get("batches", {})), *nets_of(name))
    assert max(found.values()) < 4


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tanh", {"activation": "linear"}),
        ("tanh", {"activation": "relu"}),
        ("relu, 3 blocks", {"activation": "tanh"}),
        ("relu, 3 blocks", {"depth": 1}),
        ("relu, 3 blocks", {"init_mult": {**START, "expert_out": 0.0}}),
        ("gelu, top-K", {"active_share": 1.0}),
        ("linear, readout 0, iota, kappa, beta, 1/M", {"aggregation": "1/K"}),
    ],
)
def test_another_network_is_detected(name: str, changed: dict[str, Any]) -> None:
    found = deviations(limit(network_of(name, **changed), 5), *nets_of(name))
    assert found["loss"] > 8


def test_a_stream_without_the_direction_of_the_readout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*given: Any) -> Experts:
        start = real(*given)
        start.reads[..., 3:] = start.writes[..., 3:] = 0.0
        return start

    real = residual.draw
    monkeypatch.setattr(residual, "draw", draw)
    found = deviations(limit(network_of("relu, 3 blocks"), 5), *nets_of("relu, 3 blocks"))
    assert found["loss"] > 8


def fixed_width(width: int, router: float) -> Net:
    """Return a network with N_e = 2, M = 2 N^2, the LRs of regime II, and W3 with std (N/N_e)^1/2."""
    experts = 2 * width**2
    rates = {"expert_in": 4 / width, "expert_out": 4 * width, "router": router * experts / width}
    return Net(width, experts, 2, depth=2, act="tanh", rate=rates, std={"expert_out": width**0.5})


def test_fixed_expert_width_and_its_frozen_router() -> None:
    steps = 7
    nets = [finite(fixed_width(width, 8.0), steps, 120) for width in (12, 24)]

    def of(router: float) -> Numbers:
        rates = {"expert_in": 4.0, "expert_out": 4.0, "router": router}
        network = Network(
            regime="residual",
            parameterization="mup",
            activation="tanh",
            depth=2,
            expert_width=2,
            router_bias="fixed",
            init_mult=START,
            lr_mult=rates,
        )
        return limit(network, steps)

    found, frozen = deviations(of(8.0), *nets), deviations(of(0.0), *nets)
    assert max(found.values()) < 4
    assert max(frozen.values()) > 8
