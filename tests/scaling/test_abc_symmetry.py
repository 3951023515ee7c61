"""The abc symmetry as a fact of training: multiplier, init, LR, eps and decay together leave a run as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_trials import BASE, HPS, one_thread, text_setting, trained, trial  # noqa: F401  (one_thread is a fixture)
from torch.nn.functional import gelu

from hpxfer.scaling.conventions import rescaled
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import Monomial, depth, width
from hpxfer.scaling.table import Column, Row
from hpxfer.trial import Trial

AT = {"width": 3.0, "depth": 5.0}
# Powers that no part of a row undoes by luck; eps and decay are large enough to matter.
ROW = Row(
    role="readout",
    init_std=width**-0.5,
    lr=width**-1 * depth**-0.5,
    eps=width**-1,
    weight_decay=width,
    forward=depth**-1,
    source="a test",
)
FACTORS = [width**-1, width**0.5, depth**-1 * width, depth**2]
BASE_NUMBERS = {"init_std": 0.3, "lr": 0.05, "eps": 0.02, "weight_decay": 0.2, "forward": 1.0}
STEPS = 5


def numbers(row: Row) -> dict[str, float]:
    """Return the absolute numbers of a row at AT."""
    return {name: base * getattr(row, name)(AT) for name, base in BASE_NUMBERS.items()}


def outputs(optimizer: str, at: dict[str, float]) -> torch.Tensor:
    """Return what a small network in float64 says before each of STEPS steps and after them; `at` rules one matrix."""
    draw = torch.Generator().manual_seed(0)
    size = {"dtype": torch.float64, "generator": draw}
    x, y = torch.randn(6, 4, **size), torch.randn(6, 3, **size)
    first = torch.randn(4, 8, **size).requires_grad_()
    middle = (at["init_std"] * torch.randn(8, 8, **size)).requires_grad_()
    last = (0.3 * torch.randn(8, 3, **size)).requires_grad_()
    own = {"params": [middle], "lr": at["lr"], "weight_decay": at["weight_decay"]}
    if optimizer == "adamw":
        step: torch.optim.Optimizer = torch.optim.AdamW(
            [{"params": [first, last]}, {**own, "eps": at["eps"]}], lr=0.01, betas=(0.9, 0.95)
        )
    else:
        step = torch.optim.SGD(
            [{"params": [first, last]}, own], lr=0.01, momentum=0.9 if optimizer == "momentum" else 0
        )
    seen = []
    for _ in range(STEPS + 1):
        out = gelu(at["forward"] * gelu(x @ first) @ middle) @ last
        seen.append(out.detach().clone())
        step.zero_grad()
        (out - y).square().mean().backward()
        step.step()
    return torch.stack(seen)


def distance(left: torch.Tensor, other: torch.Tensor) -> float:
    return float((left - other).abs().max() / left.abs().max())


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("adamw", f) for f in FACTORS] + [("sgd", FACTORS[1]), ("momentum", FACTORS[2])], ids=str
)
def test_a_rescaled_row_trains_alike(optimizer: str, factor: Monomial) -> None:
    column: Column = "adam" if optimizer == "adamw" else "sgd"
    plain, other = numbers(ROW), numbers(rescaled(ROW, factor, column))
    assert plain["forward"] != other["forward"]
    seen = outputs(optimizer, plain)
    assert distance(seen, outputs(optimizer, other)) < 1e-10
    assert distance(seen[:1], seen[-1:]) > 1e-2  # it did train


@pytest.mark.parametrize(
    ("optimizer", "left_out"),
    [
        *(("adamw", name) for name in ("init_std", "lr", "eps", "weight_decay", "forward")),
        *(("sgd", name) for name in ("init_std", "lr", "weight_decay", "forward")),
    ],
)
def test_no_part_of_it_can_be_left_out(optimizer: str, left_out: str) -> None:
    column: Column = "adam" if optimizer == "adamw" else "sgd"
    plain, other = numbers(ROW), numbers(rescaled(ROW, width**-1, column))
    other[left_out] = plain[left_out]
    assert distance(outputs(optimizer, plain), outputs(optimizer, other)) > 1e-4


@pytest.mark.parametrize(("rule", "run"), [("adam", "sgd"), ("sgd", "adamw")])
def test_the_rule_of_one_optimizer_is_not_that_of_the_other(rule: Column, run: str) -> None:
    plain, other = numbers(ROW), numbers(rescaled(ROW, width**-1, rule))
    assert distance(outputs(run, plain), outputs(run, other)) > 1e-4


# The built-in GPT at four times the width: every factor of the readout is then a power of two, which rounds nothing,
# so both forms must give the same bits.
WIDER = dataclasses.replace(BASE, width=64, expert_width=64)
LARGE_EPS = replace(HPS, eps=1e-3)
Run = Callable[..., Trial]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    setting = text_setting(tmp_path)

    def make(name: str, optimizer: str, **conventions: Any) -> Trial:
        plain = trial(replace(setting, optimizer=optimizer), WIDER, name, hps=LARGE_EPS)
        return replace(plain, parameterization=parameterization(name, conventions))

    return make


def losses(*trials: Trial) -> list[tuple[Any, ...]]:
    """Return every loss of each trial, all trained in one stack."""
    out = []
    for result in trained(*trials):
        (curve,) = [curve.values for curve in result.curves if curve.metric == "train_loss_nats"]
        assert len(curve) > 1
        out.append((result.validation_loss_nats, result.final_window_loss_nats, curve))
    return out


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *(("mup", "adamw"), ("mup", "sgd"), ("completep-moe", "adamw"), ("ntp", "sgd"), ("mup-moe", "sgd")),
        ("mssp-i", "adamw"),
    ],
)
def test_both_forms_of_the_readout_train_the_built_in_model_to_the_bit(name: str, optimizer: str, run: Run) -> None:
    """Validation included: a multiplier that training applies and evaluation forgets would part the two."""
    forms = [run(name, optimizer, readout=form) for form in ("forward", "init_lr")]
    assert forms[0].resolved() != forms[1].resolved()
    result, other = losses(*forms)
    assert result == other


@pytest.mark.parametrize("broken", [{"eps": "global"}, {"weight_decay": "independent"}])
def test_they_do_not_where_a_convention_breaks_the_symmetry(broken: dict[str, str], run: Run) -> None:
    result, other = losses(*(run("mup", "adamw", readout=form, **broken) for form in ("forward", "init_lr")))
    assert result != other
