"""Rules that join several fields: one whole message a rule."""

from __future__ import annotations

import pytest
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.spec import parse_sweep

Edit = tuple[str, str]

BASE = "width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32"
PARAMETERIZATIONS = "[completep-moe, sp]"
AXIS = "  width: [32, 64]"
SCHEDULE = "{decay: constant, warmup: 20}"
GRID = "  lr: [0.01]"
HPS = "  router_bias_lr: 0.01"


def message_of(*edits: Edit) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits), "s.yaml")
    return str(caught.value)


def test_the_sweep_that_the_edits_start_from_is_legal() -> None:
    parse_sweep(SWEEP)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a/b", "must be letters, digits, '.', '_' and '-', starting with a letter or digit, got 'a/b'"),
        ("-a", "must be letters, digits, '.', '_' and '-', starting with a letter or digit, got '-a'"),
        ("..", "must be letters, digits, '.', '_' and '-', starting with a letter or digit, got '..'"),
        ("a" * 101, "must have at most 100 characters, got 101"),
        ("published", "'published' is a folder of results/ with another use; choose another name"),
        ("bench", "'bench' is a folder of results/ with another use; choose another name"),
    ],
)
def test_name(name: str, problem: str) -> None:
    assert message_of(("name: small", f"name: {name}")) == f"s.yaml:1: name: {problem}"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("expert_ratio: 1, ", "", "model.base: must give exactly one of expert_ratio and expert_width"),
        (
            "expert_ratio: 1",
            "expert_ratio: 1, expert_width: 32",
            "model.base: must give exactly one of expert_ratio and expert_width",
        ),
        (
            "expert_ratio: 1",
            "expert_ratio: 0.3",
            "model.base.expert_ratio: expert_ratio * width must be a whole number, got 9.6",
        ),
        (
            "expert_ratio: 1",
            "expert_width: 12",
            "model.base: expert_width must be a multiple of 8 (rows of whole 16-byte units), got 12",
        ),
        (
            "head_dim: 32",
            "head_dim: 24",
            "model.base: width must be a multiple of head_dim, got width 32 and head_dim 24; "
            "take another head_dim, or give num_heads",
        ),
        ("num_active: 1", "num_active: 5", "model.base: num_active must be at most num_experts, got 5 of 4"),
    ],
)
def test_base(old: str, new: str, problem: str) -> None:
    assert message_of((BASE, BASE.replace(old, new))) == f"s.yaml:4: {problem}"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("  steps: 200\n", ""), "8: training: must give exactly one of steps and tokens"),
        (("steps: 200", "steps: 200\n  tokens: 512"), "8: training: must give exactly one of steps and tokens"),
        (
            ("context: 64\n", "context: 16\n"),
            None,  # the twin of the next two: 512 is a multiple of 16 and of 32
        ),
        (
            ("context: 64\n", "context: 48\n"),
            "9: training.batch_tokens: must be whole sequences of 48 tokens, got 512",
        ),
        (
            ("steps: 200", "tokens: 51300"),
            "10: training.tokens: must be whole batches of 512 tokens, got 51300",
        ),
        (
            ("validation_tokens: 1024", "validation_tokens: 1000"),
            "13: training.validation_tokens: must be whole batches of 512 tokens, got 1000",
        ),
        (("[0.9, 0.95]", "[0.9]"), "11: training.betas: must be two numbers in [0, 1), got [0.9]"),
        (("[0.9, 0.95]", "[0.9, 1.0]"), "11: training.betas: must be two numbers in [0, 1), got [0.9, 1.0]"),
        (
            ("steps: 200", "steps: 200\n  final_window_steps: 201"),
            "11: training.final_window_steps: must be at most the run's 200 steps, got 201",
        ),
        (("steps: 200", "steps: 200\n  final_window_steps: 200"), None),
        (
            ("steps: 200", "steps: 200\n  eps: 1.0e-39"),
            "11: training.eps: eps must be from 2^-126 to 2^127, as float32 holds it, got 1e-39",
        ),
        (
            ("steps: 200", "steps: 200\n  weight_decay: 1.0e+39"),
            "11: training.weight_decay: weight_decay must be from 2^-126 to 2^127, as float32 holds it, got 1e+39",
        ),
        (
            ("betas: [0.9, 0.95]", "betas: [0, 1.0e-39]"),
            "11: training.betas[1]: beta2 must be from 2^-126 to 2^127, as float32 holds it, got 1e-39",
        ),
        (
            (SCHEDULE, "{warmup: 201}"),
            "12: training.schedule.warmup: the warm-up must not be longer than the run of 200 steps, got 201",
        ),
        ((SCHEDULE, "{warmup: 200}"), None),
        (
            (SCHEDULE, "{decay: wsd}"),
            "12: training.schedule.decay_length: must be given with decay wsd and only there, got none with wsd",
        ),
        (
            (SCHEDULE, "{decay: cosine, decay_length: 9}"),
            "12: training.schedule.decay_length: must be given with decay wsd and only there, got 9 with cosine",
        ),
        (
            (SCHEDULE, "{decay: wsd, warmup: 20, decay_length: 181}"),
            "12: training.schedule.decay_length: warm-up and decay must fit in the run of 200 steps, got 20 + 181",
        ),
        ((SCHEDULE, "{decay: wsd, warmup: 20, decay_length: 180}"), None),
    ],
)
def test_training(edit: Edit, problem: str | None) -> None:
    if problem is None:
        parse_sweep(edited(edit))
    else:
        assert message_of(edit) == f"s.yaml:{problem}"


def test_a_batch_must_not_have_a_tail() -> None:
    edits = (("context: 64", "context: 8"), ("batch_tokens: 512", "batch_tokens: 72"))
    assert message_of(*edits, ("validation_tokens: 1024", "validation_tokens: 144")) == (
        "s.yaml:9: training.batch_tokens: must be a multiple of 32, got 72"
    )


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("[]", "parameterizations: must name at least one"),
        ("[completp]", "parameterizations[0]: unknown parameterization 'completp'; did you mean 'completep'?"),
        (
            "[sp, {table: sp, conventions: {x: 1}}]",
            "parameterizations[1]: parameterization sp: unknown convention 'x'; legal: lr_exponent",
        ),
        (
            "[{table: completep-moe, conventions: {router_init_exponent: 2}}]",
            "parameterizations[0]: parameterization completep-moe: router_init_exponent must be 0.5 | 1.0 | inf, "
            "got 2.0",
        ),
        (
            "[sp, completep]",
            "parameterizations[1]: completep has no rule for expert_in, expert_out, router, router_bias, "
            "which this model has",
        ),
        (
            "[completep-moe, {table: completep-moe, conventions: {depth_alpha: 1}}]",
            "parameterizations[1]: completep-moe stands twice; keep one",
        ),
    ],
)
def test_parameterizations(names: str, problem: str) -> None:
    assert message_of((PARAMETERIZATIONS, names)) == f"s.yaml:14: {problem}"


def test_one_table_may_stand_with_several_conventions() -> None:
    both = "[completep-moe, {table: completep-moe, conventions: {depth_alpha: 0.5}}]"
    assert len(parse_sweep(edited((PARAMETERIZATIONS, both))).parameterizations) == 2


def test_a_table_without_the_optimizer_s_column() -> None:
    assert message_of(("steps: 200", "steps: 200\n  optimizer: sgd")) == (
        "s.yaml:15: parameterizations[0]: parameterization completep-moe: the source has no sgd column; it has: adam"
    )
    parse_sweep(edited(("steps: 200", "steps: 200\n  optimizer: sgd"), (PARAMETERIZATIONS, "[sp]")))


def kappa(got: str) -> str:
    return (
        f"kappa = num_active/num_experts must stay 0.25 under completep-moe, got {got}; transfer is not expected along "
        "such an axis; allow_kappa_change: true in the axis runs it all the same"
    )


@pytest.mark.parametrize(
    ("axis", "problem"),
    [
        ("  width: []", "axes.width: must hold at least one shape"),
        ("  width: {}", "axes.width: must give exactly one of values and shapes"),
        ("  width: {values: [64], shapes: [{depth: 4}]}", "axes.width: must give exactly one of values and shapes"),
        ("  widht: [64]", "axes.widht: an axis of bare values must be named after a dimension; did you mean 'width'?"),
        (
            "  zzz: [64]",
            "axes.zzz: an axis of bare values must be named after a dimension; "
            "legal: active, batch, capacity, depth, duration, expert_ratio, expert_width, experts, granularity, "
            "groups, shared, width",
        ),
        (
            "  width: {values: [64], num_active: 2}",
            "axes.width.num_active: only for the values of the axis experts; in shapes, give it in each",
        ),
        (
            "  experts: {shapes: [{depth: 4}], num_active: 2}",
            "axes.experts.num_active: only for the values of the axis experts; in shapes, give it in each",
        ),
        ("  depth: [1.5]", "axes.depth[0]: depth must be a whole number, got 1.5"),
        ("  depth: [0]", "axes.depth[0]: depth must be > 0, got 0"),
        ("  expert_ratio: [-1]", "axes.expert_ratio[0]: expert_ratio must be > 0, got -1"),
        (
            "  width: [64, 48]",
            "axes.width[1]: width must be a multiple of head_dim, got width 48 and head_dim 32; "
            "take another head_dim, or give num_heads",
        ),
        (
            "  expert_ratio: [2, 0.3]",
            "axes.expert_ratio[1]: expert_width must be a whole number, got 9.6 at width 32",
        ),
        (
            "  a: [{depth: 4}, {expert_ratio: 2, expert_width: 64}]",
            "axes.a[1]: give one of expert_ratio and expert_width, got both",
        ),
        (
            "  experts: [6]",
            "axes.experts[0]: num_active must follow num_experts to hold kappa 0.25, got 1.5 of 6; "
            "give num_active, or another num_experts",
        ),
        ("  experts: {values: [8], num_active: 1}", "axes.experts.values[0]: " + kappa("1/8")),
        ("  active: [1, 2]", "axes.active[1]: " + kappa("2/4")),
        ("  a: [{num_active: 2}]", "axes.a[0]: " + kappa("2/4")),
    ],
)
def test_axes(axis: str, problem: str) -> None:
    assert message_of((AXIS, axis)) == f"s.yaml:16: {problem}"


@pytest.mark.parametrize(
    "axis",
    [
        "  experts: [8, 12]",
        "  experts: {values: [8], num_active: 1, allow_kappa_change: true}",
        "  a: [{num_experts: 12, num_active: 3}]",
        "  expert_ratio: [0.25]",
        "  whatever: [{width: 64, depth: 4}]",
    ],
)
def test_legal_axes(axis: str) -> None:
    parse_sweep(edited((AXIS, axis)))


def test_no_axis_at_all() -> None:
    assert message_of((f"axes:\n{AXIS}", "axes: {}")) == "s.yaml:15: axes: must name at least one axis"


@pytest.mark.parametrize(
    ("hps", "problem"),
    [
        ("  lr: 0", "18: hps.lr: lr must be > 0, got 0"),
        ("  init_scale: 0.0", "18: hps.init_scale: init_scale must be > 0, got 0"),
        ("  router_bias_lr: -1", "18: hps.router_bias_lr: router_bias_lr must be >= 0, got -1"),
        ("  multipliers: {lr: 2}", "18: hps.multipliers.lr: must be a dotted name, e.g. router.lr_mult"),
        (
            "  multipliers: {routr.lr_mult: 2}",
            "18: hps.multipliers.routr.lr_mult: unknown role 'routr'; did you mean 'router'?",
        ),
        (
            "  multipliers: {router.lr: 2}",
            "18: hps.multipliers.router.lr: unknown multiplier 'lr'; legal: forward_mult, init_mult, lr_mult",
        ),
        (
            "  multipliers: {router.lr_mult: -2}",
            "18: hps.multipliers.router.lr_mult: router.lr_mult must be >= 0, got -2",
        ),
    ],
)
def test_hps(hps: str, problem: str) -> None:
    assert message_of((HPS, hps)) == f"s.yaml:{problem}"


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ("  lrr: [0.1]\n  lr: [0.1]", "20: grid.lrr: unknown HP; did you mean 'lr'?"),
        ("  lr: []", "20: grid.lr: must hold at least one value"),
        ("  lr: {}", "20: grid.lr: must be a list of values, or one of {log2: [low, high]} and {around: [low, high]}"),
        (
            "  lr: {values: [1], log2: [0, 1]}",
            "20: grid.lr: must be a list of values, or one of {log2: [low, high]} and {around: [low, high]}",
        ),
        ("  lr: {log2: [0]}", "20: grid.lr.log2: must be [low, high] with low <= high, got [0.0]"),
        ("  lr: {log2: [-4, -9]}", "20: grid.lr.log2: must be [low, high] with low <= high, got [-4.0, -9.0]"),
        ("  lr: {log2: [0, 5000]}", "20: grid.lr.log2[1]: lr must be finite, got inf"),
        ("  lr: {log2: [-5000, 0]}", "20: grid.lr.log2[0]: lr must be > 0, got 0"),
        ("  lr: [0.1, 1.0e-39]", "20: grid.lr[1]: lr must be from 2^-126 to 2^127, as float32 holds it, got 1e-39"),
        ("  lr: [0.1, 0]", "20: grid.lr[1]: lr must be > 0, got 0"),
        ("  lr: {values: [0.1, -1]}", "20: grid.lr.values[1]: lr must be > 0, got -1"),
        ("  lr: [0.1, 0.2, 0.1]", "20: grid.lr: a value stands twice in [0.1, 0.1, 0.2]"),
    ],
)
def test_grid(grid: str, problem: str) -> None:
    edits = [(GRID, grid)]
    if "lrr" in grid:
        edits.append((HPS, "  lr: 0.1"))  # so that the line of the unknown HP is not at fault too
    assert message_of(*edits) == f"s.yaml:{problem}"


def test_values_that_an_hp_may_not_have_are_refused_in_a_range_too() -> None:
    assert message_of((GRID, "  beta1: {log2: [-1, 0]}"), (HPS, "  lr: 0.1")) == (
        "s.yaml:20: grid.beta1.log2[1]: beta1 must be in [0, 1), got 1"
    )
    parse_sweep(edited((GRID, "  beta1: {log2: [-2, -1]}"), (HPS, "  lr: 0.1")))


def test_an_empty_grid() -> None:
    assert message_of((f"grid:\n{GRID}", "grid: {}"), (HPS, "  lr: 0.1")) == (
        "s.yaml:19: grid: must scan at least one HP"
    )


def test_lr_must_come_from_somewhere() -> None:
    init = (GRID, "  init_scale: [0.5, 1]")
    both = (GRID, "  lr: [0.1]\n  init_scale: [0.5, 1]")
    assert message_of(init) == "s.yaml:17: hps.lr: must be given, because the grid does not scan lr"
    assert message_of(both) == "s.yaml:17: hps.lr: must be given: the line of init_scale runs through it"
    parse_sweep(edited(both, ("seeds: 2", "product: true")))
    parse_sweep(edited(both, (HPS, "  lr: 0.1")))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("seeds: 2", "judge: {hp: init_scale}"), "judge.hp: must be an HP of the grid; legal: lr"),
        (("seeds: 2", "judge: {hp: lrr}"), "judge.hp: must be an HP of the grid; did you mean 'lr'?"),
        (
            ("seeds: 2", "judge: {regret_limit: {}}"),
            "judge.regret_limit: must have one of loss and octaves, got neither; write e.g. {loss: 0.01}",
        ),
        (
            ("seeds: 2", "judge: {regret_limit: {loss: 0.01, octaves: 1}}"),
            "judge.regret_limit: must have one of loss and octaves, got both; write e.g. {loss: 0.01}",
        ),
        (
            ("seeds: 2", "judge: {regret_limit: {loss: 0}}"),
            "judge.regret_limit.loss: must be greater than 0, got 0",
        ),
        (
            ("seeds: 2", "judge: {regret_limit: {octave: 1}}"),
            "judge.regret_limit.octave: unknown key; did you mean 'octaves'?",
        ),
        (
            ("seeds: 2", "judge: {regret_limit: 0.01}"),
            "judge.regret_limit: must be a mapping, got 0.01",
        ),
        (("seeds: 2", "seeds: []"), "seeds: must hold at least one seed"),
        (("seeds: 2", "seeds: [3, 3]"), "seeds: a seed stands twice in [3, 3]"),
    ],
)
def test_judge_and_seeds(edit: Edit, problem: str) -> None:
    assert message_of(edit) == f"s.yaml:21: {problem}"


def test_every_broken_rule_is_named_at_once() -> None:
    got = message_of(("name: small", "name: bench"), (AXIS, "  depth: [0]"), ("seeds: 2", "seeds: []"))
    assert got.splitlines() == [
        "s.yaml:1: name: 'bench' is a folder of results/ with another use; choose another name",
        "s.yaml:16: axes.depth[0]: depth must be > 0, got 0",
        "s.yaml:21: seeds: must hold at least one seed",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("lr: [0.01]", "dense_in.lr_mult: [1, 2]", "this model has no tensor of role dense_in"),
        ("lr: [0.01]", "hidden_bias.lr_mult: [1, 2]", "this model has no tensor of role hidden_bias"),
        ("lr: [0.01]", "readout.lr_mult: [1, 2]", "this model has no tensor of role readout"),
        (
            "lr: [0.01]",
            "attn_q.forward_mult: [1, 2]",
            "this model multiplies no output of role attn_q; did you mean 'attn_out'?",
        ),
        ("lr: [0.01]", "dense_out.forward_mult: [1]", "this model multiplies no output of role dense_out; "),
        ("lr: [0.01]", "norm.init_mult: [1, 2]", "norm.init_mult has no effect: the role starts at exact ones"),
        ("lr: [0.01]", "router_bias.init_mult: [1]", "router_bias.init_mult has no effect: the role starts at exact"),
    ],
)
def test_hps_that_can_change_nothing(old: str, new: str, problem: str) -> None:
    message = message_of(("router_bias_lr: 0.01", "lr: 0.1"), (old, new))
    assert message.startswith(f"s.yaml:20: grid.{new.partition(':')[0]}: {problem}")
    name = new.partition(":")[0]
    message = message_of(("router_bias_lr: 0.01", f"multipliers: {{{name}: 2}}"))
    assert message.startswith(f"s.yaml:18: hps.multipliers.{name}: {problem}")


@pytest.mark.parametrize("role", ["embedding", "attn_out", "router", "expert_out", "readout"])
def test_what_a_role_gives_may_be_multiplied(role: str) -> None:
    """The readout too, which shares its matrix with the embedding and has no LR of its own."""
    name = f"{role}.forward_mult"
    spec = parse_sweep(edited(("router_bias_lr: 0.01", f"lr: 0.1\n  multipliers: {{{name}: 2}}")))
    assert spec.model.tied_embeddings
    assert spec.hps.multipliers == {name: 2.0}
    assert name in parse_sweep(edited(("router_bias_lr: 0.01", "lr: 0.1"), ("lr: [0.01]", f"{name}: [1, 2]"))).grid


def test_momentum_is_of_sgd() -> None:
    edits = (("router_bias_lr: 0.01", "lr: 0.1\n  momentum: 0.9"), ("[completep-moe, sp]", "[sp]"))
    assert message_of(*edits).startswith("s.yaml:19: hps.momentum: momentum has no effect under adamw")
    sgd = ("batch_tokens: 512", "batch_tokens: 512\n  optimizer: sgd")
    assert parse_sweep(edited(*edits, sgd)).hps.momentum == 0.9
    assert message_of((edits[0][0], "lr: 0.1\n  momentum: 1"), edits[1], sgd).endswith("must be in [0, 1), got 1")


def test_adams_hps_have_no_effect_under_sgd() -> None:
    edits = (("router_bias_lr: 0.01", "lr: 0.1"), ("[completep-moe, sp]", "[sp]"), ("lr: [0.01]", "eps: [1e-8]"))
    sgd = ("batch_tokens: 512", "batch_tokens: 512\n  optimizer: sgd")
    assert message_of(*edits, sgd) == "s.yaml:21: grid.eps: eps has no effect under sgd; take it out"


@pytest.mark.parametrize(
    ("values", "got"), [("[0.5, 2]", "1"), ("[1, 2]", None), ("{log2: [-1, 1]}", None), ("{log2: [1, 2]}", "1")]
)
def test_a_product_must_hold_the_base_values_of_what_is_not_judged(values: str, got: str | None) -> None:
    edits = (("lr: [0.01]", f"lr: [0.01]\n  init_scale: {values}"), ("seeds: 2", "seeds: 2\nproduct: true"))
    if got is None:
        assert parse_sweep(edited(*edits), "s.yaml").product
    else:
        assert message_of(*edits) == (
            "s.yaml:21: grid.init_scale: a product must hold the base value of init_scale, through which the line of "
            f"the judged lr runs, got {got} as the base value; add it here, or give init_scale one of these"
        )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr: [0.01]", "lr: {log2: [-8, -4], step: 1e-300}", "grid.lr: must be at most 10000 values, got {'log2': [-"),
        ("lr: [0.01]", "lr: {log2: [-1e9, -4]}", "grid.lr: must be at most 10000 values, got {'log2': [-"),
        ("seeds: 2", "seeds: 100000000000", "seeds: must be a count from 1 to 100000"),
        ("seeds: 2", "seeds: [9223372036854775808]", "seeds[0]: must be less than 9223372036854775808"),
        ("expert_ratio: 1", "expert_ratio: 1e308", "expert_ratio: must be less than or equal to 1000000"),
        ("width: [32, 64]", "width: [32, 1e300]", "axes.width[1]: must be less than or equal to 1000000000"),
        ("router_bias_lr: 0.01", f"lr: {{log2: -{'9' * 240}}}", "hps.lr: lr must be > 0, got 0"),
    ],
)
def test_numbers_beyond_all_sense(old: str, new: str, message: str) -> None:
    assert message in message_of((old, new))
