"""What a sweep file may not say: one line a fault, and the legal twins. The cases stand in messages.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweep_text import SAMPLES, SWEEP, edited, with_keys
from user_sweeps import ARMS, TABLES

from hpxfer.errors import HpxferError
from hpxfer.model.gates import GATES
from hpxfer.registry import Registry
from hpxfer.scaling import Row, register_parameterization
from hpxfer.scaling.monomial import width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import load_sweep, parse_sweep

SWEEPS = {"SWEEP": SWEEP, "SAMPLES": SAMPLES, "ARMS": ARMS, "TABLES": TABLES}
GROUPS = yaml.safe_load(Path(__file__).with_name("messages.yaml").read_text(encoding="utf-8"))
REAL = Registry.get


def case(group: dict[str, Any], edits: str | list[str] | dict[str, str]) -> str:
    text = SWEEPS[group.get("sweep", "SWEEP")]
    if isinstance(edits, dict):
        return edited(*edits.items(), text=text)
    return with_keys(text, *group.get("also", ()), *([edits] if isinstance(edits, str) else edits))


def message_of(text: str) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text, "s.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(case(group, edits), said, id=f"{group['about']}: {edits}"[:90])
        for group in GROUPS
        for edits, said in group["rows"]
    ],
)
def test_one_fault_one_line(text: str, said: str | None) -> None:
    if said is None:
        parse_sweep(text, "s.yaml")
        return
    message = message_of(text)
    assert len(message) < 450
    start, cut, rest = said.partition(" ...")
    assert message.startswith(f"s.yaml:{start}") if cut else message == f"s.yaml:{said}"
    assert ("\n" in message) is (rest == " and more")


def test_the_sweeps_that_the_edits_start_from_are_legal() -> None:
    for text in SWEEPS.values():
        parse_sweep(text)
    said = [said for group in GROUPS for _, said in group["rows"]]
    assert (len(said) > 380, said.count(None) > 35) == (True, True)


def test_every_broken_rule_is_named_at_once() -> None:
    got = message_of(with_keys(SWEEP, "name: bench", "axes.depth: [0]", "seeds: [2, 2]"))
    assert got.splitlines() == [
        "s.yaml:1: name: 'bench' is a folder of results/ with another use",
        "s.yaml:17: axes.depth[0]: depth must be > 0, got 0",
        "s.yaml:22: seeds: a seed stands twice in [2, 2]",
    ]
    assert message_of(with_keys(SWEEP, "model.context: 0", "-seeds", "seedz: 2")).splitlines() == [
        "s.yaml:5: model.context: must be greater than or equal to 1, got 0",
        "s.yaml:21: seedz: unknown key; did you mean 'seeds'?",
    ]
    wrong = "parameterizations: [{table: completep, conventions: {depth_alpha: true}}]"
    assert message_of(with_keys(SWEEP, wrong)).splitlines() == [
        f"s.yaml:14: parameterizations[0].conventions.depth_alpha: must be a valid {kind}, got true"
        for kind in ("number", "string")
    ]


def test_very_many_faults_are_not_all_listed() -> None:
    unknown = (f"x{at}: 1" for at in range(3000))
    roles = ", ".join(f"x{at}.lr_mult: 1" for at in range(3000))
    for text in (SWEEP + "\n".join(unknown), with_keys(SWEEP, f"hps.multipliers: {{{roles}}}")):
        lines = message_of(text).splitlines()
        assert (len(lines), lines[-1]) == (51, "... and more")


def test_a_long_value_is_cut() -> None:
    line = message_of(with_keys(SWEEP, "model.family: " + "x" * 500))
    assert line == "s.yaml:3: model.family: unknown family '" + "x" * 76 + "...; legal: dit, gpt, mlp, user"
    long = {
        "grid.lr": (10_001, "grid.lr: must be at most 10000 values"),
        "axes.width": (300, "axes: must leave at most"),
    }
    for key, (count, said) in long.items():
        line = message_of(with_keys(SWEEP, f"{key}: [{'32, ' * count}]"))
        assert said in line
        assert len(line) < 400
    shapes = ", ".join(f"{{width: {32 * (at % 50 + 1)}, depth: {at // 50 + 1}}}" for at in range(600))
    assert "axes: must leave at most 500 arms, which" in message_of(with_keys(SWEEP, f"axes: {{a: [{shapes}]}}"))
    huge = message_of(with_keys(SWEEP, f"hps.lr: {{log2: -{'9' * 240}}}"))
    assert huge == "s.yaml:19: hps.lr: lr must be > 0, got 0"


def test_steps_and_tokens_have_one_limit() -> None:
    large = (f"training.batch_tokens: {2**24}", f"training.validation_tokens: {2**24}")
    steps = message_of(with_keys(SWEEP, *large, "training.steps: 1000000000"))
    assert "training.steps: must make at most 9007199254740992 tokens, got 1000000000 steps of 16777216" in steps
    tokens = message_of(with_keys(SWEEP, *large, "-training.steps", f"training.tokens: {2**53 + 2**24}"))
    assert "training.tokens: must be less than or equal to 9007199254740992" in tokens
    assert "\n" not in steps + tokens
    few = parse_sweep(with_keys(SWEEP, "-training.steps", "training.tokens: 2_048_000_000"))
    assert few.base_shape.steps == 4_000_000
    whole = parse_sweep(with_keys(SWEEP, *large, "-training.steps", f"training.tokens: {2**53}"))
    assert whole.base_shape.tokens == 2**53


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: must be a mapping that starts with name:, got an empty file"),
        ("- a\n", "s.yaml:1: must be a mapping that starts with name:, got list"),
        ("small\n", "s.yaml:1: must be a mapping that starts with name:, got str"),
        ("name: [small\n", "s.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>', got the end of the "
         "file; while parsing a flow sequence that begins on line 1"),
    ],
)  # fmt: skip
def test_files_that_hold_no_sweep(text: str, message: str) -> None:
    assert message_of(text) == message


def test_messages_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(with_keys(SWEEP, "-seeds", "seedz: 2"))
    with pytest.raises(HpxferError) as caught:
        load_sweep(path)
    assert str(caught.value) == f"{path}:21: seedz: unknown key; did you mean 'seeds'?"


@pytest.mark.parametrize("name", ["token", "HF_TOKEN", "wandb_api_key", "apikey", "access_token", "db_password", "jwt"])
def test_secrets_are_refused_by_their_names(name: str) -> None:
    assert f"trainer.args.{name}: must be no secret" in message_of(with_keys(ARMS, f"trainer.args: {{{name}: x}}"))


@pytest.mark.parametrize(
    "args",
    [
        '{tokenizer: gpt2, num_tokens: 1000, eos_token: "</s>", max_tokens_per_step: 8, n_kv_heads: 2}',
        "{secret: 3, author: me, authors: [you]}",
    ],
)
def test_words_of_language_models_are_no_secrets(args: str) -> None:
    assert parse_sweep(with_keys(ARMS, f"trainer.args: {args}")).trainer is not None


def test_an_expert_of_one_matrix_has_the_width_at_every_shape() -> None:
    found = message_of(with_keys(SAMPLES, "model.mlp: {expert_matrices: 1}")).splitlines()
    assert [line.split(": ", 1)[1] for line in found] == [
        f"{at}: expert_width must be the width {width} with expert_matrices: 1, got {given}; give expert_ratio: 1"
        for at, width, given in (("model.base", 32, 16), ("axes.width.shapes[0]", 64, 32))
    ]


def test_families_refuse_what_another_reads() -> None:
    first, *_ = message_of(with_keys(SAMPLES, "model.balance: {aux: switch}")).splitlines()
    assert first.endswith(": model.balance.aux: must be none in the family mlp, got switch")
    gpt = "model.family: gpt", "model.context: 32", "model.base.head_dim: 8"
    assert "model.mlp: unknown key in the family gpt;" in message_of(with_keys(SAMPLES, *gpt, "model.mlp: {}"))
    assert "model.context: must be given" in message_of(with_keys(SAMPLES, "model.family: gpt"))
    found = message_of(with_keys(SAMPLES, *gpt))
    for key in ("batch", "validation"):
        assert f"training.{key}_tokens: must be given" in found
        assert f"training.{key}_samples: has no effect in the family gpt, which reads tokens" in found


def test_a_table_may_multiply_only_what_the_model_multiplies() -> None:
    completep = PARAMETERIZATIONS.get("completep-moe")

    def rows(conventions: Conventions) -> tuple[Row, ...]:
        found = completep.rows["adam"](conventions)
        return tuple(replace(row, forward=width) if row.role == "position" else row for row in found)

    register_parameterization(replace(completep, name="mine", rows={"adam": rows}))
    try:
        parse_sweep(with_keys(SWEEP, "parameterizations: [mine]", "-axes.width", "axes.depth: [2, 4]"))
        assert message_of(with_keys(SWEEP, "parameterizations: [sp, mine]")) == (
            "s.yaml:14: parameterizations[1]: mine: position must have a forward multiplier of 1, got 2 at w64 "
            "d2 E4A1 h64: models of the family gpt multiply embedding, attn_out, router, expert_out, shared_out, "
            "dense_out, readout and no other role; put the factor into init_std and lr"
        )
    finally:
        PARAMETERIZATIONS.remove("mine")


def test_a_gate_without_probabilities_has_no_balancing_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = replace(GATES.get("sigmoid"), probabilities=False)
    monkeypatch.setattr(type(GATES), "get", lambda self, name, *_: gate if self is GATES else REAL(self, name, *_))
    said = "model.balance.aux: goes with a gate whose scores are probabilities"
    assert said in message_of(with_keys(SWEEP, "model.balance: {aux: switch}"))
