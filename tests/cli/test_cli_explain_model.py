"""`hpxfer explain --recipe R --model config.json`: a model of transformers, tensor by tensor, and how it differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from command_line import hpxfer as command

import hpxfer
from hpxfer.scaling.shape import MAX_DEPTH

LLAMA = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
BASE = {"width": 16, "depth": 2, "head_dim": 8, "dense_width": 24}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
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
    assert code == 2
    assert "the model multiplies the rows of its embedding by 5.65685" in err
    code, out, _ = run(gemma, "--target", str(shape), embedding_scale=32**0.5)
    assert (code, out.count("a gain of 1 + w")) == (0, 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "must be the config.json of a causal language model of transformers, got no JSON"),
        ({"width": 3}, "got no model_type; a file with a shape is given by --target"),
        ({"model_type": "no_such_model"}, "got one that transformers refuses: ValueError: Unrecognized model"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, f"num_hidden_layers: must be at most {MAX_DEPTH}, got"),
    ],
)
def test_what_is_no_config(given: Any, said: str, run: Run) -> None:
    code, out, err = run(given)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err) < 500


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


def test_a_model_goes_with_a_recipe(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--model: goes with --recipe" in command(capsys, "explain", "--model", "config.json")[2]
    assert "--model: goes with --recipe" in run(config(), "--optimizer", "sgd")[2]
    assert "--names: goes with --model" in command(capsys, "explain", "--names", "names.txt")[2]
    missing = ("--recipe", str(tmp_path / "r.yaml"), "--model", str(tmp_path / "none.json"))
    assert "none.json: cannot be read: No such file" in command(capsys, "explain", *missing)[2]


def test_without_a_model_a_recipe_says_what_it_was_tuned_on(run: Run, tmp_path: Path, capsys: Any) -> None:
    run(config(), norm="rmsnorm")
    code, _, err = command(capsys, "explain", "--recipe", str(tmp_path / "r.yaml"))
    assert code == 0
    assert (
        "note: tuned on norm RMSNorm, gate sigmoid, attention scale 1/d_head, optimizer adamw; a shape does not" in err
    )
