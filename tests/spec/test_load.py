"""Sweep files: short forms, errors of type and spelling, and the way back to text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from strategies import sweeps
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.verdict.thresholds import REGRET_SHARE

SWEEPS = Path(__file__).parents[2] / "sweeps"


def message_of(text: str) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text, "s.yaml")
    return str(caught.value)


@given(sweeps())
def test_what_is_dumped_loads_to_an_equal_sweep(spec: SweepSpec) -> None:
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize("text", ["1e5", "12E-3", "yes", "null", "2020-01-01"])
def test_a_string_that_looks_like_something_else_stays_a_string(text: str) -> None:
    spec = parse_sweep(edited(("name: small", f"name: '{text}'")))
    assert spec.name == text
    assert parse_sweep(dump_sweep(spec)) == spec


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_loads(path: Path) -> None:
    assert load_sweep(path).name == path.stem


def test_there_are_shipped_sweeps() -> None:
    assert (SWEEPS / "quickstart.yaml").is_file()


@pytest.mark.parametrize("number", ["1e-12", "1E-12", "1.0e-12", "{log2: -40}"])
def test_a_float_may_be_written_in_any_way(number: str) -> None:
    spec = parse_sweep(edited(("router_bias_lr: 0.01", f"router_bias_lr: {number}")))
    assert spec.hps.router_bias_lr == (2.0**-40 if "log2" in number else 1e-12)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("width: [32, 64]", "width: {values: [32, 64]}"),
        ("width: [32, 64]", "width: {values: [32.0, 64]}"),
        ("lr: [0.01]", "lr: {values: [0.01]}"),
        ("seeds: 2", "seeds: [0, 1]"),
        ("parameterizations: [completep-moe, sp]", "parameterizations: [{table: completep-moe}, {table: sp}]"),
    ],
)
def test_short_forms(short: str, long: str) -> None:
    assert parse_sweep(SWEEP) == parse_sweep(edited((short, long)))


def test_an_axis_of_shapes_may_be_a_bare_list() -> None:
    bare, whole = (edited(("width: [32, 64]", f"a: {entry}")) for entry in ("[{depth: 4}]", "{shapes: [{depth: 4}]}"))
    assert parse_sweep(bare) == parse_sweep(whole)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ("{log2: [-3, -1]}", (0.125, 0.25, 0.5)),
        ("{log2: [-2, -1], step: 0.5}", (0.25, 2**-1.5, 0.5)),
        ("{log2: [-2, -1], step: 0.6}", (0.25, 2**-1.4)),
        ("{log2: [-2, -2]}", (0.25,)),
        ("[0.5, 0.25]", (0.25, 0.5)),
    ],
)
def test_grid_values(values: str, numbers: tuple[float, ...]) -> None:
    assert parse_sweep(edited(("lr: [0.01]", f"lr: {values}"))).grid["lr"].numbers() == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ("{hp: lr}", (REGRET_SHARE, None)),
        ("{regret_limit: {loss: 0.005}}", (0.005, None)),
        ("{regret_limit: {octaves: 1}}", (None, 1.0)),
    ],
)
def test_the_limit_of_the_regret(given: str, limit: tuple[float | None, float | None]) -> None:
    spec = parse_sweep(edited(("seeds: 2", f"seeds: 2\njudge: {given}")))
    assert (spec.judge.regret_limit.loss, spec.judge.regret_limit.octaves) == limit
    assert parse_sweep(dump_sweep(spec)) == spec


def test_derived_values() -> None:
    spec = parse_sweep(edited(("steps: 200", "tokens: 51200")))
    assert (spec.steps, spec.final_window_steps, spec.judged_hp) == (100, 10, "lr")
    assert spec.base_shape.expert_width == 32
    assert parse_sweep(edited(("steps: 200", "steps: 5"), ("warmup: 20", "warmup: 0"))).steps == 5


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        # keys
        (("steps: 200", "stepz: 200"), "s.yaml:10: training.stepz: unknown key; did you mean 'steps'?"),
        (("seeds: 2", "seedz: 2"), "s.yaml:21: seedz: unknown key; did you mean 'seeds'?"),
        (("hps:\n", "hps:\n  eps: 1e-10\n"), "s.yaml:18: hps.eps: unknown key; did you mean 'training.eps'?"),
        (("seeds: 2", "seeds: 2\nlr: 1"), "s.yaml:22: lr: unknown key; did you mean 'hps.lr'?"),
        (("  width: [32, 64]", "  a: [{widht: 64}]"), "s.yaml:16: axes.a[0].widht: unknown key; did you mean 'width'?"),
        (
            ("[completep-moe, sp]", "[{table: sp, convention: {}}]"),
            "s.yaml:14: parameterizations[0].convention: unknown key; did you mean 'conventions'?",
        ),
        (
            ("  lr: [0.01]", "  lr: {log: [-9, -4]}"),
            "s.yaml:20: grid.lr.log: unknown key; did you mean 'log2'?",
        ),
        (
            ("  source: builtin:stdlib", "  source: builtin:stdlib\n  qqq: 1"),
            "s.yaml:8: data.qqq: unknown key; legal: classes, digest, documents, eos_id, epochs, "
            "inputs, only, source, targets, tokenizer, "
            "validation, validation_digest, vocab_size",
        ),
        (  # an axis may have the name of a key
            ("  width: [32, 64]", "  shapes: {qqq: 1}"),
            "s.yaml:16: axes.shapes.qqq: unknown key; legal: allow_kappa_change, num_active, scale, shapes, values",
        ),
        (("seeds: 2", "2: seeds"), "s.yaml:21: 2: a key must be text, got 2; quote it"),
        (("  width: [32, 64]", "  a: [{1: 2}]"), "s.yaml:16: axes.a[0].1: a key must be text, got 1; quote it"),
        (("seeds: 2", "? \n: seeds"), "s.yaml:1: None: a key must be text, got None; quote it"),
        (("  lr: [0.01]", "  lr: [0.01]\n  True: [1]"), "s.yaml:21: grid.True: a key must be text, got True; quote it"),
        (("  lr: [0.01]", "  lr: [0.01]\n  3: [1]"), "s.yaml:21: grid.3: a key must be text, got 3; quote it"),
        (
            ("  steps: 200", "  steps: 200\n  steps: 3"),
            "s.yaml:11: training.steps: the key stands twice, first on line 10; keep one",
        ),
        # values that are missing
        (("name: small\n", ""), "s.yaml:1: name: must be given"),
        (("  context: 64\n", ""), "s.yaml:2: model.context: must be given"),
        (("[completep-moe, sp]", "[{conventions: {}}]"), "s.yaml:14: parameterizations[0].table: must be given"),
        # types
        (("name: small", "name: 5"), "s.yaml:1: name: must be a valid string, got 5"),
        (("steps: 200", "steps: 200.5"), "s.yaml:10: training.steps: must be a valid integer, got 200.5"),
        (("steps: 200", "steps: true"), "s.yaml:10: training.steps: must be a valid integer, got True"),
        (
            ("router_bias_lr: 0.01", "router_bias_lr: fast"),
            "s.yaml:18: hps.router_bias_lr: must be a valid number, got 'fast'",
        ),
        (("  width: [32, 64]", "  width: [32, a]"), "s.yaml:16: axes.width[1]: must be a valid number, got 'a'"),
        (
            ("  width: [32, 64]", "  width: 64"),
            "s.yaml:16: axes.width: must be a list such as [64, 128] or a mapping, got 64",
        ),
        (
            ("  lr: [0.01]", "  lr: 0.01"),
            "s.yaml:20: grid.lr: must be a list such as [0.001, 0.01] or a mapping, got 0.01",
        ),
        (
            ("[completep-moe, sp]", "sp"),
            "s.yaml:14: parameterizations: must be a list, got 'sp'",
        ),
        (("[completep-moe, sp]", "[3]"), "s.yaml:14: parameterizations[0]: must be a name or a mapping, got 3"),
        (
            ("[completep-moe, sp]", "[{table: completep, conventions: {depth_alpha: true}}]"),
            "s.yaml:14: parameterizations[0].conventions.depth_alpha: must be a valid number, got True\n"
            "s.yaml:14: parameterizations[0].conventions.depth_alpha: must be a valid string, got True",
        ),
        (("axes:\n  width: [32, 64]", "axes: [32, 64]"), "s.yaml:15: axes: must be a mapping, got [32, 64]"),
        (
            ("schedule: {decay: constant, warmup: 20}", "schedule: cosine"),
            "s.yaml:12: training.schedule: must be a mapping, got 'cosine'",
        ),
        (
            ("context: 64", "context: 64\n  biases: no"),
            "s.yaml:6: model.biases: must be true or false, got 'no'",
        ),
        # ranges
        (("context: 64", "context: 0"), "s.yaml:5: model.context: must be greater than or equal to 1, got 0"),
        (
            ("validation_tokens: 1024", "validation_tokens: 1024\n  weight_decay: -1"),
            "s.yaml:14: training.weight_decay: must be greater than or equal to 0, got -1",
        ),
        (("lr: [0.01]", "lr: [.inf]"), "s.yaml:20: grid.lr[0]: must be a finite number, got inf"),
        (
            ("router_bias_lr: 0.01", "router_bias_lr: {log2: 5000}"),
            "s.yaml:18: hps.router_bias_lr: must be a finite number, got inf",
        ),
        (
            ("router_bias_lr: 0.01", "router_bias_lr: {log2: true}"),
            "s.yaml:18: hps.router_bias_lr: must be a valid number, got {'log2': True}",
        ),
        (("family: gpt", "family: llama"), "s.yaml:3: model.family: unknown family 'llama'; legal: gpt, mlp, user"),
        (
            ("context: 64", "context: 64\n  gate: relu"),
            "s.yaml:6: model.gate: unknown gate 'relu'; "
            "legal: normalized_sigmoid, normalized_softmax, sigmoid, softmax",
        ),
        (("seeds: 2", "seeds: 0"), "s.yaml:21: seeds: must be a count from 1 to 100000, or a list of seeds, got 0"),
        (("seeds: 2", "seeds: x"), "s.yaml:21: seeds: must be a count from 1 to 100000, or a list of seeds, got 'x'"),
        (("seeds: 2", "seeds: [0, -1]"), "s.yaml:21: seeds[1]: must be greater than or equal to 0, got -1"),
    ],
)
def test_one_fault_one_line(edit: tuple[str, str], message: str) -> None:
    assert message_of(edited(edit)) == message


def test_every_fault_is_named_at_once() -> None:
    text = edited(("context: 64", "context: 0"), ("seeds: 2", "seedz: 2"))
    assert message_of(text).splitlines() == [
        "s.yaml:5: model.context: must be greater than or equal to 1, got 0",
        "s.yaml:21: seedz: unknown key; did you mean 'seeds'?",
    ]


def test_a_long_value_is_cut() -> None:
    line = message_of(edited(("family: gpt", "family: " + "x" * 500)))
    assert line == "s.yaml:3: model.family: unknown family '" + "x" * 76 + "...; legal: gpt, mlp, user"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml: must be a mapping that starts with name:, got an empty file"),
        ("# only this\n", "s.yaml: must be a mapping that starts with name:, got an empty file"),
        ("- a\n", "s.yaml:1: must be a mapping that starts with name:, got list"),
        ("small\n", "s.yaml:1: must be a mapping that starts with name:, got str"),
        (
            "name: [small\n",
            "s.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>', got the end of the file; while "
            "parsing a flow sequence that begins on line 1",
        ),
    ],
)
def test_files_that_hold_no_sweep(text: str, message: str) -> None:
    assert message_of(text) == message


@pytest.mark.parametrize(
    ("source", "loaded"),
    [
        ("text:corpus/*.txt", "text:{folder}/corpus/*.txt"),
        ("tokens:shards", "tokens:{folder}/shards"),
        ("text:/data/a.txt", "text:/data/a.txt"),
        ("builtin:stdlib", "builtin:stdlib"),
    ],
)
def test_a_relative_data_path_starts_at_the_file(tmp_path: Path, source: str, loaded: str) -> None:
    path = tmp_path / "sweeps" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(edited(("builtin:stdlib", source)))
    assert load_sweep(path).data.source == loaded.format(folder=path.parent)
    assert parse_sweep(path.read_text()).data.source == source  # text has no folder


def test_messages_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(edited(("seeds: 2", "seedz: 2")))
    with pytest.raises(HpxferError) as caught:
        load_sweep(path)
    assert str(caught.value) == f"{path}:21: seedz: unknown key; did you mean 'seeds'?"


def test_either_spelling_of_the_optimizer_is_one_sweep() -> None:
    text = dump_sweep(parse_sweep(SWEEP))
    assert "optimizer: adamw" in text
    assert parse_sweep(text.replace("optimizer: adamw", "optimizer: adam")) == parse_sweep(text)


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (("steps: 200", "steps: 1e2"), ("steps: 200", "steps: 100")),
        (("warmup: 20", "warmup: 1e1"), ("warmup: 20", "warmup: 10")),
        (("depth: 2,", "depth: 3.0,"), ("depth: 2,", "depth: 3,")),
        (("seeds: 2", "seeds: 1e1"), ("seeds: 2", "seeds: 10")),
        (("seeds: 2", "seeds: [1e3]"), ("seeds: 2", "seeds: [1000]")),
    ],
)
def test_a_whole_number_may_be_written_as_a_float(written: tuple[str, str], means: tuple[str, str]) -> None:
    assert parse_sweep(edited(written)) == parse_sweep(edited(means))
