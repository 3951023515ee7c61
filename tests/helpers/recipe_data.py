"""A recipe's data, edits of it, and random recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from hypothesis import strategies as st
from strategies import BETA, DOTTED, POSITIVE, TEXT
from torch import nn

from hpxfer.recipe import Recipe
from hpxfer.spec.yaml_file import write_yaml

Data = dict[str, Any]
Model = TypeVar("Model", bound=nn.Module)
MakeRecipe = Callable[..., Recipe]  # `decay`, `final_fraction` and edits of `data` -> a recipe

BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 16}
# Inside the range of `data()`: every dimension moves.
TARGET = {"width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16}


RECIPE = """
hpxfer_recipe: 2
family: gpt
parameterization: {name: completep-moe, conventions: {depth_alpha: 1.0, router_init_exponent: 1.0}}
optimizer: adamw
hps:
  {lr: 0.015625, init_scale: 1.5, residual_scale: 0.7, weight_decay: 0.1, eps: 1.0e-12, beta1: 0.9, beta2: 0.95,
   router_bias_lr: 0.01, multipliers: {router.lr_mult: 0.25}}
init: {matrices: fan_in, matrix_std: 0.02, embedding_std: 0.5, position_std: 0.25}
model:
  {context: 64, gate: sigmoid, ffn: gelu, moe_every: 1, dense_first: 0, attention_scale: 1/d_head,
   tied_embeddings: false, norm_gains: true, biases: false, norm: layernorm, positions: learned, qk_norm: false,
   attention_ratio: 1.0, embedding_scale: 1.0, bias_rule: proportional, balance_loss: none}
training:
  steps: 200
  batch_tokens: 512
  schedule: {decay: constant, warmup: 20, decay_length: null, final_fraction: 0.0}
  gradient_clip: null
  precision: float32
fitted:
  {hp: lr, value: 0.015625, optimum: 0.0161, optimum_of_seeds: [0.0158, 0.0165], open_because: null,
   loss: validation, loss_nats: 2.91, axes: {joint: {scale_name: hidden weights, range: [24576.0, 1000000.0],
   dims: {width: [32.0, 128.0], depth: [2.0, 4.0], num_experts: [4.0, 16.0], num_active: [1.0, 4.0],
   expert_ratio: [1.0, 2.0]}, verdict: transfers, largest_regret_nats: 0.01, noise_nats: 0.004}}}
provenance:
  {made: by a sweep, sweep: small, data_digest: "12e5", tokenizer: ascii, vocab_size: 128, num_trials: 60,
   seeds: [0, 1], measured: "2026-11-21", hpxfer: 0.1.0, versions: {hpxfer: [0.1.0], torch: [2.13.0]}}
"""


def data(**changes: Any) -> Data:
    """Return a recipe's data; `section__key=value` changes one value, `section=value` a whole section."""
    out: Data = yaml.safe_load(RECIPE) | {"base_shape": {**BASE, "batch_tokens": 512, "steps": 200}}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            out[section][key] = value
        else:
            out[section] = value
    return out


def recipe(**changes: Any) -> Recipe:
    """Return the recipe of `data(...)`."""
    return Recipe.parse(write_yaml(data(**changes)))


def multiplies(model: Model, made: Recipe, target: Any) -> Model:
    """Say of a model whose code multiplies by the recipe's numbers that it does, and return it."""
    made.attach(model, target, by_hand=made.forward_multipliers(target))
    return model


def _sized(draw: st.DrawFn) -> Data:
    heads, active = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return {
        "width": 16 * heads,
        "depth": draw(st.integers(1, 9)),
        "num_experts": active * draw(st.integers(1, 5)),
        "num_active": active,
        "expert_width": 8 * draw(st.integers(1, 9)),
        "head_dim": 16,
        **draw(st.sampled_from(({}, {"dense_width": 64}, {"shared_width": 8, "num_shared": 2}))),
    }


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Return a random legal recipe."""
    tables = ("sp", "sgd", {}), ("completep", "adamw", {"depth_alpha": 0.5})
    moe = ("completep-moe", "adamw", {"router_init_exponent": "inf"})
    name, optimizer, conventions = draw(st.sampled_from((*tables, moe)))
    ends = st.tuples(POSITIVE, POSITIVE).map(lambda pair: sorted(pair))
    number = st.none() | POSITIVE
    axis = {
        "scale_name": TEXT,
        "range": ends,
        "dims": st.dictionaries(st.sampled_from(("width", "depth")), ends, max_size=2),
        "verdict": st.sampled_from(("transfers", "drifts", "undecided")),
        "largest_regret_nats": number | st.just("diverges"),
        "noise_nats": number,
    }
    changes = {
        "parameterization": {"name": name, "conventions": conventions},
        "optimizer": optimizer,
        "base_shape": _sized(draw),
        "hps__lr": draw(POSITIVE),
        "hps__beta2": draw(BETA),
        "hps__multipliers": draw(st.dictionaries(DOTTED, POSITIVE, max_size=3)),
        "fitted__optimum": draw(number),
        "fitted__optimum_of_seeds": draw(st.none() | ends),
        "fitted__open_because": draw(st.none() | TEXT),
        "fitted__axes": draw(st.dictionaries(TEXT, st.fixed_dictionaries(axis), max_size=2)),
        "provenance__data_digest": draw(TEXT),
        "provenance__seeds": draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=3)),
        "provenance__measured": draw(st.none() | st.just("2026-11-21")),
        "provenance__versions": draw(st.dictionaries(TEXT, st.lists(TEXT, max_size=2), max_size=2)),
    }
    return recipe(**changes)
