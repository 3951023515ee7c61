"""`hpxfer schema`: what an editor is told about sweep files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from hpxfer.cli.init import examples
from hpxfer.recipe.start import load_sweep
from hpxfer.registry import registry
from hpxfer.spec import dump_sweep
from hpxfer.spec.fields import Section
from hpxfer.spec.load import sweep_schema
from hpxfer.spec.yaml_file import parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(examples().values())


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    found = sweep_schema()
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def broken(validator: Draft202012Validator, data: Any) -> list[str]:
    return [error.json_path for error in validator.iter_errors(data)]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_committed_sweep_fits_and_what_a_dump_of_it_spells_out(
    validator: Draft202012Validator, path: Path
) -> None:
    data = read_yaml(path).data
    assert broken(validator, data) == []
    if "recipe" not in (data.get("hps") or {}):  # which another sweep writes. `test_end_to_end.py` runs those
        assert broken(validator, parse_yaml(dump_sweep(load_sweep(path)), "dump").data) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"axes": {"width": {"value": [32]}}},
        {"hps": {"lr": {"log3": 2}}},
        {"grid": {"lr": {"log2": [-9, -4], "steps": 1}}},
        {"seeds": 0},
        {"search": {"kind": "grid", "bugdet": 3}},
        {"resources": {"gpus_per_stack": 1.5}},
    ],
)
def test_a_wrong_key_or_value_does_not_fit(validator: Draft202012Validator, changed: dict[str, Any]) -> None:
    data = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data
    assert broken(validator, {**data, **changed}) != []


@pytest.mark.parametrize(
    "changed",
    [
        {"axes": {"width": [32, 64], "joint": [{"width": 64}], "experts": {"values": [4, 8], "num_active": 1}}},
        {"hps": {"lr": {"log2": -6}, "multipliers": {"router.lr_mult": {"log2": -4}}}},
        {"grid": {"lr": [0.1, 0.2], "init_scale": {"log2": [-1, 1], "step": 0.5}}},
        {"seeds": [3, 4]},
        {"parameterizations": ["sp", {"table": "completep-moe", "conventions": {"router_init_exponent": 0.5}}]},
        {"search": "grid"},
        {"early_stopping": "none"},
        {"early_stopping": {"asha": {"grace_steps": 10}}},
        {"resources": {"gpus_per_stack": "auto"}},
        {"resources": {"gpus_per_stack": 0.5}},
    ],
)
def test_every_short_form_fits(validator: Draft202012Validator, changed: dict[str, Any]) -> None:
    data = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data
    assert broken(validator, {**data, **changed}) == []


def test_what_is_left_out_is_named(validator: Draft202012Validator) -> None:
    data = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data
    messages = [error.message for error in validator.iter_errors({key: data[key] for key in data if key != "model"})]
    assert messages == ["'model' is a required property"]


def sections(model: type[BaseModel] = Section) -> list[type[BaseModel]]:
    """Return every section of a sweep file, and of a manifest. A recipe's fields have comments, for readers of code."""
    below = [sub for sub in model.__subclasses__() if sub.__module__.startswith(("hpxfer.spec.", "hpxfer.search."))]
    return [*below, *(found for sub in below for found in sections(sub))]


def test_every_key_is_documented() -> None:
    registry("search").rows()  # each brings its own keys
    bare = [
        f"{section.__name__}.{name}"
        for section in sections()
        for name, f in section.model_fields.items()
        if not f.description
    ]
    assert bare == []
    assert len(sections()) > 10
