"""Rules of the family `mlp`, and of the keys of tokens and samples: one whole message a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import sweep_text
import yaml

from hpxfer.errors import HpxferError
from hpxfer.model.mlp.rules import BASE_KEYS, MODEL_KEYS
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.store.sweep_file import load_stored

SWEEP = """\
name: small
model:
  family: mlp
  gate: sigmoid
  mlp: {}
  base: {width: 32, depth: 1, num_experts: 4, num_active: 4, expert_width: 16}
data: {source: "builtin:shapes"}
training:
  batch_samples: 50
  validation_samples: 1000
  steps: 60
  optimizer: sgd
parameterizations: [mup-i, sp]
axes:
  width: {shapes: [{width: 64, expert_width: 32}]}
grid: {lr: {log2: [-4, 1]}}
"""
Edit = tuple[str, str]
BATCH, GATE, OPTIONS = "  batch_samples: 50\n", "  gate: sigmoid\n", "mlp: {}"
POINT, TABLES = "{width: 64, expert_width: 32}", "[mup-i, sp]"
OF_SAMPLES = "has no effect in the family mlp, which reads samples"
UNREAD = "has no effect in the family mlp;"


def edited(*edits: Edit) -> str:
    text = SWEEP
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def messages(text: str) -> list[str]:
    """Return the messages without the places in the file."""
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text, "s.yaml")
    return [line.split(": ", 1)[1] for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    "edits",
    [
        (),
        ((OPTIONS, "mlp: {router_bias: learned}"),),
        ((OPTIONS, "mlp: {aggregation: 1/M}"),),
        ((GATE, "  gate: softmax\n"), (OPTIONS, "mlp: {aggregation: none}")),
        ((OPTIONS, "mlp: {expert_matrices: 1}"), ("expert_width: 16", "expert_ratio: 1"), (POINT, "{width: 64}")),
        (("  mlp: {}\n", ""),),
        ((POINT, "{width: 64, expert_width: 32, batch_samples: 100}"),),
        ((TABLES, "[{table: sp, conventions: {lr_exponent: -0.5}}]"), (POINT, "{num_experts: 8}")),
        ((TABLES, "[sp]"), (POINT, "{depth: 2}")),  # it has no factor of the depth
        ((TABLES, "[mssp-i]"), (POINT, "{depth: 2}"), (OPTIONS, "mlp: {residual: true}"), ("sgd", "adamw")),
    ],
)
def test_legal_sweeps(edits: tuple[Edit, ...]) -> None:
    spec = parse_sweep(edited(*edits), "s.yaml")
    assert (spec.base_shape.batch_tokens, spec.base_shape.head_dim) == (50, 0)


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        (((BATCH, ""),), "training.batch_samples: must be given"),
        ((("  validation_samples: 1000\n", ""),), "training.validation_samples: must be given"),
        (((BATCH, BATCH + "  batch_tokens: 50\n"),), f"training.batch_tokens: {OF_SAMPLES}"),
        (
            ((BATCH, BATCH + "  schedule: {warmup: {tokens: 50}}\n"),),
            f"training.schedule.warmup: {OF_SAMPLES}",
        ),
        (
            (("name: small", "name: small\nresources: {micro_batch_tokens: 50}"),),
            f"resources.micro_batch_tokens: {OF_SAMPLES}",
        ),
        (
            ((POINT, "{width: 64, expert_width: 32, batch_tokens: 100}"),),
            f"axes.width.shapes[0].batch_tokens: {OF_SAMPLES}",
        ),
        ((("expert_width: 16}", "expert_width: 16, head_dim: 8}"),), f"model.base.head_dim: {UNREAD}"),
        (((GATE, GATE + "  context: 32\n"),), f"model.context: {UNREAD}"),
        (((GATE, GATE + "  ffn: swiglu\n"),), f"model.ffn: {UNREAD}"),
        (
            ((GATE, GATE + "  norm_gains: true\n"),),  # its default
            f"model.norm_gains: {UNREAD} legal: balance, gate, init, init_draw, matrix_std, mlp, tied_embeddings, ties",
        ),
        (
            (("expert_width: 16}", "expert_width: 16, num_shared: 0}"),),
            f"model.base.num_shared: {UNREAD} did you mean 'num_active'?",
        ),
        (((GATE, GATE + "  like: mixtral\n"),), f"model.like: {UNREAD}"),
        (
            (("expert_width: 16}", "expert_width: 16, dense_width: 16}"),),
            f"model.base.dense_width: {UNREAD}",
        ),
        (
            ((GATE, "  gate: normalized_sigmoid\n"),),
            "model.gate: must be sigmoid, softmax or normalized_softmax in the family mlp, got normalized_sigmoid",
        ),
        (
            ((GATE, "  gate: softmax\n"), (OPTIONS, "mlp: {aggregation: 1/M}")),
            "model.mlp.aggregation: must be none with the gate softmax, whose weights sum to one already, got 1/M; "
            "take it out",
        ),
        (
            ((OPTIONS, "mlp: {aggregation: none}"),),
            "model.mlp.aggregation: must be 1/K or 1/M with the gate sigmoid, whose weights sum to no fixed number, "
            "got none",
        ),
        (
            (
                (OPTIONS, "mlp: {router_bias: learned}\n  balance: {bias: sign}"),
                ("num_active: 4", "num_active: 2"),
            ),
            "model.balance.bias: must be none with a learned router bias, got sign: both would move one bias",
        ),
        (
            ((OPTIONS, "mlp: {router_bias_std: 2}"),),
            "model.mlp.router_bias_std: goes with router_bias, got none; name one, or take it out",
        ),
        (
            ((GATE, GATE + "  tied_embeddings: true\n"),),
            "model.tied_embeddings: must be false: a sample has no embedding; take it out",
        ),
        (
            ((TABLES, "[{table: mup-moe, conventions: {router_bias_std: 1}}]"), (OPTIONS, "mlp: {router_bias: fixed}")),
            "parameterizations[0]: mup-moe[router_bias_std=1.0] has a router bias by its convention router_bias_std, "
            "and model.mlp.router_bias is fixed; keep one of the two",
        ),
        (
            ((POINT, "{width: 64, expert_width: 16}"),),
            "axes.width.shapes[0]: mup-i is for regime I, where width, expert_width grow by one factor and the rest "
            "stays: width x2, expert_width x1, experts x1, active x1; it follows none of the regimes; "
            "allow_kappa_change: true in the axis runs it all the same",
        ),
        (
            ((TABLES, "[mssp-i]"), (POINT, "{depth: 2}")),
            "axes.width.shapes[0]: depth must stay at 1 under mssp-i without a residual, got 2: the table divides the "
            "output of each block by the depth; write model.mlp.residual: true",
        ),
        (
            (("name: small", "name: small\nprecision: bfloat16"),),
            "precision: must be float32 in the family mlp, got bfloat16",
        ),
        (
            (("name: small", "name: small\nprecision: auto"),),
            "precision: must be float32 in the family mlp, got auto",
        ),
        (
            ((TABLES, "[{table: sp, conventions: {lr_exponent: 3}}]"),),
            "parameterizations[0]: parameterization sp: lr_exponent must be a number from -2 to 2, got 3.0",
        ),
    ],
)
def test_a_broken_rule_is_named(edits: tuple[Edit, ...], problem: str) -> None:
    (found,) = messages(edited(*edits))
    assert found.startswith(problem) if problem.endswith(UNREAD) else found == problem


def test_an_expert_of_one_matrix_has_the_width_at_every_shape() -> None:
    assert messages(edited((OPTIONS, "mlp: {expert_matrices: 1}"))) == [
        f"{at}: expert_width must be the width {width} with expert_matrices: 1, got {given}; give expert_ratio: 1"
        for at, width, given in (("model.base", 32, 16), ("axes.width.shapes[0]", 64, 32))
    ]


def test_a_balancing_loss_is_refused() -> None:
    first, *_ = messages(edited((GATE, GATE + "  balance: {aux: switch}\n")))
    assert first == "model.balance.aux: must be none in the family mlp, got switch"


@pytest.mark.parametrize(
    ("old", "problem"),
    [
        ("  batch_tokens: 512\n", "training.batch_tokens: must be given"),
        ("  validation_tokens: 1024\n", "training.validation_tokens: must be given"),
        ("  context: 64\n", "model.context: must be given"),
        (", head_dim: 32", "model.base.head_dim: must be given"),
    ],
)
def test_a_family_that_reads_tokens_needs_their_keys(old: str, problem: str) -> None:
    assert old in sweep_text.SWEEP, sweep_text.SWEEP
    assert problem in messages(sweep_text.edited((old, "")))


def test_a_family_that_reads_tokens_refuses_samples() -> None:
    found = messages(edited(("family: mlp", "family: gpt")))
    for key in ("batch", "validation"):
        assert f"training.{key}_tokens: must be given" in found
        assert f"training.{key}_samples: has no effect in the family gpt, which reads tokens" in found
    assert any(line.startswith("model.mlp: has no effect in the family gpt;") for line in found)


def test_a_stored_sweep_has_the_keys_that_the_family_reads() -> None:
    spec = parse_sweep(edited(('"builtin:shapes"}', '"builtin:shapes", digest: abc}')))
    text = dump_sweep(spec)
    assert parse_sweep(text) == spec
    stored = yaml.safe_load(text)["model"]
    assert set(stored) == {"family", "base", *MODEL_KEYS} - {"ties"}  # which follow from the table
    assert set(stored["base"]) == set(BASE_KEYS) - {"expert_ratio"}


@pytest.mark.parametrize("name", ["routers-freeze-soft", "routers-freeze-top2"])
def test_a_published_sweep_stays_readable(name: str) -> None:
    spec = load_stored(Path(__file__).parents[2] / "results" / "published" / name)
    assert parse_sweep(dump_sweep(spec)) == spec
