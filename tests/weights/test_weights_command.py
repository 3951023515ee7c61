"""`hpxfer weights` writes what transformers loads, and refuses the rest in a line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import hpxfer
from tiny import write_tiny

from hpxfer.data.batches import open_data
from hpxfer.driver import prepare, run
from hpxfer.results import load_results
from hpxfer.weights.choose import chosen_trial

MODERN = (
    ("width: [16, 32]", "width: [32]"),
    ("parameterizations: [completep-moe, sp]", "parameterizations: [completep-moe]"),
    (
        "  context: 16\n",
        "  context: 16\n  norm: rmsnorm\n  positions: rope\n  ffn: swiglu\n  gate: normalized_softmax\n"
        "  balance: {bias: none}\n",
    ),
    ("num_experts: 2, num_active: 1", "num_experts: 4, num_active: 2"),
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
    edits = (
        ("width: [16, 32]", "width: [16]"),
        ("log2: [-8, -4]", "log2: [-8, 40]"),
        ("workers: 2}", "workers: 2, keep: last}"),
    )
    run(write_tiny(folder, *edits, ("seeds: 2", "seeds: 1")), results=folder / "results")
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
    from hpxfer.weights.tokenizer import byte_letters, write_tokenizer

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
    several = refused(capsys, done, "--trial", "", *out)
    assert "give more of it" in several
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
