"""Ids of the trials of a user's own trainer: what moves them, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sweep_text import edited, with_keys
from user_sweeps import ARMS, TABLES, TRAIN, write_user

from hpxfer.driver import prepare
from hpxfer.spec import parse_sweep
from hpxfer.trial import DataRef, Expansion, Trial

DATA = DataRef(digest="d1", tokenizer="none", vocab_size=0)
FIRST = "trainer:\n"


def trials_of(*edits: tuple[str, str], text: str = ARMS) -> list[Trial]:
    return list(Expansion(parse_sweep(edited(*edits, text=text)), DATA).trials())


def ids_of(*edits: tuple[str, str], text: str = ARMS) -> set[str]:
    return {trial.id for trial in trials_of(*edits, text=text)}


def more(line: str) -> tuple[str, str]:
    """Return the edit that adds a line to the section `trainer`."""
    return FIRST, f"{FIRST}  {line}\n"


DECIDE = """
trainer.command: [python3, -O, train.py, "{config_json}"] | trainer.digests: {train.py: aa} | trainer.nan_exit: ['nan']
trainer.args: {deep: {list: [1]}} | trainer.loss: {unit: bits per byte} | model.own: {d_model: 64, act: relu}
model.own: {d_model: 64, act: gelu, n_layer: 1} | grid.lr: [0.03, 0.04] | seeds: [2, 3] | training.steps: 21
training.batch_tokens: 256 | training.schedule: {decay: cosine} | training.final_window_steps: 10
training.weight_decay: 0.1
"""
SAME = """
trainer.timeouts: {wall_s: 60, silence_s: 5} | trainer.env: [WANDB_MODE] | trainer.folder: elsewhere | -trainer.control
trainer.cost: {seconds_per_trial: 12} | name: other | model.own: {act: gelu, d_model: 64} | grid.lr: [0.02, 0.01]
resources: {executor: ray, gpus_per_trial: 16, gpus_per_node: 8, cpus_per_stack: 4}
trainer.arms: {scaled: {args: {power: 1}}, plain: {args: {power: 0}}}
"""


def changes(text: str) -> list[str]:
    return [change for line in text.split("\n") for change in line.split(" | ") if change]


@pytest.mark.parametrize("change", changes(DECIDE))
def test_what_decides_numbers_moves_every_id(change: str) -> None:
    assert not ids_of() & ids_of(text=with_keys(ARMS, change))


@pytest.mark.parametrize("change", changes(SAME))
def test_what_decides_no_number_moves_no_id(change: str) -> None:
    assert ids_of(text=with_keys(ARMS, change)) == ids_of()


def test_a_version_for_files_moves_every_id_and_tokens_for_steps_move_none() -> None:
    assert not ids_of() & ids_of(text=with_keys(ARMS, "-trainer.files", "trainer.version: '1'"))
    assert ids_of(text=with_keys(ARMS, "-training.steps", "training.tokens: 10240")) == ids_of()


def test_the_args_of_an_arm_move_the_ids_of_that_arm_alone() -> None:
    def of_arm(*edits: tuple[str, str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for trial in trials_of(*edits):
            assert trial.parameterization is not None
            found.setdefault(trial.parameterization.name, set()).add(trial.id)
        return found

    before, after = of_arm(), of_arm(("power: 1", "power: 2"))
    assert before["own:plain"] == after["own:plain"]
    assert not before["own:scaled"] & after["own:scaled"]


def test_arms_never_share_a_trial_even_with_equal_args_and_at_the_base() -> None:
    found = trials_of(("power: 1", "power: 0"))
    assert len({trial.id for trial in found}) == len(found) == 2 * 2 * 2 * 2  # arms, shapes, LRs, seeds
    assert all(trial.parameterization is not None for trial in found)


def test_tables_that_agree_at_the_base_share_its_trials() -> None:
    found = trials_of(text=TABLES)
    at_base = [trial for trial in found if trial.shape == trial.base]
    assert len({trial.id for trial in at_base}) == 2 * 2
    assert {trial.parameterization for trial in at_base} == {None}
    elsewhere = [trial for trial in found if trial.shape != trial.base]
    assert len({trial.id for trial in elsewhere}) == 2 * 2 * 2


def test_a_dimension_that_a_table_reads_is_part_of_the_id() -> None:
    assert not ids_of(text=TABLES) & ids_of(("width: d_model, depth: 2", "width: d_model, depth: 3"), text=TABLES)


def test_the_id_holds_the_trainer_as_it_was_asked_for() -> None:
    trial = next(trial for trial in trials_of(more("digests: {train.py: aa}")) if trial.parameterization is not None)
    assert trial.parameterization is not None
    power = {"own:plain": 0, "own:scaled": 1}[trial.parameterization.name]
    assert json.loads(trial.setting.trainer) == {
        "command": ["python3", "train.py", "{config_json}"],
        "files": {"train.py": "aa"},
        "args": {"power": power},
    }


def prepared_ids(folder: Path, *edits: tuple[str, str], program: str = "finish()") -> set[str]:
    folder.mkdir(exist_ok=True)
    job = prepare(write_user(folder, program, *edits), results=folder / "results")
    return {trial.id for trial in job.missing}


def test_ids_follow_the_content_of_files_and_the_name_of_the_data_and_no_path(tmp_path: Path) -> None:
    first = prepared_ids(tmp_path / "a")
    assert prepared_ids(tmp_path / "b") == first
    assert not prepared_ids(tmp_path / "c", program="finish()  # a comment") & first
    assert not prepared_ids(tmp_path / "d", more("data: tokens@2")) & first
    (tmp_path / "a" / "unnamed.py").write_text(TRAIN)
    assert prepared_ids(tmp_path / "a") == first
