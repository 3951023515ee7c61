"""The tables against numbers worked out by hand from their sources."""

from __future__ import annotations

import dataclasses

import pytest
from condition_rows import condition_rows

from hpxfer.scaling.evaluate import BaseInit, Multipliers, evaluate, evaluate_globals, parameterization, resolve
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.roles import HIDDEN
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
# m_N = 4, m_L = 2, m_E = 4, m_act = 4, m_a = 2; the expert width grows by m_N m_a = 8.
JOINT = Shape(width=128, depth=4, num_experts=16, num_active=4, expert_width=256, head_dim=32)


def factors(init_std: float, lr: float, eps: float, weight_decay: float, forward: float) -> Multipliers:
    return Multipliers(init_std=init_std, lr=lr, eps=eps, weight_decay=weight_decay, forward=forward)


PLAIN = factors(1, 1, 1, 1, 1)
NO_DECAY = factors(1, 1, 1, 0, 1)
ZERO_START = factors(0, 1, 1, 0, 1)
FAN_IN_WIDTH = factors(1 / 2, 1, 1, 1, 1)
SP = {
    "embedding": PLAIN,
    "position": NO_DECAY,
    "norm": NO_DECAY,
    "final_norm": NO_DECAY,
    "hidden_bias": ZERO_START,
    "router_bias": ZERO_START,
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out", "router", "readout"), FAN_IN_WIDTH),
    **dict.fromkeys(("expert_in", "expert_gate", "dense_in", "dense_gate", "shared_in", "shared_gate"), FAN_IN_WIDTH),
    "expert_out": factors(8**-0.5, 1, 1, 1, 1),  # fan-in is the expert width
    "dense_out": factors(32**-0.5, 1, 1, 1, 1),  # held against all that is active: 4 * 256 over 32
    "shared_out": factors(8**-0.5, 1, 1, 1, 1),  # without one in the shapes, held against a routed expert
    **condition_rows(PLAIN, FAN_IN_WIDTH, FAN_IN_WIDTH, ZERO_START),
}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_factor_of_sp(optimizer: Column) -> None:
    assert evaluate(parameterization("sp"), BASE, JOINT, optimizer) == SP


# Ratios of which no product is another: m_N, m_L, m_E, m_act, m_a.
APART = Shape(width=128, depth=6, num_experts=20, num_active=7, expert_width=32 * 44, head_dim=32)
M_N, M_L, M_E, M_ACT, M_A = 4.0, 3.0, 5.0, 7.0, 11.0


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, "inf"), (0.75, 0.5), (1.0, 1.0)])
def test_completep_moe_where_no_factor_stands_in_for_another(alpha: float, gamma: float | str) -> None:
    branch, lr = M_L**-alpha, M_L ** (alpha - 1)
    hidden = (M_N**-0.5, lr / M_N, branch / M_N, M_N)
    up = (M_N**-0.5, lr / M_N, branch / (M_N * M_E * M_A), M_N, 1)
    expected = {
        "embedding": (1, 1, 1 / M_N, 1, 1),
        "position": (1, 1, 1 / M_N, 0, 1),
        "norm": (1, lr, branch / M_N, 0, 1),
        "final_norm": (1, 1, 1 / M_N, 0, 1),
        "hidden_bias": (0, lr, branch / M_N, 0, 1),
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "dense_in", "dense_gate"), (*hidden, 1)),
        **dict.fromkeys(("attn_out", "dense_out"), (*hidden, branch)),
        "readout": (1, 1, 1 / M_N, 1, 1 / M_N),
        "router": (0 if isinstance(gamma, str) else M_N**-gamma, lr / M_N, branch / M_E, M_N, 1),
        "router_bias": (0, 1, 1, 0, 1),
        "expert_in": up,
        "expert_gate": up,
        "expert_out": (M_N**-0.5 / M_A, lr / (M_N * M_A), branch / (M_N * M_E), M_N * M_A, branch / M_ACT),
        **condition_rows(
            inputs=(1, 1, 1 / M_N, 1, 1),
            inside=(*hidden, 1),
            outside=(M_N**-0.5, 1 / M_N, 1 / M_N, M_N, 1),
            bias=(0, 1, 1 / M_N, 0, 1),
        ),
    }
    choice = parameterization("completep-moe", {"depth_alpha": alpha, "router_init_exponent": gamma})
    got = evaluate(choice, BASE, APART)
    assert got.keys() == expected.keys()
    for role, numbers in got.items():
        assert dataclasses.astuple(numbers) == pytest.approx(expected[role], rel=1e-12), role
    dense = evaluate(parameterization("completep", {"depth_alpha": alpha}), BASE, APART)
    assert dense == {role: got[role] for role in dense}
    assert evaluate_globals(choice, BASE, APART).route_scale == M_ACT


# nanoGPT-mup, branch completep: width x4, depth x2 from LR 1, decay 0.1, eps 1e-8, std 0.02; one eps for all groups.
NANO_BASE = Shape(width=64, depth=2, num_experts=1, num_active=1, expert_width=64, head_dim=64, dense_width=256)
NANO = dataclasses.replace(NANO_BASE, width=256, depth=4, expert_width=256, dense_width=1024)
NANO_HPS = HPs(lr=1.0, weight_decay=0.1, eps=1e-8)
NANO_INIT = BaseInit(matrices="constant", matrix_std=0.02, embedding_std=0.02, position_std=0.02)


def nano(name: str, **conventions: str) -> dict[str, Multipliers]:
    return resolve(parameterization(name, conventions), NANO_BASE, NANO, "adam", NANO_HPS, NANO_INIT)


def test_known_values() -> None:
    got = nano("completep", eps="global", embeddings="tied")
    for role in ("attn_q", "attn_k", "attn_v", "dense_in"):
        assert got[role] == factors(0.01, 0.25, 1.25e-9, 0.4, 1), role
    for role in ("attn_out", "dense_out"):
        assert got[role] == factors(0.01, 0.25, 1.25e-9, 0.4, 0.5), role
    assert got["embedding"] == factors(0.02, 1, 1.25e-9, 0.1, 1)
    assert got["readout"] == factors(0.02, 1, 1.25e-9, 0.1, 0.25)
    assert got["position"] == factors(0.02, 1, 1.25e-9, 0, 1)
    for role in ("norm", "final_norm", "hidden_bias"):
        assert got[role] == factors(0, 1, 1.25e-9, 0, 1), role


def test_known_values_are_of_that_convention_and_that_table() -> None:
    got = nano("completep")
    assert got["dense_in"] == factors(0.01, 0.25, 1.25e-9, 0.4, 1)
    assert got["embedding"] == factors(0.02, 1, 2.5e-9, 0.1, 1)
    assert nano("sp")["dense_in"] == factors(0.01, 1, 1e-8, 0.1, 1)  # the twin: sp keeps LR, eps and decay


@pytest.mark.parametrize("name", ["mup", "completep"])
def test_megatron_s_rule_with_its_conventions(name: str) -> None:
    """NVIDIA/Megatron-LM at 0044db1, megatron/core/optimizer/__init__.py, `get_mup_config_overrides`, at width x4.

    LR and eps of hidden matrices are divided by the width, those of vectors and embeddings stay. By the unit tests of
    its muP an output layer keeps both, and the std of hidden matrices is divided by the root; its output is / 4.
    """
    rule = {"eps": "hidden", "weight_decay": "independent", "readout": "forward"}
    base = dataclasses.replace(NANO_BASE, expert_width=64)
    got, twin = (
        evaluate(parameterization(name, {**rule, **more}), base, dataclasses.replace(NANO, depth=2))
        for more in ({}, {"eps": "per_role"})
    )
    for role in ("attn_q", "attn_k", "attn_v", "attn_out", "dense_in", "dense_gate", "dense_out"):
        assert got[role] == factors(1 / 2, 1 / 4, 1 / 4, 1, 1), role
    others = ("position", "norm", "final_norm", "hidden_bias", "embedding", "readout")
    assert {(got[role].lr, got[role].eps) for role in others} == {(1, 1)}
    assert {twin[role].eps for role in others} == {1 / 4}  # the eps of these needs the convention
    assert (got["embedding"].init_std, got["readout"].init_std, got["readout"].forward) == (1, 1, 1 / 4)


def test_the_rule_of_transformers_pull_request_45848() -> None:
    """AdamW by `mup.MuAdam`: decay of matrices times the width, one eps, Linear weights divided by its root."""
    target = dataclasses.replace(NANO, depth=2)
    got = evaluate(parameterization("mup", {"eps": "global"}), NANO_BASE, target)
    for role in ("attn_q", "attn_k", "attn_v", "attn_out", "dense_in", "dense_gate", "dense_out"):
        assert got[role] == factors(1 / 2, 1 / 4, 1, 4, 1), role
    for role in ("position", "norm", "final_norm", "hidden_bias", "embedding", "readout"):
        assert (got[role].lr, got[role].eps) == (1, 1), role
    assert got["readout"].forward == 1 / 4


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("trained_bias", [False, True])
def test_the_global_exponent_of_sp_multiplies_every_lr_and_nothing_else(optimizer: Column, trained_bias: bool) -> None:
    """It does not touch the rate of the balancing rule. A router bias that is trained has an LR, though."""
    plain = evaluate(parameterization("sp"), BASE, JOINT, optimizer)
    for c, factor in ((0.5, 0.5), (-1.0, 4.0), (0.0, 1.0)):  # of 4 times the width
        found = evaluate(parameterization("sp", {"lr_exponent": c}), BASE, JOINT, optimizer, trained_bias=trained_bias)
        by = {role: 1.0 if role == "router_bias" and not trained_bias else factor for role in plain}
        assert found == {role: dataclasses.replace(each, lr=each.lr * by[role]) for role, each in plain.items()}
    at_base = evaluate(parameterization("sp", {"lr_exponent": 2.0}), BASE, BASE, optimizer)
    assert all(numbers.lr == 1.0 for numbers in at_base.values())


@pytest.mark.parametrize(
    "name", [name for name in PARAMETERIZATIONS if "eps" in PARAMETERIZATIONS.get(name).conventions]
)
def test_eps_of_hidden_matrices_alone(name: str) -> None:
    """Under `eps: hidden` matrices but the readout keep their eps, all other roles that of the base."""
    plain, hidden = nano(name), nano(name, eps="hidden")
    for role, numbers in hidden.items():
        kept = plain[role].eps if role in HIDDEN else NANO_HPS.eps
        assert numbers == dataclasses.replace(plain[role], eps=kept), role
    assert hidden["dense_in"].eps < NANO_HPS.eps == hidden["embedding"].eps == hidden["readout"].eps
    assert plain["embedding"].eps < NANO_HPS.eps  # the twin
