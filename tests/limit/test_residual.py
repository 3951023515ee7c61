"""The residual limit: gradients, sites and refusals, and the mean of finite networks, which detect what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agreement import deviations, finite, limit_of, worst
from finite_net import ACTIVATIONS
from fixture_types import Patch

from hpxfer.errors import HpxferError
from hpxfer.limit import Batch, Given, Network, residual, solve
from hpxfer.limit.residual import Experts, draw, sizes

START: dict[str, Any] = {"router": 0.0}


def network(**changed: Any) -> Network:
    known: dict[str, Any] = {
        "regime": "residual",
        "parameterization": "mup",
        "activation": "tanh",
        "depth": 2,
        "router_bias": "fixed",
        "init_mult": START,
        "lr_mult": rates(8.0),
    }
    return Network(**(known | changed))


def rates(experts: float, router: float | None = None) -> dict[str, float]:
    return {"expert_in": experts, "expert_out": experts, "router": experts if router is None else router}


def batches(steps: int, *, same: bool = True, classes: bool = False) -> Given:
    """Return a training of four samples with three inputs and two outputs, or two classes."""
    rng, made = np.random.default_rng(0), []
    for _ in range(1 if same else steps + 1):
        x = rng.standard_normal((4, 3))
        y = np.array([0, 1, 1, 0]) if classes else np.stack([x[:, 0] * x[:, 1] + 0.5, x[:, 2]], axis=1)
        made.append(Batch(inputs=x, targets=y))
    loss: Any = {"loss": "cross_entropy", "num_classes": 2} if classes else {}
    return Given(batches=tuple(made * (steps + 1) if same else made), lrs=(0.1,) * steps, **loss)


# Against finite networks.

WIDE, DEEP = rates(16.0), rates(12.0)
CASES: dict[str, dict[str, Any]] = {
    "tanh": {"activation": "tanh", "lr_mult": WIDE},
    "relu, 3 blocks": {"activation": "relu", "depth": 3, "lr_mult": DEEP},
    "gelu, top-K": {"activation": "gelu", "active_share": 0.25, "lr_mult": {"router": 4.0}},
    "linear, readout 0, iota, kappa, beta, 1/M": {
        "activation": "linear",
        "expert_ratio": 0.5,
        "experts_per_width": 2.0,
        "inverse_temperature": 2.0,
        "aggregation": "1/M",
        "active_share": 0.5,
        "init_mult": {**START, "readout": 0.0, "embedding": 1.5},
        "lr_mult": WIDE,
    },
    "other samples at every step, learned bias": {"activation": "tanh", "router_bias": "learned", "lr_mult": WIDE},
    "cross entropy, no bias": {"activation": "gelu", "router_bias": "none", "lr_mult": WIDE},
    "fixed expert width": {"activation": "tanh", "depth": 2, "expert_width": 2, "lr_mult": rates(4.0, router=8.0)},
}
TRAININGS = {
    "other samples at every step, learned bias": batches(5, same=False),
    "cross entropy, no bias": batches(5, classes=True),
    "fixed expert width": batches(7),
}
# Widths and seeds: more where one network costs little or spreads far.
SIZES = {"relu, 3 blocks": ((16, 32), 200), "fixed expert width": ((12, 24), 120)}


def z(name: str, **changed: Any) -> dict[str, np.ndarray]:
    """Return how far the limit of a network that is changed is from the finite networks of a case."""
    of, given = network(**{"depth": 1, **CASES[name]}), TRAININGS.get(name, batches(5))
    truth = finite(of, given, *SIZES.get(name, ((24, 48), 100)))
    return deviations(limit_of(residual.passes, replace(of, **changed), given, sites=2**15), truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_limit_is_the_mean_of_finite_networks(name: str) -> None:
    assert worst(z(name)) < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tanh", {"activation": "linear"}),
        ("relu, 3 blocks", {"activation": "tanh"}),
        ("relu, 3 blocks", {"depth": 1}),
        ("relu, 3 blocks", {"init_mult": {**START, "expert_out": 0.0}}),
        ("gelu, top-K", {"active_share": 1.0}),
        ("linear, readout 0, iota, kappa, beta, 1/M", {"aggregation": "1/K"}),
    ],
)
def test_another_network_is_detected(name: str, changed: dict[str, Any]) -> None:
    assert np.abs(z(name, **changed)["loss"]).max() > 8


@pytest.mark.slow
def test_a_router_that_is_frozen_is_detected() -> None:
    assert worst(z("fixed expert width", lr_mult=rates(4.0, router=0.0))) > 8


@pytest.mark.slow
def test_a_stream_without_the_direction_of_the_readout_is_detected(monkeypatch: Patch) -> None:
    def without(*given: Any) -> Experts:
        start = draw(*given)
        start.reads[..., 3:] = start.writes[..., 3:] = 0.0
        return start

    monkeypatch.setattr(residual, "draw", without)
    assert np.abs(z("relu, 3 blocks")["loss"]).max() > 8


# By itself.

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 3))
Y = np.stack([X[:, 0] * X[:, 1] + 0.5, X[:, 2]], axis=1)


def given(steps: int = 5, x: np.ndarray = X, y: np.ndarray = Y, lr: float = 0.1) -> Given:
    return Given.full_batch(Batch(inputs=x, targets=y), steps=steps, lr=lr)


def loss_of(of: Network, training: Given, sites: int = 2**13, seed: int = 0) -> float:
    return residual.passes(of, training, sites=sites, seed=seed)[-1].numbers["loss"]


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
                chosen = torch.argsort(-logits, dim=1, stable=True)[:, :count]
                gates = gates * torch.zeros_like(gates).scatter(1, chosen, 1.0)
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


@pytest.mark.first
@pytest.mark.parametrize(
    "changed",
    [
        {"expert_ratio": 0.5, "experts_per_width": 3.0, "inverse_temperature": 2.0},
        {"activation": "relu", "expert_width": 3, "aggregation": "1/M"},
        {"activation": "linear", "active_share": 0.25},
        {"activation": "gelu", "expert_width": 1, "active_share": 0.5, "depth": 3},
    ],
    ids=["constants", "fixed width", "top-K", "one neuron"],
)
def test_the_backward_pass_is_autograd(changed: dict[str, Any]) -> None:
    of, sites = network(**changed), 2**14
    found = [each.outputs for each in residual.passes(of, given(), sites=sites, seed=2)]
    assert np.abs(found[-1] - found[0]).max() > 0.1
    for one, other in zip(found, by_autograd(of, 5, 0.1, sites, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def spread(of: Network, sites: int, seeds: int = 6) -> float:
    return float(np.std([loss_of(of, given(4), sites, seed) for seed in range(seeds)], ddof=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{}, {"expert_width": 2}, {"active_share": 0.25}], ids=["wide", "fixed width", "top-K"]
)
def test_the_error_falls_with_the_sites(changed: dict[str, Any]) -> None:
    few, many = (spread(network(**changed), sites) for sites in (2**14, 2**16))
    assert many < few / 1.5


def test_linear_experts_need_no_sampled_neurons() -> None:
    assert spread(network(activation="linear"), 2**12, seeds=3) < 1e-12


def test_how_the_work_is_cut_changes_nothing(monkeypatch: Patch) -> None:
    of = network(expert_ratio=0.5)
    whole = residual.passes(of, given(2), sites=2**12, seed=0)
    for at_once in (100, 5000):  # a part of an expert, and some experts
        monkeypatch.setattr(residual, "_AT_ONCE", at_once)
        parts = residual.passes(of, given(2), sites=2**12, seed=0)
        np.testing.assert_allclose(parts[-1].outputs, whole[-1].outputs, rtol=0, atol=1e-12)


def test_more_inputs_than_samples_have_the_directions_of_the_samples() -> None:
    """The inputs matter by their inner products and their number alone."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((50, 50)))[0][:, :3]
    scale = (50 / 3) ** 0.5  # the embedding starts with D^-1/2
    of = network(lr_mult={**network().lr_mult, "embedding": 0.0})
    assert loss_of(of, given(x=scale * X @ turn.T)) == pytest.approx(loss_of(of, given()), abs=0.02)
    assert residual.bytes_needed(of, given(x=X @ turn.T), 2**13) == residual.bytes_needed(of, given(), 2**13)


def test_a_readout_of_zero_has_no_direction_of_its_own() -> None:
    of = network(init_mult={"router": 0.0, "readout": 0.0})
    first, second = residual.passes(of, given(1), sites=2**12, seed=0)
    assert not first.outputs.any()
    assert second.outputs.any()


def test_infinite_depth_is_reached_by_lr_multipliers_of_the_depth() -> None:
    def loss(depth: int, factor: float) -> float:
        return loss_of(network(activation="linear", depth=depth, lr_mult=rates(4.0 * factor)), given(8), 2**12)

    deep = [loss(depth, depth) for depth in (2, 4, 8, 16)]
    steps = np.abs(np.diff(deep))
    assert (steps[1:] < 0.7 * steps[:-1]).all()  # 1/L
    assert abs(loss(16, 1.0) - deep[-1]) > 10 * steps[-1]  # blocks that learn less and less


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"parameterization": "mssp"}, "must be mup"),
        ({"input_activation": "tanh"}, "must be linear"),
        ({"init_mult": {}}, "router.init_mult: must be 0"),
        ({"router_bias": "schedule"}, "got schedule"),
        ({"expert_matrices": 1}, "must be 2"),
        ({"depth": 0}, "depth: must be greater than or equal to 1"),
        ({"expert_width": 0}, "expert_width: must be greater than or equal to 1"),
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
    found = solve(network(), given(), sites=1024, seeds=2)
    assert found.series["loss"].mean[-1] < found.series["loss"].mean[0]
    assert not found.is_exact


def test_sizes_past_memory_are_refused(monkeypatch: Patch) -> None:
    monkeypatch.setattr("hpxfer.limit.refused.host_bytes", lambda: 2**20)
    with pytest.raises(HpxferError, match="GiB of memory"):
        solve(network(), given(), sites=2**16)


def test_the_default_sites_are_enough_for_the_directions() -> None:
    x, y = np.split(np.random.default_rng(0).standard_normal((9, 10)), [9], axis=1)
    few, training = network(active_share=0.25, depth=1), given(0, x, y)
    assert solve(few, training, seeds=1).num_sites == 65536
    with pytest.raises(HpxferError, match=r"sites: must be at least 65536, .* the 10 directions .*, got 32768"):
        solve(few, training, seeds=1, sites=32768)
    assert solve(network(depth=1), training, seeds=1).num_sites == 32768
