"""A sweep that starts from a recipe: what is filled in, what the file keeps, and recipes that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dit_cases import make_case
from recipe_data import BASE, data
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.recipe.start import load_sweep
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.sweep import base_values
from hpxfer.spec.yaml_file import write_yaml

NO_BASE = ("  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}\n", "")
NO_TABLES = ("parameterizations: [completep-moe, sp]\n", "")
NO_BETAS = ("  betas: [0.9, 0.95]\n", "")
HPS = "hps:\n  router_bias_lr: 0.01\n"


def loaded(folder: Path, *edits: tuple[str, str], recipe: Any = None, hps: str = "") -> SweepSpec:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "recipe.yaml").write_text(write_yaml(recipe or data()))
    (folder / "sweep.yaml").write_text(edited((HPS, f"hps:\n  recipe: results/recipe.yaml\n{hps}"), *edits))
    return load_sweep(folder / "sweep.yaml")


def test_what_the_file_leaves_out_comes_from_the_recipe(tmp_path: Path) -> None:
    spec = loaded(tmp_path, NO_BASE, NO_TABLES, NO_BETAS)
    expected = {"lr": 2.0**-6, "init_scale": 1.5, "residual_scale": 0.7, "weight_decay": 0.1, "eps": 1e-12}
    values = base_values(spec)
    assert {name: values[name] for name in expected} == expected
    assert values["router.lr_mult"] == 0.25
    assert (values["beta1"], values["beta2"]) == (0.9, 0.95)
    assert (spec.base_shape.width, spec.base_shape.head_dim, spec.base_shape.expert_width) == (32, 16, 32)
    (table,) = spec.parameterizations
    assert (table.table, table.conventions) == ("completep-moe", {"depth_alpha": 1.0, "router_init_exponent": 1.0})
    assert (spec.model.embedding_std, spec.model.position_std) == (0.5, 0.25)
    recipe = spec.hps.recipe
    assert recipe is not None
    assert recipe.origin is not None
    assert recipe.origin.startswith("sweep ")
    assert "hps.lr: 0.015625" in (recipe.gives or ())


def test_a_recipe_of_muon_gives_its_second_lr_and_its_momentum(tmp_path: Path) -> None:
    made = data(optimizer="muon[scale=original]", hps__adamw_lr=0.03, hps__momentum=0.9)
    spec = loaded(tmp_path, NO_BASE, NO_TABLES, NO_BETAS, recipe=made)
    assert spec.training.optimizer == "muon[scale=original]"
    assert (spec.hps.adamw_lr, spec.hps.momentum) == (0.03, 0.9)
    found = spec.hps.recipe
    assert found is not None
    assert {"hps.adamw_lr: 0.03", "hps.momentum: 0.9"} <= set(found.gives or ())
    assert not any("adamw_lr" in line for line in (*(found.instead or ()), *(found.left_out or ())))
    spelled = ("steps: 200", "steps: 200\n  optimizer: muon[router=adamw,scale=original]")
    spec = loaded(tmp_path, NO_BASE, NO_TABLES, NO_BETAS, spelled, recipe=made, hps="  adamw_lr: 0.5\n")
    assert spec.hps.recipe is not None
    assert "hps.adamw_lr: 0.5, in the recipe 0.03" in (spec.hps.recipe.instead or ())
    still = data(optimizer="muon", hps__adamw_lr=0.03, hps__momentum=0.0)
    assert loaded(tmp_path, NO_BASE, NO_TABLES, NO_BETAS, recipe=still).hps.momentum == 0.0
    plain = loaded(tmp_path, NO_BASE, NO_TABLES, NO_BETAS).hps
    assert plain.adamw_lr is None
    assert plain.recipe is not None
    assert not any("adamw_lr" in line for line in (*(plain.recipe.gives or ()), *(plain.recipe.left_out or ())))


def test_what_the_file_sets_wins_and_is_said(tmp_path: Path) -> None:
    edits = (NO_BASE, ("steps: 200", "steps: 100\n  weight_decay: 0.3"), ("gpt\n", "gpt\n  embedding_std: 0.1\n"))
    spec = loaded(
        tmp_path,
        *edits,
        hps="  lr: 0.5\n  router_bias_lr: 0.02\n  multipliers: {router.lr_mult: 2, attn_q.lr_mult: 4}\n",
    )
    values = base_values(spec)
    assert (values["lr"], values["weight_decay"], values["router.lr_mult"]) == (0.5, 0.3, 2)
    assert values["attn_q.lr_mult"] == 4
    assert spec.model.embedding_std == 0.1
    recipe = spec.hps.recipe
    assert recipe is not None
    assert recipe.instead is not None
    for line in (
        "hps.lr: 0.5, in the recipe 0.015625",
        "training.weight_decay: 0.3, in the recipe 0.1",
        "hps.multipliers.router.lr_mult: 2, in the recipe 0.25",
        "hps.multipliers.attn_q.lr_mult: 4, in the recipe 1",
        "hps.router_bias_lr: 0.02, in the recipe 0.01",
        "model.embedding_std: 0.1, in the recipe 0.5",
        "training.steps: 100, in the recipe 200",
        "model.tied_embeddings: True, in the recipe False",  # a default of sweeps, not of the recipe's model
    ):
        assert line in recipe.instead
    assert any("in the recipe 0.25" in line and "router" in line for line in recipe.lines())


def test_the_table_of_the_recipe_keeps_its_conventions_beside_a_control(tmp_path: Path) -> None:
    spec = loaded(tmp_path, NO_BASE)
    tuned, control = spec.parameterizations
    assert (tuned.table, dict(tuned.conventions)["depth_alpha"]) == ("completep-moe", 1.0)
    assert (control.table, control.conventions) == ("sp", {})


def test_a_convention_of_the_file_leaves_the_others_of_the_recipe(tmp_path: Path) -> None:
    chosen = {"name": "completep-moe", "conventions": {"depth_alpha": 1.0, "router_init_exponent": 0.5}}
    edit = ("[completep-moe, sp]", "[{table: completep-moe, conventions: {depth_alpha: 0.5}}, sp]")
    tuned, control = loaded(tmp_path, NO_BASE, edit, recipe=data(parameterization=chosen)).parameterizations
    assert tuned.conventions == {"depth_alpha": 0.5, "router_init_exponent": 0.5}
    assert control.conventions == {}
    recipe = loaded(tmp_path, NO_BASE, edit, recipe=data(parameterization=chosen)).hps.recipe
    assert recipe is not None
    assert "conventions of completep-moe: router_init_exponent 0.5" in (recipe.gives or ())
    assert "conventions of completep-moe: depth_alpha: 0.5, in the recipe 1" in (recipe.instead or ())


OPTIONS = {
    "qk_norm": "head",
    "qk_norm_kind": "layernorm",
    "qkv_biases": True,
    "rope_theta": 500.0,
    "rope_share": 0.5,
    "norm_eps": 1e-6,
    "attention_gate": True,
    "route_scale": 2.5,
    "learned_router_bias": True,
    "balance.load": "piece",
    "ties": "random",
    "unknown_to_this_version": 1,
}


def test_all_that_a_recipe_records_is_compared(tmp_path: Path) -> None:
    """Every section is compared whole, with the defaults of the sweep."""
    made = data(
        model={**data()["model"], "bias_rule": "sign", "qk_norm": True, "norm": "rmsnorm", "options": OPTIONS},
        training={
            **data()["training"],
            "schedule": {"decay": "cosine", "warmup": 10},
            "gradient_clip": 1.0,
            "precision": "bfloat16",
        },
        provenance__tokenizer="bytes",
        provenance__vocab_size=256,
    )
    found = loaded(tmp_path, NO_BASE, recipe=made).hps.recipe
    assert found is not None
    lines = {line.partition(": ")[0]: line.partition(": ")[2] for line in found.instead or ()}
    expected = {
        *(f"model.{name}" for name in OPTIONS if name != "unknown_to_this_version"),
        *("model.balance.bias", "model.norm", "model.tied_embeddings", "training.schedule", "training.gradient_clip"),
        *("precision", "data.tokenizer", "data.vocab_size"),
    }
    assert set(lines) == expected
    assert lines["model.qk_norm"] == "none, in the recipe head"
    assert lines["training.gradient_clip"] == "none, in the recipe 1"
    assert lines["training.schedule"] == ("constant (warmup 20), in the recipe cosine (warmup 10)")


def test_nothing_is_otherwise_in_a_sweep_that_repeats_the_recipe(tmp_path: Path) -> None:
    same = (NO_BASE, ("gpt\n", "gpt\n  tied_embeddings: false\n"))
    spec = loaded(tmp_path, *same)
    spelled_out = loaded(tmp_path, *same, hps="  lr: {log2: -6}\n")
    for each in (spec, spelled_out):
        assert each.hps.recipe is not None
        assert each.hps.recipe.instead == ()


def test_an_open_value_is_handed_on_with_a_word(tmp_path: Path) -> None:
    made = data(fitted__open_because="the lowest loss is at the largest value")
    made["fitted"]["axes"]["joint"]["verdict"] = "undecided"
    recipe = loaded(tmp_path, NO_BASE, recipe=made).hps.recipe
    assert recipe is not None
    first, *_ = recipe.lines()
    assert "lr 0.015625 may not be the best: the lowest loss is at the largest value" in first
    assert "the verdict of lr along joint is: undecided" in first
    sure = loaded(tmp_path, NO_BASE).hps.recipe
    assert sure is not None
    assert sure.doubts is None


def test_what_the_own_model_does_not_use_is_left_out(tmp_path: Path) -> None:
    made = data(
        hps__multipliers={"position.lr_mult": 2.0, "router.lr_mult": 0.25},
        hps__aux_weight=0.01,
        hps__router_bias_lr=0.02,
    )
    rope = ("gpt\n", "gpt\n  positions: rope\n  balance: {bias: none}\n")
    spec = loaded(tmp_path, NO_BASE, rope, recipe=made)
    assert spec.hps.multipliers == {"router.lr_mult": 0.25}
    assert (spec.model.position_std, spec.hps.aux_weight, spec.hps.router_bias_lr) == (0.02, 0.0, 0.01)
    recipe = spec.hps.recipe
    assert recipe is not None
    said = [text.partition(":")[0] for text in recipe.left_out or ()]
    assert sorted(said) == [
        "hps.aux_weight",
        "hps.multipliers.position.lr_mult",
        "hps.router_bias_lr",
        "model.position_std",
    ]
    assert not set(said) & {text.partition(":")[0] for text in (*(recipe.gives or ()), *(recipe.instead or ()))}
    assert "model.positions: rope, in the recipe learned" in (recipe.instead or ())  # older recipes leave it out
    assert "left out of the recipe: " in "\n".join(recipe.lines())
    with pytest.raises(HpxferError, match=r"model\.position_std: goes with positions: learned"):
        loaded(tmp_path, NO_BASE, ("gpt\n", "gpt\n  positions: rope\n  position_std: 0.5\n"), recipe=made)


def test_a_model_by_name_over_a_recipe_of_another(tmp_path: Path) -> None:
    like = ("gpt\n", "gpt\n  like: mixtral\n")
    spec = loaded(tmp_path, NO_BASE, like, hps="  aux_weight: 0.01\n")
    assert (spec.model.positions, spec.model.embedding_std, spec.hps.aux_weight) == ("rope", 0.5, 0.01)
    with pytest.raises(HpxferError, match=r"hps\.aux_weight: must be given with model\.balance\.aux switch") as error:
        loaded(tmp_path, NO_BASE, like)
    assert len(str(error.value).splitlines()) == 1


def test_a_stored_sweep_needs_the_recipe_no_more(tmp_path: Path) -> None:
    spec = loaded(tmp_path, NO_BASE, NO_TABLES)
    text = dump_sweep(spec)
    (tmp_path / "results" / "recipe.yaml").unlink()
    assert parse_sweep(text) == spec
    assert parse_sweep(text, trusted=False).hps == spec.hps


def test_a_pinned_digest_is_compared(tmp_path: Path) -> None:
    digest = loaded(tmp_path, NO_BASE).hps.recipe
    assert digest is not None
    path = tmp_path / "sweep.yaml"
    pinned = path.read_text().replace("results/recipe.yaml", f"{{file: results/recipe.yaml, digest: {digest.digest}}}")
    path.write_text(pinned)
    assert load_sweep(path).hps.recipe == digest
    path.write_text(pinned.replace(str(digest.digest), "f" * 32))
    with pytest.raises(HpxferError, match=r"sweep\.yaml:\d+: hps\.recipe\.digest: must be the digest of .*got 'ffff"):
        load_sweep(path)


@pytest.mark.parametrize(
    ("edits", "changes", "message"),
    [
        ((), {}, r":4: model\.base\.head_dim: must be 16, as in the recipe .*got 32; its HPs are those of its base"),
        (
            ((NO_BASE[0], NO_BASE[0].replace("head_dim: 32", "head_dim: 16, num_groups: 2")),),
            {},
            r":4: model\.base\.num_groups: must be left out, as in the recipe .*got 2",
        ),
        (
            ((NO_BASE[0], NO_BASE[0].replace("head_dim: 32", "head_dim: 16")),),
            {"base_shape": {**BASE, "num_shared": 1, "shared_width": 32, "batch_tokens": 512, "steps": 200}},
            r":4: model\.base\.num_shared: must be 1, as in the recipe .*got None",
        ),
        ((NO_BASE, ("steps: 200", "steps: 200\n  optimizer: sgd")), {}, r"training\.optimizer: must be adamw, as in"),
        (
            (NO_BASE,),
            {"family": "mamba"},
            r":\d+: hps\.recipe: .*family: must be a model family that this hpxfer knows",
        ),
        ((NO_BASE,), {"hpxfer_recipe": 9}, r"hps\.recipe: .*hpxfer_recipe: must be 2, got 9"),
        (
            (NO_BASE,),
            {"base_shape": {**BASE, "num_groups": 2, "batch_tokens": 512, "steps": 200}},
            r"model\.base \(in the recipe\): num_active must be a multiple of num_groups 2, got 1",
        ),
    ],
)
def test_recipes_that_do_not_fit(
    tmp_path: Path, edits: tuple[tuple[str, str], ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HpxferError, match=message):
        loaded(tmp_path, *edits, recipe=data(**changes))


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(edited((HPS, "hps: {recipe: none.yaml}\n")))
    with pytest.raises(HpxferError, match=r"sweep\.yaml:\d+: hps\.recipe: must be a recipe\.yaml, got 'none\.yaml'"):
        load_sweep(tmp_path / "sweep.yaml")
    (tmp_path / "none.yaml").write_text("name: x\n")
    with pytest.raises(HpxferError, match=r"hps\.recipe: .*none\.yaml: must be a recipe, .*got none"):
        load_sweep(tmp_path / "sweep.yaml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "sweep.yaml").write_text(edited((HPS, "hps: {recipe: folder}\n")))
    with pytest.raises(HpxferError, match=r"hps\.recipe: .*got 'folder', which is no file"):
        load_sweep(tmp_path / "sweep.yaml")


@pytest.mark.parametrize(
    ("named", "messages"),
    [
        ("{path: r.yaml}", ["hps.recipe.file: must be given", "hps.recipe.path: unknown key; legal: "]),
        ("3", ["hps.recipe: must be a path or a mapping, got 3"]),
        ("{file: 3}", ["hps.recipe.file: must be a valid string, got 3"]),
        ("{file: r.yaml, model: x}", ["hps.recipe.model: unknown key; legal: "]),
    ],
)
def test_a_section_that_names_no_recipe(tmp_path: Path, named: str, messages: list[str]) -> None:
    """What the recipe would give is not reported as missing."""
    (tmp_path / "sweep.yaml").write_text(edited((HPS, f"hps: {{recipe: {named}}}\n"), ("  family: gpt\n", "")))
    with pytest.raises(HpxferError) as error:
        load_sweep(tmp_path / "sweep.yaml")
    lines = str(error.value).splitlines()
    assert len(lines) == len(messages)
    assert all(message in line for message, line in zip(messages, lines, strict=True))


def test_text_names_no_file_in_which_a_recipe_would_lie() -> None:
    with pytest.raises(HpxferError, match=r":\d+: hps\.recipe: is read by hpxfer\.load_sweep alone"):
        parse_sweep(edited((HPS, f"{HPS}  recipe: recipe.yaml\n")))


def test_a_sweep_of_dit_starts_as_its_recipe_says_and_names_other_options(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(make_case("moe").recipe.dump())
    sweep = {
        "name": "from_dit",
        "model": {
            "family": "dit",
            "gate": "normalized_sigmoid",
            "ffn": "swiglu",
            "dit": {"patch": 4, "frequencies": 32},
        },
        "data": {"source": "builtin:shapes"},
        "training": {"batch_samples": 8, "steps": 20, "validation_samples": 8},
        "axes": {"width": [64]},
        "hps": {"recipe": "recipe.yaml"},
        "grid": {"lr": [0.01]},
    }
    (tmp_path / "sweep.yaml").write_text(write_yaml(sweep))
    spec = load_sweep(tmp_path / "sweep.yaml")
    assert (spec.model.dit.adaln_init, spec.model.dit.readout_init, spec.model.dit.frequencies) == (
        "random",
        "random",
        32,
    )
    assert (spec.base_shape.num_experts, spec.parameterizations[0].table) == (4, "complete-mue")
    found = spec.hps.recipe
    assert found is not None
    assert "model.dit.adaln_init: random" in (found.gives or ())
    assert [line for line in found.instead or () if line.startswith("model.")] == [
        "model.attention_gate: False, in the recipe True",
        "model.dit.frequencies: 32, in the recipe 64",
    ]
