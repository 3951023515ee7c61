"""Options of the model that contradict each other or have no effect: one whole message a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.kernels.rope import rotated_features
from hpxfer.model.gates import GATES
from hpxfer.registry import Registry
from hpxfer.spec import axes_of, parse_sweep

REAL = Registry.get
BASE = "width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32"
DENSE = "width: 32, depth: 2, dense_ratio: 1, head_dim: 32"


def message_of(options: str, base: str = BASE) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(("  context:", f"  {options}\n  context:"), (BASE, base)), "s.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("rope_theta: 1000.0", "rope_theta: goes with positions: rope, got it with positions: learned; take it out"),
        ("rope_share: 0.5", "rope_share: goes with positions: rope, got it with positions: learned; take it out"),
        (
            "{positions: rope, rope_share: 0.1}",
            "rope_share: must rotate an even number of the 32 features of a head, got 3.2",
        ),
        ("qk_norm_kind: layernorm", "qk_norm_kind: goes with qk_norm: head or all, got it with qk_norm: none; take it"),
        (
            "{positions: none, position_std: 0.5}",
            "position_std: goes with positions: learned, got it with positions: none; take it out",
        ),
        ("{biases: true, qkv_biases: true}", "qkv_biases: has no effect: biases gives all matrices a bias"),
        ("shared_expert_gate: true", "shared_expert_gate: has no effect: no shape of this sweep has shared experts"),
    ],
)
def test_options(options: str, problem: str) -> None:
    spelled = "\n  ".join(options.strip("{}").split(", ")) if options.startswith("{") else options
    assert f"model.{problem}" in message_of(spelled)


def test_a_third_of_a_head_may_be_rotated() -> None:
    """Six digits of a share are enough."""
    base = BASE.replace("head_dim: 32", "head_dim: 48, num_heads: 1")
    wrong = message_of("positions: rope\n  rope_share: 0.35", base)
    assert "got 16.8" in wrong
    parse_sweep(edited(("  context:", "  positions: rope\n  rope_share: 0.333333\n  context:"), (BASE, base)))
    assert rotated_features(48, 0.333333) == 16


@pytest.mark.parametrize(("option", "value"), [("route_scale", "2.5"), ("learned_router_bias", "true")])
def test_options_of_experts_without_experts(option: str, value: str) -> None:
    assert f"model.{option}: has no effect: no shape of this sweep has experts" in message_of(
        f"{option}: {value}", DENSE
    )


@pytest.mark.parametrize(
    ("heads", "problem"),
    [
        (
            "num_heads: 12, kv_heads: 5",
            "kv_heads must divide num_heads, by default width / head_dim, got 5 and 12 heads",
        ),
        (
            "num_heads: 3, kv_heads: 4",
            "kv_heads must divide num_heads, by default width / head_dim, got 4 and 3 heads",
        ),
        ("num_heads: 0", "model.base.num_heads: must be greater than or equal to 1, got 0"),
    ],
)
def test_heads(heads: str, problem: str) -> None:
    assert problem in message_of("gate: sigmoid", BASE.replace("head_dim: 32", f"head_dim: 32, {heads}"))


def test_heads_follow_the_width() -> None:
    text = edited((BASE, BASE.replace("head_dim: 32", "head_dim: 32, num_heads: 4, kv_heads: 2")))
    spec = parse_sweep(text)

    shapes = {point.shape.width: point.shape for axis in axes_of(spec) for point in axis.points}
    assert {width: (shape.query_heads, shape.key_heads) for width, shape in shapes.items()} == {
        width: (width // 8, width // 16) for width in shapes
    }
    assert len(shapes) > 1


def test_heads_that_are_the_default_are_no_dimension() -> None:
    plain, given = (
        parse_sweep(edited((BASE, BASE.replace("head_dim: 32", f"head_dim: 8{heads}"))))
        for heads in ("", ", num_heads: 4, kv_heads: 4")
    )
    assert plain.base_shape == given.base_shape


@pytest.mark.parametrize(
    ("groups", "options", "problem"),
    [
        (
            "num_groups: 2",
            "gate: sigmoid",
            "num_active must be a multiple of num_groups 2, got 1; or give model.top_gro",
        ),
        ("num_groups: 2", "top_groups: 2", "num_groups must be above model.top_groups 2, got 2; take top_groups out"),
        ("num_groups: 4", "top_groups: 1", "a group must hold at least 2 experts with model.top_groups, got 1"),
        ("num_groups: 2", "top_groups: 1", None),
    ],
)
def test_groups(groups: str, options: str, problem: str | None) -> None:
    base = BASE.replace("head_dim: 32", f"head_dim: 32, {groups}")
    if problem is None:
        assert parse_sweep(edited(("  context:", f"  {options}\n  context:"), (BASE, base))).model.top_groups == 1
    else:
        assert problem in message_of(options, base)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            "balance: {load: last_step}",
            "model.balance.load: goes with a loss, got last_step with aux: none; take it out",
        ),
        (
            "balance: {aux: sequence, load: last_step}",
            "model.balance.load: must be batch with aux: sequence, whose loads are those of each sequence, got last",
        ),
        ("balance: {aux: switch}", "hps.aux_weight: must be given with model.balance.aux switch, got 0; e.g. 0.01"),
        ("balance: {aux: swich}", "model.balance.aux: must be"),
    ],
)
def test_balance(options: str, problem: str) -> None:
    assert problem in message_of(options)


@pytest.mark.parametrize(
    ("hps", "problem"),
    [
        ("aux_weight: 0.1", "hps.aux_weight: aux_weight has no effect: model.balance.aux is none; name a loss there"),
        ("momentum: 0.9", "hps.momentum: momentum has no effect under adamw; take it out"),
        (
            "multipliers: {router_bias.lr_mult: 2}",
            "router_bias.lr_mult has no effect: model.balance.bias is none; name a rule there, ",
        ),
    ],
)
def test_hps_without_effect(hps: str, problem: str) -> None:
    bias = "balance: {bias: none}" if "router_bias" in hps else "gate: sigmoid"
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(("  context:", f"  {bias}\n  context:"), ("  router_bias_lr: 0.01", f"  {hps}")), "s.yaml")
    assert problem in str(caught.value)


def test_a_weight_that_is_zero_everywhere_is_none() -> None:
    with pytest.raises(HpxferError, match=r"must be given with model\.balance\.aux switch"):
        parse_sweep(
            edited(("  context:", "  balance: {aux: switch}\n  context:"), ("  lr: [0.01]", "  aux_weight: [0]"))
        )


def test_a_gate_without_probabilities_has_no_balancing_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = replace(GATES.get("sigmoid"), probabilities=False)
    monkeypatch.setattr(type(GATES), "get", lambda self, name, *_: gate if self is GATES else REAL(self, name, *_))
    with pytest.raises(HpxferError, match=r"model\.balance\.aux: goes with a gate whose scores are probabilities"):
        parse_sweep(edited(("  context:", "  balance: {aux: switch}\n  context:")))
