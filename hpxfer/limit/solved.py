"""Limit: a solved limit with the question that it answers, as data, as text and as files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hpxfer.host import aligned, text_writer, write_folder
from hpxfer.limit.layers import SERIES
from hpxfer.limit.network import Floats, Given, Network
from hpxfer.limit.selection import Selection

if TYPE_CHECKING:
    from hpxfer.figures.chart import Block


# Column of the table, by series: the symbol of the papers.
HEADS = {
    "loss": "loss",
    "gate_mean": "E phi",
    "gate_variance": "Var phi",
    "logit_mean": "E psi",
    "logit_variance": "Var psi",
    "h1_rms": "|h1|",
    "h3_rms": "|h3|",
}
_MOST_ROWS = 60
_ZERO = 1e-12  # what rounding leaves of a zero


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """A number per forward pass, mean over the solver's seeds, and the standard error of that mean.

    The error is exactly zero where nothing was sampled. It is None where one seed was solved, which shows no error.
    """

    mean: Floats  # [T + 1]
    error: Floats | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Limit:
    """The limit of a network's training: numbers after 0 to T updates."""

    network: Network
    given: Given
    series: Mapping[str, Series]
    outputs: tuple[Floats, ...]  # [P, C] per pass
    output_errors: tuple[Floats, ...] | None
    margins: tuple[float, ...] | None
    is_exact: bool
    """Whether nothing was sampled."""
    num_sites: int
    num_seeds: int
    selection: Selection | None = None
    """Of top-K in regime I without a bias, where the active experts are drawn: their distribution over seeds."""
    cautions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the question and the limit as JSON has them."""
        given = self.given
        return {
            "network": {name: value for name, value in asdict(self.network).items() if value is not None},
            "training": {
                "loss": given.loss,
                "lrs": list(given.lrs),
                "samples": [len(batch.inputs) for batch in given.batches],
                "router_bias": None if given.router_bias is None else np.asarray(given.router_bias).tolist(),
            },
            "symbols": {HEADS[name]: what for name, what in SERIES.items()},
            "exact": self.is_exact,
            "sites": self.num_sites,
            "seeds": self.num_seeds,
            "cautions": list(self.cautions),
            "series": {
                name: {"mean": each.mean.tolist(), "error": None if each.error is None else each.error.tolist()}
                for name, each in self.series.items()
            },
            "outputs": [each.tolist() for each in self.outputs],
            "output_errors": None if self.output_errors is None else [each.tolist() for each in self.output_errors],
            "selection": None if self.selection is None else self.selection.to_dict(),
            "margins": None if self.margins is None else list(self.margins),
        }

    def table(self) -> str:
        """Return the text: what was solved, a row per update, and how the active experts are drawn."""
        loss, margins = self.series["loss"], self.margins
        last, error = len(loss.mean) - 1, ""
        if loss.error is not None and loss.error.any():
            error = f", with an error of at most {loss.error.max():.1g}"
        rows = [["update", *HEADS.values(), *(["margin"] if margins else [])]]
        for at in range(last + 1) if last < _MOST_ROWS else [*range(_MOST_ROWS - 1), last]:
            each = (self.series[name] for name in HEADS)
            numbers = (with_error(of.mean[at], 0.0 if of.error is None else of.error[at]) for of in each)
            rows.append([str(at), *numbers, *([f"{margins[at]:.3g}"] if margins else [])])
        lines = [
            f"The limit of {_name(self.network)}: the loss goes from {loss.mean[0]:.4g} to {loss.mean[-1]:.4g} in "
            f"{last} {'update' if last == 1 else 'updates'}{error}.",
            "",
            _solver(self),
            "",
            *aligned(rows, right_from=0),
            "",
            "E and Var are over experts, || the RMS over coordinates. In brackets: standard error of the last digits.",
        ]
        return "\n".join([*lines, *([] if self.selection is None else ["", *_selection(self.selection)])])


def _name(network: Network) -> str:
    """Return the network in words and the papers' symbols."""
    style = {"mup": "muP", "mssp": "MSSP"}[network.parameterization]
    kappa, iota = f"M/N = {network.experts_per_width:g}", f"N_e/N = {network.expert_ratio:g}"
    width = f"N_e = {network.expert_width}"
    experts = [f"M = {network.num_experts}", *([f"K = {network.num_active}"] if network.num_active else [])]
    sizes = {
        "I": [*experts, *([iota] if network.expert_matrices == 2 else [])],
        "II": [kappa, width],
        "III": [kappa, iota],
        "residual": [f"L = {network.depth}", width if network.expert_width else iota],
    }[network.regime]
    where = "the residual network" if network.regime == "residual" else f"regime {network.regime}"
    return f"{where} under {style} ({', '.join(sizes)})"


def _solver(limit: Limit) -> str:
    if limit.is_exact and limit.selection is None:
        return "Nothing was sampled: the numbers are exact."
    if limit.is_exact:
        return f"Exact for given active experts, and the mean over {limit.num_seeds} draws of these."
    if limit.num_seeds == 1:
        return f"{limit.num_sites} sites, 1 seed: more seeds show the error of the solver."
    return f"{limit.num_sites} sites, {limit.num_seeds} seeds."


def with_error(value: float, error: float) -> str:
    """Return a number with the digits that its error leaves, such as 0.1234(5)."""
    if max(abs(value), error) < _ZERO:
        return "0"
    if error < _ZERO or not math.isfinite(error):
        return f"{value:.6g}"
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f}({round(error * 10**digits)})"


def _selection(found: Selection) -> Iterator[str]:
    yield (
        f"Top-K has no bias here. So a sample takes each of the {found.num_sets} sets of experts with probability "
        f"{1 / found.num_sets:.4g}, at every width. The share of its experts that another sample has too is on average:"
    )
    yield ""
    for row in found.overlaps[:8]:
        yield "  ".join(f"{value:.3f}" for value in row[:8])
    if len(found.overlaps) > 8:
        yield f"... of {len(found.overlaps)} samples"


WHAT = "limit"


def save(folder: Path, text: str, numbers: Mapping[str, Any], blocks: Mapping[str, Block]) -> list[Path]:
    """Write limit.txt, limit.json and every figure (PNG, SVG), and return the paths. Equal limits give equal bytes."""
    from hpxfer.figures.chart import draw
    from hpxfer.figures.style import write_png, write_svg

    writers: dict[Path, Callable[[IO[bytes]], object]] = {
        folder / "limit.txt": text_writer(text),
        folder / "limit.json": text_writer(json.dumps(numbers, allow_nan=False)),
    }
    for name, figure in ((name, draw(block)) for name, block in blocks.items()):
        writers[folder / f"{name}.png"] = partial(write_png, figure)
        writers[folder / f"{name}.svg"] = partial(write_svg, figure, name)
    return write_folder(writers, folder, WHAT)
