"""The checks of receipts: each says passed where all is well, and has a negative twin that fails by name."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from hpxfer import receipt
from hpxfer.receipts.checks import (
    CUTS,
    arms_agree,
    base_repeats,
    forward_factors,
    groups_match,
    hp_is_wired,
    init_digest,
    init_matches,
    same_measure,
    schedule_keeps_ratios,
    seeds_differ,
)
from hpxfer.receipts.receipt import changes_since, weights_of
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.store.trainer_checks import Outcome, TrainerChecks


def undecided_because(*outcomes: Outcome) -> str | None:
    return TrainerChecks(code="", steps=20, outcomes=outcomes, extra_sd=0.0).undecided_because


EXPECTED = {
    "attn_q": {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.1, "betas": (0.9, 0.95)},
    "readout": {"lr": 4e-3, "eps": 1e-9, "weight_decay": 0.0, "betas": (0.9, 0.95)},
}
Q, HEAD = (
    {"name": name, "role": role, "held": 1, **EXPECTED[role]} for name, role in (("q", "attn_q"), ("h", "readout"))
)
BY_NAME = {"q": EXPECTED["attn_q"], "h": EXPECTED["readout"]}
OF_TRIAL = asdict(Multipliers(init_std=0.1, lr=1e-3, eps=1e-8, weight_decay=0.1, forward=1.0))
HALVES = [{**each, "lr": each["lr"] / 2} for each in (Q, HEAD)]
PASSED, IMPOSSIBLE = "passed", "not possible"
ALL_WELL = "2 parameters, each once, with the numbers of the recipe"


@pytest.mark.parametrize(
    ("groups", "given_", "status", "says"),
    [
        ([Q, HEAD], {}, PASSED, ALL_WELL),
        ([{**Q, "role": None}, HEAD], {"expected": BY_NAME}, PASSED, ALL_WELL),
        ([{**Q, "role": "attn_q+attn_k@64"}, HEAD], {}, PASSED, ALL_WELL),
        ([Q], {"expected": {"attn_q": OF_TRIAL}}, PASSED, "1 parameters"),
        ([{**Q, "lr": 1e-3 * (1 + 5e-7)}, HEAD], {}, PASSED, ALL_WELL),  # a millionth is no difference
        ([{**Q, "lr": 1.00001e-3}, HEAD], {}, "failed", "q has lr 0.00100001 in place of 0.001"),
        ([{**Q, "eps": 1e-9}, HEAD], {}, "failed", "q has eps 1e-09 in place of 1e-08"),
        ([{**Q, "weight_decay": 0.0}, HEAD], {}, "failed", "q has weight_decay 0 in place of 0.1"),
        ([{**Q, "betas": [0.9, 0.999]}, HEAD], {}, "failed", "q has betas (0.9, 0.999) in place of (0.9, 0.95)"),
        ([{**Q, "held": 0}, HEAD], {}, "failed", "no group holds q"),
        ([{**Q, "held": 2}, HEAD], {}, "failed", "more than one group holds q"),
        ([HEAD, HEAD], {}, "failed", "more than one group holds h"),
        ([{**Q, "name": None}, HEAD], {}, "failed", "1 tensors that are no parameters"),
        ([{**Q, "lr": math.nan}, HEAD], {}, "failed", "q has lr nan"),
        ([Q, HEAD], {"expected": {**BY_NAME, "k": {"lr": 1e-3}}}, "failed", "the receipt does not have k"),
        ([Q, HEAD], {"expected": {**BY_NAME, "k": {"lr": None}}}, PASSED, ALL_WELL),  # a buffer, or a frozen parameter
        # The schedule multiplies all.
        (HALVES, {}, "failed", "q has lr 0.0005"),
        (HALVES, {"factor": 0.5}, PASSED, ALL_WELL),
        (HALVES, {"factor": None}, PASSED, ALL_WELL),
        ([{**half, "peak_lr": each["lr"]} for half, each in zip(HALVES, (Q, HEAD), strict=True)], {}, PASSED, ALL_WELL),
        ([Q, {**HEAD, "lr": 1e-3}], {"factor": None}, "failed", " has lr "),
        # What is unknown is not possible.
        ([], {}, IMPOSSIBLE, "the training reported no groups"),
        ([{**Q, "role": None}, HEAD], {}, IMPOSSIBLE, "nothing is expected of q"),
        ([{"name": "a"}], {"expected": {"a": {"lr": 1.0}}}, IMPOSSIBLE, "the reported groups have no lr"),
        ([{"name": "a", "lr": 1.0}], {}, IMPOSSIBLE, "give roles"),
    ],
)
def test_groups(groups: list[dict[str, Any]], given_: dict[str, Any], status: str, says: str) -> None:
    outcome = groups_match(groups, **{"expected": EXPECTED, **given_})
    assert (outcome.check, outcome.status) == ("parameter groups", status)
    assert says in outcome.reason


def receipts(*rates: dict[str, float], steps: tuple[int, ...] = (0, 10, 99)) -> list[dict[str, Any]]:
    groups = ([{"name": name, "lr": lr} for name, lr in each.items()] for each in rates)
    return [{"step": step, "groups": of} for step, of in zip(steps, groups, strict=False)]


PEAK = {"a": 1e-3, "b": 4e-3}
LOW, ZERO = {name: lr / 10 for name, lr in PEAK.items()}, dict.fromkeys(PEAK, 0.0)


@pytest.mark.parametrize(
    ("given_", "status", "says"),
    [
        (receipts(LOW, PEAK, LOW), PASSED, "one factor for all 2 parameters at steps 0, 10, 99"),
        (receipts(LOW, PEAK, ZERO), PASSED, ""),
        (receipts(LOW, PEAK, {**LOW, "a": 5e-4}), "failed", "at step 99 the LR is "),
        (receipts({"a": 1e-4}, PEAK), "failed", "not in the receipt of every step: b"),
        (receipts(PEAK), IMPOSSIBLE, "at least 2 steps"),
        (receipts(ZERO, ZERO), IMPOSSIBLE, "every LR is 0"),
        ([{"step": 0, "groups": [{"name": "a"}]}] * 2, IMPOSSIBLE, ""),
    ],
)
def test_schedules(given_: list[dict[str, Any]], status: str, says: str) -> None:
    outcome = schedule_keeps_ratios(given_)
    assert outcome.status == status
    assert says in outcome.reason


@given(
    st.lists(st.floats(1e-8, 1.0), min_size=2, max_size=6),
    st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=5),
    st.integers(0, 5),
)
def test_any_common_factors_pass_and_one_bent_group_fails(peaks: list[float], factors: list[float], bent: int) -> None:
    rates = [{str(at): lr * factor for at, lr in enumerate(peaks)} for factor in (1.0, *factors)]
    assert schedule_keeps_ratios(receipts(*rates, steps=tuple(range(6)))).status == PASSED
    rates[-1][str(bent % len(peaks))] *= 0.999
    assert schedule_keeps_ratios(receipts(*rates, steps=tuple(range(6)))).status == "failed"


def init_of(values: torch.Tensor, wanted: Any, *, largest: bool = True, key: str = "init_std") -> Outcome:
    module = nn.Module()
    module.weight = nn.Parameter(values)
    (found,) = receipt(module, torch.optim.SGD(module.parameters(), lr=1.0), init=True)
    if not largest:
        del found["largest"]
    return init_matches([found], {"weight": {key: wanted}})


def drawn(size: int, cut: float | None = None, std: float = 0.02) -> torch.Tensor:
    generator, out = torch.Generator().manual_seed(size), torch.empty(size)
    if cut is None:
        return out.normal_(0, std, generator=generator)
    return nn.init.trunc_normal_(out, std=std, a=-cut * std, b=cut * std, generator=generator)


@pytest.mark.parametrize(("size", "largest"), [(64, False), (10_000, True), (200_000, False)])
def test_a_full_normal_passes_and_one_that_is_cut_is_named(size: int, largest: bool) -> None:
    assert init_of(drawn(size), 0.02, largest=largest).status == PASSED
    for cut in (2.0, 3.0) if size > 64 else ():
        outcome = init_of(drawn(size, cut), 0.02, largest=largest)
        assert outcome.status == "failed"
        assert f"is a normal cut at {cut:g} sigma, with {CUTS[cut]:.3f} of the std" in outcome.reason


def test_the_stds_of_cut_normals_are_those_of_scipy() -> None:
    assert init_of(drawn(100_000, 2.0, std=0.02 / CUTS[2.0]), 0.02).status == PASSED  # the right std
    for cut, share in CUTS.items():
        assert share == pytest.approx(stats.truncnorm(-cut, cut).std(), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "wanted", "key", "says"),
    [
        *(
            (drawn(100_000, std=0.02 * factor), 0.02, "init_std", "in place of 0.02")
            for factor in (0.5, 0.95, 1.05, 2.0)
        ),
        (torch.ones(8), "ones", "init", None),
        (torch.zeros(8), "zeros", "init", None),
        (torch.zeros(8), 0.0, "init_std", None),
        (torch.zeros(8), "ones", "init", "about 0 in place of the constant 1"),
        (drawn(64), 0.0, "init_std", "in place of the constant 0"),
        (torch.zeros(8), 0.02, "init_std", "has std 0"),
    ],
)
def test_other_starts(values: torch.Tensor, wanted: Any, key: str, says: str | None) -> None:
    outcome = init_of(values, wanted, key=key)
    assert outcome.status == (PASSED if says is None else "failed")
    assert (says or "") in outcome.reason


@given(st.integers(30, 3000), st.integers(0, 2**32 - 1))
def test_the_tolerance_holds_for_every_draw_of_numpy(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0, 0.02, size)
    found = {"name": "a", "numel": size, "std": float(values.std()), "largest": float(abs(values).max())}
    assert init_matches([found], {"a": {"init_std": 0.02}}).status == PASSED


@pytest.mark.parametrize(
    ("entry", "expected", "status"),
    [
        # A gain has no init std. It starts at 1, and at 0 if the norm multiplies by 1 + w.
        *(
            ({"role": "norm", "std": 0.0, "mean": mean}, 0.0, status)
            for mean, status in ((1.0, PASSED), (0.5, "failed"))
        ),
        ({"role": "final_norm", "std": 0.0, "mean": 0.0}, 0.0, PASSED),
        ({"role": "norm", "std": 0.02, "mean": 1.0}, 0.0, "failed"),
        ({"role": "norm", "numel": 3}, 1.0, IMPOSSIBLE),  # without statistics
        ({"role": "embedding", "std": 1.0}, 1.0, IMPOSSIBLE),  # nothing is expected of it
    ],
)
def test_starts_by_role(entry: dict[str, Any], expected: float, status: str) -> None:
    wanted = {role: {"init_std": expected} for role in ("norm", "final_norm")}
    outcome = init_matches([{"name": "ln", "numel": 8, **entry}], wanted)
    assert outcome.status == status
    assert entry.get("std") != 0.02 or outcome.reason == "ln has std 0.02 about 1 in place of the constant 1 or 0"


ONE, OTHER = {"init": "aa", "batch": "bb", "loss": 2.0}, {"init": "cc", "batch": "dd", "loss": 2.5}


@pytest.mark.parametrize(
    ("one", "other", "status", "says"),
    [
        (ONE, OTHER, PASSED, "two seeds differ in the initial weights, the first batch, the loss"),
        *((ONE, {**OTHER, part: ONE[part]}, "failed", "two seeds have the same") for part in ONE),
        ({"loss": 2.0}, {"loss": 2.5, "init": "aa"}, PASSED, "; not reported: the initial weights, the first batch"),
        ({}, {}, IMPOSSIBLE, ""),
        ({"loss": math.nan}, {"loss": math.inf}, IMPOSSIBLE, ""),
        ({"loss": [2.0, None]}, {"loss": [2.5, 1.0]}, IMPOSSIBLE, ""),
    ],
)
def test_seeds(one: dict[str, Any], other: dict[str, Any], status: str, says: str) -> None:
    outcome = seeds_differ(one, other)
    assert outcome.status == status
    assert says in outcome.reason
    assert (undecided_because(outcome) is not None) == (status == "failed")


def test_digests_of_weights_tell_seeds_apart() -> None:
    def digest(seed: int) -> str | None:
        torch.manual_seed(seed)
        model = nn.Linear(3, 3)
        return init_digest(receipt(model, torch.optim.SGD(model.parameters(), lr=1.0), init=True))

    assert digest(1) == digest(1) != digest(2)
    assert init_digest([{"name": "a"}]) is None


SPREAD = 0.1 / math.sqrt(2)


@pytest.mark.parametrize(
    ("losses", "seeds", "status", "extra"),
    [
        ([2.0, 2.0], [], PASSED, 0.0),
        ([2.0, 2.01], [2.0, 2.1, 2.2], PASSED, 0.0),
        ([2.0, 2.1], [2.0, 2.1, 2.2], "failed", SPREAD),
        ([2.0, 2.1], [2.0], IMPOSSIBLE, SPREAD),  # an unknown noise adds the spread
        ([2.0, math.nan], [2.0, 2.1], IMPOSSIBLE, 0.0),
    ],
)
def test_a_large_spread_of_repetitions_is_added(
    losses: list[float], seeds: list[float], status: str, extra: float
) -> None:
    found = base_repeats(losses, seeds)
    assert (found.outcome.status, found.extra_sd) == (status, pytest.approx(extra))
    assert undecided_because(found.outcome) is None


def first_step(lr: float, *, skips: bool = False, constant: bool = False) -> dict[str, float]:
    """Return what one step of torch's Adam changes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    lrs = (lr, 1e-3 if constant else lr)
    groups = [{"params": of.parameters(), "lr": its} for of, its in zip(model, lrs, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    before = weights_of(model)
    if not skips:
        model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    return changes_since(model, before)


NAMED = {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize(
    ("one", "other", "roles", "status", "says"),
    [
        (first_step(1e-3), first_step(2e-3), (), PASSED, "twice the LR doubles the first step of 4"),
        (
            first_step(1e-3, constant=True),
            first_step(2e-3, constant=True),
            (),
            "failed",
            "got 1.weight by 1, 1.bias by 1",
        ),
        (first_step(1e-3, skips=True), first_step(2e-3, skips=True), (), IMPOSSIBLE, ""),
        ({}, {}, (), IMPOSSIBLE, ""),
        (NAMED, {"a": 2.0, "b": 0.0}, (), PASSED, "of 1; without a gradient: b"),
        ({"a": 0.0}, {"a": 2.0}, (), "failed", "a from 0"),
        ({"a": 1.0}, {"b": 2.0}, (), "failed", ""),
        ({"a": 1.0}, {"a": math.nan}, (), "failed", ""),
        # Roles of the receipt count before those that names say.
        (NAMED, {"a": 2.0, "b": 0.0}, ("attn_out", "expert_out"), "failed", ""),
        (NAMED, {"a": 2.0, "b": 0.0}, ("attn_out", "attn_out"), PASSED, ""),
    ],
)
def test_wiring(one: dict[str, float], other: dict[str, float], roles: tuple[str, ...], status: str, says: str) -> None:
    groups = [{"name": name, "role": role} for name, role in zip(one, roles, strict=False)]
    outcome = hp_is_wired(one, other, groups)
    assert outcome.status == status
    assert outcome.reason.endswith(says)


MOVED = {
    **{f"layers.0.attn.{name}_proj.weight": 1.0 for name in "qkvo"},
    **{f"layers.0.moe.experts.{e}.{name}.weight": 1.0 for e in (0, 1) for name in ("up", "down")},
    "layers.0.norm.bias": 1.0,
    "lm_head.weight": 1.0,
}


@pytest.mark.parametrize(
    ("still", "status"),
    [
        (("experts.",), "failed"),
        (("experts.0.",), PASSED),  # no token chose it
        (("norm.bias",), PASSED),
        (("q_proj", "k_proj"), IMPOSSIBLE),  # zero products, or an output that starts at zero
        (("experts", "attn"), IMPOSSIBLE),  # a readout that starts at zero
    ],
)
def test_a_role_that_does_not_learn_does_not_pass(still: tuple[str, ...], status: str) -> None:
    one = {name: 0.0 if any(part in name for part in still) else by for name, by in MOVED.items()}
    assert hp_is_wired(one, {name: 2 * by for name, by in one.items()}).status == status


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cleared", [False, True])
def test_what_weight_decay_alone_moves_did_not_learn(dtype: torch.dtype, cleared: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)).to(dtype)
    model[2].weight.register_hook(torch.zeros_like)
    before, adam = weights_of(model), torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.5)
    model(torch.randn(4, 16, dtype=dtype)).square().sum().backward()
    adam.step()
    if cleared:
        adam.zero_grad()
    found = changes_since(model, before)
    assert not torch.equal(model[2].weight, before["2.weight"])
    assert [name for name, by in found.items() if not by] == ["2.weight"]


def test_a_receipt_tells_decay_of_changes_that_were_measured_elsewhere() -> None:
    name = "blocks.0.mlp.down_proj.weight"
    one = {"blocks.0.attn.o_proj.weight": 1e-3, name: 1e-3 * 0.1 * 0.05}
    numbers = {"lr": 1e-3, "weight_decay": 0.1}
    entry = {"name": name, "role": "dense_out", **numbers, "std": 0.03, "mean": 0.04}
    other = {"name": "blocks.0.attn.o_proj.weight", "role": "attn_out", **numbers, "std": 0.02}
    twice = {key: 2 * by for key, by in one.items()}
    assert hp_is_wired(one, twice, [entry, other]).status == "failed"
    assert hp_is_wired(one, twice, [{**entry, "std": 0.3}, other]).status == PASSED


FACTORS = {"readout": 0.25, "attn_out": 1.0}


@pytest.mark.parametrize(
    ("train", "evaluation", "status", "says"),
    [
        (0.25, 0.25, PASSED, ""),
        (1.0, 0.25, "failed", "readout in train multiplies by 1 in place of 0.25 (missing)"),
        (0.25, 1.0, "failed", "readout in eval multiplies by 1 in place of 0.25 (missing)"),
        (0.0625, 0.0625, "failed", "by 0.0625 in place of 0.25 (applied twice)"),
        (0.5, 0.5, "failed", "by 0.5 in place of 0.25"),
    ],
)
def test_a_missing_or_doubled_multiplier_is_named(train: float, evaluation: float, status: str, says: str) -> None:
    modes = {"train": train, "eval": evaluation}
    outputs = [{"key": "readout", "mode": mode, "with": by, "without": 1.0} for mode, by in modes.items()]
    outcome = forward_factors(outputs, FACTORS)
    assert outcome.status == status
    assert says in outcome.reason


def test_multipliers_that_nobody_reports_are_not_possible() -> None:
    assert forward_factors([], FACTORS).status == IMPOSSIBLE
    assert forward_factors([{"key": "readout", "with": 1.0, "without": 0.0}], FACTORS).status == IMPOSSIBLE
    assert forward_factors([], {"attn_out": 1.0}).status == PASSED


@pytest.mark.parametrize(
    ("sp", "spread", "status"),
    [(2.5, 0.0, PASSED), (2.50001, 0.0, "failed"), (2.50001, 0.001, PASSED), (math.nan, 0.0, IMPOSSIBLE)],
)
def test_arms_have_one_loss_at_the_base(sp: float, spread: float, status: str) -> None:
    outcome = arms_agree({"mup": 2.5, "sp": sp}, spread=spread)
    assert outcome.status == status
    assert ("2.50001 through sp" in outcome.reason) == (status == "failed")


MEASURED = {"tokens": 1000, "steps": 10, "batch_tokens": 100, "eval_digest": "x", "loss_name": "nats"}
CHANGES = ({"tokens": 2000}, {"eval_digest": "y"}, {"loss_name": "bits per byte"}, {"steps": 11})


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        *(([MEASURED, MEASURED | changes], "failed") for changes in CHANGES),
        *(([MEASURED, MEASURED], PASSED), ([{}, {}], IMPOSSIBLE), ([MEASURED], IMPOSSIBLE)),
    ],
)
def test_runs_are_measured_alike(runs: list[dict[str, Any]], status: str) -> None:
    assert same_measure([{"name": "a", **each} for each in runs]).status == status


def test_the_checks_load_no_torch() -> None:
    code = "import sys, hpxfer.receipts.checks; from hpxfer import receipt; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_groups_and_seeds_alone_leave_a_verdict_undecided() -> None:
    arms = arms_agree({"a": 1.0, "b": 2.0})
    said = undecided_because(groups_match([{**Q, "lr": 1.0}, HEAD], EXPECTED), arms)
    assert said is not None
    assert said.startswith("parameter groups: q has lr 1")
    assert "arms" not in said
    assert undecided_because(arms, groups_match([Q, HEAD], EXPECTED)) is None
    assert str(arms).startswith("base through two arms: failed: ")
