"""The page on a table: the sections of a report, as far as a table can feed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pandas as pd

import hpxfer
from hpxfer.figures import line_figures, save_transfer, transfer_info
from hpxfer.host import text_table, write_folder
from hpxfer.outside.checks import cells_without_row
from hpxfer.outside.judging import JudgedTable
from hpxfer.report.contents import Report, Section, cards_of, report_of
from hpxfer.report.html import to_html
from hpxfer.report.provenance import of_others, of_ranges, progress_table, threshold_table
from hpxfer.report.tables import analysis_tables, unknown
from hpxfer.report.trials import TrialData, distinct, packed_trials, rounded
from hpxfer.report.write import FIGURES, figure_writers, garbage_collection_paused

FILE = "report.html"
OPTION = "--report"


def write_page(judged: JudgedTable, folder: Path) -> tuple[Path, ...]:
    """Write the page, its figures and the transfer figure. Raise HpxferError if they cannot be written."""
    with garbage_collection_paused():
        report = page_of(judged)
        page = to_html(report).encode()
        writers: dict[Path, Callable[[IO[bytes]], object]] = {
            **figure_writers(report.sections[0].figures, folder / FIGURES, "html"),
            folder / FILE: lambda file: file.write(page),
        }
        write_folder(writers, folder, "report", OPTION)
        info = transfer_info(judged.report, judged.lines[judged.report.hp])
        return (*save_transfer(info, folder, option=OPTION), folder / FILE, folder / FIGURES)


def page_of(judged: JudgedTable) -> Report:
    """Return the report on a table, with its figures drawn."""
    analysis, rows = judged.analysis, judged.read.runs.drop_duplicates("row")
    cells = pd.concat(judged.lines.values(), ignore_index=True)
    without_row = sum((Counter(cells_without_row(line)) for line in judged.lines.values()), Counter[tuple[str, str]]())
    figures, not_drawn = line_figures(analysis, judged.lines)
    num_done, diverged = int(rows["loss"].notna().sum()), int((rows["status"] == "diverged").sum())
    mapped = [f"{name} from {own}" if name != own else name for name, own in judged.read.columns.items()]
    facts = [
        ("table", judged.where),
        ("columns", ", ".join(mapped)),
        ("loss", f"{analysis.judged.words}, {analysis.judged.unit}"),
        ("hpxfer", hpxfer.__version__),
    ]
    section = Section(
        name=judged.name,
        headline=judged.report.headline,
        no_verdict="",
        question=f"Does {analysis.hp} transfer? Judged by {analysis.judged.words}.",
        next_step=judged.next_step(),
        cards=cards_of(analysis.reports[:1], analysis),
        other_cards=cards_of(analysis.reports[1:], analysis),
        tables=analysis_tables(analysis),
        unknown=(*judged.notes, *unknown(analysis)),
        progress=f"{num_done} of {len(rows)} runs have a result"
        + (f", {diverged} of them diverged." if diverged else "."),
        progress_table=progress_table(cells, without_row),
        failures=(),
        provenance=text_table("Provenance", ("fact", "value"), facts),
        thresholds=threshold_table(judged.rules),
        limits=(
            *of_ranges(analysis.reports),
            *of_others(analysis.reports),
            "The runs were trained elsewhere. Whether they got the HPs that the table names is not known here.",
        ),
        sweep_yaml="",
        analysis=analysis,
        trials=partial(_trials, judged),
        figures=figures,
        not_drawn=not_drawn,
    )
    return report_of([section], made_from="the table of runs")


def _trials(judged: JudgedTable, most_characters: int) -> TrialData:
    """Return every run of the table, packed for the page."""
    runs, loss = judged.read.runs.drop_duplicates("row"), judged.analysis.judged
    axes = judged.read.runs.groupby("row")["axis"].agg(", ".join)
    sizes = runs["scale_name"] + [f" {scale:g}" for scale in runs["scale"]]
    columns: dict[str, Any] = {
        "trial_id": runs["run_id"].where(runs["run_id"].notna(), [f"row {row}" for row in runs["row"]]).tolist(),
        "label": distinct(runs["arm"]),
        "axes": distinct(runs["row"].map(axes)),
        "shape": distinct(runs["shape"].where(runs["shape"] != "", sizes)),
        "status": distinct(runs["status"]),
        "seed": distinct(runs["seed"]),
        "loss": rounded(runs["loss"].where(runs["status"] == "finished")),
        **{hp: distinct(runs["value"].where(runs["hp"] == hp)) for hp in judged.lines},
    }
    data = {"grid": list(judged.lines), "losses": [[f"{loss.words}, {loss.unit}", "loss"]]}
    return packed_trials(data | {"columns": columns, "shared": {}}, most_characters, "the table holds them")
