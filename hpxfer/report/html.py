"""The report as one HTML file of at most 3 MB that needs nothing beside it: no network and no server.

The template engine escapes everything that comes from a sweep. Only the page's own style and script are marked as safe.
Figures are images in data URLs, which run no script and load nothing. A policy in the page forbids any other script and
any request.
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
from hpxfer.figures import DrawnFigure
from hpxfer.figures.style import INK
from hpxfer.report.contents import Report
from hpxfer.report.trials import TrialData

MOST_BYTES = 3_000_000
TRIAL_CHARACTERS = 1_500_000  # that the trials of all sweeps may take
CSV_CHARACTERS = 6_000  # of the data behind a figure: longer data is left to the file beside the page
ROWS_SHOWN = 400  # per table
# The ink of a figure by the color scheme of the page. Browsers tell an image the scheme of the element that shows it.
_INK_STYLE = "<style>svg{color:#1b1f24}@media(prefers-color-scheme:dark){svg{color:#e6e9ed}}</style>"


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure on the page. `image` is its data URL, or None if the page would grow too large."""

    section: str
    drawn: DrawnFigure
    image: str | None

    @property
    def csv(self) -> str:
        """The data behind the figure, empty if there is too much of it."""
        return self.drawn.csv if len(self.drawn.csv) <= CSV_CHARACTERS else ""

    @property
    def num_bytes(self) -> int:
        """What the image adds to the page."""
        return len(self.image or "")


def to_html(report: Report, most_bytes: int = MOST_BYTES) -> str:
    """Return the report as an HTML document of at most so many bytes. The page says what had to be left out."""
    share = TRIAL_CHARACTERS // max(len(report.sections), 1)
    trials = tuple(section.trials(share) for section in report.sections)
    figures = [
        PageFigure(section=section.name, drawn=drawn, image=_svg_url(drawn.svg))
        for section in report.sections
        for drawn in section.figures
    ]
    bare = _render(report, trials, [replace(figure, image=None) for figure in figures])
    return _render(report, trials, _fitted(figures, most_bytes - len(bare.encode())))


def _svg_url(svg: str) -> str:
    """Return an SVG as a data URL, with ink that follows the color scheme of the page."""
    head, end, body = svg.partition(">")
    return _data_url("image/svg+xml", (head + end + _INK_STYLE + body).replace(INK, "currentColor").encode())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _fitted(figures: Sequence[PageFigure], most_bytes: int) -> list[PageFigure]:
    """Return the figures within so many bytes.

    The largest become PNG where that is smaller, and are left out where it is not enough.
    """
    out = list(figures)
    tried: set[int] = set()
    while sum(figure.num_bytes for figure in out) > max(most_bytes, 0):
        largest = max(range(len(out)), key=lambda i: out[i].num_bytes)
        image = None if largest in tried else _data_url("image/png", out[largest].drawn.png)
        if image is not None and len(image) >= out[largest].num_bytes:
            image = None
        tried.add(largest)
        out[largest] = replace(out[largest], image=image)
    return out


def _render(report: Report, trials: Sequence[TrialData], figures: Sequence[PageFigure]) -> str:
    environment = _environment()
    style, script = (environment.get_template(f"report.{kind}").render() for kind in ("css", "js"))
    rows: dict[str, list[PageFigure]] = {}
    under_verdict: dict[tuple[str, str | None], list[PageFigure]] = {}  # axis None: under the headline
    for figure in sorted(figures, key=lambda figure: figure.drawn.leads or 0):
        if figure.drawn.leads is not None or figure.drawn.verdict_axis is not None:
            axis = None if figure.drawn.leads is not None else figure.drawn.verdict_axis
            under_verdict.setdefault((figure.section, axis), []).append(figure)
        else:
            rows.setdefault(figure.drawn.name, []).append(figure)
    return environment.get_template("report.html").render(
        report=report,
        trials=trials,
        under_verdict=under_verdict,
        figures=sorted(rows.values(), key=_aside),
        num_aside=sum(map(_aside, rows.values())),
        several=len(report.sections) > 1,
        version=hpxfer.__version__,
        most_rows=ROWS_SHOWN,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(style),
        script=Markup(script),
    )


def _aside(row: Sequence[PageFigure]) -> bool:
    """Return whether a figure shows an HP that no sweep on the page judges."""
    return all(figure.drawn.aside for figure in row)


@cache
def _environment() -> Environment:
    """Return the templates of the page, which escape what they are given."""
    return Environment(
        loader=PackageLoader("hpxfer.report"),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
