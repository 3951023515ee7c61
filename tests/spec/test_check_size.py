"""How large a sweep may be: every count has a limit, and what is within all limits is planned at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from sweep_text import edited
from tiny import write_tiny

from hpxfer.errors import HpxferError
from hpxfer.spec import parse_sweep

DATA = ('data: {source: "builtin:stdlib"}', "data: {source: 'tokens:none.bin', digest: abc}")
LIST = "[{}]".format(", ".join(f"{{width: {16 * (at % 50 + 1)}, depth: {at // 50 + 1}}}" for at in range(600)))


def message_of(*edits: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits), "s.yaml")
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("depth: 2", "depth: 10001"), "model.base.depth: must be less than or equal to 10000, got 10001"),
        (("depth: 2", "depth: 1000000000"), "model.base.depth: must be less than or equal to 10000, got 1000000000"),
        (("width: [32, 64]", "depth: [10001]"), "axes.depth[0]: depth must be at most 10000, got 10001"),
        (("width: [32, 64]", "a: [{depth: 99999}]"), "axes.a[0].depth: must be less than or equal to 10000"),
        (("seeds: 2", "seeds: 100000"), "grid: must leave at most 200000 trials in the sweep, got 400000: 4 arms"),
        (("lr: [0.01]", "lr: {log2: [-9, 0], step: 0.0001}"), "grid.lr: must be at most 10000 values, got {'log2'"),
        (("lr: [0.01]", f"lr: [{'0.1, ' * 10_001}]"), "grid.lr: must be at most 10000 values"),
        (("width: [32, 64]", f"width: [{'32, ' * 300}]"), "axes: must leave at most 500 arms"),
        (("width: [32, 64]", f"a: {LIST}"), "axes: must leave at most 500 arms, which are shapes times"),
        (("steps: 200", "tokens: 9007199254740993"), "training.tokens: must be less than or equal to 9007199254740992"),
        (
            ("steps: 200", f"tokens: {512 * 1_000_000_001}"),
            "training.tokens: must make at most 1000000000 steps, got 1000000001 steps of 512 tokens; take larger",
        ),
        (
            ("seeds: 2", "seeds: 2\nresources: {cpus_per_stack: 1e-320}"),
            "resources.cpus_per_stack: must be greater than or equal to 0.0001, got 1e-320",
        ),
        (
            ("seeds: 2", "seeds: 2\nresources: {gpus_per_stack: 1e-320}"),
            "resources.gpus_per_stack: must be greater than or equal to 0.0001, got 1e-320",
        ),
        (("steps: 200", "steps: 1000000001"), "training.steps: must be less than or equal to 1000000000"),
        (
            ("seeds: 2", "seeds: 2\nsearch: {kind: coordinate, values: {log2: [-9, 9], step: 1e-9}}"),
            "search.values: must be at most 10000 values",
        ),
    ],
)
def test_a_limit_is_one_line(edit: tuple[str, str], message: str) -> None:
    found = message_of(edit)
    assert message in found
    assert "\n" not in found
    assert len(found) < 400


def test_steps_and_tokens_have_one_limit() -> None:
    large = ("batch_tokens: 512", f"batch_tokens: {2**24}"), ("validation_tokens: 1024", f"validation_tokens: {2**24}")
    steps = message_of(*large, ("steps: 200", "steps: 1000000000"))
    tokens = message_of(*large, ("steps: 200", f"tokens: {2**53 + 2**24}"))
    assert "training.steps: must make at most 9007199254740992 tokens, got 1000000000 steps of 16777216" in steps
    assert "training.tokens: must be less than or equal to 9007199254740992" in tokens
    assert "\n" not in steps + tokens
    assert parse_sweep(edited(("steps: 200", "tokens: 2_048_000_000"))).base_shape.steps == 4_000_000
    whole = parse_sweep(edited(*large, ("steps: 200", f"tokens: {2**53}")))
    assert whole.base_shape.tokens == 2**53


def test_very_many_faults_are_not_all_listed() -> None:
    unknown = "".join(f"x{at}: 1\n" for at in range(3000))
    lines = message_of(("seeds: 2", unknown)).splitlines()
    assert (len(lines), lines[-1]) == (51, "... and more")
    roles = ", ".join(f"x{at}.lr_mult: 1" for at in range(3000))
    lines = message_of(("router_bias_lr: 0.01", f"multipliers: {{{roles}}}")).splitlines()
    assert (len(lines), lines[-1]) == (51, "... and more")


@pytest.mark.parametrize(
    "edits",
    [
        [("depth: 1", "depth: 10000")],
        [("depth: 1", "depth: 10000, dense_ratio: 1"), ("context: 16", "context: 16\n  moe_every: 3")],
        [("num_experts: 2, num_active: 1", "num_experts: 1000000000, num_active: 1000000000, num_groups: 1000000000")],
        [("width: 16", "width: 1000000000"), ("[16, 32]", "[1000000000]")],
        [
            (
                "batch_tokens: 64, steps: 6, validation_tokens: 128",
                f"batch_tokens: 64, steps: 1000000000, validation_tokens: {2**53}",
            ),
            DATA,
        ],
        [
            ("context: 16", "context: 999999968"),
            ("batch_tokens: 64", "batch_tokens: 999999968"),
            ("validation_tokens: 128", "validation_tokens: 999999968"),
            DATA,
        ],
        [('data: {source: "builtin:stdlib"}', "data: {source: 'tokens:none.bin', digest: abc, vocab_size: 65536}")],
        [("width: [16, 32]", f"a: {LIST[: LIST.index('{width: 16, depth: 5}') - 2]}]")],
        [("seeds: 2", "seeds: 5000"), ("log2: [-8, -4]", "log2: [-12, -3]")],
        [("workers: 2", "workers: 1000000000, stack_size: 1000000000")],
        [("seeds: 2", "seeds: 2\nsearch: {kind: coordinate, passes: 1000000000}")],
        [("seeds: 2", "seeds: 2\nsearch: {kind: optuna, budget: 1000, batch: 500}")],
        [("seeds: 2", "seeds: 100\nsearch: {kind: random, points: 240}")],
    ],
    ids=lambda edits: str(edits[0][1])[-50:],
)
def test_what_is_within_all_limits_is_planned(
    edits: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny(tmp_path, *edits)
    code, _, err = hpxfer(capsys, "plan", path, "--results", tmp_path, "--no-strict-memory")
    assert (code, [line for line in err.splitlines() if not line.startswith("warning: ")]) == (0, [])
