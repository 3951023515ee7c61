"""The figure of samples: of the best trial of each shape whose weights a run kept, and why there is none."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from figure_store import stored
from looks import drawn_texts, plain

from hpxfer.analysis import analyze
from hpxfer.driver import run
from hpxfer.figures import Info, all_figures
from hpxfer.figures import samples as module
from hpxfer.figures.samples import HELD_OUT, NOT_KEPT, SAMPLES, mosaic
from hpxfer.results import Results, load_results

SWEEP = """\
name: flow
model:
  family: dit
  base: {width: 16, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 16}
  dit: {patch: 4}
data: {source: "builtin:shapes"}
training: {batch_samples: 16, steps: 8, validation_samples: 32}
parameterizations: [complete-mue, sp]
axes: {width: [32]}
grid: {lr: {log2: [-8, -6]}}
seeds: 1
resources: {executor: local, workers: 1, keep: last}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("flow")
    (folder / "flow.yaml").write_text(SWEEP)
    run(folder / "flow.yaml", results=folder / "results")
    return load_results(folder / "results" / "flow")


def test_the_best_trial_of_each_shape_and_table_has_a_panel(done: Results) -> None:
    figures, _ = all_figures(done, analyze(done))
    (figure,) = [each for each in figures if each.name == "samples"]
    table = pd.read_csv(io.StringIO(figure.csv))
    lowest = done.trials.groupby(["width", "parameterization"], dropna=False)["validation_loss_nats"].min()
    assert len(lowest) == 3, "the tables share the base"
    assert sorted(table["best_squared_error"].dropna()) == pytest.approx(sorted(lowest))
    assert table["variance"][0] == 1
    texts = drawn_texts(figure.figure)
    assert {HELD_OUT, plain(figure.title)} < texts
    best = table[table["parameterization"] == "sp"].iloc[0]
    assert f"sp, width 32 lr 2^{np.log2(best['lr']):g}, loss {best['best_squared_error']:.4f}" in texts
    images = ElementTree.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}image")
    assert len(list(images)) == len(table) == 4


def info(results: Results) -> Info | str:
    return SAMPLES.infos(results, analyze(results))[""]


def test_without_weights_the_report_says_what_to_set(done: Results, tmp_path: Path) -> None:
    copy = tmp_path / "flow"
    shutil.copytree(done.folder, copy, ignore=shutil.ignore_patterns("weights"))
    assert info(load_results(copy)) == NOT_KEPT


def test_what_would_take_too_long_is_left_out_and_named(done: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIALS", 1)
    block = info(done)
    assert not isinstance(block, str)
    assert len(block.table()) == 2
    assert "2 more trials" in block.caption
    monkeypatch.setattr(module, "MOST_FLOPS", 1.0)
    assert "FLOPs" in str(info(done))


def test_a_family_that_draws_nothing_has_no_such_figure(tmp_path: Path) -> None:
    results = stored(tmp_path, keep=lambda trial: trial.shape == trial.base)
    assert SAMPLES.infos(results, analyze(results)) == {}


def test_samples_lie_row_by_row_and_only_three_channels_have_colors() -> None:
    samples = np.arange(9 * 3 * 4, dtype=np.float32).reshape(9, 3, 2, 2)
    colors, gray = mosaic(samples, 0, 100), mosaic(samples[:, :2], 0, 100)
    assert (colors.shape, gray.shape) == ((5, 23, 3), (5, 23))
    assert np.array_equal(colors[3:5, :2, 1], np.minimum(samples[8, 1] / 100, 1))
    assert np.array_equal(gray[:2, 3:5], samples[1, 0] / 100)
    assert (gray[2] == 1).all()
