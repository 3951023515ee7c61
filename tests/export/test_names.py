"""Names files, patterns, and what is refused: the rule, what was given, where, and the fix."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_data import MakeRecipe

from hpxfer.errors import HpxferError
from hpxfer.export import ExportTarget, Named, export, read_names, read_roles, register_export_target
from hpxfer.export.targets import EXPORT_TARGETS
from hpxfer.recipe import Recipe
from hpxfer.recipe.match import globs, templates

BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 16}
MOE = {"width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16}
TEXT = """\
# name size role
wte.weight 128x64 embedding
blocks.0.attn.q.weight 64x64 attn_q   # a comment
blocks.0.attn.out.weight attn_out
blocks.0.norm.weight

"""


def at(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "names.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_text_file(tmp_path: Path) -> None:
    assert read_names(at(tmp_path, TEXT)) == (
        Named(name="wte.weight", size=(128, 64), role="embedding"),
        Named(name="blocks.0.attn.q.weight", size=(64, 64), role="attn_q"),
        Named(name="blocks.0.attn.out.weight", role="attn_out"),
        Named(name="blocks.0.norm.weight"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must name from 1 to 1000000 parameters, got 0"),
        ("a.weight 64x0", "names.txt:1: parameters[0].size[1]: must be greater than or equal to 1, got 0"),
        ("a.weight 64x64 attn_x", "a.weight: unknown role 'attn_x'; did you mean 'attn_"),
        ("a b c d", "names.txt:1: must be a name, a size such as 64x64 and a role"),
        ("../etc/passwd", "a name must be words of letters, digits and '_' with dots between them, got '../etc/pa"),
        ("a*.weight", "a pattern must have a role and nothing else behind it, once, got 'a*.weight'"),
        ("a*.weight 64x64 attn_q", "a pattern must have a role and nothing else behind it"),
        ("a.weight\na.weight", "each name must stand once, got a.weight twice; keep one"),
        ("a.b\na.b.c", "a.b: a parameter cannot hold other parameters, got names that start with a.b."),
        ("{bad", "not a JSON file"),
        ("[1]", 'must hold {"parameters": [...]}, one mapping with a name per parameter, got [1]'),
        ('{"parameters": [1]}', "parameters[0]: must be a mapping, got 1"),
        ('{"parameters": [{"name": "a", "sise": [1]}]}', "parameters[0].sise: unknown key; did you mean 'size'?"),
        ('{"parameters": [{"name": "a", "size": [1.5]}]}', "size[0]: must be a valid integer, got 1.5"),
        ('{"parameters": [{"name": "a", "role": 3}]}', "role: must be a valid string, got 3"),
        ('{"parameters": [{"name": "a", "frozen": 1}]}', "frozen: must be true or false, got 1"),
        ('{"parameters": [{"name": "a", "embedding_scale": 0}]}', "embedding_scale: must be greater than 0, got 0"),
        ('{"parameters": [{"name": "a", "same_as": "b"}]}', "a: same_as: must be a name further up, got 'b'"),
    ],
)
def test_a_file_that_holds_no_names_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(HpxferError, match=re.escape(why)) as refused:
        read_names(at(tmp_path, text))
    assert str(tmp_path / "names.txt") in str(refused.value)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(HpxferError, match=r"must be an hpxfer\.json with tensors by name, got another file"):
        read_roles(tmp_path / "x.json")
    for read in (read_names, read_roles):
        with pytest.raises(HpxferError, match=r"none\.json: cannot be read: No such file"):
            read(tmp_path / "none.json")


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["parameters", "name", "size", "role", "same_as", "frozen"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSONS)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("names") / "names.json"
    path.write_text(json.dumps({"parameters": [data]}), encoding="utf-8")
    try:
        found = read_names(path)
    except HpxferError:
        return
    assert found[0].name == data["name"]


NO_SIZES = """\
embeddings.weight embedding
blocks.0.attention.w_q.weight attn_q
blocks.0.attention.w_k.weight
blocks.0.attention.w_v.weight
blocks.0.attention.w_out.weight
blocks.0.feed_forward.w1.weight
blocks.0.feed_forward.w2.weight
blocks.0.feed_forward.w3.weight
blocks.0.feed_forward_norm.weight
blocks.0.mixer.w_out.weight
lm_head.norm.weight
lm_head.w_out.weight
"""
DENSE = {"width": 128, "depth": 1, "dense_width": 512, "head_dim": 16}


def test_names_without_sizes_get_the_roles_of_their_places_or_are_refused(tmp_path: Path) -> None:
    base = {"width": 32, "depth": 1, "dense_width": 128, "head_dim": 16}
    recipe = Recipe.from_hps("completep", base, {"lr": 2.0**-6}, attention_scale="1/sqrt(d_head)")
    with pytest.raises(HpxferError, match=r"got none for blocks\.0\.mixer\.w_out\.weight; write the role behind"):
        export(recipe, "torch", DENSE, at(tmp_path, NO_SIZES), partial=True)
    made = export(recipe, "torch", DENSE, at(tmp_path, f"{NO_SIZES}*.mixer.* hidden_bias\n"), partial=True)
    roles = {row.name: row.role for row in made.plan.rows}
    assert roles["blocks.0.attention.w_out.weight"] == "attn_out"
    assert roles["blocks.0.mixer.w_out.weight"] == "hidden_bias"
    assert (roles["lm_head.norm.weight"], roles["lm_head.w_out.weight"]) == ("final_norm", "readout")
    assert [caution.split(" is taken for ")[0] for caution in made.cautions if " is taken for " in caution] == [
        *(f"blocks.0.feed_forward.{name}.weight" for name in ("w1", "w2", "w3")),
        "lm_head.norm.weight",
    ]
    with pytest.raises(HpxferError, match=r"got no match for '\*\.mixxer\.\*'"):
        export(recipe, "torch", DENSE, at(tmp_path, f"{NO_SIZES}*.mixxer.* hidden_bias\n"), partial=True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("* attn_q", r"norm\.weight: a tensor of role attn_q must be a matrix"),
        ("*norm* norm\n*.gate.weight norm", r"gate\.weight: a tensor of role norm must be a vector"),
        ("*.gate_up_proj expert_in", r"gate_up_proj \(expert_in\) must have width"),
        ("*.o_proj.weight attn_q@64", None),
    ],
)
def test_a_pattern_is_held_to_the_tensors_of_the_target(tmp_path: Path, line: str, why: str | None) -> None:
    shape = {"width": 64, "depth": 2, "num_experts": 4, "num_active": 2, "expert_width": 48, "head_dim": 16}
    made = Recipe.from_hps("completep-moe", shape, {"lr": 2.0**-8}, gate="normalized_softmax")
    names = at(tmp_path, f"{line}\n")
    if why is None:
        export(made, "transformers", shape, names, partial=True)
        return
    with pytest.raises(HpxferError, match=why):
        export(made, "transformers", shape, names, partial=True)


PART = st.sampled_from(["layers", "0", "1", "12", "mlp", "w1", "w2", "weight", "weight0", "norm", "q_norm"])
NAMES = st.lists(st.lists(PART, min_size=1, max_size=4).map(".".join), min_size=1, max_size=12, unique=True)


@given(NAMES, st.data())
def test_templates_and_globs_match_their_own_group_alone(names: list[str], data: st.DataObject) -> None:
    """In a template `#` is a whole number. A glob matches each name once, as OLMo-core wants it, or is refused."""
    group_of = [data.draw(st.integers(0, 2)) for _ in names]
    groups = [[name for name, at in zip(names, group_of, strict=True) if at == group] for group in range(3)]
    regexes = [[re.escape(one).replace(r"\#", "[0-9]+") for one in patterns] for patterns in templates(groups)]
    for name, group in zip(names, group_of, strict=True):
        hits = [at for at, each in enumerate(regexes) if any(re.fullmatch(regex, name) for regex in each)]
        assert hits == [group], name
    try:
        made = globs(groups)
    except HpxferError:
        return
    found = [[name for name in names if fnmatchcase(name, one)] for patterns in made for one in patterns]
    assert all(found), "a dead pattern"
    assert sorted(name for hits in found for name in hits) == sorted(names)
    for group, patterns in zip(groups, made, strict=True):
        assert {name for name in names for one in patterns if fnmatchcase(name, one)} == set(group)


def test_names_under_a_crossing_star_stand_by_themselves_or_are_refused() -> None:
    got = globs([["a.0.norm.weight", "a.1.norm.weight", "a.0.q.norm.weight"]])
    assert got == [["a.*.norm.weight"]]
    assert globs([["a.0.q.norm.weight", "a.0.norm.weight"]]) == [["a.*.q.norm.weight", "a.0.norm.weight"]]
    with pytest.raises(HpxferError, match=r"alone, got 'a\.\*\.c' for a\.0\.b\.c, which has others"):
        globs([["a.1.c", "a.2.c"], ["a.0.b.c"]])


def named(*lines: str) -> list[Named]:
    return [Named(name=name, size=None, role=role or None) for name, _, role in (one.partition(" ") for one in lines)]


@pytest.mark.parametrize(
    ("to", "shape", "names", "why"),
    [
        ("megatorn", MOE, None, "--to: unknown export target 'megatorn'; did you mean 'megatron'?"),
        ("json", {**MOE, "head_dim": 24}, None, "head_dim"),
        ("json", {"width": 64}, None, "shape: must give depth"),
        ("json", {**MOE, "widht": 3}, None, "shape: widht: unknown key; did you mean 'width'?"),
        ("json", {**MOE, "num_active": 5}, None, "kappa"),
        ("torch", MOE, None, "--names: must be given for torch, which knows no names of its own, got none"),
        ("torch", MOE, named("a.zzz", "b.yyy"), "names: every parameter must have a role, got none for a.zzz, b.yyy"),
        ("torch", MOE, named("a.weight shared_in"), "a.weight': shared_in: completep-moe has no rule for it; it has"),
        ("torch", MOE, named("a.weight dense_in"), "dense_width"),
        ("torch", MOE, named("a-b.weight attn_q"), "names: a name must be words of letters, digits and '_'"),
        ("torch", MOE, [], "names: must name from 1 to 1000000 parameters, got 0"),
        ("torch", MOE, [Named(name="q.weight", size=(32, 32), role="attn_q")], "must have the target's width 64"),
        ("torch", MOE, [Named(name="q.weight", size=(64,), role="attn_q")], "must be a matrix, got size (64,)"),
    ],
)
def test_refused_input(recipe: MakeRecipe, to: str, shape: dict[str, int], names: list[Named] | None, why: str) -> None:
    with pytest.raises(HpxferError, match=re.escape(why)):
        export(recipe(), to, shape, names, partial=True)


def test_what_needs_names_or_cannot_be_held_is_said(recipe: MakeRecipe) -> None:
    made = recipe(parameterization={"name": "complete-mue", "conventions": {}})
    with pytest.raises(HpxferError, match="--names: must be given for transformers and a model with shared experts"):
        export(made, "transformers", {**MOE, "num_shared": 1, "shared_width": 64})
    made = recipe(parameterization={"name": "mup-moe", "conventions": {"router_bias_std": 1.0}})
    with pytest.raises(HpxferError, match=r"torchtitan cannot hold a rule of the table; do it by: before the gates"):
        export(made, "torchtitan", {**BASE, "width": 64, "expert_width": 64})
    made = Recipe.from_hps("mssp-iii", BASE, {"lr": 0.01}, gate="sigmoid")
    target = {**BASE, "width": 64, "num_experts": 8, "num_active": 2, "expert_width": 64}
    lacks = export(made, "torchtitan", target, partial=True).lacks
    assert any(lack.what == "the same draw for all experts of a layer at the start" for lack in lacks)


def test_a_range_of_a_recipe_is_said(recipe: MakeRecipe) -> None:
    found = export(recipe(), "json", {**MOE, "width": 1024, "expert_width": 2048})
    assert found.cautions[0].startswith(
        "the target w1024 d3 E8A2 h2048 is beyond what was measured: width 1024: fitted"
    )
    assert export(recipe(), "json", MOE).cautions == ()


def test_files_are_written_all_or_none(recipe: MakeRecipe, tmp_path: Path) -> None:
    found = export(recipe(), "megatron", MOE, partial=True)
    paths = found.write(tmp_path / "a" / "b")
    assert sorted(path.name for path in paths) == ["hpxfer.json", "hpxfer_megatron.py"]
    assert found.write(tmp_path / "a" / "b") == paths  # over older ones
    (tmp_path / "c" / "hpxfer.json").mkdir(parents=True)
    with pytest.raises(HpxferError, match=r"hpxfer\.json: must be a file, got a folder; choose another --output"):
        found.write(tmp_path / "c")
    assert not (tmp_path / "c" / "hpxfer_megatron.py").exists()
    (tmp_path / "d").write_text("x")
    with pytest.raises(HpxferError, match="cannot be written"):
        found.write(tmp_path / "d")


def test_a_target_of_the_user_s_own(recipe: MakeRecipe) -> None:
    mine = ExportTarget(
        name="mine",
        doc="one line per group",
        needs_names=True,
        files=lambda plan, lacks: {"mine.txt": "\n".join(f"{group.lr} {len(group.names)}" for group in plan.groups)},
    )
    register_export_target(mine)
    try:
        names = named("wte.weight embedding", "head.weight readout")
        found = export(recipe(), "mine", MOE, names)
    finally:
        EXPORT_TARGETS.remove("mine")
    assert found.files["mine.txt"] == "0.015625 2"


def test_text_in_a_recipe_cannot_leave_its_place(recipe: MakeRecipe) -> None:
    """A recipe is a file of someone else's: what it holds stands in the modules as text and never as code."""
    quotes = '"""\nimport os\nraise SystemExit(3)\n"""\\'
    made = recipe(provenance__sweep=quotes, provenance__tokenizer="\\x41'''")
    for to in ("transformers", "megatron", "torchtitan", "olmo-core"):
        for name, text in export(made, to, MOE, partial=True).files.items():
            if name.endswith(".py"):
                tree = compile(text, name, "exec")
                assert "SystemExit" not in tree.co_names
    text = export(made, "transformers", MOE).files["hpxfer_transformers.py"]
    names: dict[str, Any] = {}
    body = text[text.index("RECIPE: str = ") : text.index("\n\n\ndef factor")]
    exec(body, names)
    assert names["RECIPE"] == made.dump()


def test_a_recipe_of_another_family_is_refused(recipe: MakeRecipe) -> None:
    other = Recipe(recipe().file.model_copy(update={"family": "mlp"}))
    with pytest.raises(
        HpxferError, match=r"recipe: must be of the family gpt or user for an export, got mlp; use recipe\.param"
    ):
        export(other, "json", MOE)
