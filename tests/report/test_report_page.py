"""The summary on one page: what it says, that all of it is on the page, and the files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_cases import report_of, write_store

import hpxfer
from hpxfer.cli import main
from hpxfer.errors import HpxferError
from hpxfer.report.page import draw_page, to_pdf, to_png
from hpxfer.report.write import write_report

ONE = ("parameterizations: [completep-moe, sp]", "parameterizations: [completep-moe]")


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().strip()]


def page(folder: Path, *, whole: bool = True) -> Figure:
    return draw_page(report_of(folder).sections[0], whole=whole)


def said(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in texts(figure))


def test_the_page_holds_headline_figure_interval_control_cost_date_and_version(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    section = report_of(folder).sections[0]
    words = said(draw_page(section))
    assert section.headline in words
    assert "log2 lr (octaves)" in words
    assert re.search(r"2\^-6\.\d \[2\^-6\.\d\.\.2\^-6\.\d\]", words), "an optimum with its interval"
    assert "Control: sp." in words
    assert "Training took 1.2 min in all" in words
    assert "Trained 2026-01-01T00:00" in words
    assert f"hpxfer {hpxfer.__version__}" in words


def test_a_page_without_a_control_says_so(tmp_path: Path) -> None:
    assert "Control: none in this sweep" in said(page(write_store(tmp_path, ONE)))


@pytest.mark.parametrize("whole", [True, False])
def test_all_texts_are_on_the_page(tmp_path: Path, whole: bool) -> None:
    figure = page(write_store(tmp_path), whole=whole)
    figure.draw_without_rendering()
    for text in texts(figure):
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= figure.bbox.width, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.y1 <= figure.bbox.height, text.get_text()


def test_a_sweep_of_which_nothing_is_known_has_a_page(tmp_path: Path) -> None:
    assert "0 of 36 trials have a result" in said(page(write_store(tmp_path, failing=range(36))))


def test_a_document_has_a_page_per_sweep(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / name) for name in "ab"]
    one, two = report_of(folders[0]), report_of(*folders)
    assert [to_pdf(report).count(b"/Type /Page ") for report in (one, two)] == [1, 2]
    assert to_png(one).startswith(b"\x89PNG")


@pytest.mark.parametrize("form", ["png", "pdf"])
def test_the_command_writes_the_page(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_store(tmp_path / "small")
    monkeypatch.setattr(sys, "argv", ["hpxfer", "report", str(folder), "--format", form])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    written = {path.name for path in folder.iterdir()}
    assert f"report.{form}" in written
    assert "figures" not in written
    assert f"report.{form}" in capsys.readouterr().out


def test_a_picture_shows_one_sweep(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / name) for name in "ab"]
    with pytest.raises(HpxferError, match="--format png: must have one results folder, got several"):
        write_report(folders, form="png")
