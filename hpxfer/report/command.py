"""What `hpxfer report` does: read folders, decide, draw, write, and say where it all is."""

from __future__ import annotations

import gc
import json
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from hpxfer.analysis import TransferReport, transfer_report
from hpxfer.errors import HpxferError, nearest
from hpxfer.host.files import write_files
from hpxfer.results import Results, load_results

if TYPE_CHECKING:
    from hpxfer.analysis import FollowUp
    from hpxfer.report.contents import Picture, Report, Source

Format = Literal["html", "md", "json", "text"]
FORMATS: tuple[str, ...] = get_args(Format)
FIGURES = "figures"
# The files of each figure beside a report: a page has SVG in it, a paper takes either.
KINDS = {"html": ("svg", "csv"), "md": ("png", "svg", "csv"), "json": ("csv",)}


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a report came to: the transfer reports, the files in the order written, and what to warn of."""

    reports: tuple[TransferReport, ...]
    files: tuple[Path, ...]
    warnings: tuple[str, ...]

    def text(self) -> str:
        """Return what the terminal shows: the verdicts."""
        return "\n".join(one.summary() for one in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: of one folder its report itself, of several a list."""
        found = [one.to_dict() for one in self.reports]
        files = {"files": [str(one) for one in self.files]}
        return {**found[0], **files} if len(found) == 1 else {"reports": found, **files}


def report(
    folders: Sequence[Path],
    *,
    output: Path | None = None,
    hp: str | None = None,
    loss: str | None = None,
    form: str = "html",
    followup: Path | None = None,
    show: bool = False,
) -> Written:
    """Write the report of one or several results folders and return what it came to; `show` opens it in a browser.

    `text` writes the transfer figure alone. Raises HpxferError where the input is at fault.
    """
    if form not in FORMATS:
        raise HpxferError(f"--format: must be one of {', '.join(FORMATS)}, got {form!r}; {nearest(form, FORMATS)}")
    if show and form == "text":
        raise HpxferError("--open: must have a file to open, got --format text; leave one of them out")
    if followup is not None and len(folders) > 1:
        raise HpxferError("--write-followup: must have one results folder, got several; give one")
    target = output or _default_output(folders)
    if followup is not None and followup.exists():
        raise HpxferError(f"{followup}: must not be there yet, as it would be overwritten; name another file")
    with uncollected():
        made = _made(folders, hp, loss, form, target, followup)
    if show:
        webbrowser.open(next(path for path in made.files if path.stem == "report").resolve().as_uri())
    return made


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles from walking, over and over, the objects of all figures, which all stay.

    Measured on a sweep of 10,500 trials: 15% of the time of its report.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _made(
    folders: Sequence[Path], hp: str | None, loss: str | None, form: str, target: Path, followup: Path | None
) -> Written:
    every = [_judged_by(load_results(folder), hp, loss) for folder in folders]
    sources = [] if form == "text" and followup is None else [_source(one) for one in every]
    reports = tuple(_verdict(one, sources[i] if sources else None) for i, one in enumerate(every))
    files = _draw(every, reports, target)
    warnings = [problem for one in every for problem in one.problems]
    if form != "text":
        files += _write(sources, form, target)
    if followup is not None:
        more, why_not = _follow_up(sources[0], followup)
        files += more
        warnings += why_not
    return Written(reports=reports, files=tuple(files), warnings=tuple(warnings))


def _verdict(results: Results, source: Source | None) -> TransferReport:
    """Return the report on the judged HP, which the analysis may already hold."""
    known = source.analysis.report if source is not None else None
    return transfer_report(results) if known is None else known


def _default_output(folders: Sequence[Path]) -> Path:
    """Return where a report goes: the results folder; of several, the folder that holds them all."""
    if len(folders) == 1:
        return folders[0]
    parents = {folder.resolve().parent for folder in folders}
    if len(parents) > 1:
        raise HpxferError("--output: must be given, as the results folders do not lie side by side; name a folder")
    return folders[0].parent


def _judged_by(results: Results, hp: str | None, loss: str | None) -> Results:
    """Return the results as a sweep that judges this HP by this loss; raise HpxferError if it cannot."""
    results.line(hp, loss)
    named = {name: value for name, value in (("hp", hp), ("loss", loss)) if value is not None}
    judge = results.spec.judge.model_copy(update=named)
    return replace(results, spec=results.spec.model_copy(update={"judge": judge})) if named else results


def _source(results: Results) -> Source:
    from hpxfer.analysis.everything import analyze
    from hpxfer.figures import all_figures
    from hpxfer.report.contents import Source

    analysis = analyze(results)
    pictures, not_drawn = all_figures(results, analysis)
    return Source(results=results, analysis=analysis, pictures=pictures, not_drawn=not_drawn)


def _draw(every: Sequence[Results], reports: Sequence[TransferReport], target: Path) -> list[Path]:
    from hpxfer.figures import save_transfer, transfer_info

    return [
        path
        for results, found, place in zip(every, reports, _places(every, target), strict=True)
        for path in save_transfer(transfer_info(found, results.line(found.hp, found.loss)), place)
    ]


def _places(every: Sequence[Results], target: Path) -> list[Path]:
    """Return the folder of each sweep's own files: the target itself, or one below it for each of several."""
    if len(every) == 1:
        return [target]
    names = [one.folder.resolve().name for one in every]
    if len(set(names)) < len(names):
        names = [f"{name}-{place}" for place, name in enumerate(names, 1)]
    return [target / FIGURES / name for name in names]


def _write(sources: Sequence[Source], form: str, target: Path) -> list[Path]:
    from hpxfer.report.contents import make_report

    made = make_report(sources)
    places = _places([source.results for source in sources], target)
    pictures = {
        (section.name, picture.name): (place / FIGURES if len(sources) == 1 else place, picture)
        for section, source, place in zip(made.sections, sources, places, strict=True)
        for picture in source.pictures
    }
    writers: dict[Path, Callable[[IO[bytes]], object]] = {}
    for folder, picture in pictures.values():
        for kind in KINDS[form]:
            writers[folder / f"{picture.name}.{kind}"] = partial(_save, picture, kind)
    path = target / f"report.{form}"
    where = {key: (folder / f"{one.name}.png").relative_to(target) for key, (folder, one) in pictures.items()}
    writers[path] = partial(_bytes, _document(made, form, {key: one.as_posix() for key, one in where.items()}))
    try:
        for folder in {one.parent for one in writers}:
            folder.mkdir(parents=True, exist_ok=True)
        write_files(writers)
    except OSError as error:
        raise HpxferError(
            f"{target}: the report cannot be written: {error.strerror}; choose another folder with --output"
        ) from None
    return [path, *dict.fromkeys(folder for folder, _ in pictures.values())]


def _document(made: Report, form: str, figures: dict[tuple[str, str], str]) -> str:
    from hpxfer.report import to_html, to_markdown

    match form:
        case "html":
            return to_html(made)
        case "md":
            return to_markdown(made, figures)
        case _:
            return json.dumps(made.to_dict(), indent=1, allow_nan=False) + "\n"


def _follow_up(source: Source, path: Path) -> tuple[list[Path], list[str]]:
    """Return the follow-up sweep's file, or what to say where there is none."""
    found = source.analysis.follow_up
    if found.yaml is None:
        return [], [f"no follow-up is written: {found.why_not}"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(_how_to_run(source.results, found, path) + found.yaml)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {error.strerror}; name another file") from None
    return [path], []


def _how_to_run(results: Results, found: FollowUp, path: Path) -> str:
    """Return the comment above a follow-up: what it adds, and how to run it so that no trial is run twice."""
    folder, name = results.folder, results.spec.name
    lines = [f"Adds to sweep {name}: {'; '.join(found.added)}."]
    lines += [f"To be added by hand: {one}" for one in found.not_added]
    if folder.resolve().name != name:
        lines.append(f"First rename the results folder {folder} to {name}, so that what was run is found.")
    lines.append(f"To train only what is new: hpxfer run {path} --results {folder.resolve().parent}")
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def _save(picture: Picture, kind: str, file: IO[bytes]) -> None:
    content = picture.png if kind == "png" else (picture.svg if kind == "svg" else picture.csv).encode()
    file.write(content)


def _bytes(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())
