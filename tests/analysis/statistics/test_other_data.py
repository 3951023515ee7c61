"""Shapes that train on data of their own: their training losses are compared with no other shape's."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_results import DIGEST, planted_results
from planted_store import PlantedStore
from sweep_text import edited

from hpxfer.analysis import Analysis, analyze
from hpxfer.figures import all_figures
from hpxfer.results import Results
from hpxfer.spec import parse_sweep

OTHER = "fedcba9876543210"
DATA = (
    "source: builtin:stdlib",
    f"source: builtin:stdlib\n  digest: {DIGEST}\n  validation: builtin:stdlib\n  validation_digest: {DIGEST}",
)
LONG = "w32 d2 E4A1 h32 b512 t400"


def planted(folder: Path, digest: str) -> Results:
    own = f"data: {{source: 'text:/more.txt', digest: {digest}}}"
    axes = ("width: [32, 64]", f"long:\n    shapes: [{{steps: 300}}, {{steps: 400, {own}}}]")
    spec = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-8, -5]}"), DATA, axes))
    return planted_results(spec, folder, PlantedStore(drift={"sp": -1.0}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return planted(tmp_path_factory.mktemp("other"), OTHER)


@pytest.fixture(scope="module")
def found(results: Results) -> Analysis:
    return analyze(results)


def test_steps_to_the_same_loss_have_no_factor_between_them(found: Analysis) -> None:
    rows = [row for answer in found.found("steps_to_loss") for row in answer.rows]
    between = [row for row in rows if LONG in row.arm and LONG not in row.reference]
    assert between
    assert all((row.other_data, row.speed_up, row.num_seeds) == ("text:/more.txt", None, 0) for row in between)
    same = [row for row in rows if row not in between]
    assert any(LONG in row.arm for row in same), "the control at this shape trains on the same data"
    assert all(row.other_data is None and row.num_seeds == 2 for row in same)


def test_the_collapse_leaves_them_out_by_name(found: Analysis) -> None:
    for answer in found.found("collapse"):
        assert answer.other_data == (LONG,)
        assert {curve.shape for curve in answer.curves} == {"w32 d2 E4A1 h32 b512 t200", "w32 d2 E4A1 h32 b512 t300"}


def test_figures_name_them(results: Results, found: Analysis) -> None:
    figures, _ = all_figures(results, found)
    captions = {figure.name: figure.caption for figure in figures}
    for name in ("collapse-long", "normalized-collapse-long", "training-long", "steps-to-loss-long"):
        assert LONG in captions[name].rpartition("comparable")[2], name


def test_data_of_the_same_digest_are_the_same_data(tmp_path: Path) -> None:
    results = planted(tmp_path, DIGEST)
    found = analyze(results)
    assert all(row.other_data is None for answer in found.found("steps_to_loss") for row in answer.rows)
    assert all(answer.other_data == () for answer in found.found("collapse"))
    figures, _ = all_figures(results, found)
    assert not any("comparable" in figure.caption for figure in figures)
