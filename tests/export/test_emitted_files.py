"""The modules for Megatron-LM, OLMo-core and torchtitan, executed against stand-ins of these trainers.

Each parameter of a realistic list must get the numbers of its role, whose names stand here by hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest
from recipe_data import MakeRecipe
from trainer_stand_ins import (
    MEGATRON,
    TITAN,
    Attention,
    Block,
    Decoder,
    Module,
    ParamKey,
    Separate,
    executed,
    megatron_groups,
    megatron_lr,
    olmo_groups,
    olmo_modules,
    standing_in,
    titan_groups,
)

from hpxfer.errors import HpxferError
from hpxfer.export import Exported, Named, export
from hpxfer.recipe import Recipe

WARNS = pytest.mark.filterwarnings("ignore::hpxfer.recipe.OutOfRangeWarning")
MOE = {"width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16}
# A dense first layer, routed and shared experts: every kind of layer at once.
SHARED = {"num_shared": 1, "shared_width": 64}
SHAPE = {**MOE, "depth": 13, "num_experts": 12, "num_active": 3, "expert_width": 64, **SHARED, "dense_width": 128}
DENSE = {"width": 64, "depth": 3, "head_dim": 16, "dense_width": 256}
BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 16}
OF_NO_SWEEP = ("sweep", "data_digest", "tokenizer", "vocab_size", "num_trials", "seeds", "measured")
BY_HAND: dict[str, Any] = {
    "fitted": None,
    "training": None,
    "provenance": {**dict.fromkeys(OF_NO_SWEEP), "made": "by hand", "hpxfer": "0.1.0", "versions": {}},
}
SCHEDULED = {"batch_tokens": 512, "steps": 200}
# Table complete-mue covers all of it; its recipe has all roles.
ALL_LAYERS = {
    "parameterization": {"name": "complete-mue", "conventions": {}},
    "base_shape": {**BASE, "num_shared": 1, "shared_width": 32, "dense_width": 64, **SCHEDULED},
    "model__ffn": "swiglu",
    **BY_HAND,
}
COMPLETEP = {
    "parameterization": {"name": "completep", "conventions": {"eps": "hidden"}},
    "base_shape": {"width": 32, "depth": 2, "dense_width": 128, "head_dim": 16, **SCHEDULED},
    "hps__multipliers": {},
    **BY_HAND,
}


def pairs(text: str, prefix: str) -> dict[str, str]:
    """Return name pattern -> role; `>` stands for the prefix of what is in a block."""
    words = text.replace(">", prefix).split()
    return dict(zip(words[::2], words[1::2], strict=True))


MEGATRON_ROLES = pairs(
    """
    embedding.word_embeddings.weight embedding  embedding.position_embeddings.weight position
    >self_attention.linear_proj.weight attn_out  >self_attention.linear_qkv.layer_norm_weight norm
    >self_attention.linear_qkv.weight attn_q  >self_attention.[qk]_layernorm.weight norm
    >pre_mlp_layernorm.weight norm  >mlp.router.weight router  >mlp.experts.linear_fc1.weight[0-9]* expert_in
    >mlp.experts.linear_fc2.weight[0-9]* expert_out  >mlp.shared_experts.linear_fc1.weight shared_in
    >mlp.shared_experts.linear_fc2.weight shared_out  >mlp.linear_fc1.layer_norm_weight norm
    >mlp.linear_fc1.weight dense_in  >mlp.linear_fc2.weight dense_out  decoder.final_layernorm.weight final_norm
    output_layer.weight readout
    """,
    "decoder.layers.*.",
)
TITAN_ROLES = pairs(
    """
    tok_embeddings.weight embedding  >attention.qkv_linear.wqkv.weight attn_q  >attention.wo.weight attn_out
    layers.*norm.weight norm  >moe.router.gate.weight router  >moe.routed_experts.inner_experts.w1_EFD expert_gate
    >moe.routed_experts.inner_experts.w2_EDF expert_out  >moe.routed_experts.inner_experts.w3_EFD expert_in
    >moe.shared_experts.w1.weight shared_gate  >moe.shared_experts.w2.weight shared_out
    >moe.shared_experts.w3.weight shared_in  >feed_forward.w1.weight dense_gate  >feed_forward.w2.weight dense_out
    >feed_forward.w3.weight dense_in  norm.weight final_norm  lm_head.weight readout
    """,
    "layers.*.",
)
OLMO_ROLES = pairs(
    """
    embeddings.weight embedding  >attention.w_q.weight attn_q  >attention.w_k.weight attn_k
    >attention.w_v.weight attn_v  >attention.w_out.weight attn_out  blocks.*norm.weight norm
    >feed_forward_moe.router.weight router  >feed_forward_moe.experts.mlp.w1 expert_gate
    >feed_forward_moe.experts.mlp.w2 expert_out  >feed_forward_moe.experts.mlp.w3 expert_in
    >feed_forward_moe.shared_mlp.w1.weight shared_gate  >feed_forward_moe.shared_mlp.w2.weight shared_out
    >feed_forward_moe.shared_mlp.w3.weight shared_in  >feed_forward.w1.weight dense_gate
    >feed_forward.w2.weight dense_out  >feed_forward.w3.weight dense_in  lm_head.norm.weight final_norm
    lm_head.w_out.weight readout
    """,
    "blocks.*.",
)
ROLES = {"megatron": MEGATRON_ROLES, "torchtitan": TITAN_ROLES, "olmo-core": OLMO_ROLES}
FILES = {"megatron": "hpxfer_megatron.py", "torchtitan": "hpxfer_torchtitan.py", "olmo-core": "hpxfer_olmo_core.py"}


def run(found: Exported) -> dict[str, Any]:
    """Return the names of the module of an export, executed against its trainer's stand-in."""
    modules = {"megatron": MEGATRON, "torchtitan": TITAN, "olmo-core": olmo_modules()}[found.target]
    return executed(found.files[FILES[found.target]], "exported", modules)


def groups_of(found: Exported, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return name -> lr, eps and weight decay, as the trainer's own rule assigns them."""
    module = run(found)
    if found.target == "megatron":
        given = megatron_groups(module["config_overrides"], names)
        return {
            name: {"lr": it["max_lr"], "eps": it["eps"], "weight_decay": it["end_wd"] * it["wd_mult"]}
            for name, it in given.items()
        }
    if found.target == "olmo-core":
        return olmo_groups(module["group_overrides"], names)
    given = titan_groups(module["optimizer"]().param_groups, names)
    return {name: {key: it[key] for key in ("lr", "eps", "weight_decay")} for name, it in given.items()}


def role_by_hand(target: str, name: str) -> str:
    return next(role for pattern, role in ROLES[target].items() if fnmatchcase(name, pattern))


def numbers(recipe: Recipe, target: str, shape: Mapping[str, int], names: list[str]) -> dict[str, dict[str, float]]:
    """Return name -> lr, eps and weight decay of the role that stands here by hand."""
    values, out = recipe.multipliers(shape), {}
    for name in names:
        at = values[role_by_hand(target, name)]
        out[name] = {"lr": at.lr, "eps": at.eps, "weight_decay": at.weight_decay}
    return out


def wrapped(target: str, name: str) -> str:
    """Return a name under DDP and mixed precision of Megatron, or activation checkpoints of the others."""
    if target == "megatron":
        return "module.module." + name
    return re.sub(r"(?<=[a-z]\.)([0-9]+)\.", r"\1._checkpoint_wrapped_module.", name)


@WARNS
@pytest.mark.parametrize(("changes", "shape"), [(ALL_LAYERS, SHAPE), (COMPLETEP, DENSE)], ids=["all layers", "dense"])
@pytest.mark.parametrize("target", list(ROLES))
def test_each_parameter_has_the_numbers_of_its_role(
    recipe: MakeRecipe, target: str, changes: dict[str, Any], shape: dict[str, int]
) -> None:
    made = recipe(**changes)
    found = export(made, target, shape, partial=True)
    names = [row.name for row in found.plan.rows]
    if "num_experts" in shape:
        assert {role_by_hand(target, name) for name in names} == set(ROLES[target].values())
    else:
        assert not any("expert" in name for name in names)
    plain = groups_of(found, names)
    assert plain == numbers(made, target, shape, names)
    other = {**shape, "width": 128, "dense_width": 512 if shape is DENSE else 128}
    assert plain != numbers(made, target, other, names)  # the twin: those of another width
    assert list(plain.values()) == list(groups_of(found, [wrapped(target, name) for name in names]).values())


def test_a_megatron_with_a_local_layer_spec(recipe: MakeRecipe) -> None:
    """The names of a GPTModel of megatron-core 0.16.1 without Transformer Engine, whose norms have biases."""
    norms = ["input_layernorm", "pre_mlp_layernorm"]
    of_layer = [
        *(f"{norm}.{part}" for norm in norms for part in ("weight", "bias")),
        *("self_attention.linear_proj.weight", "self_attention.linear_qkv.weight", "mlp.router.weight"),
        *(f"mlp.experts.local_experts.{e}.linear_fc{i}.weight" for e in range(8) for i in (1, 2)),
    ]
    ends = ["embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"]
    names = [*ends, *(f"decoder.layers.{layer}.{name}" for layer in range(3) for name in of_layer)]
    made = recipe()
    found = export(made, "megatron", MOE, [Named(name=name) for name in names], partial=True)
    got, values = groups_of(found, names), made.multipliers(MOE)
    run(found)["check_names"](names)
    by_hand = {"*linear_fc1.weight": "expert_in", "*linear_fc2.weight": "expert_out", "*layernorm.bias": "hidden_bias"}
    by_hand |= {"*router.weight": "router", "*final_layernorm.weight": "final_norm", "*layernorm.weight": "norm"}
    by_hand |= {"*proj.weight": "attn_out", "*qkv.weight": "attn_v", "output*": "readout", "*": "embedding"}
    for name in names:
        at = values[next(role for pattern, role in by_hand.items() if fnmatchcase(name, pattern))]
        assert got[name] == {"lr": at.lr, "eps": at.eps, "weight_decay": at.weight_decay}, name


@WARNS
def test_megatron_s_names_are_checked_there_too(recipe: MakeRecipe) -> None:
    found = export(recipe(**ALL_LAYERS), "megatron", SHAPE, partial=True)
    module, names = run(found), [row.name for row in found.plan.rows]
    module["check_names"](names)
    with pytest.raises(ValueError, match="must match one entry"):
        module["check_names"]([*names, "decoder.layers.0.self_attention.linear_q_down_proj.weight"])
    with pytest.raises(ValueError, match="every glob must match"):
        module["check_names"](name for name in names if "router" not in name)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_megatron_s_schedule_keeps_the_ratios(recipe: MakeRecipe, decay: str) -> None:
    """Its floors are absolute: min_lr is the same share of max_lr in each group, and warm-up starts at 0."""
    found = export(recipe(decay), "megatron", MOE, partial=True)
    module = run(found)
    args = dict(zip(module["launch_args"], [*module["launch_args"][1:], ""], strict=True))
    assert args["--lr-decay-style"] == decay
    groups = list(module["config_overrides"].values())
    assert len({group["max_lr"] for group in groups}) > 2
    steps, warmup = int(args["--train-iters"]), int(args["--lr-warmup-iters"])
    for step in (1, warmup, 100, steps):
        rule = {"warmup": warmup, "steps": steps, "style": decay, "init_lr": float(args["--lr-warmup-init"])}
        factors = [megatron_lr(group, step, **rule) / group["max_lr"] for group in groups]
        assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-12)
    one_floor = [{**group, "min_lr": 1e-3} for group in groups]
    factors = [megatron_lr(group, steps, **rule) / group["max_lr"] for group in one_floor]
    assert max(factors) > 1.5 * min(factors)  # the twin: one floor for all


def test_megatron_takes_no_rule_of_its_own_beside_these(recipe: MakeRecipe) -> None:
    found = export(recipe(), "megatron", MOE, partial=True)
    training = SimpleNamespace(get_megatron_optimizer_config=lambda args: ("config", {"theirs": 1}))
    module = run(found)
    with standing_in({"megatron.training": {"training": training}}):
        module["install"]()
    plain = SimpleNamespace(use_mup=False, decoupled_lr=None)
    assert training.get_megatron_optimizer_config(plain) == ("config", module["config_overrides"])
    for wrong in ({"use_mup": True}, {"scaling_recipe": "mup"}, {"decoupled_lr": 1e-3}):
        with pytest.raises(ValueError, match="leave"):
            training.get_megatron_optimizer_config(SimpleNamespace(**{**vars(plain), **wrong}))


def test_megatron_s_settings_and_what_it_cannot_hold(recipe: MakeRecipe) -> None:
    found = export(recipe("wsd", 0.0), "megatron", MOE, partial=True)
    module = run(found)
    args = dict(zip(module["launch_args"], [*module["launch_args"][1:], ""], strict=True))
    assert module["transformer_config"] == {"softmax_scale": 1 / 16}
    decay = [args[f"--lr-{key}"] for key in ("decay-style", "wsd-decay-iters", "wsd-decay-style")]
    assert decay == ["WSD", "50", "linear"]
    assert float(args["--init-method-std"]) == found.plan.resolved.values["attn_q"].init_std
    assert float(args["--embedding-init-method-std"]) == 0.5
    assert "--use-mup" not in args
    assert all(isinstance(key, ParamKey) for key in module["config_overrides"])
    with pytest.raises(HpxferError, match=r"cannot hold forward multipliers attn_out .*; do it by: recipe.attach"):
        export(recipe(), "megatron", MOE)
    forward, init = export(recipe(), "megatron", MOE, partial=True).lacks
    assert forward.what.startswith("forward")
    assert "attn_logits" not in forward.what  # softmax_scale holds it
    assert "readout 0.5" in forward.what
    assert init.what == "the init std of position, attn_out, router, expert_out, readout"
    assert "recipe.init_(" in init.call


def test_what_a_trainer_does_by_itself_is_no_lack(recipe: MakeRecipe) -> None:
    """Factors of one, and Megatron's init: output projections at std / sqrt(2 layers), all else at one std."""
    sp: dict[str, Any] = {"parameterization": {"name": "sp", "conventions": {}}}
    made = recipe(**sp, hps__residual_scale=1.0, hps__multipliers={}, model__gate="normalized_softmax")
    lacks = export(made, "torchtitan", BASE, partial=True).lacks
    assert [lack.what for lack in lacks] == ["forward multiplier attn_logits 0.0625"]
    (lack,) = export(made, "megatron", BASE, partial=True).lacks
    assert lack.what.startswith("the init std of position, attn_out, expert_out")
    own = recipe(
        **sp,
        hps__multipliers=dict.fromkeys(("attn_out.init_mult", "expert_out.init_mult"), 1 / math.sqrt(2 * 2)),
        hps__init_scale=1.0,
        init={"matrices": "constant", "matrix_std": 0.02, "embedding_std": 0.02, "position_std": 0.02},
    )
    assert not [lack for lack in export(own, "megatron", BASE, partial=True).lacks if "init" in lack.what]


@pytest.mark.parametrize(
    ("decay", "olmo", "settings", "titan"),
    [
        ("constant", "ConstantWithWarmup", {}, (0.0, "linear", 0.0)),
        ("cosine", "CosWithWarmup", {"alpha_f": 0.25, "t_max": 200}, (None, "cosine", 0.25)),
        ("linear", "LinearWithWarmup", {"alpha_f": 0.25, "t_max": 200}, (None, "linear", 0.25)),
        ("wsd", "WSD", {"decay": 50, "decay_fraction": None, "decay_min_lr": 0.0}, (0.25, "linear", 0.25)),
    ],
)
def test_schedules_of_olmo_core_and_torchtitan(
    recipe: MakeRecipe, decay: str, olmo: str, settings: dict[str, Any], titan: tuple[Any, ...]
) -> None:
    found = export(recipe(decay), "olmo-core", MOE, partial=True)
    module = run(found)
    assert vars(module["scheduler"]) == {"kind": olmo, "warmup": 20, "warmup_min_lr": 0.0, **settings}
    optim = module["optim"]
    assert (optim.kind, optim.betas, optim.lr) == ("AdamWConfig", (0.9, 0.95), 2.0**-6)
    assert optim.group_overrides is module["group_overrides"]
    floors = [lack.what for lack in found.lacks if "floor" in lack.what]
    assert floors == (["a floor of 0.25 of the peak LR in each group under WSD"] if decay == "wsd" else [])
    of_titan = run(export(recipe(decay), "torchtitan", MOE, partial=True))["lr_scheduler"]()
    assert of_titan.warmup_steps == 20
    assert (of_titan.decay_ratio, of_titan.decay_type, of_titan.min_lr_factor) == titan


def test_a_flat_router_of_olmo_core_is_known_by_its_size(recipe: MakeRecipe) -> None:
    """Its router is one long vector, and its experts may be one matrix of [experts x hidden, width]."""
    experts = dict.fromkeys(("experts.mlp.w1", "experts.mlp.w2"), (8 * 128, 64))
    sizes: dict[str, tuple[int, ...]] = {"feed_forward_moe.router.weight": (8 * 64,), **experts}
    standard = export(recipe(), "olmo-core", MOE, partial=True).plan.rows
    given = [
        Named(name=row.name, size=next((s for end, s in sizes.items() if row.name.endswith(end)), None))
        for row in standard
    ]
    found = export(recipe(), "olmo-core", MOE, given, partial=True)
    assert [(row.lr, row.eps) for row in found.plan.rows] == [(row.lr, row.eps) for row in standard]
    wrong = [Named(name=one.name, size=(8 * 32,)) if "router" in one.name else one for one in given]
    with pytest.raises(HpxferError, match="router"):
        export(recipe(), "olmo-core", MOE, wrong, partial=True)


def test_torchtitan_s_config_function(recipe: MakeRecipe) -> None:
    found = export(recipe(), "torchtitan", MOE, partial=True)
    module, values = run(found), found.plan.resolved.values
    before = Decoder(norm=Module({"weight": "ones"}))
    config = SimpleNamespace(model_spec=SimpleNamespace(model=before), training=SimpleNamespace(steps=1))
    made = module["configure"](config)
    assert before.lm_head.param_init is None  # a registry's own spec is not changed
    assert made.training.steps == 200
    model = made.model_spec.model

    def std(of: Module, name: str = "weight") -> float:
        assert of.param_init is not None
        return float(of.param_init[name].keywords["std"])

    assert model.norm.param_init == {"weight": "ones"}
    assert std(model.tok_embeddings) == values["embedding"].init_std
    assert std(model.lm_head) == values["readout"].init_std
    for block in model.layers:
        assert std(block.attention.wo) == values["attn_out"].init_std
        assert std(block.moe.router.gate) == values["router"].init_std
        assert std(block.moe.routed_experts.inner_experts, "w1_EFD") == values["expert_gate"].init_std
        assert std(block.moe.routed_experts.inner_experts, "w2_EDF") == values["expert_out"].init_std
        assert block.attention_norm.param_init is None
    dense = SimpleNamespace(model=Decoder(layers=[Block(moe=None)]))
    with pytest.raises(ValueError, match=r"no module config for .*inner_experts\.w1_EFD"):
        module["configure"](SimpleNamespace(model_spec=dense, training=SimpleNamespace(steps=1)))


def test_torchtitan_s_keys_and_values_share_a_config(recipe: MakeRecipe) -> None:
    names = [row.name for row in export(recipe(), "torchtitan", MOE, partial=True).plan.rows]
    apart = [
        Named(name=name.replace("wqkv", part))
        for name in names
        for part in (("wq", "wk", "wv") if "wqkv" in name else ("wqkv",))
    ]
    layers = [Block(attention=Attention(qkv_linear=Separate())) for _ in range(3)]
    spec = SimpleNamespace(model=Decoder(layers=layers))
    config = SimpleNamespace(model_spec=spec, training=SimpleNamespace(steps=1))
    found = export(recipe(), "torchtitan", MOE, apart, partial=True)
    model = run(found)["configure"](config).model_spec.model
    std = found.plan.resolved.values["attn_k"].init_std
    assert model.layers[2].attention.qkv_linear.wkv.param_init["weight"].keywords == {"mean": 0.0, "std": std}
    other = recipe(hps__multipliers={"attn_v.init_mult": 2.0})
    with pytest.raises(ValueError, match="share one config and must have one std"):
        run(export(other, "torchtitan", MOE, apart, partial=True))["configure"](config)


def test_a_layer_that_differs_has_patterns_of_its_own(recipe: MakeRecipe) -> None:
    """One projection of layer 1 has the role of another kind, so that no glob may hold for all layers."""
    rows = export(recipe(), "megatron", MOE, partial=True).plan.rows
    odd = "decoder.layers.1.self_attention.linear_proj.weight"
    given = [
        Named(name=row.name, role="router" if row.name == odd else row.role, size=(8, 64) if row.name == odd else None)
        for row in rows
    ]
    for target in ("megatron", "olmo-core", "torchtitan"):
        found = export(recipe(), target, MOE, given, partial=True)
        got = groups_of(found, [row.name for row in rows])
        lrs = [got[f"decoder.layers.{i}.self_attention.linear_proj.weight"]["lr"] for i in range(3)]
        assert lrs[0] == lrs[2] != lrs[1]
