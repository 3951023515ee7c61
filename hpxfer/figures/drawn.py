"""A drawn figure: its conclusion, its picture as PNG and SVG, and the data behind it as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pandas as pd
from matplotlib.figure import Figure

from hpxfer.figures.style import to_png, to_svg


class Info(Protocol):
    """What a figure shows, decided before anything is drawn."""

    @property
    def title(self) -> str: ...

    @property
    def caption(self) -> str: ...

    def table(self) -> pd.DataFrame: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A figure of a report. `name` is unique within a list of them and fit for a file; `title` is the conclusion."""

    name: str
    title: str
    caption: str  # how to read it
    csv: str
    figure: Figure
    salt: str  # tells its SVG's ids from those of other figures on a page
    aside: bool = False  # of an HP that is not judged

    @cached_property
    def svg(self) -> str:
        """One `<svg>` element with a transparent ground; what is drawn in `style.INK` is text, axes and gray marks."""
        return to_svg(self.figure, self.salt)

    @cached_property
    def png(self) -> bytes:
        return to_png(self.figure)


def drawn(name: str, info: Info, figure: Figure, *, salt: str = "", aside: bool = False) -> Drawn:
    """Return a figure with the data of its info. Rendering waits until a picture is asked for."""
    return Drawn(
        name=name,
        title=info.title,
        caption=info.caption,
        csv=info.table().to_csv(index=False, lineterminator="\n"),
        figure=figure,
        salt=f"hpxfer {salt} {name}",
        aside=aside,
    )
