"""Overrides of a sweep file from the command line: as if the file said so, with errors that name the option."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.spec import load_sweep, parse_sweep
from hpxfer.spec.data import points_with_data
from hpxfer.spec.overrides import with_overrides
from hpxfer.spec.yaml_file import parse_yaml


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SWEEP)
    return path


@pytest.mark.parametrize(
    ("override", "edit"),
    [
        ("training.steps=100", ("steps: 200", "steps: 100")),
        ("seeds=3", ("seeds: 2", "seeds: 3")),
        ("axes.width[1]=128", ("[32, 64]", "[32, 128]")),
        ("axes.width[1]=null", ("[32, 64]", "[32]")),
        ("hps.multipliers.router.lr_mult=0.5", ("0.01\ngrid", "0.01\n  multipliers: {router.lr_mult: 0.5}\ngrid")),
        ("grid.router.lr_mult={log2: [-1, 1]}", ("lr: [0.01]", "lr: [0.01]\n  router.lr_mult: {log2: [-1, 1]}")),
        ("grid.lr.log2=[-7, -5]", ("lr: [0.01]", "lr: {log2: [-7, -5]}")),
        ("grid.lr.around=[-1, 1]", ("lr: [0.01]", "lr: {around: [-1, 1]}")),
        ("grid.router.lr_mult.log2=[-1, 1]", ("lr: [0.01]", "lr: [0.01]\n  router.lr_mult: {log2: [-1, 1]}")),
        ("hps.multipliers.router.lr_mult.log2=-1", ("0.01\ngrid", "0.01\n  multipliers: {router.lr_mult: 0.5}\ngrid")),
        ("hps.router_bias_lr=null", ("hps:\n  router_bias_lr: 0.01\n", "")),
        ("resources.executor=local", ("seeds: 2", "seeds: 2\nresources: {executor: local}")),
        ("parameterizations=[sp]", ("[completep-moe, sp]", "[sp]")),
    ],
)
def test_an_override_is_as_good_as_an_edit(sweep: Path, override: str, edit: tuple[str, str]) -> None:
    hps = {"hps": {"lr": 0.01}} if "grid" in override else {}
    more = ["hps.lr=0.01"] if hps else []
    expected = edited(edit) if not hps else edited(edit, ("hps:\n", "hps:\n  lr: 0.01\n"))
    assert load_sweep(sweep, overrides=[override, *more]) == parse_sweep(expected)
    assert sweep.read_text() == SWEEP


def test_several_are_made_in_order(sweep: Path) -> None:
    spec = load_sweep(
        sweep, overrides=["training.steps=100", "training.steps=150", "training.eps=1e-8", "training.eps=null"]
    )
    assert spec.steps == 150


def test_a_relative_path_starts_at_the_current_folder(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here[0]").mkdir()
    monkeypatch.chdir(tmp_path / "here[0]")
    spec = load_sweep(sweep, overrides=["data.source=tokens:a/*.bin"])
    assert spec.data.source == f"tokens:{tmp_path}/here[[]0]/a/*.bin"  # a glob, in which the folder is literal
    assert load_sweep(sweep, overrides=["data.source=builtin:stdlib"]).data.source == "builtin:stdlib"


@pytest.mark.parametrize("override", ["grid.lr.log2=[-7, -5]", "grid.lr.values=[0.0078125, 0.015625, 0.03125]"])
def test_a_form_replaces_the_form_of_the_file(tmp_path: Path, override: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(edited(("lr: [0.01]", "lr: {log2: [-9, -3], step: 1}")))
    assert load_sweep(path, overrides=[override]).grid["lr"].numbers() == (2**-7, 2**-6, 2**-5)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data={source: 'text:a.txt', validation: 'text:../v.txt', tokenizer: bytes}", ["a.txt", "../v.txt"]),
        (
            "axes.width=[{width: 64, data: 'text:b.txt'}, {width: 128, data: {source: 'text:c.txt'}}]",
            ["v.txt", "b.txt", "c.txt"],
        ),
        ("axes={width: {shapes: [{width: 64, data: 'text:b.txt'}]}}", ["v.txt", "b.txt"]),
    ],
)
def test_paths_inside_a_larger_value_start_there_too(
    override: str, named: list[str], sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    spec = load_sweep(sweep, overrides=["data.validation=text:v.txt", override])
    found = [spec.data.source, spec.data.validation, *(own.source for _, _, own in points_with_data(spec))]
    assert [name for name in found if name != "builtin:stdlib"] == [f"text:{tmp_path}/cwd/{name}" for name in named]


@pytest.mark.parametrize(
    ("override", "at"),
    [
        ("hps={recipe: a.py}", ("hps", "recipe")),
        ("hps.recipe={file: a.py}", ("hps", "recipe", "file")),
        ("plugins=[./a.py]", ("plugins", 0)),
        ("plugins=[{name: a.py}]", ("plugins", 0, "name")),
    ],
)
def test_files_inside_a_larger_value_start_there_too(
    override: str, at: tuple[str | int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = with_overrides(parse_yaml(SWEEP, "s.yaml"), [override]).data
    for key in at:
        found = found[key]
    assert found == str(tmp_path / "a.py")
    assert with_overrides(parse_yaml(SWEEP, "s.yaml"), ["plugins=[mine.gates]"]).data["plugins"] == ["mine.gates"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "--set: must be KEY=VALUE, got 'training.steps'"),
        ("=3", "--set: must be KEY=VALUE, got '=3'"),
        ("training..steps=3", "--set: must name a key such as training.steps or seeds[0], got 'training..steps'"),
        ("training.steps.=3", "must name a key such as"),
        ("training.steps=abc", "--set: training.steps: must be a valid integer, got 'abc'"),
        ("training.stepz=3", "--set: training.stepz: unknown key; did you mean 'steps'?"),
        ("training.steps=0", "--set: training.steps: must be greater than or equal to 1, got 0"),
        ("training.steps.x=1", "--set training.steps.x: must be a key of a mapping, got 200 in the file"),
        ("axes.width[2]=1", "--set axes.width[2]: must be an entry of a list that the file has, got a list of 2"),
        ("name[0]=1", "--set name[0]: must be an entry of a list that the file has, got 'small'"),
        ("name=null", "--set: name: must be given"),
        ("grid.lr=[1, 1]", "--set: grid.lr: a value stands twice in [1.0, 1.0]"),
        ("TRAINING.STEPS=5", "--set: TRAINING: unknown key"),
        (
            "training.steps=null",
            "s.yaml:8: training (with --set training.steps): must give exactly one of",
        ),
        (
            "axes.widht=null",
            "--set axes.widht: must be a key that the file has, because null takes it out; did",
        ),
        ("nothere=null", "--set nothere: must be a key that the file has"),
        ("nothere.x=null", "--set nothere.x: must be a key that the file has, because null takes it out; nothing"),
        (
            "hps.multipliers.router.lr_mult=null",
            "--set hps.multipliers.router.lr_mult: must be a key that",
        ),
        ("seeds=[", "--set seeds:1: not valid YAML"),
    ],
)
def test_what_cannot_be_set(sweep: Path, override: str, message: str) -> None:
    with pytest.raises(HpxferError) as error:
        load_sweep(sweep, overrides=[override])
    assert message in str(error.value)


@given(text=st.text(max_size=30))
def test_any_text_is_an_override_or_an_error(text: str) -> None:
    with contextlib.suppress(HpxferError):
        with_overrides(parse_yaml(SWEEP, "s.yaml"), [text])
