"""The solver of the residual limit by itself: gradients, sites, sizes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hpxfer.errors import HpxferError
from hpxfer.limit import residual, residual_block, solve
from hpxfer.limit.given import Batch, Given
from hpxfer.limit.network import Network
from hpxfer.limit.residual_draws import draw, sizes

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 3))
Y = np.stack([X[:, 0] * X[:, 1] + 0.5, X[:, 2]], axis=1)
ACTIVATIONS = {"linear": lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}


def network(**changed: Any) -> Network:
    known: dict[str, Any] = {
        "regime": "residual",
        "parameterization": "mup",
        "activation": "tanh",
        "depth": 2,
        "router_bias": "fixed",
        "init_mult": {"router": 0.0},
        "lr_mult": {"expert_in": 8.0, "expert_out": 8.0, "router": 8.0},
    }
    return Network(**(known | changed))


def given(steps: int = 5, lr: float = 0.1, **changed: Any) -> Given:
    batch = Batch(inputs=changed.pop("x", X), targets=changed.pop("y", Y))
    return Given.full_batch(batch, steps=steps, lr=lr, **changed)


def by_autograd(of: Network, steps: int, lr: float, sites: int, seed: int) -> list[np.ndarray]:
    """Return the outputs of the reduced network with gradients of torch and LRs by the mean-field rule."""
    directions = X.shape[1] + Y.shape[1]
    split = sizes(of, directions, sites)
    starts = [draw(of, split, directions, np.random.default_rng([seed, block])) for block in range(of.depth)]
    iota = of.expert_ratio if of.expert_width is None else of.expert_width
    kappa = of.experts_per_width if of.expert_width is None else 1.0
    each = (1 / of.active_share if of.aggregation == "1/K" else 1.0) / of.depth
    x, y = torch.tensor(X), torch.tensor(Y)
    basis = torch.linalg.svd(x).Vh[: X.shape[1]]
    weights = {
        "embedding": torch.eye(directions, X.shape[1], dtype=torch.float64) @ basis / X.shape[1] ** 0.5,
        "readout": torch.eye(directions, dtype=torch.float64)[:, X.shape[1] :],
        "router": torch.zeros(of.depth, split.experts, directions, dtype=torch.float64),
        "expert_in": torch.tensor(np.stack([start.reads for start in starts])),
        "expert_out": torch.tensor(np.stack([start.writes for start in starts])) / iota**0.5,
    }
    out = []
    for _ in range(steps + 1):
        weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
        c = x @ weights["embedding"].T
        for block, start in enumerate(starts):
            share, bias = torch.tensor(start.share), torch.tensor(start.bias)
            logits = c @ weights["router"][block].T + bias
            gates = torch.sigmoid(of.inverse_temperature * logits)
            if of.active_share < 1:
                count = round(of.active_share * split.experts)
                gates = gates * torch.zeros_like(gates).scatter(
                    1, torch.argsort(-logits, dim=1, stable=True)[:, :count], 1.0
                )
            a = ACTIVATIONS[of.activation](torch.einsum("pr,ijr->pij", c, weights["expert_in"][block]))
            of_expert = torch.einsum("pij,ijr->pir", a, weights["expert_out"][block]) / split.neurons
            c = c + each * iota * torch.einsum("pi,i,pir->pr", gates, share, of_expert)
        f = c @ weights["readout"]
        out.append(f.detach().numpy())
        loss = ((f - y) ** 2).sum(1).mean()
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        for block, start in enumerate(starts):
            share = torch.tensor(start.share)
            gradients["router"][block] /= kappa * share[:, None]
            for name in ("expert_in", "expert_out"):
                gradients[name][block] *= split.neurons / iota / share[:, None, None]
        weights = {name: value - lr * of.rate(name) * gradients[name] for name, value in weights.items()}  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"activation": "gelu", "expert_ratio": 0.5, "experts_per_width": 3.0, "inverse_temperature": 2.0},
        {"activation": "relu", "expert_width": 3, "aggregation": "1/M"},
        {"activation": "linear", "active_share": 0.25},
        {"activation": "gelu", "expert_width": 1, "active_share": 0.5, "depth": 3},
    ],
    ids=["plain", "constants", "fixed width", "top-K", "one neuron"],
)
def test_the_backward_pass_is_autograd(changed: dict[str, Any]) -> None:
    of, sites = network(**changed), 2**14
    found = [each.outputs for each in residual.passes(of, given(), sites=sites, seed=2)]
    assert np.abs(found[-1] - found[0]).max() > 0.1
    for one, other in zip(found, by_autograd(of, 5, 0.1, sites, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def spread(of: Network, sites: int, seeds: int = 6) -> float:
    runs = [residual.passes(of, given(4), sites=sites, seed=seed) for seed in range(seeds)]
    return float(np.std([run[-1].numbers["loss"] for run in runs], ddof=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{}, {"expert_width": 2}, {"active_share": 0.25}], ids=["wide", "fixed width", "top-K"]
)
def test_the_error_falls_with_the_sites(changed: dict[str, Any]) -> None:
    few, many = (spread(network(**changed), sites) for sites in (2**14, 2**16))
    assert many < few / 1.5


def test_linear_experts_need_no_sampled_neurons() -> None:
    assert spread(network(activation="linear"), 2**12) < 1e-12


def test_how_the_work_is_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    of = network(expert_ratio=0.5)
    whole = residual.passes(of, given(), sites=2**13, seed=0)
    for at_once in (100, 5000):  # a part of an expert, and some experts
        monkeypatch.setattr(residual_block, "_AT_ONCE", at_once)
        parts = residual.passes(of, given(), sites=2**13, seed=0)
        np.testing.assert_allclose(parts[-1].outputs, whole[-1].outputs, rtol=0, atol=1e-12)


def test_more_inputs_than_samples_have_the_directions_of_the_samples() -> None:
    """The inputs matter by their inner products and their number alone."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((50, 50)))[0][:, :3]
    scale = (50 / 3) ** 0.5  # the embedding starts with D^-1/2
    of = network(lr_mult={**network().lr_mult, "embedding": 0.0})
    few = residual.passes(of, given(), sites=2**13, seed=0)[-1].numbers["loss"]
    many = residual.passes(of, given(x=scale * X @ turn.T), sites=2**13, seed=0)[-1].numbers["loss"]
    assert many == pytest.approx(few, abs=0.02)
    assert residual.bytes_needed(of, given(x=X @ turn.T), 2**13) == residual.bytes_needed(of, given(), 2**13)


def test_a_readout_of_zero_has_no_direction_of_its_own() -> None:
    of = network(init_mult={"router": 0.0, "readout": 0.0})
    first, second = residual.passes(of, given(), sites=2**13, seed=0)[:2]
    assert not first.outputs.any()
    assert second.outputs.any()


def test_infinite_depth_is_reached_by_lr_multipliers_of_the_depth() -> None:
    def loss(depth: int, factor: float) -> float:
        rates = dict.fromkeys(("router", "expert_in", "expert_out"), 4.0 * factor)
        of = network(activation="linear", depth=depth, lr_mult=rates)
        return residual.passes(of, given(8), sites=2**12, seed=0)[-1].numbers["loss"]

    deep = [loss(depth, depth) for depth in (2, 4, 8, 16)]
    steps = np.abs(np.diff(deep))
    assert (steps[1:] < 0.7 * steps[:-1]).all()  # 1/L
    assert abs(loss(16, 1.0) - deep[-1]) > 10 * steps[-1]  # blocks that learn less and less


def test_solve_reaches_it() -> None:
    found = solve(network(), given(), sites=2**12, seeds=2)
    assert found.series["loss"].mean[-1] < found.series["loss"].mean[0]
    assert not found.is_exact


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parameterization": "mssp"}, "must be mup"),
        ({"input_activation": "tanh"}, "must be linear"),
        ({"init_mult": {}}, "router.init_mult: must be 0"),
        ({"router_bias": "schedule"}, "got schedule"),
        ({"expert_matrices": 1}, "must be 2"),
        ({"depth": 0}, "depth: must be at least 1"),
        ({"expert_width": 0}, "expert_width: must be at least 1"),
        ({"router_bias_std": -1.0}, "router_bias_std"),
        ({"router_bias": "none", "active_share": 0.5}, "all logits are equal"),
        ({"expert_width": 3000}, "expert_width: an expert must have at most"),
    ],
)
def test_what_is_not_derived_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError, match=says):
        solve(network(**changed), given(), sites=2**12)


def test_too_few_sites_are_refused_with_the_number_that_is_enough() -> None:
    with pytest.raises(HpxferError, match=r"sites: must be at least 1024, .* the 5 directions"):
        solve(network(), given(), sites=256)
    solve(network(), given(1), sites=1024, seeds=1)


def test_sizes_past_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpxfer.limit.refused_trainings.host_bytes", lambda: 2**20)
    with pytest.raises(HpxferError, match="GiB of memory"):
        solve(network(), given(), sites=2**16)


def test_the_default_sites_are_enough_for_the_directions() -> None:
    rng = np.random.default_rng(0)
    batch = Batch(inputs=rng.standard_normal((9, 9)), targets=rng.standard_normal((9, 1)))
    given = Given.full_batch(batch, steps=1, lr=0.01)
    few = network(active_share=0.25, depth=1)
    assert solve(few, given, seeds=1).num_sites == 65536
    with pytest.raises(HpxferError, match=r"sites: must be at least 65536, .* the 10 directions .*, got 32768"):
        solve(few, given, seeds=1, sites=32768)
    assert solve(network(depth=1), given, seeds=1).num_sites == 32768
