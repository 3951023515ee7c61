"""What a drawn figure says, for tests: that it draws at all is checked on the way."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend


def plain(text: str) -> str:
    """Return a text without the breaks of its lines."""
    return " ".join(text.split())


def drawn_texts(figure: Figure) -> set[str]:
    """Return the title, labels, legends and notes of a figure that was laid out without a warning."""
    figure.draw_without_rendering()
    legends: list[Legend] = [*figure.legends, *(axes.legend_ for axes in figure.axes if axes.legend_ is not None)]
    texts = [figure.get_suptitle(), *(text.get_text() for legend in legends for text in legend.get_texts())]
    texts += [legend.get_title().get_text() for legend in legends]
    for axes in figure.axes:
        texts += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in axes.texts)]
    return {plain(text) for text in texts}


def unlabeled(figure: Figure) -> list[Axes]:
    """Return the panels without a name on both axes, other than those that share the y-axis of their row."""
    return [axes for axes in figure.axes if not axes.get_xlabel() or not (axes.get_ylabel() or not _own_numbers(axes))]


def _own_numbers(axes: Axes) -> bool:
    return any(label.get_visible() for label in axes.get_yticklabels())
