"""`hpxfer explain`: shape files, sweeps, recipes and models of transformers, and every kind of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from command_line import hpxfer as command
from fixture_types import Capsys
from sweep_text import SWEEP, edited

import hpxfer
from hpxfer.scaling.tables import PARAMETERIZATIONS

MOE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
DENSE = {"width": 32, "depth": 2, "head_dim": 32, "dense_width": 32}
Explain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explain(tmp_path: Path, capsys: Capsys) -> Explain:
    """Return a call of `hpxfer explain`: a mapping or a text given for base or target is written to a file first."""

    def call(*arguments: object, **files: Any) -> tuple[int, str, str]:
        words = ["explain", *map(str, arguments)]
        for option, data in files.items():
            path = tmp_path / f"{option}.{'yaml' if option == 'sweep' else 'json'}"
            path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
            words += [f"--{option}", str(path)]
        code, out, err = command(capsys, *words)
        assert "Traceback" not in err
        return code, out, err

    return call


def test_either_spelling_of_adamw_names_it(explain: Explain) -> None:
    said = [
        explain("--parameterization", "mup", "--optimizer", name, base=MOE, target=MOE) for name in ("adam", "adamw")
    ]
    assert said[0] == said[1]
    assert said[0][1].splitlines()[0].endswith(", adamw")


@pytest.mark.parametrize(
    ("name", "options", "base", "target", "message"),
    [
        ("completep-moe", (), MOE, {**MOE, "num_experts": 8}, "holds kappa fixed"),
        ("mssp-i", (), MOE, {**MOE, "width": 64, "num_experts": 8, "num_active": 2}, "use mssp-ii"),
        ("mssp-i", ("--gate", "softmax"), {**MOE, "num_active": 4}, {**MOE, "num_active": 4}, "stays uniform"),
        ("mup", ("--untied", "--convention", "embeddings=tied"), MOE, MOE, "set embeddings: untied"),
        ("complete-mue", ("--gate", "sigmoid"), DENSE, MOE, "take the gate normalized_sigmoid"),
        ("completep-moe", (), MOE, {**MOE, "width": 64, "depth": 4, "expert_width": 128}, None),
        ("complete-mue", (), DENSE, {**MOE, "num_shared": 1, "shared_width": 32, "dense_width": 64}, None),
        ("mssp-ii", (), MOE, {**MOE, "width": 64, "num_experts": 8, "num_active": 2}, None),
    ],
)
def test_strict_refuses_what_is_warned_of(
    name: str, options: tuple[str, ...], base: object, target: object, message: str | None, explain: Explain
) -> None:
    given = ("--parameterization", name, *options)
    code, out, _ = explain(*given, base=base, target=target)
    warned = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert (code, bool(warned)) == (0, message is not None)
    code, out, err = explain(*given, "--strict", base=base, target=target)
    assert (code, bool(out)) == ((0, True) if message is None else (2, False))
    if message is not None:
        assert any(message in line for line in warned)
        assert f"not covered by {PARAMETERIZATIONS.get(name).source}: " in err
        assert message in err


def test_conventions_of_the_command_line(explain: Explain) -> None:
    given = ("router_init_exponent=inf", "depth_alpha=0.5", "eps=global")
    options = [word for each in given for word in ("--convention", each)]
    code, out, _ = explain("--parameterization", "completep-moe", *options, base=MOE, target=MOE)
    assert code == 0
    assert out.startswith("completep-moe[depth_alpha=0.5,eps=global,router_init_exponent=inf] ")


def test_the_factors_of_two_shape_files_and_the_list(explain: Explain) -> None:
    shapes = {"base": MOE, "target": {**MOE, "width": 128, "depth": 4, "expert_width": 256}}
    code, out, _ = explain("--parameterization", "completep-moe", "--optimizer", "adam", "--json", **shapes)
    roles = json.loads(out)["roles"]
    factors = {"init_std": 0.25, "lr": 0.125, "eps": 0.125, "weight_decay": 8.0, "forward": 0.5}
    assert (code, roles["expert_out"], roles["readout"]["forward"]) == (0, factors, 0.25)
    assert "tensors" not in json.loads(out)
    code, out, _ = explain("--parameterization", "sp", **shapes)
    assert (code, "0.5 (width^-0.5)" in out, "Tensors" in out) == (0, True, False)
    code, out, _ = explain("--list")
    assert code == 0
    for table in PARAMETERIZATIONS.rows():
        assert f"{table.name} ({table.source})\n" in out
        assert f"  axes:        {', '.join(table.axes)}" in out


def test_a_sweep_with_a_preset_shows_the_role_of_each_tensor(explain: Explain) -> None:
    options = ("like: qwen3-moe", "gate: normalized_softmax", "attention_gate: true", "shared_expert_gate: true")
    extra = "".join(f"  {option}\n" for option in (*options, "balance: {aux: none}")) + "  context:"
    text = edited(
        ("  context:", extra),
        ("head_dim: 32", "head_dim: 32, num_shared: 1, shared_ratio: 1"),
        ("completep-moe", "complete-mue"),
    )
    code, out, err = explain(sweep=text)
    assert code == 0, err
    lines = {
        line.split()[0]: line.split()
        for line in out.partition("\nTensors of the model at the target\n")[2].splitlines()
    }
    roles = {"q_norm": "norm", "k_norm": "norm", "attn_gate": "attn_q", "shared_router": "router"}
    assert {name: lines[name][1] for name in roles} == roles
    assert "position" not in lines
    code, out, _ = explain("--json", sweep=text)
    found = {one["name"]: one for one in json.loads(out)["tensors"]}
    assert {name: found[name]["role"] for name in roles} == roles
    assert found["q_norm"]["size"] == [32]
    assert (found["q_norm"]["init"], lines["q_norm"][3]) == ("ones", "ones")
    values = json.loads(out)["values"]["target"]["attn_q"]
    assert [found["attn_q"][name] for name in ("init", "lr", "eps", "weight_decay")] == list(values.values())[:4]
    assert list(found) == [name for name in lines if name != "tensor"]


def test_a_sweep_s_own_conventions_and_others_beside_them(explain: Explain) -> None:
    sweep = SWEEP.replace("[completep-moe, sp]", "[{table: completep-moe, conventions: {depth_alpha: 0.5}}, sp]")
    code, out, _ = explain(sweep=sweep)
    assert (code, out.splitlines()[0]) == (0, "completep-moe[depth_alpha=0.5] (arXiv 2601.20205), adamw")
    code, out, _ = explain("--convention", "eps=global", sweep=sweep)
    assert out.startswith("completep-moe[depth_alpha=0.5,eps=global] ")
    code, out, _ = explain("--parameterization", "mup-i", sweep=sweep)
    assert (code, out.splitlines()[0]) == (0, "mup-i (MSSP (HiLD 2026)), adamw")


def test_an_arm_of_a_sweep_is_explained_with_its_own_base_values(explain: Explain) -> None:
    arm = "{table: completep-moe, name: tuned, hps: {multipliers: {router.lr_mult: 0.25}}}"
    sweep, lrs = edited(("[completep-moe, sp]", f"[completep-moe, sp, {arm}]")), []
    for label in ("completep-moe", "completep-moe (tuned)"):
        roles = json.loads(explain("--parameterization", label, "--json", sweep=sweep)[1])["values"]["base"]
        lrs.append((roles["router"]["lr"], roles["attn_q"]["lr"]))
    assert lrs[1] == (lrs[0][0] / 4, lrs[0][1])


def test_a_sweep_shows_the_roles_that_its_model_has(explain: Explain) -> None:
    modern = SWEEP.replace("  context: 64\n", "  context: 64\n  positions: rope\n  balance: {bias: none}\n")
    roles = {}
    for name, sweep in (("plain", SWEEP), ("modern", modern)):
        code, out, err = explain("--json", sweep=sweep)
        assert code == 0, err
        found = json.loads(out)
        assert set(found["roles"]) == set(found["values"]["base"])
        roles[name] = set(found["roles"])
        shown = explain(sweep=sweep)[1].split("\n\n")[1]
        assert {
            line.split()[0] for line in shown.splitlines()[2:] if not line.startswith(("route scale", "1 -"))
        } == roles[name]
    assert roles["plain"] - roles["modern"] == {"position", "router_bias"}
    assert {"router", "expert_in", "embedding"} <= roles["modern"]
    assert not {"dense_in", "shared_in"} & roles["plain"]


LLAMA = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BASE = {"width": 16, "depth": 2, "head_dim": 8, "dense_width": 24}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: Capsys) -> Run:
    """Return a call with a recipe made by hand, of which `facts` are known, and this config."""

    def call(config: Any, *options: str, **facts: Any) -> tuple[int, str, str]:
        made = hpxfer.Recipe.from_hps("completep", BASE, {"lr": 2.0**-6}, **facts)
        (tmp_path / "r.yaml").write_text(made.dump(), encoding="utf-8")
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        files = ("--recipe", str(tmp_path / "r.yaml"), "--model", str(tmp_path / "config.json"))
        code, out, err = command(capsys, "explain", *files, *options)
        assert "Traceback" not in err
        return code, out, err

    return call


def config(kind: str = "llama", **changes: Any) -> dict[str, Any]:
    given = transformers.AutoConfig.for_model(kind, **{**LLAMA, **changes}).to_dict()
    return {name: value for name, value in given.items() if value is not None}


def test_each_tensor_of_the_model_has_its_line_and_each_difference_is_said_once(run: Run) -> None:
    code, out, err = run(config(), norm="layernorm", positions="learned", ffn="swiglu")
    assert code == 0
    assert out.startswith("completep, adamw: w16 d2 D24 -> w32 d2 D48\n")
    assert "model.layers.1.self_attn.o_proj.weight" in out
    for difference in ("norm: LayerNorm at the base, RMSNorm in the target", "rotary positions (RoPE) in the target"):
        assert (out + err).count(difference) == 1
    assert "FFN" not in err
    rows = json.loads(run(config(), "--json")[1])
    assert {row["name"] for row in rows} >= {"lm_head.weight", "model.embed_tokens.weight"}


def test_a_scaled_embedding_without_memory_is_seen(run: Run, tmp_path: Path) -> None:
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps({"width": 32, "depth": 2, "head_dim": 8, "dense_width": 48}))
    gemma = config("gemma", head_dim=8, num_key_value_heads=4)
    code, _, err = run(gemma, "--target", str(shape))
    assert (code, "the model multiplies the rows of its embedding by 5.65685" in err) == (2, True)
    code, out, _ = run(gemma, "--target", str(shape), embedding_scale=32**0.5)
    assert (code, out.count("a gain of 1 + w")) == (0, 5)


MLA = {
    "num_hidden_layers": 12,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 12,
    "num_experts_per_tok": 2,
}


def test_roles_that_only_the_user_knows_come_from_a_file_of_names(run: Run, tmp_path: Path) -> None:
    """MLA, whose second matrices read a rank of which the recipe asks for that of the base."""
    given, shape = config("deepseek_v2", **MLA), tmp_path / "shape.json"
    shape.write_text(json.dumps({"width": 32, "depth": 12, "head_dim": 8, "dense_width": 48}))
    code, out, err = run(given, gate="softmax")
    assert (code, out) == (2, "")
    assert err.startswith("hpxfer: --target: must be given for deepseek_v2, ")
    assert "{" not in err
    code, _, err = run(given, "--target", str(shape), gate="softmax")
    of_q, asked, how = err.splitlines()
    assert code == 2
    assert "model.layers.*.self_attn.q_b_proj.weight (attn_q)" in of_q
    assert "model.layers.*.self_attn.kv_b_proj.weight (attn_k+attn_v)" in asked
    assert asked.endswith("of a low rank: attn_k+attn_v@8, its fan-in at the base (12 tensors)")
    assert how.startswith("--names FILE gives roles")
    names = tmp_path / "names.txt"
    low_rank = "*.kv_b_proj.weight attn_k+attn_v@8\n*.q_b_proj.weight attn_q@12\n"
    names.write_text(f"{low_rank}model.layers.0.mlp.gate_proj.weight dense_in\n")
    code, out, _ = run(given, "--target", str(shape), "--names", str(names), gate="softmax")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines() if "layers.0.mlp.gate_proj.weight " in line] == ["dense_in"]
    names.write_text("*.kv_c_proj.weight attn_k\n")
    assert (
        "got no match for '*.kv_c_proj.weight'"
        in run(given, "--target", str(shape), "--names", str(names), gate="softmax")[2]
    )


def test_without_a_model_a_recipe_says_what_it_was_tuned_on(run: Run, tmp_path: Path, capsys: Any) -> None:
    run(config(), norm="rmsnorm")
    code, _, err = command(capsys, "explain", "--recipe", str(tmp_path / "r.yaml"))
    assert code == 0
    assert (
        "note: tuned on norm RMSNorm, gate sigmoid, attention scale 1/d_head, optimizer adamw; a shape does not" in err
    )
