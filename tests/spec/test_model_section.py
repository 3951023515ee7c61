"""The model of a sweep file: blocks and roles, options, presets against transformers, the family mlp, pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import transformers
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from made_results import DATA
from strategies import sweeps
from sweep_text import SAMPLES, SWEEP, edited, with_keys

from hpxfer.errors import HpxferError
from hpxfer.kernels.rope import rotated_features
from hpxfer.model.families import FAMILIES
from hpxfer.model.gpt.layout import gpt_roles
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, axes_of, dump_sweep, parse_sweep
from hpxfer.spec.blocks import dense_blocks, has_dense, model_roles, moe_blocks
from hpxfer.spec.load import sweep_schema
from hpxfer.spec.model_section import MLPModel, MLPShape
from hpxfer.spec.presets import PRESETS, preset_lines
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.trial import Expansion, setting_of


def test_a_third_of_a_head_may_be_rotated() -> None:
    """Six digits of a share are enough."""
    wide = ("model.base.head_dim: 48", "model.base.num_heads: 1", "model.positions: rope")
    with pytest.raises(HpxferError, match=r"model\.rope_share: .*, got 16\.8"):
        parse_sweep(with_keys(SWEEP, *wide, "model.rope_share: 0.35"))
    parse_sweep(with_keys(SWEEP, *wide, "model.rope_share: 0.333333"))
    assert rotated_features(48, 0.333333) == 16


def test_heads_follow_the_width() -> None:
    spec = parse_sweep(with_keys(SWEEP, "model.base.num_heads: 4", "model.base.kv_heads: 2"))
    shapes = {point.shape.width: point.shape for axis in axes_of(spec) for point in axis.points}
    assert {width: (shape.query_heads, shape.key_heads) for width, shape in shapes.items()} == {
        width: (width // 8, width // 16) for width in shapes
    }
    assert len(shapes) > 1
    narrow = with_keys(SWEEP, "model.base.head_dim: 8")  # heads that are the default are no dimension
    heads = with_keys(narrow, "model.base.num_heads: 4", "model.base.kv_heads: 4")
    assert parse_sweep(narrow).base_shape == parse_sweep(heads).base_shape


@pytest.mark.parametrize("role", ["embedding", "attn_out", "router", "expert_out", "readout"])
def test_what_a_role_gives_may_be_multiplied(role: str) -> None:
    """The readout too, which shares its matrix with the embedding and has no LR of its own."""
    name = f"{role}.forward_mult"
    spec = parse_sweep(with_keys(SWEEP, f"hps.multipliers: {{{name}: 2}}"))
    assert (spec.model.tied_embeddings, spec.hps.multipliers) == (True, {name: 2.0})
    assert name in parse_sweep(with_keys(SWEEP, "hps.lr: 0.1", f"grid: {{{name}: [1, 2]}}")).grid


MOE = Shape(width=32, depth=5, num_experts=4, num_active=1, expert_width=32, head_dim=16)
DENSE = Shape(width=32, depth=5, head_dim=16, dense_width=64)


@dataclass(frozen=True)
class Options:
    moe_every: int = 1
    dense_first: int = 0
    ffn: str = "gelu"
    norm_gains: bool = False
    biases: bool = False
    qkv_biases: bool = False
    positions: str = "learned"
    learned_router_bias: bool = False


@given(st.integers(1, 5), st.integers(0, 7))
def test_every_so_many_th_block_above_the_first_ones(moe_every: int, dense_first: int) -> None:
    expected = tuple(i for i in range(5) if i >= dense_first and (i - dense_first + 1) % moe_every == 0)
    options = Options(moe_every, dense_first)
    assert tuple(moe_blocks(MOE, options)) == expected
    assert tuple(dense_blocks(MOE, options)) == tuple(i for i in range(5) if i not in expected)
    assert has_dense(MOE, options) is (len(expected) < 5)
    assert tuple(moe_blocks(DENSE, options)) == ()
    assert tuple(dense_blocks(DENSE, options)) == (0, 1, 2, 3, 4)
    assert has_dense(DENSE, options)


def test_roles_follow_the_shape_and_the_options() -> None:
    always = {"embedding", "position", "attn_q", "attn_k", "attn_v", "attn_out", "readout"}
    assert set(gpt_roles(DENSE, Options())) == always | {"dense_in", "dense_out"}
    routed = always | {"router", "router_bias", "expert_in", "expert_out"}
    assert set(gpt_roles(MOE, Options())) == routed
    assert set(gpt_roles(MOE, Options(biases=True, norm_gains=True))) == routed | {"hidden_bias", "norm", "final_norm"}
    mixed = Shape(**{**MOE.dims(), "num_shared": 1, "shared_width": 8, "dense_width": 64})
    gated = {f"{branch}_{part}" for branch in ("expert", "shared", "dense") for part in ("in", "gate", "out")}
    assert set(gpt_roles(mixed, Options(moe_every=2, ffn="swiglu"))) == routed | gated


@given(sweeps())
def test_the_built_in_model_has_these_roles(spec: SweepSpec) -> None:
    expansion = Expansion(spec, DATA)
    for shape in expansion.shapes:
        setting = expansion.setting_at(shape)
        assert moe_blocks(shape, setting) == moe_blocks(shape, spec.model)
        # The optimizer does not train the balancing bias, which is a buffer; a tied readout is the embedding.
        roles = set(model_roles(shape, spec.model)) - {"router_bias"}
        assert {param.role for param in FAMILIES.get(setting.family).parameters(shape, setting)} == roles - (
            {"readout"} if spec.model.tied_embeddings else set()
        )


CONFIGS = {"mixtral": "Mixtral", "qwen3-moe": "Qwen3Moe", "olmoe": "Olmoe", "glm4-moe": "Glm4Moe"}


def with_options(options: str) -> SweepSpec:
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
    like, spelled = with_options(f"  like: {name}\n"), with_options(options)
    assert like.model.model_copy(update={"like": None}) == spelled.model
    assert ids(like) == ids(spelled) != ids(with_options(""))
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
    model = with_options(f"  like: {name}\n").model
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
    assert parse_sweep(text).model == with_options("  like: nanogpt\n").model
    assert not list(Draft202012Validator(sweep_schema()).iter_errors(parse_yaml(text, "sweep.yaml").data))
    neither = edited(("  family: gpt\n", ""))
    with pytest.raises(HpxferError, match=r"model\.family: must be given"):
        parse_sweep(neither)
    assert list(Draft202012Validator(sweep_schema()).iter_errors(parse_yaml(neither, "sweep.yaml").data))


def test_what_the_file_gives_wins() -> None:
    spec = with_options("  like: mixtral\n  norm_eps: 0.001\n  positions: learned\n")
    assert (spec.model.norm, spec.model.norm_eps, spec.model.positions) == ("rmsnorm", 0.001, "learned")
    assert spec.model.rope_theta == 10_000.0  # goes with rope
    unlike = next(line for line in preset_lines("mixtral", spec.model) if line.startswith("unlike"))
    assert "positions learned instead of rope" in unlike
    assert "norm_eps 0.001 instead of 1e-05" in unlike


def test_a_stored_sweep_spells_everything_out(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = with_options("  like: olmoe\n")
    text = dump_sweep(spec)
    monkeypatch.setitem(PRESETS, "olmoe", PRESETS["nanogpt"])
    stored = parse_sweep(text, trusted=False)
    assert (stored.model.qk_norm, ids(stored)) == ("all", ids(spec))


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


def test_a_stored_sweep_has_the_keys_that_the_family_reads() -> None:
    spec = parse_sweep(with_keys(SAMPLES, "data.digest: abc"))
    text = dump_sweep(spec)
    assert parse_sweep(text) == spec
    stored = yaml.safe_load(text)["model"]
    assert set(stored) == set(MLPModel.model_fields) - {"ties"}  # which follow from the table
    assert set(stored["base"]) == set(MLPShape.model_fields) - {"expert_ratio"}


LANES = ("training.accumulation_tokens: 128", "training.accumulation_lanes: 2")


def test_pieces_and_lanes_become_the_trials_setting() -> None:
    spec = parse_sweep(with_keys(SWEEP, *LANES, "resources: {micro_batch_tokens: 256, recompute: blocks}"))
    setting = setting_of(spec, DATA)
    assert (setting.num_pieces, setting.piece_tokens, setting.pieces_per_lane) == (4, 128, 2)


def test_a_batch_of_one_piece_has_the_identity_of_before() -> None:
    plain, *pieces = (
        setting_of(parse_sweep(with_keys(SWEEP, *edits)), DATA)
        for edits in ((), *((f"training.accumulation_tokens: {tokens}",) for tokens in (512, 1024, 256)))
    )
    assert [setting == plain for setting in pieces] == [True, True, False]


def test_ranks_are_whole_gpus_and_a_share_is_one_process() -> None:
    for asked, ranks, share in (("auto", 1, None), ("0.5", 1, 0.5), ("1", 1, 1.0), ("2", 2, 1.0)):
        resources = parse_sweep(with_keys(SWEEP, *LANES, f"resources: {{gpus_per_stack: {asked}}}")).resources
        assert (resources.ranks, resources.gpu_share) == (ranks, share)
