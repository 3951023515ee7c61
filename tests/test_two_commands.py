"""What a stranger does: from a folder of JSONL and a tokenizer.json to a verdict, and from one sweep to the next.

Everything goes through the command line, in processes of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import documents, jsonl, tokenizer_file

from hpxfer.results import load_results
from hpxfer.spec.yaml_file import read_yaml

ROOT = Path(__file__).resolve().parents[1]
# So small that a run takes seconds, not so small that nothing is learned.
TINY = (
    *("--set", "training.steps=24", "--set", "training.batch_tokens=128", "--set", "training.validation_tokens=512"),
    *("--set", "training.schedule.warmup=2", "--set", "seeds=2", "--set", "model.context=32"),
    # Every worker is a process that imports torch, which takes longer than all that it trains.
    *("--set", "resources.workers=1"),
)


def command(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hpxfer", *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prepared data in data/mine."""
    folder = tmp_path_factory.mktemp("prepared")
    for part in range(2):
        jsonl(folder / "corpus" / f"{part}.jsonl.gz", documents(60)[part::2])
    tokenizer_file(folder / "tokenizer.json")
    given = (
        "corpus",
        "--tokenizer",
        "tokenizer.json",
        "--out",
        "data/mine",
        "--val-tokens",
        "512",
        "--workers",
        "1",
    )
    assert "source: tokens:data/mine" in command(folder, "data", "prepare", *given)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("documents_are", ["joined", "masked"])
def test_from_jsonl_and_a_tokenizer_to_a_verdict(prepared: Path, tmp_path: Path, documents_are: str) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    sweep = (str(ROOT / "sweeps" / "smoke.yaml"), "--set", "data.source=tokens:data/mine", *TINY)
    masked = ("--set", f"data.documents={documents_are}", "--set", "axes.width=[32, 64]")
    said = command(tmp_path, "run", *sweep, *masked, "--set", "grid.lr={log2: [-8, -6]}")
    assert "completep-moe" in said
    assert any(verdict in said for verdict in ("transfers", "drifts", "undecided"))
    results = load_results(tmp_path / "results" / "smoke")
    assert len(results.trials) == 2 * 3 * (1 + 2)  # seeds, LRs, and the base, where both tables agree, beside two
    assert set(results.trials["status"]) == {"finished"}
    assert set(results.trials["vocab_size"]) == {512}
    setting = json.loads(results.trials["setting"].iloc[0])
    assert setting["validation_digest"] == results.spec.data.validation_digest is not None
    assert (setting["document_eos"] is not None) is (documents_are == "masked")
    # The stored sweep says it all, so it goes on from anywhere.
    again = command(tmp_path, "plan", "results/smoke/sweep.yaml")
    assert "18 trials, all done" in again


@pytest.mark.slow
def test_a_chain_of_three_sweeps(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "sweeps" / "chain", tmp_path / "sweeps" / "chain")
    names = {"tune": "1_tune", "transfer": "2_transfer", "long": "3_long"}
    files = {name: f"sweeps/chain/chain_{stem}.yaml" for name, stem in names.items()}
    fast = {
        "tune": ("--set", "search.multipliers=[router.lr_mult]", "--set", "grid.lr={log2: [-7, -5]}"),
        "transfer": ("--set", "axes.width=[32, 64]", "--set", "grid.lr={around: [-1, 1]}"),
        "long": ("--set", "axes.long.shapes[0].steps=48", "--set", "axes.long.shapes[0].schedule.warmup=4"),
    }
    for name, file in files.items():
        command(tmp_path, "run", file, *TINY, *fast[name], "--set", f"name=chain-{name}")
    recipes = {name: read_yaml(tmp_path / "results" / f"chain-{name}" / "recipe.yaml").data for name in files}
    for name, before in (("transfer", "tune"), ("long", "transfer")):
        results = load_results(tmp_path / "results" / f"chain-{name}")
        recipe = results.spec.hps.recipe
        assert recipe is not None
        assert recipe.origin is not None
        assert f"sweep chain-{before}" in recipe.origin
        assert results.spec.hps.lr == recipes[before]["hps"]["lr"]
        assert results.spec.hps.multipliers == recipes[before]["hps"]["multipliers"]
        assert recipes[name]["provenance"]["recipe"] == f"{recipe.digest}, {recipe.origin}"
        tried = sorted(set(results.trials["lr"]))
        assert tried == [recipes[before]["hps"]["lr"] * factor for factor in (0.5, 1, 2)]
        page = (tmp_path / "results" / f"chain-{name}" / "report.html").read_text()
        assert f"sweep chain-{before}" in page
    long = load_results(tmp_path / "results" / "chain-long")
    assert set(long.trials["steps"]) == {24, 48}


@pytest.mark.slow
def test_stages_of_a_search_and_the_sweep_that_goes_on_from_them(tmp_path: Path) -> None:
    """LR, broad grid and fine grid are one sweep, its results are compact, and the next one starts around its best."""
    text = (ROOT / "sweeps" / "search" / "staged_grid.yaml").read_text()
    (tmp_path / "staged.yaml").write_text(text.replace("executor: local", "executor: local, curves: none"))
    multipliers = ("--set", "search.multipliers=[init_scale, router.lr_mult]", "--set", "axes.width=[32]")
    stages = ("--set", "search.broad={points: 3, ratio: 64}", "--set", "grid.lr={log2: [-7, -5]}")
    said = command(tmp_path, "run", "staged.yaml", *TINY, *multipliers, *stages, "--set", "seeds=1")
    assert "At the base, completep-moe is best at lr " in said
    staged = load_results(tmp_path / "results" / "search-staged-grid")
    assert len(staged.trials) >= 3 + 8 + 8
    assert staged.curves.empty
    assert staged.problems == ()
    assert set(staged.trials["status"]) <= {"finished", "diverged"}
    recipe = read_yaml(staged.folder / "recipe.yaml").data
    next_stage = (
        f"name: next\nmodel: {{context: 64, tied_embeddings: false}}\ndata: {{source: 'builtin:stdlib'}}\n"
        "training: {batch_tokens: 128, steps: 24, validation_tokens: 512, schedule: {decay: constant, warmup: 2}}\n"
        f"hps: {{recipe: {staged.folder / 'recipe.yaml'}}}\naxes: {{width: [32]}}\nproduct: true\n"
        "seeds: 1\ngrid:\n  init_scale: {around: [-2, 2], step: 2}\n  router.lr_mult: {around: [-6, 6], step: 6}\n"
        "resources: {executor: local}\n"
    )
    (tmp_path / "next.yaml").write_text(next_stage)
    said = command(tmp_path, "run", "next.yaml", "--set", "model.context=32", "--set", "resources.workers=1")
    assert "At the base, completep-moe is best at init_scale " in said
    trials = load_results(tmp_path / "results" / "next").trials
    assert len(trials) == 9
    center = recipe["hps"]
    assert sorted(set(trials["init_scale"])) == [center["init_scale"] * factor for factor in (1 / 4, 1, 4)]
    tried = {json.loads(each).get("router.lr_mult", 1.0) for each in trials["multipliers"]}
    assert sorted(tried) == [center["multipliers"].get("router.lr_mult", 1.0) * factor for factor in (1 / 64, 1, 64)]
