"""Sweeps of a user's own trainer: each mistake is one line that names file, line, key, rule, got and fix."""

from __future__ import annotations

import pytest
from sweep_text import SWEEP, edited
from user_sweeps import ARMS, TABLES

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, parse_sweep

ARMS_LINE = "  arms: {plain: {args: {power: 0}}, scaled: {args: {power: 1}}}\n"
COMMAND = '  command: [python3, train.py, "{config_json}"]\n'
FILES = "  files: [train.py]\n"
OWN = "{d_model: 64, act: gelu}"


def message_of(*edits: tuple[str, str], text: str = ARMS) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(edited(*edits, text=text), "s.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "args",
    [
        '{tokenizer: gpt2, num_tokens: 1000, eos_token: "</s>", max_tokens_per_step: 8, n_kv_heads: 2}',
        "{secret: 3, author: me, authors: [you]}",
    ],
)
def test_words_of_language_models_are_no_secrets(args: str) -> None:
    assert parse_sweep(edited(trainer(f"args: {args}"), text=ARMS)).trainer is not None


@pytest.mark.parametrize("name", ["token", "HF_TOKEN", "wandb_api_key", "apikey", "access_token", "db_password", "jwt"])
def test_secrets_are_refused_by_their_names(name: str) -> None:
    assert f"trainer.args.{name}: must be no secret" in message_of(trainer(f"args: {{{name}: x}}"))


def trainer(line: str) -> tuple[str, str]:
    """Return the edit that puts one more line at the start of the section `trainer`."""
    return "trainer:\n", f"trainer:\n  {line}\n"


@pytest.mark.parametrize("text", [ARMS, TABLES], ids=["arms", "tables"])
def test_the_sweeps_themselves_are_legal_and_come_back_from_their_dump(text: str) -> None:
    spec = parse_sweep(text)
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        # The entry and its identity.
        ([(COMMAND, "")], "2: trainer: must give exactly one of function and command, got neither"),
        (
            [trainer("function: a.b:train")],
            "2: trainer: must give exactly one of function and command, got both",
        ),
        ([(COMMAND, "  command: []\n")], "3: trainer.command: must name a program and its arguments"),
        ([(COMMAND, "  command: ['']\n")], "3: trainer.command: must name a program and its arguments"),
        ([(COMMAND, '  command: ["a\\0b"]\n')], "3: trainer.command[0]: must hold no NUL character"),
        ([(COMMAND, "  function: train\n")], "3: trainer.function: must be "),
        ([(FILES, "")], "2: trainer: must give version or files, by which a change of your code is known"),
        ([(FILES, "  files: [/etc/passwd]\n")], "4: trainer.files[0]: must be a path or glob below the folder"),
        ([(FILES, "  files: [a.py, ../b.py]\n")], "4: trainer.files[1]: must be a path or glob below the folder"),
        ([(FILES, "  files: ['.']\n")], "4: trainer.files[0]: must be a path or glob below the folder"),
        ([(FILES, "  version: ' '\n")], "4: trainer.version: must be 1 to 200 characters on one line, got ' '"),
        (
            [(FILES, "  version: x\n  digests: {a.py: aa}\n")],
            "5: trainer.digests: goes with trainer.files, and is written by a run; take it out",
        ),
        # Arms.
        ([("control: plain", "control: plan")], "6: trainer.control: must be an arm of the sweep, got 'plan'; did you"),
        ([("scaled: {args", "'a b': {args")], "5: trainer.arms.a b: must be at most 40 letters, digits"),
        (
            [("training:", "parameterizations: [sp]\ntraining:")],
            "10: parameterizations: must be left out with trainer.arms",
        ),
        (
            [("training:", "parameterizations: ['own:plain']\ntraining:")],
            "10: parameterizations: must be left out with trainer.arms",
        ),
        # Args, environment and texts.
        ([("power: 0", "api_key: x")], "5: trainer.arms.plain.args.api_key: must be no secret"),
        ([trainer("args: {a: [{hf_token: x}]}")], "3: trainer.args.a[0].hf_token: must be no secret"),
        ([("power: 0", "power: {1: 2, a: 3}")], "5: trainer.arms.plain.args: must be texts, finite numbers"),
        ([trainer("args: {x: .nan}")], "3: trainer.args: must be texts, finite numbers"),
        ([trainer("nan_exit: ['(']")], "3: trainer.nan_exit[0]: must be a regular expression, got '(':"),
        ([trainer("env: [A=b]")], "3: trainer.env[0]: must be the name of a variable, got 'A=b'"),
        ([trainer('data: "a\\nb"')], "3: trainer.data: must be 1 to 200 characters on one line"),
        ([trainer("loss: {unit: bits}")], "3: trainer.loss.unit: must be 'nats', 'bits per byte' or 'squared error'"),
        ([trainer("timeouts: {wall_s: 0}")], "3: trainer.timeouts.wall_s: must be greater than 0, got 0"),
        ([trainer("timeout: {wall_s: 1}")], "3: trainer.timeout: unknown key; did you mean 'timeouts'?"),
        ([trainer("cost: {seconds_per_trial: .inf}")], "3: trainer.cost.seconds_per_trial: must be a finite number"),
        (
            [trainer("cost: {seconds_per_trial: {d_model=64: 3}}")],
            "3: trainer.cost.seconds_per_trial.d_model=64: must be the label of a shape of the sweep",
        ),
        # The model and its shapes.
        ([(OWN, "{}")], "9: model.own: must be a mapping of at least one dimension"),
        ([(OWN, "{d-model: 64}")], "9: model.own: a dimension's name must be letters, digits and '_'"),
        ([(OWN, "{d_model: [64]}")], "9: model.own: d_model must be a finite number, true, false or a text"),
        ([(OWN, "{d_model: 9007199254740993}")], "9: model.own: d_model must be from -2^53 to 2^53"),
        ([(OWN, '{d_model: "\\e[31m"}')], "9: model.own: d_model must be 1 to 200 printable characters"),
        ([(OWN, "{d_model: 64, steps: 4}")], "9: model.own.steps: is a number of the run; give it in training"),
        ([(OWN, f"{OWN}\n  context: 64")], "10: model.context: has no effect in the family user; legal:"),
        ([(OWN, f"{OWN}\n  like: mixtral")], "10: model.like: has no effect in the family user; legal:"),
        ([(OWN, f"{OWN}\n  base: {{width: 64, depth: 2}}")], "model: give own in place of base in the family user"),
        ([(OWN, f"{OWN}\n  dims: {{width: dmodel}}")], "dims.width: must be a key of own or a number, got 'dmodel'"),
        (
            [(OWN, f"{OWN}\n  dims: {{width: act}}")],
            "dims.width: must be a whole number from 0 to 1000000000, got 'gelu'",
        ),
        ([(OWN, f"{OWN}\n  dims: {{wide: 1}}")], "dims: unknown dimension 'wide'; did you mean 'width'?"),
        ([("d_model: [128]", "n_layer: [4]")], "14: axes.n_layer: an axis of bare values must be named after a key of"),
        ([("d_model: [128]", "act: [4]")], "14: axes.act[0]: own: act must be of the kind that it has at the base"),
        ([("d_model: [128]", "d_model: [-128]")], "14: axes.d_model: scale: d_model must be a number above 0"),
        ([("d_model: [128]", "batch_tokens: [0]")], "14: axes.batch_tokens[0]: batch_tokens must be at least 1, got 0"),
        ([("d_model: [128]", "batch_tokens: [1000]")], "14: axes.batch_tokens[0]: steps must be a whole number"),
        ([("d_model: [128]", "steps: [0]")], "14: axes.steps[0]: steps must be at least 1, got 0"),
        ([("d_model: [128]", "steps: [4.5]")], "14: axes.steps[0]: steps must be a whole number, got 4.5"),
        ([("[128]", "{shapes: [{width: 128}]}")], "14: axes.d_model.shapes[0].width: has no effect in the family user"),
        (
            [("[128]", "{shapes: [{own: {d_mdel: 1}}]}")],
            "14: axes.d_model.shapes[0]: own: unknown key 'd_mdel'; did you",
        ),
        (
            [("[128]", "{values: [128], scale: d}")],
            "14: axes.d_model: scale: must be a key of own, or of the run, got 'd'",
        ),
        ([("[128]", "{values: [128], scale: steps}")], "14: axes.d_model: scale: steps must differ between the shapes"),
        (
            [("[128]", "{shapes: [{own: {d_model: 128}, batch_samples: 4}]}")],
            "14: axes.d_model.shapes[0]: must have its batch in the unit of the base; give training.batch_samples",
        ),
        # What the built-in trainer alone reads.
        ([("  steps: 20", "  steps: 20\n  validation_tokens: 64")], "12: training.validation_tokens: has no effect"),
        (
            [("  steps: 20", "  steps: 20\n  batch_samples: 64")],
            "10: training: must give at most one of batch_tokens and",
        ),
        ([("seeds: 2", "seeds: 2\nprecision: bfloat16")], "18: precision: has no effect in the family user"),
        ([("seeds: 2", "seeds: 2\ndata: {source: 'builtin:stdlib'}")], "18: data: is read by the built-in trainer"),
        ([("seeds: 2", "seeds: 2\ndata: {source: 'user:x'}")], "18: data: is read by the built-in trainer"),
        (
            [("seeds: 2", "seeds: 2\nearly_stopping: {asha: {grace_steps: 4}}")],
            "18: early_stopping.asha: has no effect in the family user",
        ),
        (
            [("seeds: 2", "seeds: 2\njudge: {loss: validation_error}")],
            "18: judge.loss: must be 'validation' or 'final_window'",
        ),
        (
            [
                ("seeds: 2", "seeds: 2\njudge: {loss: final_window}"),
                ("  steps: 20", "  steps: 20\n  final_window_steps: 4"),
            ],
            "12: training.final_window_steps: must be at least 5 steps",
        ),
        # Resources.
        ([("  executor", "  gpus_per_stack: 1\n  executor")], "19: resources.gpus_per_stack: has no effect"),
        ([("  executor", "  keep: last\n  executor")], "19: resources.keep: has no effect in the family user"),
        ([("  executor", "  loggers: [wandb]\n  executor")], "19: resources.loggers: has no effect in the family user"),
        ([("  executor", "  gpus_per_node: 8\n  executor")], "19: resources.gpus_per_node: goes with gpus_per_trial"),
        (
            [("  executor", "  gpus_per_trial: 12\n  gpus_per_node: 8\n  executor")],
            "19: resources.gpus_per_trial: must be whole nodes of 8 GPUs, got 12",
        ),
        (
            [("  executor", "  gpus_per_trial: 16\n  gpus_per_node: 8\n  nodes_per_trial: 4\n  executor")],
            "21: resources.nodes_per_trial: must be gpus_per_trial / gpus_per_node, which is 2",
        ),
        (
            [("  executor", "  gpus_per_trial: 16\n  nodes_per_trial: 4\n  executor")],
            "resources.gpus_per_node: must be given with gpus_per_trial on several nodes",
        ),
        (
            [("  executor", "  gpus_per_trial: 1.5\n  executor")],
            "19: resources.gpus_per_trial: must be a share of a GPU",
        ),
        ([("  executor", "  device: cuda\n  executor")], "19: resources.device: must be given with gpus_per_trial"),
        (
            [("  executor", "  device: cpu\n  gpus_per_trial: 1\n  executor")],
            "19: resources.device: must not be cpu with gpus_per_trial",
        ),
    ],
)
def test_a_mistake_is_one_line(edits: list[tuple[str, str]], expected: str) -> None:
    message = message_of(*edits)
    assert message.startswith("s.yaml:"), message
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([("  dims: {width: d_model, depth: 2}\n", "")], "model.dims: must say what the parameterizations read"),
        ([("[completep, sp]", "['own:x', sp]")], "own:x must be an arm of trainer.arms"),
        (
            [("files: [train.py]", "version: a\n  control: mup")],
            "trainer.control: must be an arm of the sweep, got 'mup'",
        ),
    ],
)
def test_a_mistake_beside_tables_is_one_line(edits: list[tuple[str, str]], expected: str) -> None:
    message = message_of(*edits, text=TABLES)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            ("data:\n", "trainer: {version: a, function: a:b}\ndata:\n"),
            "trainer: has no effect in the family gpt, which reads tokens",
        ),
        (("  context: 64", "  context: 64\n  own: {d: 1}"), "model.own: has no effect in the family gpt"),
        (("  context: 64", "  context: 64\n  dims: {width: 1}"), "model.dims: has no effect in the family gpt"),
        (
            ("seeds: 2", "seeds: 2\nresources: {gpus_per_trial: 1}"),
            "resources.gpus_per_trial: has no effect in the family gpt",
        ),
        (
            ("width: [32, 64]", "width: {values: [64], scale: width}"),
            "axes.width.scale: has no effect in the family",
        ),
        (("width: [32, 64]", "width: [{own: {d: 1}}]"), "axes.width[0].own: has no effect in the family gpt"),
    ],
)
def test_a_built_in_family_refuses_what_goes_with_a_trainer(edit: tuple[str, str], expected: str) -> None:
    message = message_of(edit, text=SWEEP)
    assert expected in message
    assert "\n" not in message


def test_the_data_of_a_stored_sweep_follows_its_trainer() -> None:
    """A stored sweep spells its data out. Another name in `trainer.data` is other data, and so other trials."""
    stored = dump_sweep(parse_sweep(ARMS))
    assert "source: user:unnamed" in stored
    assert parse_sweep(stored.replace("data: unnamed", "data: tokens@2")).data.source == "user:tokens@2"
