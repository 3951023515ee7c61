"""`hpxfer weights`: what a run keeps and what transformers loads of it, and what is refused in a line."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import hpxfer
from safetensors import safe_open
from safetensors.numpy import load_file
from sweep_text import SAMPLES, edited
from tiny import write_tiny

from hpxfer.data import open_data
from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.results import load_results
from hpxfer.storage.objects import marked, objects_at
from hpxfer.train.trainer import train
from hpxfer.trial.events import Ended
from hpxfer.trial.stack import Stack
from hpxfer.weights import kept
from hpxfer.weights.files import read_facts, read_own
from hpxfer.weights.kept import Keeper, chosen_trial, losses_of, weights_from
from hpxfer.weights.trained import TrialWeights

OPTIONS = (
    "  context: 16\n",
    "  context: 16\n  norm: rmsnorm\n  positions: rope\n  ffn: swiglu\n  gate: normalized_softmax\n"
    "  balance: {bias: none}\n",
)
MODERN = (
    *(
        ("width: [16, 32]", "width: [32]"),
        ("parameterizations: [completep-moe, sp]", "parameterizations: [completep-moe]"),
    ),
    *(OPTIONS, ("num_experts: 2, num_active: 1", "num_experts: 4, num_active: 2")),
    ("seeds: 2", "seeds: 1"),
    ("workers: 2}", "workers: 2, keep: last}"),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modern")
    run(write_tiny(folder, *MODERN), results=folder / "results")
    return folder / "results" / "tiny"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    edits = (("width: [16, 32]", "width: [16]"), ("log2: [-8, -4]", "log2: [-8, 40]"), MODERN[-1])
    run(write_tiny(folder, *edits, MODERN[-2]), results=folder / "results")
    return folder / "results" / "tiny"


@pytest.mark.slow
def test_transformers_loads_the_folder_and_measures_the_stored_loss(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    code, out, err = hpxfer(capsys, "weights", done, "--best", "--out", tmp_path / "w")
    assert code == 0, err
    files = {path.name for path in (tmp_path / "w").iterdir()}
    assert files == {
        *("config.json", "generation_config.json", "hpxfer.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    trial, row = chosen_trial(load_results(done), None, best=True)
    assert trial.shape.width == 32
    assert trial.id in out
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "w", dtype=torch.float32).eval()
    setting = replace(trial.setting, data_source="builtin:stdlib")
    losses = []
    with torch.no_grad():
        for inputs, targets in open_data(setting).validation_batches():
            logits = model(torch.from_numpy(inputs).long()).logits
            wanted = torch.from_numpy(targets).long().flatten()
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted).item())
    assert sum(losses) / len(losses) == pytest.approx(row["validation_loss_nats"], abs=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "w")
    text = "def f(x):\n    return x  # ok\t~"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer("é")["input_ids"] == [ord("?")] * 2  # as the data has it
    assert len(tokenizer) == setting.vocab_size


def test_a_tokenizer_of_bytes_has_every_byte(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from hpxfer.weights.files import byte_letters, write_tokenizer

    assert len(set(byte_letters())) == 256
    assert write_tokenizer("bytes", 16, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "aé日 \x00\x7f\n  z"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert not write_tokenizer("gpt2", 16, tmp_path / "none")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, err = hpxfer(capsys, "weights", *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


def test_bad_input_is_refused_in_a_line(
    done: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path / "w")
    assert "got neither" in refused(capsys, done, *out)
    assert "got both" in refused(capsys, done, "--best", "--trial", "a", *out)
    assert "begins with 'zz'" in refused(capsys, done, "--trial", "zz", *out)
    assert "give more of it" in refused(capsys, done, "--trial", "", *out)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    assert "new or empty folder" in refused(capsys, done, "--best", "--out", full)
    assert "new or empty folder" in refused(capsys, done, "--best", "--out", full / "mine")
    assert (full / "mine").read_text() == "mine"
    trials = load_results(plain).trials
    diverged = trials.loc[trials["status"] == "diverged", "trial_id"].iloc[0]
    assert "diverged" in refused(capsys, plain, "--trial", diverged, *out)
    said = refused(capsys, plain, "--best", *out)
    for option in ("norm is layernorm", "positions is learned", "ffn is gelu", "--format safetensors"):
        assert option in said
    assert not (tmp_path / "w").exists()


def test_without_transformers_the_command_says_how_to_get_it(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpxfer.weights.files.find_spec", lambda _: None)
    said = refused(capsys, done, "--best", "--out", tmp_path / "w")
    assert "pip install" in said
    assert not (tmp_path / "w").exists()


def test_the_plan_says_how_much_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for keep in ("none", "last"):
        sweep = write_tiny(tmp_path, ("workers: 2", f"workers: 2, keep: {keep}"))
        plan = prepare(sweep, results=tmp_path / "r").plan
        sizes[keep] = plan.kept_bytes
        total = sum(4 * row.params_total * row.num_trials for row in plan.shapes)
    assert sizes == {"none": 0, "last": total}
    _, out, _ = hpxfer(capsys, "plan", tmp_path / "tiny.yaml", "--results", tmp_path / "r")
    assert "weights: the results folder grows by" in out
    shutil.rmtree(tmp_path / "r", ignore_errors=True)


@pytest.fixture
def results(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "tiny"))


def same(left: TrialWeights, right: TrialWeights) -> bool:
    pairs = [pair for name, copies in left.tensors.items() for pair in zip(copies, right.tensors[name], strict=True)]
    return all(torch.equal(a, b) for a, b in (*pairs, (left.router_bias, right.router_bias)))


def test_a_run_keeps_the_weights_of_every_trial_with_its_losses(done: Path) -> None:
    trials = load_results(done).trials
    expected = {kept.name_of(trial_id) for trial_id in trials["trial_id"]}
    assert {path.name for path in (done / kept.FOLDER).iterdir()} == expected
    for row in trials.to_dict("records"):
        facts = read_facts(done / kept.FOLDER / kept.name_of(row["trial_id"]))
        assert facts["losses"] == losses_of(row)


def test_weights_that_were_not_kept_or_are_damaged_are_refused_in_a_line(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial, row = chosen_trial(load_results(results), None, best=True)
    folder = results / kept.FOLDER
    path = folder / kept.name_of(trial.id)
    with pytest.raises(HpxferError, match=r"not kept.*resources\.keep: last"):  # they have other losses
        weights_from(folder, trial, {**row, "validation_loss_nats": 0.5})
    given = (results, "--best", "--out", tmp_path / "w", "--format", "safetensors")
    code, out, _ = hpxfer(capsys, "weights", *given, "--json")
    assert code == 0
    assert [Path(file).name for file in json.loads(out)["files"]] == ["hpxfer.json", "model.safetensors"]
    shutil.rmtree(tmp_path / "w")
    path.write_bytes(path.read_bytes()[:100])
    said = refused(capsys, *given)
    assert path.name in said
    assert "remove it" in said
    path.unlink()
    assert f"trial {trial.id} were not kept; set resources.keep: last" in refused(capsys, *given)
    assert not (tmp_path / "w").exists()


def test_a_worker_that_outlived_its_driver_keeps_nothing(
    results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial, _ = chosen_trial(load_results(results), None, best=True)
    stack = Stack(trials=(trial,))
    kept.start(tmp_path / "w")
    kept.end(tmp_path / "w")
    assert not (tmp_path / "w").exists()  # where nothing was kept
    first = kept.start(tmp_path / "w")
    marked(objects_at(tmp_path / "w"))  # of the next driver
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


def test_a_diverged_trial_keeps_no_last_weights(results: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_file_that_a_killed_run_left_is_replaced_when_its_trial_is_trained(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again" / "tiny" / kept.FOLDER
    shutil.copytree(results / kept.FOLDER, folder)
    trial, row = chosen_trial(load_results(results), None, best=True)
    (folder / kept.name_of(trial.id)).write_bytes(b"half")
    (folder / f"{kept.name_of(trial.id)}.7.tmp").write_bytes(b"half")
    run(write_tiny(tmp_path, *MODERN), results=tmp_path / "again")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (results / kept.FOLDER).iterdir()
    )
    again = weights_from(folder, trial, row)
    assert same(again, weights_from(results / kept.FOLDER, trial, row))


BIASED = "num_active: 2, expert_width: 16}}\n  mlp: {{activation: relu, input_activation: relu, router_bias: {}}}"


SLOW = [pytest.param(bias, marks=pytest.mark.slow) for bias in ("none", "schedule")]


@pytest.mark.first
@pytest.mark.parametrize("bias", ["learned", "fixed", *SLOW])
def test_the_stored_loss_follows_from_the_file(bias: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = edited(
        ("num_active: 4, expert_width: 16}", BIASED.format(bias)),
        ("shapes: [{width: 64, expert_width: 32}]", "values: [32]"),
        ("steps: 200", "steps: 20"),
        ("seeds: 2", "seeds: 1\nresources: {executor: local, keep: last}"),
        ("[mup-i, sp]", "[mup-i]"),
        ("lr: [0.01]", "lr: [0.5]"),
        ("validation_samples: 1024", "validation_samples: 128"),
        text=SAMPLES,
    )
    (tmp_path / "s.yaml").write_text(text)
    run(tmp_path / "s.yaml", results=tmp_path / "results")
    results = load_results(tmp_path / "results" / "small")
    code, _, err = hpxfer(capsys, "weights", tmp_path / "results" / "small", "--best", "--out", tmp_path / "w")
    assert code == 0, err
    w = load_file(tmp_path / "w" / "model.safetensors")
    with safe_open(tmp_path / "w" / "model.safetensors", framework="np") as file:
        forward = {role: row["forward"] for role, row in json.loads(file.metadata()["hpxfer"])["roles"].items()}
    assert ("untrained_bias" in w) == (bias in ("fixed", "schedule"))
    (trial,) = results.expansion.trials()
    losses = []
    for inputs, classes in open_data(trial.setting).validation_batches():
        h = np.maximum(inputs @ w["input"] * forward["embedding"], 0)
        logits = h @ w["router.0"] * forward["router"] + w.get("router_logit_bias.0", 0)
        logits = logits + (w["untrained_bias"][0] if "untrained_bias" in w else 0)
        gates = 1 / (1 + np.exp(-logits))
        gates[gates < np.sort(gates, 1)[:, -2:-1]] = 0
        hidden = np.maximum(np.einsum("pn,ehn->peh", h, w["expert_in.0"]), 0)
        out = np.einsum("pe,peh,ehn->pn", gates, hidden, w["expert_out.0"]) * forward["expert_out"]
        f = out @ w["readout"] * forward["readout"]
        losses += (np.log(np.exp(f).sum(1)) - f[np.arange(len(f)), classes]).tolist()
    assert np.mean(losses) == pytest.approx(results.trials["validation_loss_nats"].item(), rel=1e-5)
