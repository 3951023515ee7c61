"""The report as Markdown."""

from __future__ import annotations

from pathlib import Path

from report_cases import EVIL, Stub, report_of, source, write_store

from hpxfer.report import make_report, to_markdown


def test_verdicts_tables_and_figures_are_there(tmp_path: Path) -> None:
    text = to_markdown(report_of(write_store(tmp_path)), {("small", "transfer"): "figures/transfer.png"})
    assert text.startswith("# Do hyperparameters transfer? small\n")
    assert "### lr along width \\| completep-moe: transfers" in text
    assert "![completep-moe transfers](<figures/transfer.png>)" in text
    assert "| w32 d2 E4A1 h32 (base) |" in text
    assert "```yaml\n# search grid: " in text
    assert "\nname: small\n" in text
    assert text.endswith("```\n")


def test_every_table_has_as_many_cells_a_row_as_its_heading(tmp_path: Path) -> None:
    lines = to_markdown(report_of(write_store(tmp_path), write_store(tmp_path / "b")), {}).splitlines()
    bars = [line.replace("\\|", "").count("|") if line.startswith("|") else 0 for line in lines]
    for place in range(1, len(bars)):
        if bars[place] and bars[place - 1]:
            assert bars[place] == bars[place - 1], lines[place]


def test_what_a_store_holds_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = write_store(tmp_path, failing=(0, 1))
    text = to_markdown(make_report([source(folder, Stub(title=f"a\nb {EVIL}"), notes=("# no heading",))]), {})
    before_yaml = text.partition("```yaml")[0]
    assert "<script" not in before_yaml.replace("\\<", "")
    assert "- \\# no heading" in text
    assert "\nb \\<script" not in text


def test_a_sweep_cannot_leave_its_block(tmp_path: Path) -> None:
    edit = ("source: builtin:stdlib", "source: 'text:a```b'")
    text = to_markdown(report_of(write_store(tmp_path, edit)), {})
    assert "````yaml" in text
    assert text.endswith("\n````\n")
