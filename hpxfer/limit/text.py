"""A solved limit as text and as files: what was solved, one row per update, and what to make of it."""

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
from hpxfer.limit.network import Given, Network
from hpxfer.limit.selection import Selection
from hpxfer.limit.solve import Limit, Series

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
class Solved:
    """A limit with the question that it answers."""

    network: Network
    given: Given
    limit: Limit

    @property
    def cautions(self) -> tuple[str, ...]:
        return self.limit.cautions

    def to_dict(self) -> dict[str, Any]:
        """Return the question and the limit as JSON has them."""
        given, limit = self.given, self.limit
        return {
            "network": {name: value for name, value in asdict(self.network).items() if value is not None},
            "training": {
                "loss": given.loss,
                "lrs": list(given.lrs),
                "samples": [len(batch.inputs) for batch in given.batches],
                "router_bias": None if given.router_bias is None else np.asarray(given.router_bias).tolist(),
            },
            "symbols": {HEADS[name]: what for name, what in SERIES.items()},
            "exact": limit.is_exact,
            "sites": limit.num_sites,
            "seeds": limit.num_seeds,
            "cautions": list(limit.cautions),
            "series": {
                name: {"mean": each.mean.tolist(), "error": None if each.error is None else each.error.tolist()}
                for name, each in limit.series.items()
            },
            "outputs": [each.tolist() for each in limit.outputs],
            "output_errors": None if limit.output_errors is None else [each.tolist() for each in limit.output_errors],
            "selection": None if limit.selection is None else limit.selection.to_dict(),
            "margins": None if limit.margins is None else list(limit.margins),
        }

    def table(self) -> str:
        """Return the text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        limit, loss = self.limit, self.limit.series["loss"]
        last, error = len(loss.mean) - 1, ""
        if loss.error is not None and loss.error.any():
            error = f", with an error of at most {loss.error.max():.1g}"
        yield (
            f"The limit of {_name(self.network)}: the loss goes from {loss.mean[0]:.4g} to {loss.mean[-1]:.4g} in "
            f"{last} {'update' if last == 1 else 'updates'}{error}."
        )
        yield ""
        yield _solver(limit)
        yield ""
        margins = limit.margins
        rows = [["update", *HEADS.values(), *(["margin"] if margins else [])]]
        for at in range(last + 1) if last < _MOST_ROWS else [*range(_MOST_ROWS - 1), last]:
            numbers = (_number(limit.series[name], at) for name in HEADS)
            rows.append([str(at), *numbers, *([f"{margins[at]:.3g}"] if margins else [])])
        yield from aligned(rows, right_from=0)
        yield ""
        yield "E and Var are over experts, || the RMS over coordinates. In brackets: standard error of the last digits."
        if limit.selection is not None:
            yield ""
            yield from _selection(limit.selection)


def _name(network: Network) -> str:
    """Return the network in words and the papers' symbols."""
    style = {"mup": "muP", "mssp": "MSSP"}[network.parameterization]
    kappa, iota = f"M/N = {network.experts_per_width:g}", f"N_e/N = {network.expert_ratio:g}"
    width = f"N_e = {network.expert_width}"
    match network.regime:
        case "I":
            sizes = [f"M = {network.num_experts}"]
            sizes += [f"K = {network.num_active}"] if network.num_active else []
            sizes += [iota] if network.expert_matrices == 2 else []
        case "II":
            sizes = [kappa, width]
        case "III":
            sizes = [kappa, iota]
        case _:
            sizes = [f"L = {network.depth}", width if network.expert_width else iota]
    sizes += [f"K/M = {network.active_share:g}"] if network.active_share < 1 else []
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


def _number(series: Series, at: int) -> str:
    return with_error(float(series.mean[at]), 0.0 if series.error is None else float(series.error[at]))


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
