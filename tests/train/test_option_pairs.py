"""Every two options of the model in one sweep: from the sweep's text to bits that do not depend on the stack.

A covering array is a small set of models in which every two values of two options meet at least once.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
from tiny_trials import numbers, text_setting, trained

from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.trial import DataRef, Expansion, Setting, Trial

Keys = dict[str, Any]
# The values of each option: keys of `model`, those of `model.base` under "base", of `hps` under "hps", and the table.
NORMS: list[Keys] = [
    {"norm": "layernorm", "norm_gains": True, "qkv_biases": True},
    {"norm": "layernorm", "norm_gains": False, "biases": True},
    {"norm": "rmsnorm", "norm_gains": True, "biases": True},
    {"norm": "rmsnorm", "norm_gains": False},
]
QK_NORMS: list[Keys] = [
    {},
    {"qk_norm": "head"},
    {"qk_norm": "all"},
    {"qk_norm": "head", "qk_norm_kind": "layernorm"},
    {"qk_norm": "all", "qk_norm_kind": "layernorm", "norm_eps": 1e-3},
]
POSITIONS: list[Keys] = [
    {"positions": "learned"},
    {"positions": "rope", "rope_theta": 50.0},
    {"positions": "rope", "rope_share": 0.5},
    {"positions": "none"},
]
HEADS: list[Keys] = [{}, {"base": {"kv_heads": 1}}, {"base": {"num_heads": 4, "kv_heads": 2}}]
ATTENTION: list[Keys] = [{}, {"attention_gate": True}, {"attention_scale": "1/sqrt(d_head)", "tied_embeddings": False}]
FFNS: list[Keys] = [{"ffn": "gelu"}, {"ffn": "relu"}, {"ffn": "swiglu"}]
GATES: list[Keys] = [{"gate": name} for name in ("sigmoid", "softmax", "normalized_sigmoid", "normalized_softmax")]
ROUTERS: list[Keys] = [
    {},
    {"learned_router_bias": True, "route_scale": 2.5},
    {"ties": "random", "hps": {"z_weight": 0.1}},
    {"ties": "fixed_bias", "learned_router_bias": True},
]
SHARED: list[Keys] = [
    {},
    {"base": {"num_shared": 1, "shared_ratio": 1.5}},
    {"base": {"num_shared": 2, "shared_ratio": 0.5}, "shared_expert_gate": True},
]
GROUPS: list[Keys] = [{}, {"base": {"num_groups": 2}}, {"base": {"num_groups": 4}, "top_groups": 3}]
BLOCKS: list[Keys] = [
    {},
    {"base": {"dense_ratio": 2.0}, "moe_every": 2},
    {"base": {"dense_ratio": 1.5}, "dense_first": 1},
]
BALANCE: list[Keys] = [
    {"hps": {"router_bias_lr": 0.05}},
    {"balance": {"bias": "sign", "aux": "sequence"}, "hps": {"router_bias_lr": 0.05, "aux_weight": 0.1}},
    {"balance": {"bias": "none", "aux": "switch", "load": "last_step"}, "hps": {"aux_weight": 0.1}},
    {"balance": {"aux": "transformers"}, "hps": {"aux_weight": 0.1}},
]
DOCUMENTS: list[Keys] = [{}, {"data": {"documents": "masked", "eos_id": ord("e")}}]
TABLES: list[Keys] = [{"table": name} for name in ("sp", "complete-mue")]
OPTIONS = (
    NORMS,
    QK_NORMS,
    POSITIONS,
    HEADS,
    ATTENTION,
    FFNS,
    GATES,
    ROUTERS,
    SHARED,
    GROUPS,
    BLOCKS,
    BALANCE,
    DOCUMENTS,
    TABLES,
)

BASE: Keys = {"width": 16, "depth": 3, "head_dim": 8, "num_experts": 8, "num_active": 4, "expert_ratio": 0.5}
Pair = tuple[tuple[int, int], tuple[int, int]]  # (option, value) of two options


def pairs_of(row: tuple[int, ...]) -> set[Pair]:
    """Return the pairs of values that a row holds: row[option] is the value."""
    return set(itertools.combinations(enumerate(row), 2))


def gain(left: dict[Pair, None], chosen: dict[int, int], option: int, value: int) -> int:
    """Return how many pairs that are left the value makes with what is chosen."""
    return sum(tuple(sorted([(option, value), other])) in left for other in chosen.items())


def covering_array() -> list[tuple[int, ...]]:
    """Return rows that hold every pair. Each begins with the first pair that is left and takes what holds most."""
    options = range(len(OPTIONS))
    left: dict[Pair, None] = {
        ((one, a), (two, b)): None
        for one, two in itertools.combinations(options, 2)
        for a, b in itertools.product(range(len(OPTIONS[one])), range(len(OPTIONS[two])))
    }
    rows = []
    while left:
        tried = []
        for attempt in range(5):
            draw, chosen = random.Random(5 * len(rows) + attempt), dict(next(iter(left)))
            for option in draw.sample([option for option in options if option not in chosen], len(OPTIONS) - 2):
                values = draw.sample(range(len(OPTIONS[option])), len(OPTIONS[option]))
                chosen[option] = max(values, key=functools.partial(gain, left, chosen, option))
            tried.append(tuple(chosen[option] for option in options))
        rows.append(max(tried, key=lambda row: len(pairs_of(row) & left.keys())))
        for pair in pairs_of(rows[-1]):
            left.pop(pair, None)
    return rows


ROWS = covering_array()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return text_setting(tmp_path_factory.mktemp("data"))


def trials_of(row: tuple[int, ...], data: Setting) -> list[Trial]:
    """Return the trials of a sweep of this row above the base: two LRs of two seeds."""
    model: Keys = {"family": "gpt", "context": 16}
    parts: dict[str, Keys] = {"base": dict(BASE), "hps": {"init_scale": 2.0}, "data": {"source": data.data_source}}
    for option, value in zip(OPTIONS, row, strict=True):
        keys = option[value]
        for name, part in parts.items():
            part.update(keys.get(name, {}))
        model.update({key: given for key, given in keys.items() if key not in parts and key != "table"})
    sweep = {
        "name": "pairs",
        "model": {**model, "base": parts["base"]},
        "data": parts["data"],
        "training": {"batch_tokens": 32, "steps": 4, "betas": [0.9, 0.95], "validation_tokens": 32},
        "parameterizations": [TABLES[row[-1]]["table"]],
        "axes": {"width": [16, 32]},
        "hps": parts["hps"],
        "grid": {"lr": [0.01, 0.03]},
        "seeds": 2,
    }
    of_data = DataRef(digest=data.data_digest, tokenizer=data.tokenizer, vocab_size=data.vocab_size)
    expansion = Expansion(parse_sweep(write_yaml(sweep)), of_data)
    return [trial for trial in expansion.trials() if trial.shape.width == 32]


def test_every_pair_of_options_has_a_row() -> None:
    pairs = set().union(*map(pairs_of, ROWS))
    counts = [len(values) for values in OPTIONS]
    assert len(pairs) == sum(a * b for a, b in itertools.combinations(counts, 2))
    assert len(ROWS) < 2 * max(a * b for a, b in itertools.combinations(counts, 2))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "".join(map(str, row)))
def test_options_train_in_a_stack_as_alone(row: tuple[int, ...], data: Setting) -> None:
    stack = trials_of(row, data)
    assert len(stack) == 4
    together = trained(*stack)
    assert [result.status for result in together] == ["finished"] * 4
    for slot in (0, 2):
        (alone,) = trained(stack[slot])
        assert numbers(alone) == numbers(together[slot]), f"slot {slot}"
