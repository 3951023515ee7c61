"""The modules for torch and transformers, executed with the real libraries on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from recipe_data import MakeRecipe
from torch import nn
from trainer_stand_ins import executed

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.export import Exported, export, read_names, read_roles, write_names
from hpxfer.recipe import Recipe, shape_of
from hpxfer.spec.schedule import Planned, schedule_at
from hpxfer.train.schedules import lr_factor

MIXTRAL = {
    "width": 64,
    "depth": 3,
    "num_experts": 8,
    "num_active": 2,
    "expert_width": 128,
    "head_dim": 16,
    "kv_heads": 2,
}
COMMON: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
CONFIG: dict[str, Any] = {
    **COMMON,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
FILES = {"torch": "hpxfer_torch.py", "transformers": "hpxfer_transformers.py"}
FEW = pytest.mark.filterwarnings("ignore::hpxfer.recipe.OtherModelWarning")
pytestmark = [FEW, pytest.mark.filterwarnings("ignore::hpxfer.recipe.OutOfRangeWarning")]


def mixtral() -> Any:
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**CONFIG))


def gated(recipe: MakeRecipe, **changes: Any) -> Recipe:
    return recipe(**{"model__gate": "normalized_softmax", **changes})


def run(found: Exported) -> dict[str, Any]:
    return executed(found.files[FILES[found.target]], "exported", {})


def by_name(groups: list[dict[str, Any]], model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return name -> lr, eps, weight decay and betas of groups, by the tensors themselves."""
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    keys = ("lr", "peak_lr", "eps", "weight_decay", "betas")
    return {names[id(tensor)]: tuple(group.get(key) for key in keys) for group in groups for tensor in group["params"]}


@pytest.mark.parametrize("target", ["torch", "transformers"])
def test_groups_are_those_of_the_recipe_name_by_name(recipe: MakeRecipe, tmp_path: Path, target: str) -> None:
    made, model = gated(recipe), mixtral()
    write_names(model, tmp_path / "names.json")
    with made.attach(model, shape_of(model)):
        wanted = by_name(made.param_groups(model, hpxfer.roles(model), shape_of(model)), model)
    assert sorted(wanted) == sorted(name for name, _ in model.named_parameters())
    for names in (tmp_path / "names.json", None):  # transformers has names of its own
        if names is None and target == "torch":
            continue
        found = export(made, target, shape_of(model), names)
        assert found.lacks == ()
        module = run(found)
        assert by_name(module["param_groups"](model), model) == wanted
        assert by_name(module["optimizer"](model).param_groups, model) == wanted
    for name in ("module", "_orig_mod"):  # of a wrapper
        outer = nn.Module()
        outer.add_module(name, model)
        assert by_name(module["param_groups"](outer), model) == wanted
    model.extra = nn.Linear(2, 2, bias=False)
    with pytest.raises(ValueError, match=r"got none for \['extra.weight'\]"):
        module["param_groups"](model)
    del model.extra, model.lm_head
    with pytest.raises(ValueError, match=r"got none for \['lm_head.weight'\]"):
        module["param_groups"](model)


def test_a_recipe_of_muon_is_a_module_that_makes_its_optimizer(recipe: MakeRecipe, tmp_path: Path) -> None:
    made, model = gated(recipe, optimizer="muon[scale=original]", hps__adamw_lr=0.01, hps__momentum=0.95), mixtral()
    write_names(model, tmp_path / "names.json")
    found = export(made, "torch", shape_of(model), tmp_path / "names.json")
    module = run(found)
    assert module["OPTIMIZER"] == "hpxfer.Muon"
    named = {name: group for group in module["GROUPS"] for name in group["names"]}
    assert named["lm_head.weight"].keys() == {"lr", "eps", "weight_decay", "betas", "names"}
    assert named["model.layers.0.mlp.experts.gate_up_proj"]["scale"] == (2**0.5,)
    with made.attach(model, shape_of(model)):
        wanted = by_name(made.param_groups(model, hpxfer.roles(model), shape_of(model)), model)
        optimizer = module["optimizer"](model)
    assert type(optimizer) is hpxfer.Muon
    assert by_name(optimizer.param_groups, model) == wanted
    written = {row["name"]: row for row in json.loads(found.files["hpxfer.json"])["tensors"]}
    assert written["model.layers.0.mlp.experts.gate_up_proj"]["scale"] == [2**0.5]
    assert written["lm_head.weight"]["by"] == "adamw"
    for target in ("megatron", "transformers", "json"):
        with pytest.raises(
            HpxferError, match=rf"{target} takes the optimizers .*, got muon\[scale=original\]; use --to torch"
        ):
            export(made, target, shape_of(model))


def test_the_names_of_a_llama_are_those_of_the_library() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, "hidden_size": 64, "head_dim": 16}))
    base = {"width": 32, "depth": 2, "dense_width": 24, "head_dim": 16}
    found = export(Recipe.from_hps("completep", base, {"lr": 0.01}, gate="sigmoid"), "transformers", shape_of(model))
    assert {row.name for row in found.plan.rows} == {name for name, _ in model.named_parameters()}


def test_the_trainer_makes_optimizer_and_schedule(recipe: MakeRecipe) -> None:
    """Without accelerate no Trainer can be made, so that its two methods are called on a bare object."""
    module, model = run(export(gated(recipe), "transformers", MIXTRAL)), mixtral()
    trainer = object.__new__(module["HpxferTrainer"])
    assert isinstance(trainer, transformers.Trainer)
    trainer.model, trainer.optimizer, trainer.lr_scheduler = model, None, None
    optimizer = trainer.create_optimizer()
    assert trainer.create_optimizer() is optimizer
    schedule = trainer.create_scheduler(num_training_steps=200)
    assert trainer.create_scheduler(num_training_steps=200) is schedule
    factors = {group["lr"] / group["peak_lr"] for group in optimizer.param_groups}
    assert len(factors) == 1
    assert factors.pop() == pytest.approx(1 / 20)
    assert module["training_arguments"] == {"max_steps": 200, "max_grad_norm": 0.0, "bf16": False}


@pytest.mark.parametrize("decay", ["constant", "cosine", "linear", "wsd"])
def test_the_schedule_is_that_of_hpxfer(recipe: MakeRecipe, decay: str) -> None:
    made = gated(recipe, decay=decay)
    factor, training = run(export(made, "transformers", MIXTRAL))["factor"], made.file.training
    assert training is not None
    lengths = {"warmup_steps": 20, "decay_steps": 50 if decay == "wsd" else 0, "steps": 200}
    setting: Any = SimpleNamespace(**lengths, decay=decay, final_fraction=training.schedule.final_fraction)
    wanted = [lr_factor(setting, step) for step in range(200)]
    assert [factor(step) for step in range(200)] == pytest.approx(wanted, rel=1e-15)
    assert factor(10**6) == factor(199)
    assert len({factor(step) for step in range(200)}) >= 20


def test_lengths_of_a_schedule_are_those_of_a_sweep(recipe: MakeRecipe) -> None:
    """In steps they scale with the run, as `hpxfer.spec.schedule` does it."""
    made = gated(recipe, decay="wsd")
    found = export(made, "json", {**MIXTRAL, "batch_tokens": 1024, "steps": 330}).plan.phases
    training = made.file.training
    assert training is not None
    assert found is not None
    spec: Any = SimpleNamespace(final_window_steps=1, steps=training.steps)
    run_of: Any = SimpleNamespace(steps=330, batch_tokens=1024)
    wanted = schedule_at(spec, run_of, Planned(schedule=training.schedule, steps=training.steps))
    assert (found.warmup_steps, found.decay_steps) == (wanted.warmup_steps, wanted.decay_steps) == (33, 83)


def test_prepare_initializes_and_attaches_as_the_recipe(recipe: MakeRecipe) -> None:
    made, ours, theirs = gated(recipe), mixtral(), mixtral()
    module = run(export(made, "transformers", MIXTRAL))
    handle = module["prepare"](theirs, generator=torch.Generator().manual_seed(1))
    with made.attach(ours, MIXTRAL):
        made.init_(ours, hpxfer.roles(ours), MIXTRAL, generator=torch.Generator().manual_seed(1))
        ids = torch.arange(16)[None]
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
        handle.remove()
        assert not torch.equal(ours(ids).logits, theirs(ids).logits)


def test_sgd(recipe: MakeRecipe, tmp_path: Path) -> None:
    made = Recipe.from_hps(
        "mup",
        {"width": 32, "depth": 2, "dense_width": 48, "head_dim": 8, "kv_heads": 2},
        {"lr": 0.01, "momentum": 0.5},
        optimizer="sgd",
        gate="sigmoid",
    )
    wide = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 96}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, **wide}))
    write_names(model, tmp_path / "names.json")
    module = run(export(made, "torch", shape_of(model), tmp_path / "names.json"))
    optimizer = module["optimizer"](model)
    assert type(optimizer) is torch.optim.SGD
    assert {group["momentum"] for group in optimizer.param_groups} == {0.5}
    with pytest.raises(ValueError, match="the recipe has no schedule"):  # it was made by hand
        module["scheduler"](optimizer)
    with pytest.raises(HpxferError, match="megatron takes the optimizers adamw, got sgd"):
        export(made, "megatron", shape_of(model), partial=True)


def test_what_a_names_file_keeps_of_a_model(recipe: MakeRecipe, tmp_path: Path) -> None:
    """Frozen and tied parameters, gains of 1 + w and a scaled embedding: as the recipe gives the model itself."""
    config = transformers.GemmaConfig(**{**COMMON, "hidden_size": 64, "head_dim": 16})
    model = transformers.GemmaForCausalLM(config)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    base = {"width": 32, "depth": 2, "dense_width": 24, "head_dim": 16, "kv_heads": 1}
    shape = {"width": 64, "depth": 2, "dense_width": 48, "head_dim": 16, "kv_heads": 2}
    tied = {"embeddings": "tied"}
    made = Recipe.from_hps("completep", base, {"lr": 0.01}, conventions=tied, gate="sigmoid", embedding_scale=4.0)
    untied = Recipe.from_hps("completep", base, {"lr": 0.01}, gate="sigmoid")
    write_names(model, tmp_path / "names.json")
    with pytest.raises(HpxferError, match="readout is the same tensor, which no init"):
        export(made, "torch", shape, tmp_path / "names.json")
    model.model.embed_tokens.embed_scale.fill_(4.0)
    write_names(model, tmp_path / "names.json")
    found = export(made, "torch", shape, tmp_path / "names.json")
    wanted = made.explain(model, hpxfer.roles(model), shape).rows
    assert found.plan.rows == wanted
    assert {row.init for row in wanted if row.role == "norm"} == {"zeros"}
    assert [row.lr for row in wanted if "0.mlp.up_proj" in row.name] == [None]
    made.attach(model, shape, sites=(), by_hand=made.forward_multipliers(shape))
    wanted_groups = made.param_groups(model, hpxfer.roles(model), shape)
    assert by_name(run(found)["param_groups"](model), model) == by_name(wanted_groups, model)
    with pytest.raises(HpxferError, match="embeddings"):
        export(untied, "torch", shape, tmp_path / "names.json")


def test_granite_settings(recipe: MakeRecipe) -> None:
    """Where both branches have one factor, a Granite config holds it. Else there are none."""
    other = gated(recipe, hps__multipliers={"attn_out.forward_mult": 2.0})
    assert run(export(other, "transformers", MIXTRAL))["granite_config"] == {}
    assert run(export(recipe(), "transformers", MIXTRAL))["granite_config"] == {}  # its gate is another one
    same = gated(
        recipe,
        parameterization={"name": "sp", "conventions": {}},
        hps__residual_scale=0.5,
        hps__multipliers={"readout.forward_mult": 0.25},
    )
    base = {**MIXTRAL, "num_experts": 4, "num_active": 1}
    found = run(export(same, "transformers", base))
    assert found["granite_config"] == {
        "attention_multiplier": 1 / 16,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
        "embedding_multiplier": 1.0,
    }


def test_hpxfer_json(recipe: MakeRecipe, tmp_path: Path) -> None:
    made, model = gated(recipe), mixtral()
    write_names(model, tmp_path / "names.json")
    named = read_names(tmp_path / "names.json")
    assert [(one.name, one.size) for one in named] == [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    assert {one.role for one in named if one.name.endswith("gate_up_proj")} == {"expert_in+expert_gate"}
    found = export(made, "json", shape_of(model), tmp_path / "names.json")
    found.write(tmp_path / "out")
    data = json.loads((tmp_path / "out" / "hpxfer.json").read_text())
    assert [(one["name"], tuple(one["size"])) for one in data["tensors"]] == [
        (n, tuple(p.shape)) for n, p in model.named_parameters()
    ]
    values = made.multipliers(MIXTRAL)
    for one in data["tensors"]:
        at = values[one["role"].split("+")[0]]
        assert (one["lr"], one["eps"], one["weight_decay"]) == (at.lr, at.eps, at.weight_decay), one["name"]
        assert one["init_std"] == (at.init_std or None)
    factors = {key: it["factor"] for key, it in data["forward"].items()}
    assert factors == made.forward_multipliers(MIXTRAL)
    assert all(it["of"] == made.forward_sites()[key] for key, it in data["forward"].items())
    assert data["betas"] == [0.9, 0.95]
    assert data["schedule"]["warmup_steps"] == 20
    assert len(data["recipe_sha256"]) == 64
    assert read_roles(tmp_path / "out" / "hpxfer.json") == {one["name"]: one["role"] for one in data["tensors"]}
    made.attach(model, MIXTRAL)
    made.init_(model, read_roles(tmp_path / "out" / "hpxfer.json"), MIXTRAL)
    without_names = export(made, "json", MIXTRAL)
    data = json.loads(without_names.files["hpxfer.json"])
    assert (list(without_names.files), data["tensors"]) == (["hpxfer.json"], [])
    assert {role: it["lr"] for role, it in data["roles"].items()} == {role: at.lr for role, at in values.items()}
