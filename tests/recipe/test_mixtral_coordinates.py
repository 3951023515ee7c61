"""A Mixtral of transformers under a recipe: what training changes does not depend on the width; without, it does.

RMS of the change of activations over STEPS steps on one small batch, at four widths (fast tests: three); the slope of
its log2 against log2(width). Router and readout start small, so that the change, and not the vanishing 1/sqrt(width) of
a random start, is what is seen (with std width^-1 it falls by itself; the source of `mup-moe` recommends zeros).
Measured 2026-11, mean of three seeds: at most 0.08 under either table, which differ by an abc symmetry on this path;
over twelve seeds 0.01 or less, and -0.06 for the router logits, which few tokens decide: 0.19 from seed to seed. Under
sp 0.65 (router logits), 0.38 (MoE), 0.61 (logits); 0.7 to 2.4 as transformers initializes, with one LR. With a random
start of router and readout the recipe's slopes are -0.5 (router logits), -0.3 (logits) and 0 elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hf_models import by_hand, mixtral_of_width, tokens
from torch import nn
from torch.utils.hooks import RemovableHandle

import hpxfer
from hpxfer.recipe import Recipe

WIDTHS = (64, 128, 256, 512)
FEW = WIDTHS[:3]
STEPS = 4
LR = 2.0**-8
SEEDS = (0, 1, 2)
SMALL = {"router.init_mult": 2.0**-8, "readout.init_mult": 2.0**-8}
FLAT = 0.15
GROWS = 0.35
WATCHED = {
    "attention": "model.layers.1.self_attn",
    "router logits": "model.layers.1.mlp.gate",
    "MoE": "model.layers.1.mlp",
    "logits": "lm_head",
}
IDS = tokens(2, 18, vocab=128)


def model(width: int) -> nn.Module:
    return mixtral_of_width(width, vocab_size=128)


def recipe(table: str) -> Recipe:
    return by_hand(hpxfer.shape_of(model(WIDTHS[0])), table, lr=LR, **SMALL)


def change(width: int, table: str | None, seed: int, *, attach: bool = True, one_lr: bool = False) -> dict[str, float]:
    """Return the RMS of the change of every watched output; `table` None is the model as transformers makes it."""
    mixtral: Any = model(width)
    shape, roles = hpxfer.shape_of(mixtral), hpxfer.roles(mixtral)
    groups: Any = mixtral.parameters()
    if table is None:
        _as_transformers_does(mixtral, seed)
    else:
        handle = recipe(table).attach(mixtral, shape)
        recipe(table).init_(mixtral, roles, shape, generator=torch.Generator().manual_seed(seed))
        groups = recipe(table).param_groups(mixtral, roles, shape)
        if not attach:
            handle.remove()
    if one_lr:
        groups = mixtral.parameters()
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=0.0, eps=1e-12)
    before = outputs(mixtral)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(mixtral(IDS[:, :-1]).logits.flatten(0, 1), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = outputs(mixtral)
    return {key: (after[key] - before[key]).square().mean().sqrt().item() for key in WATCHED}


def outputs(mixtral: nn.Module) -> dict[str, torch.Tensor]:
    """Return the output of each watched module, the first of a tuple."""
    seen: dict[str, torch.Tensor] = {}

    def watch(key: str, module: nn.Module) -> RemovableHandle:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[key] = (output[0] if isinstance(output, tuple) else output).clone()

        return module.register_forward_hook(keep)

    handles = [watch(key, mixtral.get_submodule(name)) for key, name in WATCHED.items()]
    with torch.no_grad():
        mixtral(IDS[:, :-1])
    for handle in handles:
        handle.remove()
    return seen


def _as_transformers_does(mixtral: nn.Module, seed: int) -> None:
    """Fill all matrices with one std, whatever the width."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in mixtral.parameters():
        if tensor.ndim > 1:
            nn.init.normal_(tensor, std=mixtral.config.initializer_range, generator=generator)


def slopes(
    table: str | None, widths: tuple[int, ...], seeds: tuple[int, ...] = SEEDS, **options: bool
) -> dict[str, float]:
    """Return the slope of every watched output, of the geometric mean over the seeds."""
    runs = [[change(width, table, seed, **options) for seed in seeds] for width in widths]
    logs = {key: [np.mean([math.log2(run[key]) for run in each]) for each in runs] for key in WATCHED}
    return {key: float(np.polyfit(np.log2(widths), values, 1)[0]) for key, values in logs.items()}


@pytest.mark.parametrize(
    ("table", "widths", "keys"),
    [
        ("completep-moe", FEW, ("router logits", "MoE", "logits")),
        pytest.param("completep-moe", WIDTHS, tuple(WATCHED), marks=pytest.mark.slow),
        pytest.param("mup-moe", WIDTHS, tuple(WATCHED), marks=pytest.mark.slow),
    ],
)
def test_coordinates_are_flat_with_the_recipe(table: str, widths: tuple[int, ...], keys: tuple[str, ...]) -> None:
    found = slopes(table, widths)
    assert all(abs(found[key]) < FLAT for key in keys), found


@pytest.mark.slow
def test_they_grow_under_sp() -> None:
    found = slopes("sp", WIDTHS)
    assert all(found[key] > GROWS for key in ("router logits", "MoE", "logits")), found


@pytest.mark.parametrize(
    ("table", "options", "keys"),
    [
        ("sp", {}, ("router logits", "logits")),
        (None, {}, tuple(WATCHED)),  # as transformers has it
        ("completep-moe", {"one_lr": True}, ("attention", "router logits", "MoE")),
        ("completep-moe", {"attach": False}, ("logits",)),  # without the readout's multiplier
    ],
)
def test_they_grow_without_the_recipe(table: str | None, options: dict[str, bool], keys: tuple[str, ...]) -> None:
    found = slopes(table, FEW, SEEDS[:1], **options)
    assert all(found[key] > GROWS for key in keys), found
