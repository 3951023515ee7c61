"""The report as one HTML file that needs nothing beside it: no network, no server, under 3 MB.

Everything that comes from a sweep is escaped by the template engine; what is marked as safe is the page's own style
and script, and figures after `embedded`. A policy in the page forbids any other script and every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import hpxfer
from hpxfer.report.contents import Picture, Report, Section
from hpxfer.report.svg import embedded
from hpxfer.report.trials import TrialData, trial_data

MOST_BYTES = 3_000_000
# Of these: what trials may take in all, and what is kept for the text and the tables around figures and trials.
TRIAL_CHARACTERS = 1_500_000
CSV_CHARACTERS = 6_000  # of the data behind a figure that stand on the page; all of it is in a file
ROWS_SHOWN = 400  # of a table beside the trials'


@dataclass(frozen=True, kw_only=True)
class Inlined:
    """A figure as it stands on the page: SVG, or PNG where that is smaller and the page would grow too large."""

    section: str
    name: str
    title: str
    caption: str
    csv: str
    markup: Markup | None = None
    image: str | None = None  # data URL
    left_out: bool = False
    aside: bool = False  # of an HP that is not judged

    @property
    def num_bytes(self) -> int:
        """What the picture adds to the page."""
        return len((self.markup or self.image or "").encode())


def to_html(report: Report, most_bytes: int = MOST_BYTES) -> str:
    """Return the report as an HTML document of at most so many bytes; what had to be left out is said in it."""
    share = TRIAL_CHARACTERS // max(len(report.sections), 1)
    trials = tuple(trial_data(section.source.results, share) for section in report.sections)
    figures = [_inlined(section, picture, i) for i, section in enumerate(report.sections) for picture in _of(section)]
    bare = _render(report, trials, [replace(one, markup=None, image=None, left_out=True) for one in figures])
    pictures = {(one.name, picture.name): picture for one in report.sections for picture in _of(one)}
    return _render(report, trials, _fitted(figures, pictures, most_bytes - len(bare.encode())))


def _of(section: Section) -> Sequence[Picture]:
    return section.source.pictures


def _inlined(section: Section, picture: Picture, place: int) -> Inlined:
    prefix = f"s{place}-{hashlib.blake2b(picture.name.encode(), digest_size=4).hexdigest()}-"
    svg = embedded(picture.svg, prefix, picture.title)
    csv = picture.csv if len(picture.csv) <= CSV_CHARACTERS else ""
    one = Inlined(
        section=section.name,
        name=picture.name,
        title=picture.title,
        caption=picture.caption,
        csv=csv,
        aside=picture.aside,
    )
    return replace(one, image=_png_url(picture)) if svg is None else replace(one, markup=Markup(svg))


def _fitted(figures: Sequence[Inlined], pictures: dict[tuple[str, str], Picture], room: int) -> list[Inlined]:
    """Return the figures in `room` bytes: the largest become PNG if that is smaller, then the largest are left out."""
    out = list(figures)
    tried: set[int] = set()
    while sum(one.num_bytes for one in out) > max(room, 0):
        largest = max(range(len(out)), key=lambda i: out[i].num_bytes)
        one = out[largest]
        if largest not in tried and one.markup is not None:
            tried.add(largest)
            image = _png_url(pictures[one.section, one.name])
            if len(image) < one.num_bytes:
                out[largest] = replace(one, markup=None, image=image)
                continue
        out[largest] = replace(one, markup=None, image=None, left_out=True)
    return out


def _png_url(picture: Picture) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"


def _render(report: Report, trials: Sequence[TrialData], figures: Sequence[Inlined]) -> str:
    environment = _environment()
    style, script = (environment.get_template(f"report.{kind}").render() for kind in ("css", "js"))
    rows: dict[str, list[Inlined]] = {}
    for one in figures:
        rows.setdefault(one.name, []).append(one)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        report=report,
        trials=trials,
        figures=sorted(rows.values(), key=_aside),
        num_aside=sum(map(_aside, rows.values())),
        several=len(report.sections) > 1,
        version=hpxfer.__version__,
        most_rows=ROWS_SHOWN,
        script_digest=digest,
        style=Markup(style),
        script=Markup(script),
    )


def _aside(row: Sequence[Inlined]) -> bool:
    """Return whether a figure is of an HP that no sweep on the page judges."""
    return all(one.aside for one in row)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hpxfer.report"),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
