"""A trial is a pure function of its spec: its bits do not depend on the stack, the position or the neighbors."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import BASE, JOINT, numbers, trained, trial

from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep
from hpxfer.spec.model_section import Balance
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.train.trainer import train
from hpxfer.trial import DataRef, Expansion, Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.stack import Stack

E8A2 = replace(BASE, num_experts=8, num_active=2)
E12A6 = replace(BASE, num_experts=12, num_active=6)
MIXED = replace(BASE, depth=3, num_experts=8, num_active=4, num_groups=2, num_shared=2, shared_width=24, dense_width=40)
DENSE = Shape(width=16, depth=2, head_dim=8, dense_width=48)
GATED = {"shared_expert_gate": True, "learned_router_bias": True, "biases": True, "route_scale": 2.5}
# What the pairs of options below do not have: other optimizers, clipping, schedules, tables and ties.
CASES: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "completep-moe, clipped": (JOINT, "completep-moe", {"gradient_clip": 0.3, "norm_gains": True, "biases": True}),
    "momentum": (E8A2, "sp", {"optimizer": "sgd"}),
    "tied, cosine": (
        replace(JOINT, depth=1),
        "completep-moe",
        {"tied_embeddings": True, "decay": "cosine", "final_fraction": 0.1},
    ),
    "context 32, three windows": (BASE, "sp", {"context": 32, "batch_tokens": 96, "validation_tokens": 96}),
    "swiglu, tied experts": (JOINT, "mssp-iii", {"ffn": "swiglu", "biases": True}),
    "router-bias schedule": (E8A2, "mup-moe[1.0]", {"gate": "softmax"}),
    "ties at random": (replace(E12A6, num_active=4, num_groups=3), "mssp-i", {"top_groups": 2, "ties": "random"}),
    "fixed bias": (E8A2, "mssp-i", {"ties": "fixed_bias"}),
    "dense, swiglu": (DENSE, "mup", {"ffn": "swiglu"}),
    "gated, no positions": (DENSE, "completep", {"attention_gate": True, "positions": "none", "qk_norm": "all"}),
    "gates": (MIXED, "complete-mue", {**GATED, "moe_every": 2, "norm_gains": True}),
    "a balancing loss": (E8A2, "completep-moe", {"balance": Balance(bias="sign", aux="switch", load="last_step")}),
    "losses of sequences": (MIXED, "complete-mue", {"moe_every": 2, "balance": Balance(bias="none", aux="sequence")}),
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
    for before, after in ((1, 0), (3, 2)):
        stack = (*neighbors[:before], mine, *neighbors[len(neighbors) - after :])
        results = trained(*stack)
        assert numbers(results[before]) == numbers(alone), f"slot {before} of {len(stack)}"
    assert results[0].status == "diverged"  # beside it all the time


@pytest.mark.first
@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "normalized_sigmoid"])
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


def test_another_trial_has_other_bits_and_another_table_has_not_at_the_base(setting: Setting) -> None:
    changes = ({}, {"seed": 1}, {"lr": 2.0**-7}, {"init_scale": 1.01}, {"router_bias_lr": 0.02})
    *others, table = trained(*(trial(setting, **change) for change in changes), trial(setting, BASE, "completep-moe"))
    assert len({result.validation_loss_nats for result in others}) == len(others)
    assert table.curves == others[0].curves
    joint = trained(trial(setting, JOINT, "sp"), trial(setting, JOINT, "completep-moe"))
    assert joint[0].curves != joint[1].curves


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["completep-moe, clipped", "swiglu, tied experts", "router-bias schedule"])
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


Keys = dict[str, Any]

OPTIONS: tuple[list[Keys], ...] = (
    [
        {"norm": "layernorm", "norm_gains": True, "qkv_biases": True},
        {"norm": "layernorm", "norm_gains": False, "biases": True},
        {"norm": "rmsnorm", "norm_gains": True, "biases": True},
        {"norm": "rmsnorm", "norm_gains": False},
    ],
    [
        *({}, {"qk_norm": "head"}, {"qk_norm": "all"}, {"qk_norm": "head", "qk_norm_kind": "layernorm"}),
        {"qk_norm": "all", "qk_norm_kind": "layernorm", "norm_eps": 1e-3},
    ],
    [
        *({"positions": "learned"}, {"positions": "rope", "rope_theta": 50.0}),
        *({"positions": "rope", "rope_share": 0.5}, {"positions": "none"}),
    ],
    [{}, {"base": {"kv_heads": 1}}, {"base": {"num_heads": 4, "kv_heads": 2}}],
    [{}, {"attention_gate": True}, {"attention_scale": "1/sqrt(d_head)", "tied_embeddings": False}],
    [{"ffn": "gelu"}, {"ffn": "relu"}, {"ffn": "swiglu"}],
    [{"gate": name} for name in ("sigmoid", "softmax", "normalized_sigmoid", "normalized_softmax")],
    [
        *({}, {"learned_router_bias": True, "route_scale": 2.5}),
        *({"ties": "random", "hps": {"z_weight": 0.1}}, {"ties": "fixed_bias", "learned_router_bias": True}),
    ],
    [
        *({}, {"base": {"num_shared": 1, "shared_ratio": 1.5}}),
        {"base": {"num_shared": 2, "shared_ratio": 0.5}, "shared_expert_gate": True},
    ],
    [{}, {"base": {"num_groups": 2}}, {"base": {"num_groups": 4}, "top_groups": 3}],
    [{}, {"base": {"dense_ratio": 2.0}, "moe_every": 2}, {"base": {"dense_ratio": 1.5}, "dense_first": 1}],
    [
        {"hps": {"router_bias_lr": 0.05}},
        {"balance": {"bias": "sign", "aux": "sequence"}, "hps": {"router_bias_lr": 0.05, "aux_weight": 0.1}},
        {"balance": {"bias": "none", "aux": "switch", "load": "last_step"}, "hps": {"aux_weight": 0.1}},
        {"balance": {"aux": "transformers"}, "hps": {"aux_weight": 0.1}},
    ],
    [{}, {"data": {"documents": "masked", "eos_id": ord("e")}}],
    [{"table": name} for name in ("sp", "complete-mue")],
)
# Every two values of two options meet in a row: each digit is the value of one option. The first rows have every value.
TABLE = """
    31302011100001 04111101210001 02002013212210 22120212110300 13102030021110 00222021201310
    00121132000101 24320220121010 13010201011301 31211102222310 24200233202201 12311120110201 20010113020111
    31120223012101 23001002102011 10322200212100 12211233001011 33322112021200 01020230111300 14212010002301
    32200001122100 23202123110310 20100101120201 03310203220311 34022222210110 30302130001000 11211212121201
    21312031200100
"""
ROWS = TABLE.split()
FAST = 6

SWEPT: Keys = {"width": 16, "depth": 3, "head_dim": 8, "num_experts": 8, "num_active": 4, "expert_ratio": 0.5}


def test_every_pair_of_options_has_a_row() -> None:
    """Whoever adds an option or a value adds rows until nothing is missing."""
    found = {pair for row in ROWS for pair in itertools.combinations(enumerate(map(int, row)), 2)}
    counts = [range(len(values)) for values in OPTIONS]
    pairs = itertools.combinations(range(len(OPTIONS)), 2)
    missing = {((a, x), (b, y)) for a, b in pairs for x in counts[a] for y in counts[b]} - found
    assert missing == set()
    assert {(option, int(value)) for row in ROWS[:FAST] for option, value in enumerate(row)} == {
        (option, value) for option, count in enumerate(counts) for value in count
    }


def trials_of(row: str, of_text: Setting) -> list[Trial]:
    """Return the trials of a sweep of this row above the base: two LRs of two seeds."""
    model: Keys = {"family": "gpt", "context": 16}
    parts: dict[str, Keys] = {"base": dict(SWEPT), "hps": {"init_scale": 2.0}, "data": {"source": of_text.data_source}}
    for option, value in zip(OPTIONS, row, strict=True):
        keys = option[int(value)]
        for name, part in parts.items():
            part.update(keys.get(name, {}))
        model.update({key: given for key, given in keys.items() if key not in parts and key != "table"})
    sweep = {
        "name": "pairs",
        "model": {**model, "base": parts["base"]},
        "data": parts["data"],
        "training": {"batch_tokens": 32, "steps": 4, "betas": [0.9, 0.95], "validation_tokens": 32},
        "parameterizations": [OPTIONS[-1][int(row[-1])]["table"]],
        "axes": {"width": [16, 32]},
        "hps": parts["hps"],
        "grid": {"lr": [0.01, 0.03]},
        "seeds": 2,
    }
    of_data = DataRef(digest=of_text.data_digest, tokenizer=of_text.tokenizer, vocab_size=of_text.vocab_size)
    expansion = Expansion(parse_sweep(write_yaml(sweep)), of_data)
    return [trial for trial in expansion.trials() if trial.shape.width == 32]


@pytest.mark.parametrize("row", [*ROWS[:FAST], *(pytest.param(row, marks=pytest.mark.slow) for row in ROWS[FAST:])])
def test_options_train_in_a_stack_as_alone(row: str, setting: Setting) -> None:
    stack = trials_of(row, setting)
    assert len(stack) == 4
    together = trained(*stack)
    assert [result.status for result in together] == ["finished"] * 4
    for slot in (0, 2):
        (alone,) = trained(stack[slot])
        assert numbers(alone) == numbers(together[slot]), f"slot {slot}"
