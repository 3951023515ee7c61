"""What is refused before anything is solved, with the rule, what was got, and a fix; and about how long it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as random_examples
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.limit import Batch, Given, Network, solve
from hpxfer.limit.refused import seconds

X = np.random.default_rng(0).standard_normal((3, 4))
Y = X[:, :1]
TRAINING = Given.full_batch(Batch(inputs=X, targets=Y), steps=2, lr=0.1)
FIXED = Network(regime="I", parameterization="mup", num_experts=4, expert_matrices=1)
MANY = Network(regime="II", parameterization="mssp", expert_width=2)
ALL = Network(regime="III", parameterization="mssp")
RESIDUAL = Network(regime="residual", parameterization="mup", depth=2, init_mult={"router": 0.0})
LOUD = replace(RESIDUAL, router_bias="fixed", router_bias_std=8.1)
WITH_NAN = np.where(np.arange(12).reshape(3, 4) == 5, np.nan, X)


def refused(network: Network, given: Given = TRAINING, **options: Any) -> str:
    """Return the message of a refusal."""
    with pytest.raises(HpxferError) as caught:
        solve(network, given, **{"sites": 64, "seeds": 1, **options})
    return str(caught.value)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (replace(ALL, activation="tanh"), "activation: must be linear in regime III, got tanh: the hidden neurons"),
        (replace(MANY, gate="softmax", aggregation="none"), "gate: must be sigmoid in regime II, got softmax"),
        (replace(MANY, gate="softmax"), "aggregation: must be none, as the weights of this gate sum to one"),
        (replace(FIXED, aggregation="none"), "aggregation: must be 1/K or 1/M with the gate sigmoid, got none"),
        (replace(MANY, expert_width=None), "expert_width: regime II needs N_e"),
        (replace(MANY, expert_matrices=1), "expert_matrices: must be 2 in regime II, got 1"),
        (replace(MANY, router_bias="fixed"), "router_bias: must be none in regime II, got fixed"),
        (replace(MANY, active_share=0.5, init_mult={"router": 0.0}), "active_share: must be 1 in regime II where the"),
        (replace(MANY, active_share=0.0), "active_share: must be greater than 0, got 0.0"),
        (replace(MANY, experts_per_width=float("nan")), "experts_per_width: must be a finite number, got nan"),
        (replace(ALL, expert_ratio=-1.0), "expert_ratio: must be greater than 0, got -1.0"),
        (replace(MANY, init_mult={"router": float("inf")}), "router.init_mult: must be a finite number"),
        (
            replace(MANY, lr_mult={"attn_q": 1.0}),
            "lr_mult: must be a mapping of roles to numbers, of the roles embedding, router",
        ),
        (replace(FIXED, regime="IV"), "regime: must be 'I', 'II', 'III' or 'residual', got 'IV'"),
        (replace(FIXED, activation="silu"), "activation: must be 'linear', 'relu'"),
        (replace(FIXED, expert_matrices=3), "expert_matrices: must be 1 or 2, got 3"),
        (replace(FIXED, num_experts=2.5), "num_experts: must be a valid integer"),
        (replace(FIXED, router_bias_std=-1.0), "router_bias_std: must be greater than or equal to 0, got -1.0"),
        (replace(FIXED, router_bias="fixed"), "router_bias: must be an array of numbers [3 passes, 4 exp"),
        (replace(FIXED, active_share=0.5), "active_share: read in regime II or III or residual, got 0.5 in regime I"),
        (replace(MANY, num_active=2), "num_active: read in regime I, got 2 in regime II; leave it out"),
        (replace(MANY, depth=3), "depth: read in regime residual, got 3 in regime II; leave it out"),
        (replace(ALL, expert_width=2), "expert_width: read in regime II or residual, got 2 in regime III"),
        (replace(MANY, num_experts="4"), "num_experts: must be a valid integer, got '4'"),
        (replace(MANY, expert_ratio=True), "expert_ratio: must be a valid number, got True"),
        (replace(MANY, init_mult=None), "init_mult: must be a mapping of roles to numbers"),
        (
            replace(LOUD, inverse_temperature=2.0),
            "router_bias_std: times inverse_temperature it must be at most 16 in the residual network, got 16.2",
        ),
        (replace(FIXED, num_experts=None), "num_experts: regime I needs the number of its experts, got None"),
        (replace(FIXED, num_active=5), "num_active: must be from 1 to the 4 experts, got 5"),
        (replace(FIXED, num_active=2, init_mult={"router": 0.0}), "num_active: must be the 4 experts where the router"),
    ],
)
def test_networks_without_a_derived_limit(network: Network, message: str) -> None:
    assert refused(network).startswith(message)


def batches(*given: tuple[Any, Any]) -> Given:
    return Given(batches=tuple(Batch(inputs=x, targets=y) for x, y in given), lrs=(0.1,) * (len(given) - 1))


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (batches((X, Y[:2])), "samples: inputs and targets must be as many, got 3 inputs and 2 targets"),
        (batches((X, Y), (X[:, :3], Y)), "pass 1: samples of all passes must have the same sizes, got [3, 3], [3, 1]"),
        (batches((WITH_NAN, Y)), "samples: inputs must be finite, got nan at [1, 1]"),
        (batches((X, np.full((3, 1), np.inf))), "samples: targets must be finite, got inf at [0, 0]"),
        (batches((X[0], Y)), "samples: inputs must be [samples, features], got shape [4]"),
        (batches((X[:0], Y[:0])), "samples: inputs must be [samples, features], got shape [0, 4]"),
        (batches((X, Y[:, 0])), "samples: targets of a squared error must be real numbers"),
        (batches(), "batches: must be a sequence of Batch, at least one, got ()"),
        (replace(TRAINING, lrs=(0.1,)), "lrs: must be a sequence of numbers, one fewer than the 3 passes, got 1"),
        (replace(TRAINING, lrs=(0.1, -1.0)), "lr: must be a finite number of at least 0, got -1.0"),
        (replace(TRAINING, lrs=0.1), "lrs: must be a sequence of numbers, one fewer than the 3 passes, got 0.1"),
        (replace(TRAINING, batches=(X, X, X)), "batches: must be a sequence of Batch, at least one, got "),
        (replace(TRAINING, loss="cross_entropy"), "num_classes: must be at least 2 under cross entropy, got 0"),
        (replace(TRAINING, loss="cross_entropy", num_classes=3), "samples: targets of a cross entropy must be classes"),
        (
            replace(TRAINING, router_bias=np.ones((3, 4))),
            "router_bias: must be left out in regime I with router_bias no",
        ),
        (replace(TRAINING, loss="hinge"), "loss: must be squared_error or cross_entropy, got 'hinge'"),
        (replace(TRAINING, active=(np.ones((3, 4), bool),)), "active: must be one mask per pass"),
    ],
)
def test_trainings_that_are_not_whole(training: Given, message: str) -> None:
    assert refused(FIXED, training).startswith(message)


BIAS = np.tile([0.5, -1.0, 0.2, 1.0], (3, 1))


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (BIAS[:, :3], "router_bias: must be an array of numbers [3 passes, 4 experts], got shape [3, 3]"),
        (np.where(BIAS == 0.2, np.nan, BIAS), "router_bias: must be finite, got nan at [0, 2]"),
        (BIAS * [[1], [2], [3]], "router_bias: fixed ones must be the same at every pass, got rows that differ"),
        (BIAS.tolist(), "router_bias: must be an array of numbers [3 passes, 4 experts]"),
        (np.round(BIAS), "router_bias: must tell the 2 active experts from the others, got two of 0 at the first pass"),
    ],
)
def test_router_biases_that_do_not_say_which_experts_are_active(bias: Any, message: str) -> None:
    network = replace(FIXED, num_active=2, router_bias="fixed")
    assert refused(network, replace(TRAINING, router_bias=bias)).startswith(message)
    solve(network, replace(TRAINING, router_bias=BIAS))
    if message.startswith("router_bias: fixed"):
        solve(replace(network, router_bias="schedule"), replace(TRAINING, router_bias=bias))


def test_a_few_sites_stand_for_active_experts() -> None:
    few = replace(MANY, active_share=0.001, aggregation="1/M")
    assert refused(few, sites=2048).startswith("sites: at least 4 must stand for active experts, which are 0.001 of")
    assert solve(replace(few, regime="III", expert_width=None), TRAINING, seeds=1).num_sites == 4096


def of(steps: int, lr: float = 0.1) -> Given:
    return Given.full_batch(Batch(inputs=X, targets=Y), steps=steps, lr=lr)


def test_sites_are_a_power_of_two_and_seeds_are_some() -> None:
    for sites in (0, 15, 1000, 2**25, "256"):
        assert refused(MANY, sites=sites).startswith("sites: must be a power of two from 16 to 16777216")
    assert refused(MANY, seeds=0) == "seeds: must be from 1 to 1000, got 0"
    assert refused(MANY, replace(TRAINING, router_bias=BIAS)).startswith("router_bias: must be left out in regime II")


def test_more_sites_are_asked_for_than_gaussians() -> None:
    assert "a site must need at most 21201 Gaussians" in refused(replace(MANY, expert_width=4000), sites=16)
    assert "sites: must be more than the 33 Gaussians that each site needs, got 16" in refused(MANY, sites=16)


def test_long_trainings_are_refused_with_their_cost() -> None:
    long = of(334)
    message = refused(MANY, long, sites=32768)
    assert message.startswith("T P: updates times samples must be at most 1000, got 1002, which takes about 5 min")
    assert "grows as the square" in message
    assert "grows as the cube" in refused(ALL, long)
    assert refused(FIXED, long).startswith("m T P: experts times updates times samples must be at most 4000, got 4008")


def test_sizes_past_memory_are_refused_before_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpxfer.limit.refused.host_bytes", lambda: 2**30)
    long = of(300)
    for network in (MANY, ALL, replace(FIXED, num_experts=4, activation="relu", num_active=None)):
        assert "GiB, got 1 GiB of memory; take fewer sites" in refused(network, long, sites=2**22)


def test_targets_that_grow_are_no_growing_loss() -> None:
    """Of another batch the loss may be a hundred times the first, whatever the LR is."""
    grow = [(X / 2, np.full((3, 1), size)) for size in (0.1, 1.0, 1.0)]
    for lr in (1e-6, 0.05):
        found = solve(MANY, replace(batches(*grow), lrs=(lr, lr)), sites=256, seeds=2)
        assert found.series["loss"].mean[2] > 50 * found.series["loss"].mean[0]
    assert "beyond the edge of stability" in refused(MANY, replace(batches(*grow * 3), lrs=(8.0,) * 8), sites=256)


def test_an_lr_beyond_the_edge_of_stability_is_refused() -> None:
    fast = of(6, 8.0)
    for network in (FIXED, MANY, ALL):
        assert "beyond the edge of stability" in refused(network, fast, sites=256)
    slow = of(6)
    assert solve(FIXED, slow).series["loss"].mean[-1] < 0.9 * solve(FIXED, slow).series["loss"].mean[0]


@pytest.mark.parametrize("network", [FIXED, replace(FIXED, expert_matrices=2), MANY, ALL, RESIDUAL])
def test_numbers_that_overflow_are_refused(network: Network) -> None:
    for lr in (1e40, 1e300):
        assert refused(network, of(3, lr), sites=512).startswith("lr: ")
    for inputs, targets in ((1e160 * X, Y), (X, 1e200 * Y)):  # an LR of 0 is not at fault
        training = Given.full_batch(Batch(inputs=inputs, targets=targets), steps=1, lr=0.0)
        assert "smaller samples" in (found := refused(network, training, sites=512)) or found.startswith("samples: ")


def test_a_loss_that_rises_on_the_way_is_a_caution() -> None:
    near = of(6, 1.0)
    found = solve(replace(ALL, experts_per_width=0.5, expert_ratio=0.25), near, sites=256, seeds=2)
    rises = np.diff(found.series["loss"].mean) > 0
    assert rises.any()
    assert found.cautions[0].startswith(f"the loss rises at update {int(np.argmax(rises)) + 1}: near the edge")


def test_a_batch_holds_real_numbers_of_any_type() -> None:
    whole = np.array([[100, -90, 3], [7, 80, 120]], dtype=np.int8)  # products of int8 wrap
    target = np.array([[1], [-1]], dtype=np.int8)
    small = {"init_mult": {"embedding": 0.01}, "lr_mult": {"embedding": 1e-4}}
    found = [
        solve(replace(FIXED, **small), Given.full_batch(Batch(inputs=x, targets=y), steps=3, lr=0.1))
        for x, y in ((whole, target), (whole.astype(float), target.astype(float)))
    ]
    assert np.array_equal(found[0].series["loss"].mean, found[1].series["loss"].mean)
    assert found[0].series["loss"].mean[-1] < 0.999 * found[0].series["loss"].mean[0]
    for wrong in (X + 1j, X.astype(object), X.astype(str), np.ma.masked_array(X, X > 1)):
        with pytest.raises(HpxferError, match="inputs: must be an array of real numbers, got"):
            Batch(inputs=wrong, targets=Y)


NUMBERS = st.one_of(st.floats(), st.integers(-3, 5).map(float))


@random_examples(
    st.fixed_dictionaries(
        {
            "regime": st.sampled_from(["I", "II", "III"]),
            "parameterization": st.sampled_from(["mup", "mssp"]),
            "gate": st.sampled_from(["sigmoid", "softmax", "normalized_softmax"]),
            "aggregation": st.sampled_from(["1/K", "1/M", "none"]),
        },
        optional={
            "activation": st.sampled_from(["linear", "relu", "gelu", "tanh"]),
            "inverse_temperature": NUMBERS,
            "num_experts": st.one_of(st.none(), st.integers(-1, 4)),
            "num_active": st.one_of(st.none(), st.integers(-1, 5)),
            "expert_matrices": st.sampled_from([1, 2]),
            "active_share": NUMBERS,
            "expert_ratio": NUMBERS,
            "expert_width": st.one_of(st.none(), st.integers(-1, 2)),
            "experts_per_width": NUMBERS,
            "init_mult": st.dictionaries(st.sampled_from(["router", "readout", "x"]), NUMBERS, max_size=2),
        },
    ).map(lambda kinds: Network(**kinds)),
    NUMBERS,
)
def test_whatever_is_given_is_solved_or_refused(network: Network, lr: float) -> None:
    training = of(2, lr)
    try:
        found = solve(network, training, sites=64, seeds=2)
    except HpxferError:
        return  # any other exception is a fault
    assert np.isfinite(found.series["loss"].mean).all()


POWERS = {"I": (FIXED, 4), "II": (MANY, 4), "III": (ALL, 8), "residual": (RESIDUAL, 2)}


def training(samples: int, steps: int = 100) -> Given:
    x = np.random.default_rng(0).standard_normal((samples, 3))
    return Given.full_batch(Batch(inputs=x, targets=x[:, :1]), steps=steps, lr=0.01)


@pytest.mark.parametrize("regime", POWERS)
def test_twice_the_samples_take_the_power_of_the_regime(regime: str) -> None:
    network, factor = POWERS[regime]
    assert seconds(network, training(8), 1024, 0) == pytest.approx(factor * seconds(network, training(4), 1024, 0))


def test_more_sites_blocks_and_features_take_longer() -> None:
    of = training(4)
    assert seconds(MANY, of, 2048, 0) == 2 * seconds(MANY, of, 1024, 0)
    assert seconds(replace(MANY, expert_width=5), of, 64, 0) == 2 * seconds(MANY, of, 64, 0)
    assert seconds(replace(RESIDUAL, depth=6), of, 64, 0) == pytest.approx(3 * seconds(RESIDUAL, of, 64, 0))
    assert seconds(FIXED, of, 2048, 0) == seconds(FIXED, of, 64, 0), "nothing is sampled"


def test_the_time_of_all_seeds_is_said_once_before_they_are_solved() -> None:
    few, said = training(2, steps=1), list[float]()
    solve(MANY, few, sites=64, seeds=3, on_start=said.append)
    gaussians = 3 * 4 + 2 * 2  # psi and h2 of every sample, and u of every pass
    assert said == [3 * seconds(MANY, few, 64, gaussians)]
    solve(FIXED, few, seeds=3, on_start=said.append)
    assert said[1:] == [seconds(FIXED, few, 0, 0)], "an exact limit has one seed"
    with pytest.raises(HpxferError, match="sites: must be a power of two"):
        solve(MANY, few, sites=63, on_start=said.append)
    assert len(said) == 2, "nothing is said of what is refused"


def test_many_classes_take_longer_though_samples_are_few() -> None:
    said = list[float]()
    for classes in (3, 300):
        batch = Batch(inputs=X, targets=np.arange(3))
        of = Given.full_batch(batch, steps=1, lr=0.01, loss="cross_entropy", num_classes=classes)
        solve(MANY, of, sites=2048, seeds=1, on_start=said.append)
    assert said[1] > 10 * said[0]


def test_too_few_sites_are_told_the_number_that_is_enough() -> None:
    """The experts need the most, and the first refusal is theirs."""
    sampled = replace(MANY, input_activation="relu")
    needed = int(refused(sampled, sites=16).partition("the ")[2].split()[0])
    enough = 1 << needed.bit_length()
    solve(sampled, TRAINING, sites=enough, seeds=1)
