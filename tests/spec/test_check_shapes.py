"""Rules on bases and points that are dense, mixed, shared, grouped, or train for longer: one whole message a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.scaling import Row, register_parameterization
from hpxfer.scaling.monomial import width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import axes_of, parse_sweep

Edit = tuple[str, str]

BASE = "{width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}"
DENSE = "{width: 32, depth: 2, dense_ratio: 2, head_dim: 32}"
TABLES = "[completep-moe, sp]"
AXIS = "  width: [32, 64]"
CONTEXT = "context: 64"


def message_of(*edits: Edit) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits), "s.yaml")
    return str(caught.value)


def base(text: str) -> Edit:
    return BASE, text


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (
            BASE.replace("num_active: 1, ", ""),
            "model.base: must give num_active beside the rest of the experts, or nothing of them for a dense model",
        ),
        (
            BASE.replace("num_experts: 4, num_active: 1, ", ""),
            "model.base: must give num_experts and num_active beside the rest of the experts, or nothing of them for a "
            "dense model",
        ),
        ("{width: 32, depth: 2, head_dim: 32}", "model.base: must give exactly one of dense_ratio and dense_width"),
        (
            DENSE.replace("dense_ratio: 2", "dense_ratio: 2, dense_width: 64"),
            "model.base: must give exactly one of dense_ratio and dense_width",
        ),
        (
            DENSE.replace("dense_ratio: 2", "dense_ratio: 0.3"),
            "model.base.dense_ratio: dense_ratio * width must be a whole number, got 9.6",
        ),
        (
            DENSE.replace("dense_ratio: 2", "dense_width: 12"),
            "model.base: dense_width must be a multiple of 8 (rows of whole 16-byte units), got 12",
        ),
        (
            BASE.replace("expert_ratio: 1", "expert_ratio: 1, dense_width: 64"),
            "model.base: dense_width goes with a block without experts (moe_every, dense_first), got it without; "
            "take it out",
        ),
        (
            BASE.replace("expert_ratio: 1", "expert_ratio: 1, shared_ratio: 1"),
            "model.base: shared_ratio goes with num_shared, got it without; take it out",
        ),
        (
            BASE.replace("expert_ratio: 1", "expert_ratio: 1, num_shared: 1"),
            "model.base: must give exactly one of shared_ratio and shared_width",
        ),
        (
            BASE.replace("expert_ratio: 1", "expert_ratio: 1, num_groups: 2"),
            "model.base: num_active must be a multiple of num_groups 2, got 1; or give model.top_groups",
        ),
        (
            DENSE.replace("dense_ratio: 2", "dense_ratio: 2, num_groups: 2"),
            "model.base: shared experts and groups belong to a MoE layer, got no num_experts; give experts, or leave "
            "them out",
        ),
    ],
)
def test_base(shape: str, problem: str) -> None:
    assert message_of(base(shape), (TABLES, "[sp]")) == f"s.yaml:4: {problem}"


@pytest.mark.parametrize(
    ("option", "size", "problem"),
    [
        ("moe_every: 2", "", "model.base: must give exactly one of dense_ratio and dense_width"),
        ("dense_first: 1", "", "model.base: must give exactly one of dense_ratio and dense_width"),
        ("moe_every: 2", ", dense_ratio: 2", None),
        ("dense_first: 1", ", dense_width: 8", None),
        (
            "dense_first: 2",
            ", dense_ratio: 2",
            "model.base: at least one block must have experts, got none of 2 with moe_every 1 and dense_first 2; "
            "lower these, or take a larger depth",
        ),
    ],
)
def test_dense_blocks_beside_experts(option: str, size: str, problem: str | None) -> None:
    edits = (base(BASE.replace("expert_ratio: 1", f"expert_ratio: 1{size}")), (CONTEXT, f"{CONTEXT}\n  {option}"))
    if problem is None:
        assert parse_sweep(edited(*edits)).base_shape.dense_width
    else:
        assert message_of(*edits) == f"s.yaml:4: {problem}"


def test_every_point_has_a_block_with_experts() -> None:
    shape = BASE.replace("expert_ratio: 1", "expert_ratio: 1, dense_ratio: 2")
    edits = (base(shape), (CONTEXT, f"{CONTEXT}\n  moe_every: 2"), (AXIS, "  depth: [2, 1]"))
    assert message_of(*edits) == (
        "s.yaml:17: axes.depth[1]: at least one block must have experts, got none of 1 with moe_every 2 and "
        "dense_first 0; lower these, or take a larger depth"
    )


@pytest.mark.parametrize("option", ["moe_every: 2", "dense_first: 1"])
def test_places_of_experts_that_nobody_has(option: str) -> None:
    edits = (base(DENSE), (TABLES, "[sp]"), (CONTEXT, f"{CONTEXT}\n  {option}"))
    name = option.partition(":")[0]
    assert message_of(*edits) == (
        f"s.yaml:6: model.{name}: has no effect: no shape of this sweep has experts; take it out"
    )


MOE_POINT = "  moe: [{num_experts: 8, num_active: 2, expert_ratio: 0.5}]"


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        (
            "  experts: [8]",
            "axes.experts[0]: the base is dense: experts has nothing to start from; give num_experts, num_active and "
            "expert_width or expert_ratio of each point in shapes",
        ),
        (
            "  shared: [1]",
            "axes.shared[0]: the base is dense: shared has nothing to start from; give num_experts, num_active and "
            "expert_width or expert_ratio of each point in shapes",
        ),
        (
            "  moe: [{num_experts: 8, num_active: 2}]",
            "axes.moe[0]: the base is dense, so a shape with experts must give num_experts, num_active and one of "
            "expert_ratio and expert_width",
        ),
        (
            "  moe: [{num_experts: 8, num_active: 2, expert_ratio: 0.5, dense_width: 64}]",
            "axes.moe[0]: no block has a dense FFN at this shape (see moe_every and dense_first); take its size out",
        ),
    ],
)
def test_points_beyond_a_dense_base(axis: str, problem: str) -> None:
    assert message_of(base(DENSE), (TABLES, "[sp]"), (AXIS, axis)) == f"s.yaml:16: {problem}"


def test_a_table_is_asked_for_the_roles_of_every_model_of_the_sweep() -> None:
    dense = base(DENSE)
    parse_sweep(edited(dense, (TABLES, "[completep, sp]")))
    assert message_of((TABLES, "[completep, sp]")) == (
        "s.yaml:14: parameterizations[0]: completep has no rule for expert_in, expert_out, router, router_bias, "
        "which this model has"
    )
    assert message_of(dense, (TABLES, "[sp, completep]"), (AXIS, MOE_POINT)) == (
        "s.yaml:14: parameterizations[1]: completep has no rule for expert_in, expert_out, router, router_bias, "
        "which the model w32 d2 E8A2 h16 of axis moe has"
    )


def test_a_table_may_multiply_only_what_the_model_multiplies() -> None:
    completep = PARAMETERIZATIONS.get("completep-moe")

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = completep.rows["adam"](conventions)
        return tuple(replace(row, forward=width) if row.role == "position" else row for row in found)

    register_parameterization(replace(completep, name="mine", rows={"adam": rows}))
    try:
        parse_sweep(edited((TABLES, "[mine]"), (AXIS, "  depth: [2, 4]")))
        assert message_of((TABLES, "[sp, mine]")) == (
            "s.yaml:14: parameterizations[1]: mine: position must have a forward multiplier of 1, got 2 at w64 "
            "d2 E4A1 h64: models of the family gpt multiply embedding, attn_out, router, expert_out, shared_out, "
            "dense_out, readout and no other role; put the factor into init_std and lr"
        )
    finally:
        PARAMETERIZATIONS.remove("mine")


def test_kappa_may_move_where_no_table_holds_it() -> None:
    dense_to_moe = (base(DENSE), (AXIS, MOE_POINT))
    assert message_of(*dense_to_moe).startswith(
        "s.yaml:16: axes.moe[0]: kappa = num_active/num_experts must stay 1 under completep-moe, got 2/8; "
    )
    parse_sweep(edited(*dense_to_moe, (TABLES, "[complete-mue, sp]")))
    parse_sweep(edited((AXIS, "  capacity: [8, 16]"), (TABLES, "[complete-mue, sp]")))
    moe_to_dense = (AXIS, "  dense: [{num_experts: 0}]")
    assert message_of(moe_to_dense).startswith(
        "s.yaml:16: axes.dense[0]: kappa = num_active/num_experts must stay 0.25 under completep-moe, got 1, as of any "
        "dense shape; "
    )
    parse_sweep(edited((AXIS, "  dense: {shapes: [{num_experts: 0}], allow_kappa_change: true}")))


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        ("  batch: [1024, 768]", "axes.batch[1]: steps must be a whole number, got 133.333 at 102400 tokens in all"),
        ("  batch: [80]", "axes.batch[0]: batch_tokens must be a multiple of 32, got 80"),
        ("  batch: [32]", "axes.batch[0]: batch_tokens must be whole sequences of 64 tokens, got 32"),
        (
            "  batch: [2048]",
            "axes.batch[0]: validation_tokens must be whole batches of 2048 tokens, got 1024",
        ),
        ("  a: [{batch_tokens: 640}]", "axes.a[0]: validation_tokens must be whole batches of 640 tokens, got 1024"),
        ("  duration: [0]", "axes.duration[0]: duration must be > 0, got 0"),
        ("  granularity: [3]", "axes.granularity[0]: expert_width must be a whole number, got 10.6667 at num_active * "
         "expert_width 32"),
        ("  granularity: [8]", "axes.granularity[0]: expert_width must be a multiple of 8 (rows of whole 16-byte "
         "units), got 4"),
        ("  groups: [2]", "axes.groups[0]: num_active must be a multiple of num_groups 2, got 1; or give "
         "model.top_groups"),
        ("  shared: [-1]", "axes.shared[0]: shared must be >= 0, got -1"),
        ("  a: [{shared_width: 8}]", "axes.a[0]: num_shared and shared_width belong together, got num_shared 0 and "
         "shared_width 8; give both or none"),
        ("  a: [{num_shared: 1, shared_width: 8, shared_ratio: 1}]",
         "axes.a[0]: give one of shared_ratio and shared_width, got both"),
        ("  expert_ratio: [1e9]", "axes.expert_ratio[0]: expert_width must be at most 1000000000, got 32000000000"),
    ],
)  # fmt: skip
def test_points(axis: str, problem: str) -> None:
    assert message_of((AXIS, axis), (TABLES, "[sp]")).splitlines()[0] == f"s.yaml:16: {problem}"


def test_a_run_must_hold_its_warm_up_and_its_decay() -> None:
    wsd = ("{decay: constant, warmup: 20}", "{decay: wsd, warmup: 20, decay_length: 50}")
    assert message_of(wsd, (AXIS, "  duration: [400, 1]")) == (
        "s.yaml:16: axes.duration[1]: steps must be at least 2, one for the warm-up and one for the decay, got 1"
    )
    parse_sweep(edited(wsd, (AXIS, "  duration: [400, 2]")))
    parse_sweep(edited((AXIS, "  duration: [400, 1]")))


MUE = (TABLES, "[complete-mue]")
SHORT = ("steps: 200", "steps: 200\n  validation_tokens: 16384")
LONG_TAIL = ("  validation_tokens: 1024\n", "")


@pytest.mark.parametrize(
    ("axis", "grid", "beta"),
    [
        ("batch: [4096]", "lr: [0.01]\n  beta1: [0.8, 0.9]", "beta1"),  # 1 - 0.8 = 0.2, times 8
        ("duration: [12]", "lr: [0.01]", "beta1"),
        ("batch: [4096]", "lr: [0.01]\n  beta2: [0.8, 0.95]", "beta2"),
    ],
)
def test_a_beta_that_leaves_its_range_is_refused_at_its_point(axis: str, grid: str, beta: str) -> None:
    edits = (SHORT, LONG_TAIL, (AXIS, f"  {axis}"), ("lr: [0.01]", grid), ("  router_bias_lr: 0.01", "  lr: 0.01"))
    message = message_of(*edits, MUE)
    where = f"s.yaml:16: axes.{axis.partition(':')[0]}[0]: complete-mue: {beta} must be in [0, 1), got "
    assert message.startswith(where)
    assert len(message.splitlines()) == 1
    parse_sweep(edited(*edits, (TABLES, "[sp]")))  # whose betas stay


def test_betas_that_stay_in_their_range() -> None:
    edits = (SHORT, LONG_TAIL, MUE)
    (path,) = axes_of(parse_sweep(edited(*edits, (AXIS, "  batch: [1024, 4096]"))))
    assert [(point.shape.batch_tokens, point.shape.steps) for point in path.points] == [
        (512, 200),
        (1024, 100),
        (4096, 25),
    ]


@pytest.mark.parametrize(("hp", "role"), [("expert_out.init_mult", "expert_out"), ("router_bias_lr", "router_bias")])
def test_an_hp_that_the_base_has_no_tensor_for_is_not_scanned(hp: str, role: str) -> None:
    moe = (base(DENSE), (TABLES, "[sp]"), (AXIS, MOE_POINT))
    grid = ("lr: [0.01]", f"{hp}: [0.5, 1]")
    assert message_of(*moe, ("router_bias_lr: 0.01", "lr: 0.1"), grid) == (
        f"s.yaml:20: grid.{hp}: the base w32 d2 D64 has no tensor of role {role}, so {hp} has no optimum there that "
        "could transfer; give it one value in hps, or take a base that has the role"
    )
    parse_sweep(edited(*moe))  # one value of it: fine
    parse_sweep(edited(("router_bias_lr: 0.01", "lr: 0.1"), grid))  # a base that has the role
