"""The checks of receipts: each says passed where all is well, and has a negative twin that fails by name."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict
from typing import Any, ClassVar

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
    tolerance_of,
)
from hpxfer.receipts.receipt import changes_since, weights_of
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.store.trainer_checks import Outcome, TrainerChecks


def undecided_because(outcomes: list[Outcome]) -> str | None:
    return TrainerChecks(code="", steps=20, outcomes=tuple(outcomes), extra_sd=0.0).undecided_because


EXPECTED = {
    "attn_q": {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.1, "betas": (0.9, 0.95)},
    "readout": {"lr": 4e-3, "eps": 1e-9, "weight_decay": 0.0, "betas": (0.9, 0.95)},
}


def entry(name: str, role: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "role": role, "held": 1, **EXPECTED[role], **changes}


def two(**changes: Any) -> list[dict[str, Any]]:
    """Return two entries that are as expected, and what is changed in the first."""
    return [entry("q.weight", "attn_q", changes), entry("head.weight", "readout", {})]


class TestGroups:
    def test_equal_groups_pass(self) -> None:
        assert groups_match(two(), EXPECTED) == Outcome(
            check="parameter groups", status="passed", reason="2 parameters, each once, with the numbers of the recipe"
        )
        by_name = {"q.weight": EXPECTED["attn_q"], "head.weight": EXPECTED["readout"]}
        assert groups_match(two(role=None), by_name).status == "passed"
        assert groups_match(two(role="attn_q+attn_k@64"), EXPECTED).status == "passed"
        values = Multipliers(init_std=0.1, lr=1e-3, eps=1e-8, weight_decay=0.1, forward=1.0)  # of a trial
        assert groups_match(two()[:1], {"attn_q": asdict(values)}).status == "passed"
        assert groups_match(two(lr=1e-3 * (1 + 5e-7)), EXPECTED).status == "passed"  # a millionth is no difference

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"lr": 1.00001e-3}, "q.weight has lr 0.00100001 in place of 0.001"),
            ({"eps": 1e-9}, "q.weight has eps 1e-09 in place of 1e-08"),
            ({"weight_decay": 0.0}, "q.weight has weight_decay 0 in place of 0.1"),
            ({"betas": [0.9, 0.999]}, "q.weight has betas (0.9, 0.999) in place of (0.9, 0.95)"),
            ({"held": 0}, "no group holds q.weight"),
            ({"held": 2}, "more than one group holds q.weight"),
            ({"name": "head.weight", "role": "readout", **EXPECTED["readout"]}, "more than one group holds head"),
            ({"name": None}, "1 tensors that are no parameters"),
            ({"lr": math.nan}, "q.weight has lr nan"),
        ],
    )
    def test_a_difference_is_named(self, changes: dict[str, Any], says: str) -> None:
        outcome = groups_match(two(**changes), EXPECTED)
        assert outcome.status == "failed"
        assert says in outcome.reason

    def test_an_expected_parameter_that_is_not_there_is_named(self) -> None:
        by_name: dict[str, Any] = {"q.weight": {"lr": 1e-3}, "head.weight": {"lr": 4e-3}, "k.weight": {"lr": 1e-3}}
        assert groups_match(two(), by_name).reason == "the receipt does not have k.weight"
        by_name["k.weight"] = {"lr": None}  # a buffer, or a frozen parameter
        assert groups_match(two(), by_name).status == "passed"

    def test_the_schedule_multiplies_all(self) -> None:
        halves = [{**each, "lr": each["lr"] / 2} for each in two()]
        assert groups_match(halves, EXPECTED).status == "failed"
        assert groups_match(halves, EXPECTED, factor=0.5).status == "passed"
        assert groups_match(halves, EXPECTED, factor=None).status == "passed"
        with_peak = [{**each, "peak_lr": each["lr"], "lr": each["lr"] / 2} for each in two()]
        assert groups_match(with_peak, EXPECTED).status == "passed"
        flat = [{**each, "lr": 1e-3} for each in two()]
        assert groups_match(flat, EXPECTED, factor=None).status == "failed"

    def test_what_is_unknown_is_not_possible(self) -> None:
        assert groups_match([], EXPECTED).status == "not possible"
        assert groups_match(two(role=None), EXPECTED).reason.startswith("nothing is expected of q.weight")
        assert groups_match([{"name": "a"}], {"a": {"lr": 1.0}}).reason == "the reported groups have no lr"
        assert groups_match([{"name": "a", "lr": 1.0}], EXPECTED).status == "not possible"


class TestSchedule:
    def receipts(self, decay: Any) -> list[dict[str, Any]]:
        peaks = {"a": 1e-3, "b": 4e-3}
        steps = {0: lambda lr: lr * 0.1, 10: lambda lr: lr, 99: decay}
        return [
            {"step": step, "groups": [{"name": name, "lr": rate(lr)} for name, lr in peaks.items()]}
            for step, rate in steps.items()
        ]

    def test_one_factor_for_all_passes(self) -> None:
        outcome = schedule_keeps_ratios(self.receipts(lambda lr: lr * 0.01))
        assert (outcome.status, outcome.reason) == ("passed", "one factor for all 2 parameters at steps 0, 10, 99")
        assert schedule_keeps_ratios(self.receipts(lambda lr: 0.0)).status == "passed"

    def test_a_schedule_of_torch_that_gives_all_groups_one_lr_fails(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

        def receipts(make: Any) -> list[dict[str, Any]]:
            optimizer = torch.optim.AdamW(
                [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[1].parameters(), "lr": 4e-3}]
            )
            schedule, out = make(optimizer), []
            for step in range(10):
                out.append({"step": step, "groups": receipt(model, optimizer)})
                optimizer.step()
                schedule.step()
            return out

        schedules = torch.optim.lr_scheduler
        good = receipts(lambda optimizer: schedules.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5)))
        assert schedule_keeps_ratios(good).status == "passed"
        floor = receipts(lambda optimizer: schedules.CosineAnnealingLR(optimizer, 9, eta_min=5e-4))
        outcome = schedule_keeps_ratios(floor)
        assert outcome.status == "failed"
        assert "at step " in outcome.reason

    def test_one_receipt_is_not_possible_and_a_parameter_that_comes_later_fails(self) -> None:
        receipts = self.receipts(lambda lr: lr)
        receipts[0]["groups"].pop()
        assert schedule_keeps_ratios(receipts).reason == "not in the receipt of every step: b"
        assert schedule_keeps_ratios(self.receipts(lambda lr: lr)[:1]).status == "not possible"
        assert schedule_keeps_ratios([{"step": 0, "groups": [{"name": "a"}]}] * 2).status == "not possible"

    @given(
        st.lists(st.floats(1e-8, 1.0), min_size=1, max_size=6),
        st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=5),
        st.integers(0, 5),
    )
    def test_any_common_factors_pass_and_one_bent_group_fails(
        self, peaks: list[float], factors: list[float], bent: int
    ) -> None:
        def made(bend: float) -> list[dict[str, Any]]:
            out = [
                {"step": step, "groups": [{"name": str(at), "lr": lr * factor} for at, lr in enumerate(peaks)]}
                for step, factor in enumerate([1.0, *factors])
            ]
            out[-1]["groups"][bent % len(peaks)]["lr"] *= bend
            return out

        assert schedule_keeps_ratios(made(1.0)).status == "passed"
        if len(peaks) > 1:
            assert schedule_keeps_ratios(made(0.999)).status == "failed"


class TestInit:
    def of(self, values: torch.Tensor, wanted: Any, *, largest: bool = True, key: str = "init_std") -> Outcome:
        module = nn.Module()
        module.weight = nn.Parameter(values)
        (found,) = receipt(module, torch.optim.SGD(module.parameters(), lr=1.0), init=True)
        if not largest:
            del found["largest"]
        return init_matches([found], {"weight": {key: wanted}})

    def drawn(self, size: int, cut: float | None = None, std: float = 0.02) -> torch.Tensor:
        generator, out = torch.Generator().manual_seed(size), torch.empty(size)
        if cut is None:
            return out.normal_(0, std, generator=generator)
        return nn.init.trunc_normal_(out, std=std, a=-cut * std, b=cut * std, generator=generator)

    @pytest.mark.parametrize(("size", "largest"), [(64, True), (10_000, True), (64, False), (200_000, False)])
    def test_a_full_normal_passes(self, size: int, largest: bool) -> None:
        assert self.of(self.drawn(size), 0.02, largest=largest).status == "passed"

    @pytest.mark.parametrize(("size", "largest"), [(10_000, True), (200_000, True), (200_000, False)])
    @pytest.mark.parametrize("cut", [2.0, 3.0])
    def test_a_cut_normal_of_torch_is_named(self, size: int, largest: bool, cut: float) -> None:
        outcome = self.of(self.drawn(size, cut), 0.02, largest=largest)
        assert outcome.status == "failed"
        assert f"is a normal cut at {cut:g} sigma, with {CUTS[cut]:.3f} of the std" in outcome.reason

    def test_the_stds_of_cut_normals_are_those_of_scipy(self) -> None:
        assert self.of(self.drawn(100_000, 2.0, std=0.02 / CUTS[2.0]), 0.02).status == "passed"  # the right std
        for cut, share in CUTS.items():
            assert share == pytest.approx(stats.truncnorm(-cut, cut).std(), rel=1e-9)
        assert {cut: round(share, 3) for cut, share in CUTS.items()} == {2.0: 0.880, 3.0: 0.987}

    @pytest.mark.parametrize("factor", [0.5, 0.95, 1.05, 2.0])
    def test_another_std_fails(self, factor: float) -> None:
        outcome = self.of(self.drawn(100_000, std=0.02 * factor), 0.02)
        assert outcome.status == "failed"
        assert "in place of 0.02" in outcome.reason

    def test_constants(self) -> None:
        assert self.of(torch.ones(8), "ones", key="init").status == "passed"
        assert self.of(torch.zeros(8), "zeros", key="init").status == "passed"
        assert self.of(torch.zeros(8), 0.0).status == "passed"
        assert "about 0 in place of the constant 1" in self.of(torch.zeros(8), "ones", key="init").reason
        assert self.of(self.drawn(64), 0.0).status == "failed"
        assert self.of(torch.zeros(8), 0.02).status == "failed"
        # Without statistics it is not possible.
        assert init_matches([{"name": "a", "numel": 3}], {"a": {"init_std": 1.0}}).status == "not possible"
        assert init_matches([{"name": "a", "std": 1.0}], {}).status == "not possible"

    @given(st.integers(30, 3000), st.integers(0, 2**32 - 1))
    def test_the_tolerance_holds_for_every_draw_of_numpy(self, size: int, seed: int) -> None:
        values = np.random.default_rng(seed).normal(0, 0.02, size)
        found = {"name": "a", "numel": size, "std": float(values.std()), "largest": float(abs(values).max())}
        assert init_matches([found], {"a": {"init_std": 0.02}}).status == "passed"
        assert tolerance_of(size) >= 0.03

    @pytest.mark.parametrize("role", ["norm", "final_norm"])
    @pytest.mark.parametrize(("start", "status"), [(1.0, "passed"), (0.0, "passed"), (0.5, "failed")])
    def test_a_gain_that_is_known_by_its_role_is_one(self, role: str, start: float, status: str) -> None:
        """A gain has no init std. It starts at 1, and at 0 if the norm multiplies by 1 + w."""
        found = {"name": "ln.weight", "role": role, "numel": 8, "std": 0.0, "mean": start}
        assert init_matches([found], {role: {"init_std": 0.0}}).status == status

    def test_a_gain_with_a_spread_is_none(self) -> None:
        found = {"name": "ln.weight", "role": "norm", "numel": 8, "std": 0.02, "mean": 1.0}
        reason = init_matches([found], {"norm": {"init_std": 0.0}}).reason
        assert reason == "ln.weight has std 0.02 about 1 in place of the constant 1 or 0"


class TestSeeds:
    ONE: ClassVar[dict[str, Any]] = {"init": "aa", "batch": "bb", "loss": 2.0}
    OTHER: ClassVar[dict[str, Any]] = {"init": "cc", "batch": "dd", "loss": 2.5}

    @pytest.mark.parametrize("part", ["init", "batch", "loss"])
    def test_a_part_that_ignores_the_seed_fails(self, part: str) -> None:
        outcome = seeds_differ(self.ONE, self.OTHER)
        assert outcome.status == "passed"
        assert outcome.reason == "two seeds differ in the initial weights, the first batch, the loss"
        outcome = seeds_differ(self.ONE, {**self.OTHER, part: self.ONE[part]})
        assert outcome.status == "failed"
        assert undecided_because([outcome]) is not None

    def test_what_is_not_reported_is_said(self) -> None:
        outcome = seeds_differ({"loss": 2.0}, {"loss": 2.5, "init": "aa"})
        assert outcome.status == "passed"
        assert outcome.reason.endswith("; not reported: the initial weights, the first batch")
        assert seeds_differ({}, {}).status == "not possible"
        assert seeds_differ({"loss": math.nan}, {"loss": math.inf}).status == "not possible"
        assert seeds_differ({"loss": [2.0, None]}, {"loss": [2.5, 1.0]}).status == "not possible"

    def test_digests_of_weights_tell_seeds_apart(self) -> None:
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
        ([2.0, 2.0], [], "passed", 0.0),
        ([2.0, 2.01], [2.0, 2.1, 2.2], "passed", 0.0),
        ([2.0, 2.1], [2.0, 2.1, 2.2], "failed", SPREAD),
        ([2.0, 2.1], [2.0], "not possible", SPREAD),  # an unknown noise adds the spread
        ([2.0, math.nan], [2.0, 2.1], "not possible", 0.0),
    ],
)
def test_a_large_spread_of_repetitions_is_added(
    losses: list[float], seeds: list[float], status: str, extra: float
) -> None:
    found = base_repeats(losses, seeds)
    assert (found.outcome.status, found.extra_sd) == (status, pytest.approx(extra))
    assert undecided_because([found.outcome]) is None


class TestWired:
    def steps(self, lr: float, *, skips: bool = False, constant: bool = False) -> dict[str, float]:
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

    def test_twice_the_lr_doubles_the_step_of_adam_and_a_group_with_an_lr_of_its_own_is_named(self) -> None:
        outcome = hp_is_wired(self.steps(1e-3), self.steps(2e-3))
        assert (outcome.status, outcome.reason) == ("passed", "twice the LR doubles the first step of 4")
        outcome = hp_is_wired(self.steps(1e-3, constant=True), self.steps(2e-3, constant=True))
        assert outcome.status == "failed"
        assert outcome.reason.endswith("got 1.weight by 1, 1.bias by 1")

    def test_edges(self) -> None:
        assert hp_is_wired(self.steps(1e-3, skips=True), self.steps(2e-3, skips=True)).status == "not possible"
        assert hp_is_wired({}, {}).status == "not possible"
        assert hp_is_wired({"a": 1.0, "b": 0.0}, {"a": 2.0, "b": 0.0}).reason.endswith("of 1; without a gradient: b")
        assert hp_is_wired({"a": 0.0}, {"a": 2.0}).reason.endswith("a from 0")
        assert hp_is_wired({"a": 1.0}, {"b": 2.0}).status == "failed"
        assert hp_is_wired({"a": 1.0}, {"a": math.nan}).status == "failed"

    MOVED: ClassVar[dict[str, float]] = {
        **{f"layers.0.attn.{name}_proj.weight": 1.0 for name in "qkvo"},
        **{f"layers.0.moe.experts.{e}.{name}.weight": 1.0 for e in (0, 1) for name in ("up", "down")},
        "layers.0.norm.bias": 1.0,
        "lm_head.weight": 1.0,
    }

    @pytest.mark.parametrize(
        ("still", "status"),
        [
            (("experts.",), "failed"),
            (("experts.0.",), "passed"),  # no token chose it
            (("norm.bias",), "passed"),
            (("q_proj", "k_proj"), "not possible"),  # zero products, or an output that starts at zero
            (("experts", "attn"), "not possible"),  # a readout that starts at zero
        ],
    )
    def test_a_role_that_does_not_learn_does_not_pass(self, still: tuple[str, ...], status: str) -> None:
        one = {name: 0.0 if any(part in name for part in still) else by for name, by in self.MOVED.items()}
        assert hp_is_wired(one, {name: 2 * by for name, by in one.items()}).status == status

    def test_roles_of_the_receipt_count_before_those_that_names_say(self) -> None:
        one, roles = {"a": 1.0, "b": 0.0}, [{"name": "a", "role": "attn_out"}, {"name": "b", "role": "expert_out"}]
        assert hp_is_wired(one, {"a": 2.0, "b": 0.0}, roles).status == "failed"
        assert (
            hp_is_wired(one, {"a": 2.0, "b": 0.0}, [{**each, "role": "attn_out"} for each in roles]).status == "passed"
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("cleared", [False, True])
    def test_what_weight_decay_alone_moves_did_not_learn(self, dtype: torch.dtype, cleared: bool) -> None:
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

    def test_a_receipt_tells_decay_of_changes_that_were_measured_elsewhere(self) -> None:
        name = "blocks.0.mlp.down_proj.weight"
        one = {"blocks.0.attn.o_proj.weight": 1e-3, name: 1e-3 * 0.1 * 0.05}
        numbers = {"lr": 1e-3, "weight_decay": 0.1}
        entry = {"name": name, "role": "dense_out", **numbers, "std": 0.03, "mean": 0.04}
        other = {"name": "blocks.0.attn.o_proj.weight", "role": "attn_out", **numbers, "std": 0.02}
        twice = {key: 2 * by for key, by in one.items()}
        assert hp_is_wired(one, twice, [entry, other]).status == "failed"
        assert hp_is_wired(one, twice, [{**entry, "std": 0.3}, other]).status == "passed"


FACTORS = {"readout": 0.25, "attn_out": 1.0}


@pytest.mark.parametrize(
    ("train", "evaluation", "status", "says"),
    [
        (0.25, 0.25, "passed", ""),
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
    assert forward_factors([], FACTORS).status == "not possible"
    assert forward_factors([{"key": "readout", "with": 1.0, "without": 0.0}], FACTORS).status == "not possible"
    assert forward_factors([], {"attn_out": 1.0}).status == "passed"


def test_arms_have_one_loss_at_the_base() -> None:
    assert arms_agree({"mup": 2.5, "sp": 2.5}).status == "passed"
    outcome = arms_agree({"mup": 2.5, "sp": 2.50001})
    assert outcome.status == "failed"
    assert "2.50001 through sp" in outcome.reason
    assert arms_agree({"mup": 2.5, "sp": 2.50001}, spread=0.001).status == "passed"
    assert arms_agree({"mup": 2.5, "sp": math.nan}).status == "not possible"


MEASURED = {"tokens": 1000, "steps": 10, "batch_tokens": 100, "eval_digest": "x", "loss_name": "nats"}


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [
        *((MEASURED, MEASURED | changes, "failed") for changes in ({"tokens": 2000}, {"eval_digest": "y"})),
        *((MEASURED, MEASURED | changes, "failed") for changes in ({"loss_name": "bits per byte"}, {"steps": 11})),
        *((MEASURED, MEASURED, "passed"), ({}, {}, "not possible"), (MEASURED, None, "not possible")),
    ],
)
def test_runs_are_measured_alike(one: dict[str, Any], other: dict[str, Any] | None, status: str) -> None:
    runs = [{"name": "a", **one}] if other is None else [{"name": "a", **one}, {"name": "b", **other}]
    assert same_measure(runs).status == status


def test_the_checks_load_no_torch() -> None:
    code = "import sys, hpxfer.receipts.checks; from hpxfer import receipt; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_groups_and_seeds_alone_leave_a_verdict_undecided() -> None:
    failed = [groups_match(two(lr=1.0), EXPECTED), arms_agree({"a": 1.0, "b": 2.0})]
    said = undecided_because(failed)
    assert said is not None
    assert said.startswith("parameter groups: q.weight has lr 1")
    assert "arms" not in said
    assert undecided_because([failed[1], groups_match(two(), EXPECTED)]) is None
    assert str(failed[1]).startswith("base through two arms: failed: ")
