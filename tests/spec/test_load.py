"""Sweep files: short forms, grids around a base value, overrides of the command line, and the way back to text."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import sweeps
from sweep_text import SWEEP, edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import MULTIPLIERS, SCALARS
from hpxfer.scaling.roles import ROLES
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.data import points_with_data
from hpxfer.spec.load import sweep_schema, with_overrides
from hpxfer.spec.yaml_file import parse_yaml, write_yaml
from hpxfer.verdict.thresholds import REGRET_SHARE


@given(sweeps())
def test_what_is_dumped_loads_to_an_equal_sweep(spec: SweepSpec) -> None:
    assert parse_sweep(dump_sweep(spec)) == spec


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


def test_muon_has_the_momentum_of_public_codes_unless_a_sweep_gives_one_and_one_spelling() -> None:
    def muon(options: str, hps: str) -> SweepSpec:
        data = parse_yaml(edited(), "sweep").data
        data["training"]["optimizer"], data["hps"] = (
            f"muon[{options}]",
            {"adamw_lr": 0.01, **parse_yaml(hps, "hps").data},
        )
        return parse_sweep(write_yaml(data))

    given = muon("router=muon, scale=original", "{lr: 0.1}")
    assert given.training.optimizer == "muon[scale=original,router=muon]"
    assert given.hps.momentum == 0.95
    assert muon("heads=joint", "{momentum: 0}").hps.momentum == 0
    assert muon("heads=joint", "{momentum: 0}").training.optimizer == "muon"
    assert parse_sweep(dump_sweep(given)) == given


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


SECTIONS = (sweep_schema(), *sweep_schema()["$defs"].values())
KEYS = {key for section in SECTIONS for key in section.get("properties", {})}


DIMS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from((1, 2, 3, 8, 12, 16, 20, 36, 64)) for name in (
            "width", "depth", "num_experts", "num_active", "head_dim", "num_heads", "kv_heads", "expert_width",
            "num_shared", "shared_width", "num_groups", "dense_width",
        )},
        **{name: st.sampled_from((0.3, 0.5, 1)) for name in ("expert_ratio", "shared_ratio", "dense_ratio")},
    },
)  # fmt: skip
CHOSEN = {"width": 64, "depth": 2, "num_experts": 4, "num_active": 1, "head_dim": 4}


@given(DIMS)
@example({"num_heads": 6, "kv_heads": 3, "expert_ratio": 1})  # 12 features of the keys
@example({"num_heads": 5, "expert_ratio": 1})
def test_a_broken_shape_is_explained_by_keys_of_the_file(dims: dict[str, float]) -> None:
    base = ", ".join(f"{name}: {value}" for name, value in {**CHOSEN, **dims}.items())
    text = re.sub(r"base: \{.*\}", f"base: {{{base}}}", SWEEP)
    try:
        parse_sweep(text, "s.yaml")
    except HpxferError as error:
        named = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", str(error)))
        assert named <= KEYS | {*SCALARS, *MULTIPLIERS, *ROLES}


LR_LINE = "grid:\n  lr: [0.01]"


def with_grid(grid: str, hps: str = "") -> str:
    return edited((LR_LINE, f"grid: {grid}"), ("hps:\n", f"hps:\n{hps}"))


@pytest.mark.parametrize(
    ("around", "written", "hps"),
    [
        ("{lr: {around: [-2, 1]}}", "{lr: {log2: [-8, -5]}}", "  lr: {log2: -6}\n"),
        ("{lr: {around: [-1, 1], step: 0.5}}", "{lr: {log2: [-7, -5], step: 0.5}}", "  lr: 0.015625\n"),
        ("{init_scale: {around: [-1, 1]}}", "{init_scale: {log2: [-1, 1]}}", "  lr: 1\n"),
        (
            "{router.lr_mult: {around: [0, 2]}}",
            "{router.lr_mult: {log2: [-1, 1]}}",
            "  lr: 1\n  multipliers: {router.lr_mult: 0.5}\n",
        ),
    ],
)
def test_exponents_are_counted_from_the_base_value(around: str, written: str, hps: str) -> None:
    spec = parse_sweep(with_grid(around, hps))
    assert spec == parse_sweep(with_grid(written, hps))
    assert parse_sweep(dump_sweep(spec)) == spec
    assert "around" not in dump_sweep(spec)


def test_values_that_are_no_power_of_two_are_kept() -> None:
    numbers = parse_sweep(with_grid("{lr: {around: [-1, 1]}}", "  lr: 0.003\n")).grid["lr"].numbers()
    assert numbers == pytest.approx((0.0015, 0.003, 0.006), rel=1e-12)


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


def test_a_relative_path_starts_at_the_folder(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("training..steps=3", "--set: must name a key such as training.steps or seeds[0], got 'training..steps'"),
        ("training.steps=abc", "--set: training.steps: must be a valid integer, got 'abc'"),
        ("training.stepz=3", "--set: training.stepz: unknown key; did you mean 'steps'?"),
        ("training.steps.x=1", "--set training.steps.x: must be a key of a mapping, got 200 in the file"),
        ("axes.width[2]=1", "--set axes.width[2]: must be an entry of a list that the file has, got a list of 2"),
        ("name[0]=1", "--set name[0]: must be an entry of a list that the file has, got 'small'"),
        ("name=null", "--set: name: must be given"),
        ("training.steps=null", "s.yaml:8: training (with --set training.steps): must give exactly one of"),
        ("axes.widht=null", "--set axes.widht: must be a key that the file has, because null takes it out; did"),
        ("nothere.x=null", "--set nothere.x: must be a key that the file has, because null takes it out; nothing"),
        ("hps.multipliers.router.lr_mult=null", "--set hps.multipliers.router.lr_mult: must be a key that"),
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
