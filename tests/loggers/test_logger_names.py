"""The registry of loggers, and names: each trial has its own, and it is a legal path."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from fixture_types import Patch
from made_results import DATA, trials_of
from recorded_logger import Recorder
from sweep_text import edited

from hpxfer.cli.init import examples
from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, LoggedTrial, logger_kinds
from hpxfer.loggers.names import ID_CHARACTERS, Names
from hpxfer.recipe.start import load_sweep
from hpxfer.spec import parse_sweep
from hpxfer.spec.precision import with_precision
from hpxfer.trial import Expansion

MODULES = {"tensorboard": "tensorboard.summary.writer.record_writer", "wandb": "wandb", "mlflow": "mlflow"}


@pytest.mark.parametrize("name", MODULES)
def test_a_logger_that_is_not_installed_says_how_to_get_it(name: str, monkeypatch: Patch) -> None:
    assert set(LOGGERS.names()) == set(MODULES)
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    message = (
        rf"resources\.loggers: {name} must be installed where hpxfer starts, got: .*`pip install 'hpxfer\[{name}\]'`"
    )
    with pytest.raises(HpxferError, match=message):
        logger_kinds([name])


def test_a_logger_that_is_named_twice_is_made_once() -> None:
    with LOGGERS.registered(Recorder().kind()) as kind:
        assert logger_kinds(["mine", "mine"]) == (kind,)
    assert logger_kinds(()) == ()


def test_a_sweep_may_name_registered_loggers_only() -> None:
    text = edited(("seeds: 2", "seeds: 2\nresources: {loggers: [tensorbord]}"))
    with pytest.raises(HpxferError, match=r"resources\.loggers\[0\]: unknown logger 'tensorbord'; .*tensorboard"):
        parse_sweep(text)
    with LOGGERS.registered(Recorder().kind()):
        assert parse_sweep(text.replace("tensorbord", "mine, wandb")).resources.loggers == ("mine", "wandb")


SWEEPS = Path(__file__).parents[2] / "sweeps"


def named(text: str) -> list[LoggedTrial]:
    expansion = Expansion(parse_sweep(text), DATA)
    names = Names(expansion)
    return [names.describe(trial) for trial in expansion.trials()]


def test_a_name_says_table_shape_hps_and_seed() -> None:
    found = [
        trial.name
        for trial in named(edited(("lr: [0.01]", "lr: {log2: [-7, -6.5], step: 0.5}"), ("seeds: 2", "seeds: [1]")))
    ]
    assert sorted(found) == [
        "base/lr=2^-6.5/seed=1",
        "base/lr=2^-7/seed=1",
        "completep-moe/width=64/lr=2^-6.5/seed=1",
        "completep-moe/width=64/lr=2^-7/seed=1",
        "sp/width=64/lr=2^-6.5/seed=1",
        "sp/width=64/lr=2^-7/seed=1",
    ]


def test_the_table_of_a_trial_has_its_hps_shape_and_length() -> None:
    trial = named(edited(("router_bias_lr: 0.01", "multipliers: {router.lr_mult: 4}")))[-1]
    expected = {"sweep": "small", "parameterization": "sp", "lr": 0.01, "router.lr_mult": 4.0, "seed": 1}
    expected |= {"shape/width": 64, "shape/expert_width": 64, "steps": 200, "batch_tokens": 512, "trial_id": trial.id}
    assert {key: trial.config.get(key) for key in expected} == expected


def test_conventions_and_arms_are_part_of_the_name() -> None:
    text = edited(("[completep-moe, sp]", "[{table: completep-moe, conventions: {expert_out_init: fan_in}}, sp]"))
    assert "completep-moe[expert_out_init=fan_in]/width=64/lr=0.01/seed=0" in {trial.name for trial in named(text)}
    arm = "{table: sp, name: none, balance: {bias: none}}"  # balances otherwise, no more
    found = [trial.name for trial in named(edited(("[completep-moe, sp]", f"[completep-moe, sp, {arm}]")))]
    assert len(set(found)) == len(found)
    assert "sp/none/width=64/lr=0.01/seed=0" in found


def test_the_name_of_an_arm_and_a_round_are_part_of_the_name() -> None:
    arm = "{table: sp, name: tuned, hps: {multipliers: {router.lr_mult: 4}}}"
    text = edited(("[completep-moe, sp]", f"[completep-moe, sp, {arm}]"))
    found = {trial.name for trial in named(text)}
    assert {"sp/width=64/lr=0.01/seed=0", "sp/tuned/width=64/lr=0.01/seed=0", "tuned/base/lr=0.01/seed=1"} <= found
    expansion = Expansion(parse_sweep(text), DATA)
    last = Names(expansion).describe(list(expansion.trials())[-1], 3)
    assert last.name == "sp/tuned/width=64/round=3/lr=0.01/seed=1"
    assert (last.config["round"], last.config["arm"]) == (3, "tuned")


def test_shapes_that_one_scale_does_not_tell_apart_are_named_by_all_that_changes() -> None:
    both = "{shapes: [{width: 64, depth: 4}, {width: 128, depth: 8}]}"
    axes = f"axes:\n  width: [32, 64]\n  both: {both}\n  deep: {{shapes: [{{depth: 4}}]}}"
    found = {trial.name.partition("/lr")[0] for trial in named(edited(("axes:\n  width: [32, 64]", axes)))}
    assert {"sp/width=64", "sp/depth=4", "sp/width=64,depth=4,expert_width=64", "base"} <= found


def test_a_rounded_value_ends_with_the_id() -> None:
    text = edited(("lr: [0.01]", "lr: [0.0123456781, 0.0123456782]"))
    found = named(text)
    assert len({trial.name for trial in found}) == len(found)
    for trial in found:
        assert trial.name.endswith(f"-{trial.id[:ID_CHARACTERS]}")
        assert "lr=0.0123457/" in trial.name


@pytest.mark.parametrize("hostile", ["../../etc", "a b", "a\\b", ".hidden", "x" * 300, "ü", "a:b*?", "\x00"])
def test_a_hostile_label_makes_a_legal_name(hostile: str, monkeypatch: Patch, tmp_path: Path) -> None:
    trial, names = trials_of()[-1], Names(Expansion(parse_sweep(edited()), DATA))
    assert trial.parameterization is not None
    monkeypatch.setattr(type(trial.parameterization), "label", lambda self: hostile)
    name = names.describe(trial).name
    parts = name.split("/")
    assert name.isascii()
    assert name.endswith(trial.id[:ID_CHARACTERS])
    assert all(part and not part.startswith(".") and len(part) <= 120 for part in parts)
    assert len(parts) == 4
    (tmp_path / name).mkdir(parents=True)
    assert (tmp_path / name).resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize("file", examples().values(), ids=examples())
def test_every_trial_of_every_example_has_its_own_name(file: Path) -> None:
    recipe = SWEEPS.parent / "results" / "published" / "quickstart" / "recipe.yaml"  # for one that a sweep would write
    named = re.search(r"recipe: (\S+)", file.read_text(encoding="utf-8"))
    is_there = named is None or (file.parent / named[1]).exists()
    spec = load_sweep(file, overrides=() if is_there else [f"hps.recipe={recipe}"])
    expansion = Expansion(with_precision(spec, "float32"), DATA)
    names = Names(expansion)
    found = [names.describe(trial).name for trial in expansion.trials()]
    assert len({name.lower() for name in found}) == len(found)
