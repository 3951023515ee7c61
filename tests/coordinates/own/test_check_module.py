"""The check of a user's own module: right wirings pass, and each fault that people make is found by its name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from checked_models import GPT_SITES, MLP, MLP_ROLES, class_loss, gpt, gpt_recipe, lm_loss, mlp, mlp_recipe, samples
from checked_models import text as tokens
from own_model import OwnGPT, roles_of
from recipe_data import multiplies
from torch import nn
from wrong_wirings import Wiring, missed, wrong_wirings

import hpxfer
from hpxfer.coordinates.report import CheckReport
from hpxfer.errors import HpxferError
from hpxfer.recipe import OtherModelWarning, OutOfRangeWarning, Recipe
from hpxfer.scaling.evaluate import BaseInit
from hpxfer.scaling.shape import Shape

pytestmark = pytest.mark.filterwarnings("ignore::hpxfer.recipe.OtherModelWarning")
ADAM, INIT = {"lr": 2.0**-8, "eps": 1e-12}, BaseInit(embedding_std=1.0, position_std=0.5)
MOE_BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 4, "expert_width": 32, "head_dim": 16}


def misses(report: CheckReport) -> set[tuple[str, str]]:
    """Return (role, quantity) of every miss."""
    (axis,) = report.axes
    judged = (*axis.judged, *axis.judged_stability)
    return {(each.role, each.quantity) for each in judged if each.verdict == "miss"}


def verdicts(report: CheckReport) -> dict[tuple[str, str], str]:
    (axis,) = report.axes
    return {(judged.role, judged.quantity): judged.verdict for judged in axis.judged_shown}


def quietly(recipe: Recipe, model: nn.Module, roles: Any, shape: Shape) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        for kind in (OtherModelWarning, OutOfRangeWarning):
            warnings.simplefilter("ignore", kind)
        return recipe.param_groups(model, roles, shape)


class TestGPT:
    """A GPT in plain torch, whose user wires it by `recipe.attach`, `init_` and `param_groups`."""

    recipe = gpt_recipe()

    def build(self, shape: Shape) -> nn.Module:
        model = gpt(shape)
        self.recipe.attach(model, shape, GPT_SITES, by_hand=["attn_logits"])
        return self.recipe.init_(model, hpxfer.roles(model), shape)

    def optimizer(self, model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
        return torch.optim.AdamW(quietly(self.recipe, model, hpxfer.roles(model), shape))

    def check(self, **changes: Any) -> CheckReport:
        parts: dict[str, Any] = {"build": self.build, "optimizer": self.optimizer, **changes}
        return hpxfer.check_module(parts.pop("build"), tokens, lm_loss, self.recipe, **parts)

    def test_the_right_wiring_passes(self) -> None:
        report = self.check(steps=2)
        assert misses(report) == set()
        assert report.passed
        found = verdicts(report)
        for role in ("attn_q", "attn_v", "attn_out", "dense_in", "dense_out", "readout"):
            assert found[role, "first step"] == found[role, "weight"] == "ok"
        for role in ("attn_q", "attn_v", "dense_in", "dense_out"):
            assert found[role, "effective"] == found[role, "activation"] == "ok"

    @pytest.mark.slow
    def test_it_passes_along_the_depth(self) -> None:
        report = self.check(axis="depth", steps=3)
        assert misses(report) == set()
        assert report.passed
        assert verdicts(report)["attn_out", "activation"] == verdicts(report)["dense_out", "effective"] == "ok"

    def test_torch_as_it_is_fails(self) -> None:
        def all_alike(model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
            return torch.optim.AdamW(model.parameters(), lr=self.recipe.hps.lr, eps=1e-12)

        found = misses(self.check(build=gpt, optimizer=all_alike, steps=2))
        assert {("embedding", "first step"), ("readout", "weight")} & found
        assert {("attn_q", "first step"), ("dense_in", "first step"), ("dense_out", "effective")} <= found

    def test_an_init_that_is_overwritten_is_named(self) -> None:
        def overwritten(shape: Shape) -> nn.Module:
            model = self.build(shape)
            for module in model.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)
            return model

        found = misses(self.check(build=overwritten, steps=2))
        assert {("attn_q", "weight"), ("dense_in", "weight"), ("dense_out", "weight")} <= found
        assert ("attn_q", "first step") not in found

    @pytest.mark.slow
    def test_a_multiplier_that_is_not_attached_is_named(self) -> None:
        def without(shape: Shape) -> nn.Module:
            model = gpt(shape)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.recipe.init_(model, hpxfer.roles(model), shape)

        along_width = self.check(build=without, steps=2)
        assert ("readout", "effective") in misses(along_width)
        assert any("does not multiply by" in text for text in along_width.axes[0].warnings)
        along_depth = misses(self.check(build=without, axis="depth"))
        assert {("attn_out", "activation"), ("dense_out", "effective")} <= along_depth

    def test_weights_that_decay_otherwise_are_named(self) -> None:
        def decays(scaled: bool) -> set[tuple[str, str]]:
            recipe = gpt_recipe(weight_decay=0.1)

            def optimizer(model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
                groups = quietly(recipe, model, hpxfer.roles(model), shape)
                for group in groups:
                    group["weight_decay"] = group["weight_decay"] if scaled else 0.1
                return torch.optim.AdamW(groups)

            return misses(hpxfer.check_module(self.build, tokens, lm_loss, recipe, optimizer=optimizer, steps=1))

        assert ("attn_q", "decay") in decays(scaled=False)
        assert ("attn_q", "decay") not in decays(scaled=True)

    def test_the_check_wires_a_plain_model_by_itself(self) -> None:
        report = hpxfer.check_module(gpt, tokens, lm_loss, self.recipe, sites=GPT_SITES, steps=2)
        assert misses(report) == set()
        assert report.passed

    def test_a_plain_model_without_sites_is_refused(self) -> None:
        with pytest.raises(
            HpxferError, match=r"at w64 .*must have a place, got none for readout \(0.5\) on .*by_hand = \['readout'\]"
        ):
            hpxfer.check_module(gpt, tokens, lm_loss, self.recipe, points=(64, 128, 256, 512), steps=1)

    def test_equal_calls_give_equal_reports_and_leave_the_generator_alone(self) -> None:
        before = torch.get_rng_state()
        one, two = (self.check(steps=1, seeds=2).to_dict() for _ in range(2))
        assert one == two
        assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
@pytest.mark.parametrize(
    "wiring", list(wrong_wirings())[::7], ids=lambda wiring: f"{wiring.axis} {wiring.role} {wiring.number}"
)
def test_one_wrong_number_is_found(wiring: Wiring) -> None:
    """A sample of wirings that are wrong in one number of one role: each is found by the name of its role."""
    assert wiring.role in missed(wiring.report(steps=2, seeds=2))


def test_a_hidden_lr_that_is_not_scaled_is_named_and_no_other() -> None:
    found = misses(Wiring(role="dense_out").report(steps=2, seeds=2))
    assert ("dense_out", "first step") in found
    assert ("embedding", "first step") not in found


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["width", "depth"])
def test_the_right_wiring_raises_no_alarm(axis: str) -> None:
    assert missed(Wiring(axis=axis, first_seed=100).report(steps=3)) == set()


def test_an_mlp_passes_and_fails_under_sp() -> None:
    parts: dict[str, Any] = {"roles": MLP_ROLES, "sites": {"last": "readout"}}
    report = hpxfer.check_module(mlp, samples, class_loss, mlp_recipe(), **parts)
    assert misses(report) == set()
    assert report.passed
    assert verdicts(report)["dense_in", "effective"] == "ok"
    parts = {"roles": MLP_ROLES}
    assert {("dense_in", "effective"), ("readout", "effective")} <= misses(
        hpxfer.check_module(mlp, samples, class_loss, mlp_recipe("sp"), **parts)
    )


def test_own_dictionaries_are_built_and_measured() -> None:
    shapes = [{"n_embd": width} for width in (64, 32, 128, 256)]
    seen: list[Mapping[str, int]] = []

    def build(own: Mapping[str, int]) -> nn.Module:
        seen.append(own)
        return MLP(own["n_embd"])

    def dims(own: Mapping[str, int]) -> dict[str, int]:
        return {"width": own["n_embd"], "depth": 1, "dense_width": own["n_embd"], "head_dim": 8}

    own: dict[str, Any] = {
        "shapes": shapes,
        "dims": dims,
        "roles": lambda model: MLP_ROLES,
        "sites": {"last": "readout"},
    }
    report = hpxfer.check_module(build, samples, class_loss, mlp_recipe(), **own, steps=1, seeds=1)
    assert report.axes[0].scales == (32, 64, 128, 256)
    assert [own["n_embd"] for own in seen] == [32, 64, 128, 256]
    assert verdicts(report)["dense_in", "first step"] == "ok"


class TestMoE:
    """A MoE in plain torch that multiplies by the recipe's numbers itself."""

    recipe = Recipe.from_hps("completep-moe", MOE_BASE, {**ADAM, "readout.init_mult": 2.0**-6}, init=INIT)

    def build(self, shape: Shape) -> nn.Module:
        model = multiplies(OwnGPT(shape, 64, 8, self.recipe.forward_multipliers(shape)), self.recipe, shape)
        return self.recipe.init_(model, roles_of(model), shape)

    def optimizer(self, model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
        return torch.optim.AdamW(quietly(self.recipe, model, roles_of(model), shape))

    def check(self, **changes: Any) -> CheckReport:
        parts: dict[str, Any] = {"build": self.build, "optimizer": self.optimizer, "roles": roles_of, **changes}
        return hpxfer.check_module(parts.pop("build"), tokens, lm_loss, self.recipe, steps=2, **parts)

    def test_the_right_wiring_passes(self) -> None:
        report = self.check()
        assert misses(report) == set()
        assert report.passed
        found = verdicts(report)
        assert found["router", "activation"] == found["router", "first step"] == found["router", "weight"] == "ok"
        assert found["expert_in", "effective"] == found["readout", "effective"] == "ok"
        assert found["moe", "activation"] == "ok"

    @pytest.mark.slow
    def test_a_router_that_is_treated_as_hidden_is_named(self) -> None:
        hidden = {name: "attn_q" if role == "router" else role for name, role in roles_of(self.build_base()).items()}

        def build(shape: Shape) -> nn.Module:
            model = multiplies(OwnGPT(shape, 64, 8, self.recipe.forward_multipliers(shape)), self.recipe, shape)
            return self.recipe.init_(model, hidden, shape)

        def optimizer(model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
            return torch.optim.AdamW(quietly(self.recipe, model, hidden, shape))

        found = misses(self.check(build=build, optimizer=optimizer))
        assert {("router", "weight"), ("router", "activation")} <= found
        report = self.check(build=build, optimizer=optimizer, roles=hidden)
        assert any("has the role attn_q, and its name says router" in text for text in report.axes[0].warnings)

    def build_base(self) -> nn.Module:
        return OwnGPT(Shape(**MOE_BASE), 64, 8, self.recipe.forward_multipliers(MOE_BASE))


# Models of transformers.


@pytest.mark.slow
def test_a_gpt2_of_transformers_passes_with_q_k_and_v_in_one_tensor() -> None:
    transformers = pytest.importorskip("transformers")

    def build(shape: Shape) -> nn.Module:
        sizes = {"n_embd": shape.width, "n_layer": shape.depth, "n_head": shape.width // 16, "n_positions": 16}
        config = transformers.GPT2Config(
            vocab_size=64, **sizes, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None
        )
        model: nn.Module = transformers.GPT2LMHeadModel(config)
        return model

    base, hps = Shape(width=32, depth=2, head_dim=16, dense_width=128), {**ADAM, "readout.init_mult": 2.0**-6}
    recipe = Recipe.from_hps("completep", base, hps, attention_scale="1/sqrt(d_head)", init=INIT)
    report = hpxfer.check_module(build, mixtral_text, lm_loss, recipe, steps=2)
    assert misses(report) == set()
    assert report.passed
    found = verdicts(report)
    for role in ("attn_q", "attn_k", "attn_v"):
        assert found[role, "first step"] == found[role, "weight"] == found[role, "activation"] == "ok"


@pytest.mark.slow
def test_a_mixtral_passes_and_features_of_experts_in_one_tensor_are_said_to_be_not_possible() -> None:
    report = hpxfer.check_module(mixtral, mixtral_text, lm_loss, mixtral_recipe(), steps=3)
    assert misses(report) == set()
    assert report.passed
    (axis,) = report.axes
    (said,) = [text for text in axis.not_tested if "not possible" in text]
    assert said.startswith("features of expert_in, expert_gate, expert_out")
    found = verdicts(report)
    assert found["expert_in", "first step"] == found["expert_out", "weight"] == found["moe", "activation"] == "ok"
    assert ("expert_in", "effective") not in found
    # No LR that a row judged is said to be not tested.
    assert "LR of expert_out" not in "".join(axis.not_tested)
    assert any("no proof" in text for text in axis.not_tested)


def test_a_mixtral_as_transformers_makes_it_fails() -> None:
    def optimizer(model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=2.0**-8, eps=1e-12)

    found = misses(hpxfer.check_module(mixtral, mixtral_text, lm_loss, mixtral_recipe(), optimizer=optimizer, steps=2))
    for role in ("router", "expert_in", "expert_out", "attn_q"):
        assert {(role, "weight"), (role, "first step")} <= found
    assert ("moe", "change") in found


def mixtral(shape: Shape) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    heads = shape.width // 16
    sizes = {"hidden_size": shape.width, "intermediate_size": shape.width, "num_hidden_layers": 2, "head_dim": 16}
    many = {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    config = transformers.MixtralConfig(vocab_size=64, **sizes, **many, bos_token_id=None, eos_token_id=None)
    model: nn.Module = transformers.MixtralForCausalLM(config)
    return model


def mixtral_text(shape: Shape) -> torch.Tensor:
    return torch.randint(0, 64, (2, 9))


def mixtral_recipe() -> Recipe:
    small = {"router.init_mult": 2.0**-8, "readout.init_mult": 2.0**-8}
    gates: Any = {"gate": "normalized_softmax", "attention_scale": "1/sqrt(d_head)"}
    return Recipe.from_hps("completep-moe", {**MOE_BASE, "num_active": 2}, {**ADAM, **small}, **gates)
