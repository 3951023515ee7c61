"""A trial is a pure function of its spec: its bits do not depend on the stack, the position or the neighbors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, JOINT, numbers, trained, trial

from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec.balance import Balance
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.stack import Stack

E8A2 = replace(BASE, num_experts=8, num_active=2)
E12A6 = replace(BASE, num_experts=12, num_active=6)
GROUPED = replace(E12A6, num_groups=2)
MIXED = replace(BASE, depth=3, num_experts=8, num_active=4, num_groups=2, num_shared=2, shared_width=24, dense_width=40)
DENSE = Shape(width=16, depth=2, head_dim=8, dense_width=48)
MODERN = {"norm": "rmsnorm", "norm_gains": True, "positions": "rope", "ffn": "swiglu"}
GATED = {
    "attention_gate": True,
    "shared_expert_gate": True,
    "learned_router_bias": True,
    "biases": True,
    "route_scale": 2.5,
}
CASES: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "sp": (BASE, "sp", {}),
    "completep-moe": (JOINT, "completep-moe", {}),
    "sgd": (E8A2, "sp", {"optimizer": "sgd"}),
    "momentum": (E8A2, "sp", {"optimizer": "sgd"}),
    "tied": (replace(JOINT, depth=1), "completep-moe", {"tied_embeddings": True}),
    "gains and biases": (E8A2, "completep-moe", {"norm_gains": True, "biases": True}),
    "softmax": (E8A2, "sp", {"gate": "softmax"}),
    "E8A2, clipped": (E8A2, "completep-moe", {"gradient_clip": 0.3}),
    "context 32, three windows": (BASE, "sp", {"context": 32, "batch_tokens": 96, "validation_tokens": 96}),
    "cosine": (BASE, "sp", {"decay": "cosine", "final_fraction": 0.1}),
    "normalized": (E12A6, "complete-mue", {"gate": "normalized_sigmoid"}),
    "softmax in groups": (GROUPED, "complete-mue", {"gate": "softmax", "ffn": "swiglu"}),
    "swiglu, tied experts": (JOINT, "mssp-iii", {"ffn": "swiglu", "biases": True}),
    "router-bias schedule": (E8A2, "mup-moe[1.0]", {"gate": "softmax"}),
    "ties at random": (E8A2, "mssp-i", {"ties": "random"}),
    "fixed bias": (E8A2, "mssp-i", {"ties": "fixed_bias"}),
    "dense": (DENSE, "complete-mue", {"biases": True, "norm_gains": True}),
    "dense, swiglu": (DENSE, "mup", {"ffn": "swiglu"}),
    "shared": (replace(MIXED, dense_width=0, num_groups=1), "complete-mue", {"biases": True}),
    "shared, dense, in groups": (MIXED, "complete-mue", {"moe_every": 2, "biases": True, "gate": "normalized_sigmoid"}),
    "mixtral": (replace(E8A2, kv_heads=1), "completep-moe", {**MODERN, "gate": "normalized_softmax"}),
    "qwen3": (replace(E8A2, num_heads=4, kv_heads=2), "mup-moe", {**MODERN, "qk_norm": "head", "gate": "softmax"}),
    "olmoe": (E8A2, "completep-moe", {**MODERN, "qk_norm": "all", "rope_share": 0.5, "tied_embeddings": True}),
    "gates": (MIXED, "complete-mue", {**GATED, "moe_every": 2, "norm_gains": True}),
    "norms of queries, relu": (
        E8A2,
        "sp",
        {"qk_norm": "head", "qk_norm_kind": "layernorm", "ffn": "relu", "biases": True},
    ),
    "the best groups": (replace(E12A6, num_active=4, num_groups=3), "mssp-i", {"top_groups": 2, "ties": "random"}),
    "a balancing loss": (E8A2, "completep-moe", {"balance": Balance(bias="sign", aux="switch", load="last_step")}),
    "losses of sequences": (MIXED, "complete-mue", {"moe_every": 2, "balance": Balance(bias="none", aux="sequence")}),
    "losses of all layers": (E8A2, "sp", {"gate": "normalized_softmax", "balance": Balance(aux="transformers")}),
    "gated, no positions": (DENSE, "completep", {"attention_gate": True, "positions": "none", "qk_norm": "all"}),
    "dense first, swiglu": (MIXED, "complete-mue", {"dense_first": 2, "ffn": "swiglu", "gradient_clip": 0.3}),
}


def tabled(setting: Setting, shape: Shape, name: str, **changed: Any) -> Trial:
    """Return a trial; `table[std]` has the router-bias schedule of that std."""
    table, _, std = name.removesuffix("]").partition("[")
    choice = parameterization(table, {"router_bias_std": float(std)} if std else None)
    return replace(trial(setting, shape, table, **changed), parameterization=choice)


def made(setting: Setting, case: str) -> tuple[Trial, list[Trial]]:
    """Return a trial and its neighbors: other seeds, HPs and tables, one that is NaN at once and one that blows up."""
    shape, name, changes = CASES[case]
    setting = replace(setting, **changes)
    momentum = 0.9 if case == "momentum" else 0.0
    wild = tabled(setting, shape, name, seed=3, init_scale=1e30)
    losses = {"z_weight": 0.1, **({"aux_weight": 0.5} if setting.balance.aux != "none" else {})}
    neighbors = [
        wild,
        trial(setting, shape, "sp", seed=1, lr=2.0**-9, residual_scale=0.5),
        tabled(setting, shape, name, seed=2, beta1=0.5, eps=1e-4, weight_decay=0.0, momentum=momentum / 2),
        tabled(setting, shape, name, seed=2, lr=1e6),
        trial(setting, shape, "sp", seed=0, init_scale=0.3, router_bias_lr=0.1, **losses),
    ]
    own = {"aux_weight": 0.3} if "loss" in case else {}
    return tabled(setting, shape, name, seed=0, momentum=momentum, **own), neighbors


@pytest.mark.parametrize("case", CASES)
def test_a_stacked_trial_has_the_bits_of_the_trial_alone(setting: Setting, case: str) -> None:
    mine, neighbors = made(setting, case)
    (alone,) = trained(mine)
    assert alone.status == "finished"
    assert len(alone.curves) > 3
    for before, after in ((1, 0), (0, 2), (3, 2)):
        stack = (*neighbors[:before], mine, *neighbors[len(neighbors) - after :])
        results = trained(*stack)
        assert numbers(results[before]) == numbers(alone), f"slot {before} of {len(stack)}"
    assert results[0].status == "diverged"  # beside it all the time


@pytest.mark.parametrize("gate", ["sigmoid", "softmax", "normalized_sigmoid"])
def test_tables_of_every_structure_share_a_stack(setting: Setting, gate: str) -> None:
    setting = replace(setting, gate=gate, ffn="swiglu")
    names = ("sp", "completep-moe", "mssp-iii", "mup-moe[0.7]", "mup-i[1.3]", "complete-mue", "mssp-i", "mssp-iii")
    shape = replace(JOINT, depth=2, num_groups=2)
    stack = [tabled(setting, shape, name, seed=k % 2) for k, name in enumerate(names)]
    together = trained(*stack)
    for k in (2, 3, 5):
        assert numbers(trained(stack[k])[0]) == numbers(together[k]), names[k]
    losses = [result.validation_loss_nats for result in together]
    assert len(set(losses)) == len(losses)  # each is a model of its own


def test_neighbors_have_their_own_bits_too(setting: Setting) -> None:
    mine, neighbors = made(setting, "completep-moe")
    together = trained(mine, *neighbors)
    for neighbor, result in zip((mine, *neighbors), together, strict=True):
        assert numbers(trained(neighbor)[0]) == numbers(result)


def test_two_runs_are_equal(setting: Setting) -> None:
    tested = trial(setting)
    assert numbers(trained(tested)[0]) == numbers(trained(tested)[0])


@pytest.mark.parametrize("change", [{"seed": 1}, {"lr": 2.0**-7}, {"init_scale": 1.01}, {"router_bias_lr": 0.02}])
def test_another_trial_has_other_bits(setting: Setting, change: dict[str, Any]) -> None:
    plain, other = trained(trial(setting), trial(setting, **change))
    assert plain.validation_loss_nats != other.validation_loss_nats


def test_parameterizations_agree_at_the_base_and_nowhere_else(setting: Setting) -> None:
    # Expert eps and the rest are the same there, so that the runs are, too.
    at_base = trained(trial(setting, BASE, "sp"), trial(setting, BASE, "completep-moe"))
    assert at_base[0].curves == at_base[1].curves
    joint = trained(trial(setting, JOINT, "sp"), trial(setting, JOINT, "completep-moe"))
    assert joint[0].curves != joint[1].curves


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["completep-moe", "E8A2, clipped", "swiglu, tied experts", "router-bias schedule"])
def test_strict_on_cuda_gives_a_stacked_trial_the_bits_of_the_trial_alone(
    setting: Setting, case: str, precision: str
) -> None:
    mine, neighbors = made(replace(setting, precision=precision), case)
    *_, ended_alone = train(Stack(trials=(mine,)), "cuda", determinism="strict")
    *_, ended = train(Stack(trials=(*neighbors, mine)), "cuda", determinism="strict")
    assert isinstance(ended, Ended)
    results = ended.results
    assert isinstance(ended_alone, Ended)
    (alone,) = ended_alone.results
    assert numbers(results[-1]) == numbers(alone)
