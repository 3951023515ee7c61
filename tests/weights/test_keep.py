"""Weights that a run keeps: which, where, of whom, and what a reader does without them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.errors import HpxferError
from hpxfer.results import load_results
from hpxfer.storage.folder import folder_at, marked
from hpxfer.train.trainer import train
from hpxfer.trial.events import Ended
from hpxfer.trial.stack import Stack
from hpxfer.weights import kept
from hpxfer.weights.choose import chosen_trial
from hpxfer.weights.files import read_facts, read_own
from hpxfer.weights.keep import Keeper, losses_of, weights_from

FEW = (
    ("width: [16, 32]", "width: [16]"),
    ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]"),
    (
        "  context: 16\n",
        "  context: 16\n  norm: rmsnorm\n  positions: rope\n  ffn: swiglu\n  gate: normalized_softmax\n"
        "  balance: {bias: none}\n",
    ),
)
KEEP = (*FEW, ("workers: 2}", "workers: 2, keep: last}"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    run(write_tiny(folder, *KEEP), results=folder / "results")
    return folder / "results" / "tiny"


@pytest.fixture
def results(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "tiny"))


def same(left, right) -> bool:  # type: ignore[no-untyped-def]
    return all(
        torch.equal(a, b)
        for name, copies in left.tensors.items()
        for a, b in zip(copies, right.tensors[name], strict=True)
    ) and torch.equal(left.router_bias, right.router_bias)


def test_a_run_keeps_the_weights_of_every_trial_with_its_losses(done: Path) -> None:
    trials = load_results(done).trials
    expected = {kept.name_of(trial_id) for trial_id in trials["trial_id"]}
    assert {path.name for path in (done / kept.FOLDER).iterdir()} == expected
    for row in trials.to_dict("records"):
        facts = read_facts(done / kept.FOLDER / kept.name_of(row["trial_id"]))
        assert facts["losses"] == losses_of(row)


def test_weights_that_were_not_kept_are_refused_in_a_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, row = chosen_trial(load_results(results), None, best=True)
    folder = results / kept.FOLDER
    with pytest.raises(HpxferError, match=r"not kept.*resources\.keep: last"):  # they have other losses
        weights_from(folder, trial, {**row, "validation_loss_nats": 0.5})
    (folder / kept.name_of(trial.id)).unlink()
    code, _, err = hpxfer(capsys, "weights", results, "--best", "--out", tmp_path / "w", "--format", "safetensors")
    assert code == 2
    assert f"trial {trial.id} were not kept; set resources.keep: last" in err
    assert not (tmp_path / "w").exists()


def test_a_damaged_file_is_an_error_that_names_it(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, _ = chosen_trial(load_results(results), None, best=True)
    path = results / kept.FOLDER / kept.name_of(trial.id)
    path.write_bytes(path.read_bytes()[:100])
    code, _, err = hpxfer(capsys, "weights", results, "--best", "--out", tmp_path / "w", "--format", "safetensors")
    assert code == 2
    assert path.name in err
    assert "remove it" in err
    assert not (tmp_path / "w").exists()


def test_a_worker_that_outlived_its_driver_keeps_nothing(
    results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial, _ = chosen_trial(load_results(results), None, best=True)
    stack = Stack(trials=(trial,))
    first = kept.start(tmp_path / "w")
    marked(folder_at(tmp_path / "w"))  # of the next driver
    with caplog.at_level(logging.WARNING):
        *_, ended = train(stack, "cpu", keep=Keeper(first, stack))
    assert isinstance(ended, Ended)
    assert ended.results[0].status == "finished"
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["driver"]
    assert "not kept" in caplog.text
    second = kept.start(tmp_path / "w")
    (tmp_path / "w" / "half.safetensors.7.tmp").write_bytes(b"half")
    list(train(stack, "cpu", keep=Keeper(second, stack)))
    kept.end(tmp_path / "w")
    assert [path.name for path in (tmp_path / "w").iterdir()] == [kept.name_of(trial.id)]
    read_own(tmp_path / "w" / kept.name_of(trial.id), trial)


def test_no_folder_is_left_where_nothing_was_kept(tmp_path: Path) -> None:
    kept.start(tmp_path / "x")
    kept.end(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_diverged_trial_keeps_no_last_weights(results: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    trial, _ = chosen_trial(load_results(results), None, best=True)
    wild = replace(trial, hps=trial.hps.with_value("lr", 1e9))
    stack = Stack(trials=(wild, trial))
    spec = kept.start(tmp_path / "w")
    *_, ended = train(stack, "cpu", keep=Keeper(spec, stack))
    assert isinstance(ended, Ended)
    assert [result.status for result in ended.results] == ["diverged", "finished"]
    kept.end(tmp_path / "w")
    assert [path.name for path in (tmp_path / "w").iterdir()] == [kept.name_of(trial.id)]
    found, alone = read_own(tmp_path / "w" / kept.name_of(trial.id), trial), results / kept.FOLDER
    assert same(found, read_own(alone / kept.name_of(trial.id), trial))


def test_the_command_says_what_it_wrote(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(
        capsys, "weights", results, "--best", "--out", tmp_path / "w", "--format", "safetensors", "--json"
    )
    assert code == 0
    files = json.loads(out)["files"]
    assert [Path(file).name for file in files] == ["hpxfer.json", "model.safetensors"]


@pytest.mark.slow
def test_a_file_that_a_killed_run_left_is_replaced_when_its_trial_is_trained(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again" / "tiny" / kept.FOLDER
    shutil.copytree(results / kept.FOLDER, folder)
    trial, row = chosen_trial(load_results(results), None, best=True)
    (folder / kept.name_of(trial.id)).write_bytes(b"half")
    (folder / f"{kept.name_of(trial.id)}.7.tmp").write_bytes(b"half")
    run(write_tiny(tmp_path, *KEEP), results=tmp_path / "again")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (results / kept.FOLDER).iterdir()
    )
    again = weights_from(folder, trial, row)
    assert same(again, weights_from(results / kept.FOLDER, trial, row))
