"""Variants: what a sweep file may say of them, and the sweep that each of them stands for."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.spec.base_values import base_values
from hpxfer.spec.variants import variants_of

TUNED = "tuned: {hps: {multipliers: {router.lr_mult: 0.0625}}}"


def with_variants(text: str, *edits: tuple[str, str]) -> str:
    return edited(("  router_bias_lr: 0.01\n", f"  router_bias_lr: 0.01\nvariants: {text}\n"), *edits)


def message_of(text: str, *edits: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(with_variants(text, *edits), "s.yaml")
    return str(caught.value)


def test_a_variant_moves_the_base_values_that_it_names_and_no_others() -> None:
    spec = parse_sweep(
        edited(
            (
                "  router_bias_lr: 0.01\n",
                "  multipliers: {router.lr_mult: 4, attn_q.lr_mult: 3}\nvariants:\n  default: {}\n  tuned: {hps: "
                "{lr: 0.5, weight_decay: 0.1, beta2: 0.99, multipliers: {router.lr_mult: 2}}}\n",
            )
        )
    )
    (name, plain), (other, tuned) = variants_of(spec)
    assert (name, other) == ("default", "tuned")
    assert base_values(plain) == base_values(spec)
    moved = {"lr": 0.5, "weight_decay": 0.1, "beta2": 0.99, "router.lr_mult": 2.0}
    assert base_values(tuned) == {**base_values(spec), **moved}
    assert tuned.variants is None
    assert parse_sweep(dump_sweep(spec)) == spec


def test_a_sweep_without_variants_is_its_own_default_one() -> None:
    spec = parse_sweep(edited())
    assert variants_of(spec) == (("default", spec),)
    assert "variants" not in dump_sweep(spec)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "19: variants: must name at least one variant"),
        ("{default: {}, tuned: {hps: {lrr: 1}}}", "19: variants.tuned.hps.lrr: unknown key; did you mean 'lr'?"),
        ("{default: {}, tuned: {model: {}}}", "19: variants.tuned.model: unknown key; legal: balance, hps"),
        (
            "{default: {}, tuned: {hps: {multipliers: {routr.lr_mult: 2}}}}",
            "19: variants.tuned.hps.multipliers.routr.lr_mult: unknown role 'routr'; did you mean 'router'?",
        ),
        (
            "{default: {}, tuned: {hps: {multipliers: {dense_in.lr_mult: 2}}}}",
            "19: variants.tuned.hps.multipliers.dense_in.lr_mult: this model has no tensor of role dense_in",
        ),
        ("{default: {}, tuned: {hps: {multipliers: {lr: 2}}}}", "19: variants.tuned.hps.multipliers.lr: must be a dot"),
        ("{default: {}, tuned: {hps: {lr: 0}}}", "19: variants.tuned.hps.lr: lr must be > 0, got 0"),
        ("{default: {}, tuned: {hps: {momentum: 0.9}}}", "19: variants.tuned.hps.momentum: momentum has no effect"),
        ("{default: {}, same: {}}", "19: variants.same: must differ from default, got the same base HPs"),
        (
            "{default: {}, same: {hps: {init_scale: 1, multipliers: {router.lr_mult: 1}}}}",
            "19: variants.same: must differ from default, got the same base HPs",
        ),
        (f"{{{TUNED}, a: {{hps: {{multipliers: {{router.lr_mult: 0.0625}}}}}}}}", "19: variants.a: must differ from t"),
        ("{default: {hps: {init_scale: 2}}}", "19: variants.default: must change nothing"),
        ("{default: {}, 'a b': {hps: {init_scale: 2}}}", "19: variants.a b: a variant's name must have at most 40"),
        ("{default: {}, 'a, b': {hps: {init_scale: 2}}}", "19: variants.a, b: a variant's name must have at most 40"),
        ("[tuned]", "19: variants: must be a mapping"),
        ("{default: {}, a: {balance: {bias: sgn}}}", "19: variants.a.balance.bias: must be"),
        ("{default: {balance: {bias: sign}}}", "19: variants.default: must change nothing"),
        ("{default: {}, a: {balance: {bias: proportional}}}", "19: variants.a: must differ from default, got the same"),
        ("{default: {}, a: {balance: {aux: switch}}}", "19: variants.a: hps.aux_weight: must be given with"),
        ("{default: {}, a: {hps: {aux_weight: 0.1}}}", "19: variants.a.hps.aux_weight: aux_weight has no effect"),
        (
            "{default: {}, a: {balance: {bias: none}, hps: {router_bias_lr: 0.1}}}",
            "19: variants.a.hps.router_bias_lr: router_bias_lr has no effect: model.balance.bias is none",
        ),
        (
            "{default: {}, a: {balance: {bias: none, load: last_step}}}",
            "19: variants.a: model.balance.load: goes with a loss",
        ),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    message = message_of(text)
    assert message.startswith(f"s.yaml:{problem}"), message
    assert len(message.splitlines()) == 1


def test_a_beta_that_a_table_moves_out_of_its_range_names_the_variant() -> None:
    edits = (("  width: [32, 64]", "  bigger: [{steps: 100}]"), ("[completep-moe, sp]", "[complete-mue]"))
    message = message_of("{default: {}, fast: {hps: {beta1: 0.4}}}", *edits)
    assert message.startswith("s.yaml:19: variants.fast: axes.bigger")
    assert "beta1 must be in [0, 1)" in message


def test_a_product_must_hold_the_base_values_of_every_variant() -> None:
    edits = (("  lr: [0.01]", "  lr: [0.01]\n  init_scale: [0.5, 1]\nproduct: true"),)
    parse_sweep(with_variants("{default: {}, small: {hps: {init_scale: 0.5}}}", *edits))
    message = message_of("{default: {}, small: {hps: {init_scale: 0.25}}}", *edits)
    assert message.startswith("s.yaml:19: variants.small: grid.init_scale: a product must hold the base value")


def test_a_variant_has_a_balance_of_its_own() -> None:
    loss = "{balance: {bias: none, aux: switch}, hps: {aux_weight: 0.1}}"
    spec = parse_sweep(with_variants(f"{{default: {{}}, sign: {{balance: {{bias: sign}}}}, loss: {loss}}}"))
    plain, sign, switch = (under for _, under in variants_of(spec))
    rules = [(under.model.balance.bias, under.model.balance.aux) for under in (plain, sign, switch)]
    assert rules == [("proportional", "none"), ("sign", "none"), ("none", "switch")]
    assert [base_values(under)["aux_weight"] for under in (plain, sign, switch)] == [0.0, 0.0, 0.1]
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize(
    ("hps", "balance", "variant", "fix"),
    [
        ("aux_weight: 0.02", "bias: none", "{balance: {aux: switch}", "the variants with a loss"),
        ("router_bias_lr: 0.02", "bias: none", "{balance: {bias: sign}", "the variants with a rule"),
    ],
)
def test_a_base_value_that_only_a_variant_reads_goes_into_the_variant(
    hps: str, balance: str, variant: str, fix: str
) -> None:
    def text(at_base: str, of_variant: str) -> str:
        variants = f"variants: {{default: {{}}, a: {variant}{of_variant}}}}}\n"
        base = ("  context: 64\n", f"  context: 64\n  balance: {{{balance}}}\n")
        return edited(base, ("hps:\n  router_bias_lr: 0.01\n", f"hps: {{{at_base}}}\n{variants}"))

    with pytest.raises(HpxferError, match=f"give it in the hps of {fix}"):
        parse_sweep(text(hps, ""))
    parse_sweep(text("", f", hps: {{{hps}}}"))


def test_a_grid_that_a_balance_of_a_variant_does_not_read_is_refused() -> None:
    base = ("  router_bias_lr: 0.01\n", "  router_bias_lr: 0.01\n  lr: 0.01\n")
    scanned = base, ("  lr: [0.01]", "  lr: [0.01]\n  router_bias_lr: [0.01, 0.02]")
    parse_sweep(with_variants("{default: {}, a: {balance: {bias: sign}}}", *scanned))
    message = message_of("{default: {}, a: {balance: {bias: none}}}", *scanned)
    assert message.startswith("s.yaml:20: variants.a: grid.router_bias_lr: router_bias_lr has no effect"), message


def test_arms_are_counted_with_variants() -> None:
    axis = ", ".join(str(32 * k) for k in range(1, 130))
    names = ", ".join(f"v{k}: {{hps: {{init_scale: {k}}}}}" for k in range(2, 5))
    parse_sweep(edited(("[32, 64]", f"[{axis}]")))
    message = message_of(f"{{{names}}}", ("[32, 64]", f"[{axis}]"))
    assert message.startswith("s.yaml:15: axes: must leave at most 500 arms")
