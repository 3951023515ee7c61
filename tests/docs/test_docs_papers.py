"""docs/papers.md: every figure has a row that says what was found, and its sweeps run as the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import hpxfer
from docs_papers import FOUND, KEYS, papers, plan_of
from fixture_types import Capsys

from hpxfer.data import data_ref
from hpxfer.spec import load_sweep
from hpxfer.trial import Expansion

ROOT = Path(__file__).parents[2]
SWEEPS = ROOT / "sweeps/papers"
PUBLISHED = ROOT / "results/published"
TOYS = [path for path in sorted(SWEEPS.glob("*/*.yaml")) if not path.stem.endswith("-full")]
FULL = sorted(SWEEPS.glob("*/*-full.yaml"))
# How many figures and tables each paper has; sub-figures that ask other questions count.
ROWS = {"completep-moe": 21, "complete-mue": 19, "why-routers-freeze": 16, "mssp": 59}
# 6.29B parameters in float32 beside their moments
BEYOND_AN_H200 = {"complete-mue/fig08-full", "complete-mue/fig08_df-full"}


def test_each_row_says_what_was_found_and_names_files_that_exist() -> None:
    named = set()
    for paper in papers(ROOT):
        assert len(paper["rows"]) == ROWS[paper["paper"]], paper["paper"]
        for row in paper["rows"]:
            where = f"{paper['paper']} {row['figure']}"
            assert set(row) <= KEYS, where
            assert row["found"] in FOUND, where
            assert row["text"], where
            files = [f"results/published/{row['results']}"] if "results" in row else []
            files += [f"docs/images/papers/{row['picture']}"] if "picture" in row else []
            files += [f"sweeps/{row['sweep']}.yaml"] if "sweep" in row else []
            files += [f"sweeps/papers/{paper['paper']}/{row['full']}.yaml"] if "full" in row else []
            files += [word for word in row.get("command", "").split() if word.startswith("sweeps/")]
            assert all((ROOT / file).exists() for file in files), where
            # What was found on this machine can be run again, and its numbers are here or in the text.
            assert row["found"] == "cannot" or "sweep" in row or "command" in row, where
            named.update(files)
    unused = {str(path.relative_to(ROOT)) for path in [*TOYS, *FULL]} - named
    assert unused == {"sweeps/papers/why-routers-freeze/fig09_tune-full.yaml"}  # a search, whose plan is no grid
    pictures = {f"docs/images/papers/{path.name}" for path in (ROOT / "docs/images/papers").iterdir()}
    assert pictures <= named


@pytest.mark.parametrize("file", FULL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_sweep_of_the_papers_size_plans_on_an_h200_without_a_caution_of_memory(file: Path) -> None:
    plan = plan_of(file, "h200")
    is_too_large = any(line.startswith("memory") for line in plan.cautions)
    assert is_too_large == (f"{file.parent.name}/{file.stem}" in BEYOND_AN_H200)
    assert not plan.unfit


def folder_of(file: Path) -> Path:
    """Return the published results of a toy sweep."""
    return PUBLISHED / "papers" / f"{file.parent.name}-{file.stem}"


def grids(files: list[Path]) -> list[Path]:
    """Return the sweeps that are no search."""
    return [file for file in files if not file.stem.endswith("_tune")]


@pytest.mark.parametrize("file", grids(TOYS), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_toy_sweep_takes_at_most_a_quarter_of_an_hour_of_two_cores(file: Path) -> None:
    assert plan_of(file, "cpu").worker_hours <= 0.5


@pytest.mark.parametrize("file", [file for file in grids(TOYS) if folder_of(file).exists()], ids=lambda path: path.stem)
def test_published_trials_are_those_of_the_sweep(file: Path) -> None:
    spec = load_sweep(file)
    ids = {trial.id for trial in Expansion(spec, data_ref(spec.data)).trials()}
    assert set(pd.read_parquet(folder_of(file) / "trials.parquet").trial_id) == ids


@pytest.mark.slow
def test_the_cheapest_sweep_runs_again_to_the_same_verdicts(tmp_path: Path, capsys: Capsys) -> None:
    published = [file for file in grids(TOYS) if folder_of(file).exists()]
    file = min(published, key=lambda file: plan_of(file, "cpu").worker_hours)
    assert hpxfer(capsys, "run", file, "--results", tmp_path, "--executor", "local", "--yes")[0] == 0
    again, before = tmp_path / folder_of(file).name, folder_of(file)
    assert verdicts(capsys, again, tmp_path) == verdicts(capsys, before, tmp_path)
    assert (losses(again) - losses(before)).abs().mean() <= 0.002 * losses(before).mean()


def verdicts(capsys: Capsys, results: Path, output: Path) -> dict[str, Any]:
    """Return the verdict of each arm along each axis."""
    code, out, _ = hpxfer(capsys, "report", results, "--json", "--output", output / "report")
    assert code == 0
    return {f"{found['axis']} {found['parameterization']}": found["verdict"] for found in json.loads(out)["findings"]}


def losses(results: Path) -> pd.Series:
    """Return the validation loss of each trial, by id."""
    return pd.read_parquet(results / "trials.parquet").set_index("trial_id").validation_loss_nats.sort_index()
