"""Presets set options and nothing else, and agree with the configs of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from jsonschema import Draft202012Validator
from made_results import DATA
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.presets import PRESETS, REFUSED, preset_lines
from hpxfer.spec.schema import sweep_schema
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.trial import Expansion

CONFIGS = {"mixtral": "Mixtral", "qwen3-moe": "Qwen3Moe", "olmoe": "Olmoe", "glm4-moe": "Glm4Moe"}


def sweep(options: str) -> SweepSpec:
    text = edited(("  context:", f"{options}  context:"))
    try:
        return parse_sweep(text)
    except HpxferError as error:  # presets with a balancing loss leave its weight to the file
        if "hps.aux_weight: must be given" not in str(error):
            raise
    return parse_sweep(text.replace("hps:\n  router_bias_lr: 0.01", "hps:\n  aux_weight: 0.01"))


def ids(spec: SweepSpec) -> list[str]:
    return [trial.id for trial in Expansion(spec, DATA).trials()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_its_options_are(name: str) -> None:
    options = "".join(f"  {line}\n" for line in write_yaml(dict(PRESETS[name].options)).splitlines())
    like, spelled = sweep(f"  like: {name}\n"), sweep(options)
    assert like.model.model_copy(update={"like": None}) == spelled.model
    assert ids(like) == ids(spelled) != ids(sweep(""))
    assert len(preset_lines(name, like.model)) == 2  # nothing is unlike it


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_is_the_default_config_of_its_model(name: str) -> None:

    config = getattr(transformers, f"{CONFIGS[name]}Config")()
    rope = config.rope_parameters
    normalized = getattr(config, "norm_topk_prob", True)
    score = "sigmoid" if name == "glm4-moe" else "softmax"
    expected: dict[str, Any] = {
        "norm_eps": config.rms_norm_eps,
        "rope_theta": rope["rope_theta"],
        "rope_share": rope.get("partial_rotary_factor", 1.0),
        "gate": f"normalized_{score}" if normalized else score,
        "tied_embeddings": config.tie_word_embeddings,
        "matrix_std": config.initializer_range,
        "qkv_biases": getattr(config, "attention_bias", False),
        "route_scale": getattr(config, "routed_scaling_factor", 1.0),
    }
    model = sweep(f"  like: {name}\n").model
    assert {key: getattr(model, key) for key in expected} == expected
    assert config.hidden_act == "silu"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_says_that_the_real_model_has_fewer_kv_heads(name: str) -> None:
    config = getattr(transformers, f"{CONFIGS[name]}Config")()
    group, rest = divmod(config.num_attention_heads, config.num_key_value_heads)
    assert not rest
    assert (f"{group} query heads per kv head (base: kv_heads)" in PRESETS[name].leaves_out) == (group > 1)
    assert ("kv_heads" in PRESETS[name].leaves_out) == (group > 1)


def test_a_preset_needs_no_family_and_a_model_without_one_does() -> None:
    text = edited(("  family: gpt\n", "  like: nanogpt\n"))
    assert parse_sweep(text).model == sweep("  like: nanogpt\n").model
    assert not list(Draft202012Validator(sweep_schema()).iter_errors(parse_yaml(text, "sweep.yaml").data))
    neither = edited(("  family: gpt\n", ""))
    with pytest.raises(HpxferError, match=r"model\.family: must be given"):
        parse_sweep(neither)
    assert list(Draft202012Validator(sweep_schema()).iter_errors(parse_yaml(neither, "sweep.yaml").data))


def test_what_the_file_gives_wins() -> None:
    spec = sweep("  like: mixtral\n  norm_eps: 0.001\n  positions: learned\n")
    assert (spec.model.norm, spec.model.norm_eps, spec.model.positions) == ("rmsnorm", 0.001, "learned")
    assert spec.model.rope_theta == 10_000.0  # goes with rope
    unlike = next(line for line in preset_lines("mixtral", spec.model) if line.startswith("unlike"))
    assert "positions learned instead of rope" in unlike
    assert "norm_eps 0.001 instead of 1e-05" in unlike


def test_a_stored_sweep_spells_everything_out(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sweep("  like: olmoe\n")
    text = dump_sweep(spec)
    monkeypatch.setitem(PRESETS, "olmoe", PRESETS["nanogpt"])
    stored = parse_sweep(text, trusted=False)
    assert (stored.model.qk_norm, ids(stored)) == ("all", ids(spec))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mixtrall", "unknown model 'mixtrall'; did you mean 'mixtral'?"),
        *((name, f"no options make a model like {name}: {why}") for name, why in REFUSED.items()),
    ],
)
def test_unknown_and_uncovered_models(name: str, problem: str) -> None:
    with pytest.raises(HpxferError) as caught:
        sweep(f"  like: {name}\n")
    assert f"model.like: {problem}" in str(caught.value)


def test_a_dense_model_may_be_like_one_with_experts() -> None:
    """What the preset says of experts is not asked for, and what the file says of them is still refused."""
    experts = "num_experts: 4, num_active: 1, expert_ratio: 1"
    sp = ("[completep-moe, sp]", "[sp]")
    dense = (experts, "dense_width: 64"), sp, ("hps:\n  router_bias_lr: 0.01\n", "hps: {}\n")
    spec = parse_sweep(edited(("  context:", "  like: mixtral\n  context:"), *dense))
    assert spec.base_shape.num_experts == 0
    for option in ("balance: {aux: sequence}", "learned_router_bias: true"):
        with pytest.raises(HpxferError, match="has no effect: no shape of this sweep has experts"):
            parse_sweep(edited(("  context:", f"  like: mixtral\n  {option}\n  context:"), *dense))
