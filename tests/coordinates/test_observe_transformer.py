"""What is measured in the built-in transformers, against what the model itself says and what must follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tiny_trials import BASE, HPS, JOINT, one_thread, text_setting, trial

from hpxfer.coordinates.cases import own_case
from hpxfer.coordinates.transformer import EXPERTS, LINEAR, SHARED, observe
from hpxfer.data import data_ref
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.roles import CONDITIONED, ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting, Trial, setting_of

__all__ = ["one_thread"]
MIXED = replace(BASE, num_active=2, num_shared=2, shared_width=8, dense_width=24, depth=3)
Sizes = dict[tuple[str, str, int | None, int], tuple[float, ...]]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return text_setting(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def dit() -> Trial:
    spec = own_case(parameterization("sp"), "adam", "width", None, dense=False, architecture="dit").spec
    setting = setting_of(spec, data_ref(spec.data), spec.base_shape)
    return replace(trial(setting, spec.base_shape), base=spec.base_shape)


def measured(
    setting: Setting, shape: Shape = BASE, table: str = "sp", *, steps: int = 1, seeds: Sequence[int] = (0,), **hps: Any
) -> Sizes:
    trials = [trial(setting, shape, table, seed=seed, **hps) for seed in seeds]
    observations = list(observe(trials, scale=1.0, steps=steps))
    out = {(seen.role, seen.quantity, seen.layer, seen.step): seen.values for seen in observations}
    assert len(out) == len(observations), "a quantity stands twice"
    return out


def only(*roles: str) -> HPs:
    """Return HPs under which nothing learns but the tensors of these roles."""
    hps = replace(HPS, router_bias_lr=0.0, weight_decay=0.0)
    for role in set(ROLES).difference(roles):
        hps = hps.with_value(f"{role}.lr_mult", 0.0)
    return hps


def test_every_map_is_measured_in_every_block(setting: Setting) -> None:
    gates = {"attention_gate": True, "shared_expert_gate": True}
    full = replace(setting, ffn="swiglu", norm_gains=True, biases=True, dense_first=1, **gates)
    found = measured(full, MIXED)
    for role in {*LINEAR, *SHARED, *EXPERTS, "expert_out"} - CONDITIONED.keys():
        blocks = {layer for name, quantity, layer, _ in found if name == role and quantity == "activation"}
        dense = role.startswith("dense")
        want = {None} if role == "readout" else {0} if dense else {1, 2} if role not in LINEAR[:5] else {0, 1, 2}
        assert blocks == want, role
        for quantity in ("change", "effective", "propagating"):
            assert all((role, quantity, block, 1) in found for block in want), f"{role} {quantity}"
    assert {role for role, quantity, *_ in found if quantity == "gradient"} == {
        *("embedding", "position", "attn_q", "attn_k", "attn_v", "attn_out", "router", "norm", "final_norm", "readout"),
        *(f"{kind}_{part}" for kind in ("expert", "shared", "dense") for part in ("in", "gate", "out")),
        "hidden_bias",
    }


def test_every_map_of_a_condition_is_measured(dit: Trial) -> None:
    found = {
        (seen.role, seen.quantity, seen.layer, seen.step): seen.values for seen in observe([dit], scale=1, steps=1)
    }
    for role, block in (("time_out", None), ("modulation", 0), ("modulation", 1), ("final_modulation", None)):
        for quantity in ("change", "effective", "propagating"):
            assert found[role, quantity, block, 1][0] > 0, f"{role} {quantity}"
    for role in ("patch_in", "time_in"):
        assert found[role, "change", None, 1][0] > 0
    assert found["label", "weight change", None, 1][0] > 0
    assert found["label", "activation", None, 0][0] == pytest.approx(0.25, rel=0.3)  # the std of its table
    gradients = {role for role, quantity, *_ in found if quantity == "gradient"}
    assert gradients >= {*CONDITIONED, "hidden_bias", "readout"}


def test_what_is_learned_of_the_condition_is_its_effective_part(dit: Trial) -> None:
    for role, block in (("modulation", 0), ("final_modulation", None)):
        alone = replace(dit, hps=only(role))
        seen = {(s.role, s.quantity, s.layer): s.values for s in observe([alone], scale=1, steps=1) if s.step}
        assert seen[role, "effective", block] == pytest.approx(seen[role, "change", block], rel=1e-5)
        assert seen[role, "propagating", block] == seen["time_out", "change", None] == (0.0,)


def test_nothing_has_changed_before_the_first_update_or_where_nothing_learns(setting: Setting) -> None:
    found = measured(setting)
    sizes = {"activation", "aggregate init", "gradient", "gradient / eps"}
    assert {quantity for _, quantity, _, step in found if step == 0} == sizes
    assert all(value > 0 for values in found.values() for value in values)
    frozen = measured(setting, hps=only())
    still = [values for (_, quantity, _, step), values in frozen.items() if step == 1 and quantity not in sizes]
    assert set(still) == {(0.0,)}


def test_what_is_learned_in_one_map_is_its_effective_part(setting: Setting) -> None:
    found = measured(setting, hps=only("attn_v"))
    assert found["attn_v", "effective", 0, 1] == pytest.approx(found["attn_v", "change", 0, 1])
    assert found["attn_v", "propagating", 0, 1] == (0.0,)
    assert found["attn_out", "effective", 0, 1] == (0.0,)
    assert found["attn_out", "propagating", 0, 1] == pytest.approx(found["attn_out", "change", 0, 1])
    assert found["embedding", "change", None, 1] == (0.0,)


def test_the_parts_of_the_experts_sum(setting: Setting) -> None:
    found = measured(setting, hps=only("expert_out"))
    assert found["expert_out", "aggregate propagating", 0, 1] == (0.0,)
    assert found["expert_out", "aggregate effective", 0, 1] == pytest.approx(found["moe", "change", 0, 1], rel=1e-3)
    inner = measured(setting, hps=only("expert_in"))
    assert inner["expert_out", "aggregate effective", 0, 1] == (0.0,)
    assert inner["expert_out", "aggregate propagating", 0, 1] == pytest.approx(inner["moe", "change", 0, 1], rel=1e-3)


def test_the_sum_before_training_is_what_the_block_adds(setting: Setting) -> None:
    """Without shared experts and biases; gates, multiplier and the table's factors in it."""
    found = measured(setting, JOINT, "completep-moe", steps=0)
    for block in range(JOINT.depth):
        branch = found["moe", "activation", block, 0]
        assert found["expert_out", "aggregate init", block, 0] == pytest.approx(branch, rel=1e-4)


def test_experts_are_measured_whether_or_not_a_token_chose_them(setting: Setting) -> None:
    """An expert's output goes by its own weights: how many are active changes nothing in it."""
    few, all_active = (measured(setting, replace(BASE, num_active=count), steps=0) for count in (1, 4))
    for role in ("expert_in", "expert_out"):
        assert few[role, "activation", 0, 0] == pytest.approx(all_active[role, "activation", 0, 0])
    assert few["moe", "activation", 0, 0] != pytest.approx(all_active["moe", "activation", 0, 0])


def test_a_stack_measures_as_its_trials_alone(setting: Setting) -> None:
    together, alone = measured(setting, seeds=(0, 1, 2)), measured(setting, seeds=(1,))
    for place, values in alone.items():
        assert values[0] == pytest.approx(together[place][1], rel=1e-5), place


def test_gates_are_measured_over_the_active_ones(setting: Setting) -> None:
    normalized = replace(setting, gate="normalized_sigmoid")
    found = measured(normalized, replace(BASE, num_active=2), steps=0)
    # They sum to the base's num_active, 1, over two active experts.
    assert 0.5 <= found["gates", "activation", 0, 0][0] <= 0.75


def test_divergence_is_measured_and_no_error(setting: Setting) -> None:
    found = measured(setting, steps=3, hps=replace(HPS, lr=1e25))
    assert any(value != value for values in found.values() for value in values)


def test_tied_embeddings_are_read_out_of_the_table(setting: Setting) -> None:
    found = measured(replace(setting, tied_embeddings=True))
    assert found["readout", "effective", None, 1][0] > 0
    assert ("readout", "gradient", None, 0) not in found
