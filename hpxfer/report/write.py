"""Write the report of results folders: read them, judge, draw the figures, and write every file."""

from __future__ import annotations

import gc
import json
import os
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import IO, Any, Literal, get_args

from hpxfer.analysis import FollowUp, TransferReport, analyze, transfer_report
from hpxfer.analysis.references import References
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.figures import DrawnFigure, TransferInfo, all_figures, save_transfer, taus_of, transfer_info
from hpxfer.host import write_folder
from hpxfer.progress import view_now
from hpxfer.report.contents import Source, make_report
from hpxfer.report.html import to_html
from hpxfer.report.next_step import asks_for_points, elsewhere, gains_question, next_step, points_text, rename
from hpxfer.report.provenance import Progress, trainer_checks
from hpxfer.report.tables import openings
from hpxfer.results import Results, load_results
from hpxfer.search import judged_by
from hpxfer.store import location_at
from hpxfer.verdict import headline


def write_follow_up(results: Results, found: FollowUp, path: Path) -> str:
    """Write a follow-up that there is to a new file. Return what it adds at what cost, and the next step.

    Raise HpxferError if the file cannot be written.
    """
    assert found.yaml is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(_how_to_run(results, found, path) + found.yaml)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {error.strerror}; name another file") from None
    first = f"{to_rename}; then: " if (to_rename := rename(results)) else ""
    return "\n".join(
        [
            f"{path} adds {_size(results, found)} to the sweep: {'; '.join(found.added)}.",
            *(f"To be added by hand: {addition}" for addition in found.not_added),
            f"Next: {first}{_run(results, path)}",
        ]
    )


def _run(results: Results, path: Path) -> str:
    return f"hpxfer run {quote(str(path))}{elsewhere(results)}"


def _size(results: Results, found: FollowUp) -> str:
    most = "" if results.spec.search_row.lists_trials else "at most "
    return f"{most}{found.num_new_trials} trial{'' if found.num_new_trials == 1 else 's'}"


def _how_to_run(results: Results, found: FollowUp, path: Path) -> str:
    """Return the comment on top of a follow-up: what it adds, and how to run it."""
    lines = [f"Adds {_size(results, found)} to sweep {results.spec.name}: {'; '.join(found.added)}."]
    lines += [f"To be added by hand: {addition}" for addition in found.not_added]
    if to_rename := rename(results):
        lines.append(f"First {to_rename}, so that its trials are found.")
    lines.append(f"To train only what is new: {_run(results, path)}")
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


Format = Literal["html", "json", "text"]
FORMATS: tuple[str, ...] = get_args(Format)
FIGURES = "figures"
# The files per figure beside a report of each format. The HTML page holds its figures; a paper takes the SVG.
FIGURE_FILES = {"html": ("svg", "csv"), "json": ("csv",)}


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `write_report` found and wrote: a transfer report and a next step per folder, the files, and warnings.

    The reports are whole even if files could not be written.
    """

    reports: tuple[TransferReport, ...]
    summaries: tuple[str, ...]  # one per folder: the verdicts, or the best points
    full_texts: tuple[str, ...]  # one per folder where it was asked for: reasons, shapes, statistics
    next_steps: tuple[str, ...]
    files: tuple[Path, ...]  # in the order written
    warnings: tuple[str, ...]
    checks: tuple[tuple[str, ...], ...] = ()  # one per folder: what the checks of a user's own trainer found
    not_written: tuple[str, ...] = ()  # one message per folder or file that was asked for and cannot be written
    openings: tuple[tuple[str, ...], ...] = ()  # one per folder: what the statistics say that its report opens with

    def text(self) -> str:
        """Return the verdicts as text for a terminal; all that was found, where `full` asked for it."""
        return "\n".join(self.full_texts or self.summaries)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: the report of a single folder itself, or a list of the reports of several."""
        found = self.report_data()
        files = {"files": [str(path) for path in self.files]}
        return {**found[0], **files} if len(found) == 1 else {"reports": found, **files}

    def report_data(self) -> list[dict[str, Any]]:
        """Return the JSON-ready report of each folder, whose headline opens with what the sweep is about."""
        found = [report.to_dict() for report in self.reports]
        for report, checks, opening in zip(found, self.checks, self.openings, strict=True):
            report |= {"trainer_checks": list(checks)} if checks else {}
            of_hp = [report["headline"]] if report["findings"] or not opening else []
            report["headline"] = " ".join([*opening, *of_hp])
        return found


def write_report(
    folders: Sequence[Path],
    *,
    output: Path | None = None,
    hp: str | None = None,
    loss: str | None = None,
    base: str | None = None,
    form: str = "html",
    followup: Path | None = None,
    show: bool = False,
    full: bool = False,
    references: References | None = None,
    option: str = "--output",
) -> Written:
    """Write the report of one or several results folders and return what was found.

    `form` is html, json, or text, which writes the transfer figure alone: where it cannot be written, that is a
    warning unless `output` is given. A search without a line of the judged HP has no transfer figure. `hp` and `loss`
    judge by others than the sweep does, and `base` judges from another shape, see `Results.from_base`. `followup` is
    where to write the sweep that undecided verdicts ask for. `show` opens the report in a browser. `full` makes the
    text hold all that was found. `references` are what arms are compared with over their whole runs. `option` is the
    option that names another folder, for messages. Raises HpxferError where the input is at fault. Files that cannot be
    written are in `not_written` of what it returns.
    """
    if form not in FORMATS:
        raise HpxferError(f"--format: unknown format {shown(form)}; {nearest(form, FORMATS)}")
    if show and form == "text":
        raise HpxferError("--open: must have a file to open, got --format text; leave one of them out")
    if references is not None and references.given and form == "text" and not full:
        raise HpxferError(
            "--reference, --reference-curves: go with a report that has tables, got --format text; add --full"
        )
    if followup is not None and len(folders) > 1:
        raise HpxferError("--write-followup: must have one results folder, got several; give one")
    target = output or _default_output(folders)
    if followup is not None and followup.exists():
        raise HpxferError(f"{followup}: must not be there yet, as it would be overwritten; name another file")
    with garbage_collection_paused():
        written = _write_report(
            folders,
            hp,
            loss,
            base,
            form,
            target,
            followup,
            option,
            references=references,
            full=full,
            needs_figure=form != "text" or output is not None,
        )
    for page in [path for path in written.files if show and path.stem == "report"]:
        webbrowser.open(page.resolve().as_uri())
    return written


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would scan the objects of all figures again and again.

    None of these objects can be freed before the report is written. Scanning them took 15% of the time of a report on
    10,500 trials.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _write_report(
    folders: Sequence[Path],
    hp: str | None,
    loss: str | None,
    base: str | None,
    form: str,
    target: Path,
    followup: Path | None,
    option: str,
    *,
    references: References | None,
    full: bool,
    needs_figure: bool,
) -> Written:
    sweeps = [_judged_by(load_results(folder), hp, loss, base) for folder in folders]
    is_about = any(results.spec.judge.about or results.spec.has_fixed_hps for results in sweeps)
    is_brief = form == "text" and followup is None and not full and not is_about
    running = [_is_running(folder) for folder in folders]
    each = list(zip(sweeps, running, strict=True))
    sources = [] if is_brief else [source_of(results, references, is_running=live) for results, live in each]
    reports = tuple(_verdict(results, sources[i] if sources else None) for i, results in enumerate(sweeps))
    opened = tuple(tuple(openings(source.analysis)) for source in sources) or ((),) * len(sweeps)
    next_steps = [
        next_step(results, report, str(results.folder), is_running=live)
        for (results, live), report in zip(each, reports, strict=True)
    ]
    files: list[Path] = []
    warnings = [problem for results in sweeps for problem in results.problems]
    not_written: list[str] = []
    try:
        files += _draw(sweeps, reports, target, option)
        if form != "text":
            files += _write(sources, form, target, option)
    except HpxferError as error:
        (not_written if needs_figure else warnings).append(str(error))
    if followup is not None and (why_not := sources[0].analysis.follow_up.why_not) is not None:
        is_needed = sources[0].analysis.follow_up.is_needed
        (not_written if is_needed else warnings).append(f"{followup}: no follow-up is written: {why_not}")
    elif followup is not None:
        try:
            next_steps = [write_follow_up(sweeps[0], sources[0].analysis.follow_up, followup)]
            files.append(followup)
        except HpxferError as error:
            not_written.append(str(error))
    return Written(
        reports=reports,
        summaries=tuple(
            _summary(*one, report, opening) for one, report, opening in zip(each, reports, opened, strict=True)
        ),
        full_texts=tuple(_full_text(source, report) for source, report in zip(sources, reports, strict=True))
        if full
        else (),
        next_steps=tuple(next_steps),
        checks=tuple(tuple(trainer_checks(results)) for results in sweeps),
        files=tuple(files),
        warnings=tuple(warnings),
        not_written=tuple(not_written),
        openings=opened,
    )


def _is_running(folder: Path) -> bool:
    """Return whether a driver is writing this folder, so that what is missing is still to come."""
    try:
        return view_now(location_at(str(folder))).state == "running"
    except HpxferError:
        return False


def _summary(results: Results, is_running: bool, report: TransferReport, opening: Sequence[str] = ()) -> str:
    """Return what the report opens with, the verdicts on the judged HP or the best points, and how far a run is."""
    so_far = f"The run goes on. {Progress.of(results).text(is_running=True)}\n" if is_running else ""
    if asks_for_points(results.spec):
        return so_far + points_text(results)
    found = report.summary()
    if results.spec.has_fixed_hps:
        found = f"{gains_question(results.spec, judged_by(results.spec), results.name)}\n"
    if is_running:
        found = found.replace(report.headline, headline(report.hp, report.findings, is_running=True), 1)
    lines = [f"{line}\n" for line in list(trainer_checks(results))[:1]]
    return so_far + "".join(f"{line}\n" for line in opening) + found + "".join(lines)


def _full_text(source: Source, report: TransferReport) -> str:
    """Return the whole report on the judged HP, the reports on other HPs, the statistics, and what is not known.

    Of a sweep without a line, or of the base alone, it starts as the summary does.
    """
    from hpxfer.report.tables import findings_text, unknown

    others = [other for other in source.analysis.reports if other.hp != report.hp and other.findings]
    opening = openings(source.analysis)
    found = findings_text(source.analysis)
    reasons = [f"- {why}" for why in (*source.analysis.notes, *unknown(source.analysis))]
    missing = ["\n".join(["Not known:", *reasons]) + "\n"] if reasons else []
    has_verdict = bool(report.findings) and not asks_for_points(source.results.spec)
    judged = _summary(source.results, source.is_running, report, opening)
    if has_verdict:
        judged = "".join(f"{line}\n" for line in opening) + report.to_text()
    return "\n".join([judged, *(other.to_text() for other in others), found, *missing])


def _verdict(results: Results, source: Source | None) -> TransferReport:
    """Return the report on the judged HP. The analysis may hold it already."""
    known = source.analysis.report if source is not None else None
    return transfer_report(results) if known is None else known


def _default_output(folders: Sequence[Path]) -> Path:
    """Return where a report goes by default: the results folder, or the folder that holds several of them."""
    if len(folders) == 1:
        return folders[0]
    parents = {os.path.dirname(os.path.realpath(folder)) for folder in folders}
    if len(parents) > 1:
        raise HpxferError("--output: must be given, as the results folders do not lie side by side; name a folder")
    return folders[0].parent


def _judged_by(results: Results, hp: str | None, loss: str | None, base: str | None) -> Results:
    """Return the results as a sweep that judges this HP by this loss from this base. Raise HpxferError if it cannot."""
    results = results if base is None else results.from_base(base)
    results.line(hp, loss)
    named = {name: value for name, value in (("hp", hp), ("loss", loss)) if value is not None}
    judge = results.spec.judge.model_copy(update=named)
    return replace(results, spec=results.spec.model_copy(update={"judge": judge})) if named else results


def source_of(results: Results, references: References | None = None, *, is_running: bool = False) -> Source:
    """Return a folder as a report reads it: analyzed, with its figures drawn."""
    analysis = analyze(results, references=references)
    figures, not_drawn = all_figures(results, analysis)
    return Source(results=results, analysis=analysis, figures=figures, not_drawn=not_drawn, is_running=is_running)


def _draw(sweeps: Sequence[Results], reports: Sequence[TransferReport], target: Path, option: str) -> list[Path]:
    """Write the transfer figure of each sweep that has one: a search may scan no line of the judged HP."""
    return [
        path
        for results, report, folder in zip(sweeps, reports, _output_folders(sweeps, target), strict=True)
        if report.findings
        for path in save_transfer(_headline(results, report), folder, option=option)
    ]


def _headline(results: Results, report: TransferReport) -> TransferInfo:
    line = results.line(report.hp, report.loss)
    return transfer_info(report, line, taus_of(results, line, report.hp))


def _output_folders(sweeps: Sequence[Results], target: Path) -> list[Path]:
    """Return the folder for the files of each sweep: the target itself, or a folder in it for each of several."""
    if len(sweeps) == 1:
        return [target]
    names = [results.folder.resolve().name for results in sweeps]
    if len(set(names)) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    return [target / FIGURES / name for name in names]


def _write(sources: Sequence[Source], form: str, target: Path, option: str) -> list[Path]:
    """Write the report and the files of its figures, and return the report and the folders of the figures."""
    report = make_report(sources)
    folders = _output_folders([source.results for source in sources], target)
    drawn: dict[tuple[str, str], tuple[Path, DrawnFigure]] = {
        (section.name, figure.name): (folder / FIGURES if len(sources) == 1 else folder, figure)
        for section, source, folder in zip(report.sections, sources, folders, strict=True)
        for figure in source.figures
    }
    writers: dict[Path, Callable[[IO[bytes]], object]] = {}
    for folder, figure in drawn.values():
        writers |= figure_writers([figure], folder, form)
    path = target / f"report.{form}"
    document = to_html(report) if form == "html" else json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    writers[path] = lambda file: file.write(document.encode())
    write_folder(writers, target, "report", option)
    return [path, *dict.fromkeys(folder for folder, _ in drawn.values())]


def figure_writers(
    figures: Sequence[DrawnFigure], folder: Path, form: str
) -> dict[Path, Callable[[IO[bytes]], object]]:
    """Return the files of figures beside a report of a format, and what writes each."""
    return {
        folder / f"{figure.name}.{kind}": partial(_save, figure, kind)
        for figure in figures
        for kind in FIGURE_FILES.get(form, ())
    }


def _save(figure: DrawnFigure, kind: str, file: IO[bytes]) -> None:
    file.write((figure.svg if kind == "svg" else figure.csv).encode())
