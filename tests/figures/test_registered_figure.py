"""A figure that a user adds from outside the package: it is in every report, and its name is taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from planted_store import PRODUCT, planted_results

from hpxfer.analysis import TransferReport, analyze
from hpxfer.errors import HpxferError
from hpxfer.figures import HPFigure, HPInput, SweepFigure, all_figures, register_figure
from hpxfer.figures.kinds import FIGURES
from hpxfer.registry import registry
from hpxfer.report.write import write_report
from hpxfer.results import Results

TINY = (
    PRODUCT.replace("width: [32, 64, 128, 256]", "width: [32, 64]")
    .replace("  granularity: [1, 2, 4]\n", "")
    .replace("seeds: 3", "seeds: 2")
)


@dataclass(frozen=True, kw_only=True)
class SeedsInfo:
    """The noise of a seed, per parameterization."""

    noise: dict[str, float]
    title: str = "How noisy is a seed?"
    caption: str = "Standard deviation of one seed's loss."

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.noise.items()), columns=["parameterization", "noise_nats"])


def seeds_info(found: TransferReport, axis: str) -> SeedsInfo | str:
    of_axis = [finding for finding in found.findings if finding.axis == axis]
    noise = {finding.parameterization: finding.noise_nats for finding in of_axis if finding.noise_nats is not None}
    return SeedsInfo(noise=noise) if noise else "one seed has no noise"


def draw_seeds(info: SeedsInfo) -> Figure:
    figure = Figure()
    figure.subplots().bar(list(info.noise), list(info.noise.values()))
    return figure


def infos(given: HPInput) -> dict[str, SeedsInfo | str]:
    return {axis: seeds_info(given.report, axis) for axis in given.axes}


SEEDS = HPFigure(name="seeds", question="How noisy is a seed?", infos=infos, draw=draw_seeds)
NOTHING = SweepFigure(
    name="nothing",
    question="Is there anything?",
    infos=lambda results, analysis: {"": "no, there is not"},
    draw=draw_seeds,
)
NOT_HERE = SweepFigure(name="not-here", question="Does it apply?", infos=lambda results, analysis: {}, draw=draw_seeds)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return planted_results(tmp_path_factory.mktemp("planted"), TINY)


def test_a_registered_figure_is_drawn_like_those_of_the_package(results: Results) -> None:
    analysis = analyze(results)
    before, missing_before = all_figures(results, analysis)
    with FIGURES.registered(SEEDS), FIGURES.registered(NOTHING), FIGURES.registered(NOT_HERE):
        figures, missing = all_figures(results, analysis)
    new = {figure.name: figure for figure in figures if figure.name not in {known.name for known in before}}
    assert {name: figure.aside for name, figure in new.items()} == {
        "seeds-lr-width": False,
        "seeds-init_scale-width": True,
    }
    assert new["seeds-lr-width"].csv.startswith("parameterization,noise_nats\ncompletep-moe,0.00")
    assert new["seeds-lr-width"].svg.startswith("<svg")
    assert set(missing) - set(missing_before) == {"nothing: no, there is not"}
    assert not any(figure.name.startswith("seeds") for figure in all_figures(results, analysis)[0])


def test_a_registered_figure_is_in_the_report(results: Results, tmp_path: Path) -> None:
    try:
        register_figure(SEEDS)
        write_report([results.folder], output=tmp_path)
    finally:
        FIGURES.remove("seeds")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'alt="How noisy is a seed?"' in page
    assert (tmp_path / "figures" / "seeds-lr-width.svg").is_file()
    assert (tmp_path / "figures" / "seeds-lr-width.csv").read_text().startswith("parameterization,")


def test_a_name_can_be_taken_once() -> None:
    with pytest.raises(HpxferError, match="figure 'regret' is registered already, by hpxfer; choose another name"):
        register_figure(HPFigure(name="regret", question="?", infos=infos, draw=draw_seeds))


def test_every_figure_of_the_package_says_what_it_answers() -> None:
    assert registry("figure") is FIGURES
    for kind in FIGURES.rows():
        assert kind.question.endswith("?"), kind.name
        assert FIGURES.get(kind.name) is kind
