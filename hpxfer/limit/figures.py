"""The figures as blocks: of a solved limit, of networks beside their limit, and of the bias-rate simulation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hpxfer.figures import style
from hpxfer.figures.chart import Block, Chart, Line, Look
from hpxfer.host import scale_text
from hpxfer.limit.bias_rate import BiasRate
from hpxfer.limit.comparison import Comparisons
from hpxfer.limit.network import Floats
from hpxfer.limit.solved import Limit

# Title -> the series of a panel, with its label.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loss": (("loss", "loss"),),
    "weights of the experts": (("gate_mean", "mean"), ("gate_variance", "variance over experts")),
    "logits of the router": (("logit_mean", "mean"), ("logit_variance", "variance over experts")),
    "size of features (RMS)": (("h1_rms", "h1"), ("h3_rms", "h3")),
}
OUTPUTS = "outputs, a line per sample"
MOST_OUTPUTS = 8
ERRORS = 2.0  # standard errors that a band shows on each side
VERDICTS = {
    "agrees": "the networks approach their limit",
    "disagrees": "the networks do NOT approach the limit of their table",
    "undecided": "it is open whether the networks approach their limit",
    "not judged": "distance to the largest shape",
}
# Quantities of a panel -> its title, and its axis.
QUANTITIES = {
    ("loss",): ("training loss: mean and spread of seeds", "loss"),
    ("logit_variance",): ("pre-activations of the router", "variance over experts"),
    ("logit_low", "logit_high"): ("pre-activations of the router", "5% and 95% quantiles"),
}
NETWORK, MEAN, NOISE = "one network", "mean over seeds", "noise of the mean"


def limit_block(limit: Limit) -> Block:
    """Return loss, outputs, gates, logits and features over updates, with the error of the solver."""
    network = limit.network
    regime = "residual network" if network.regime == "residual" else f"regime {network.regime}"
    how = "exact" if limit.is_exact else f"{limit.num_sites} sites, {limit.num_seeds} seeds"
    rows: list[dict[str, Any]] = []
    for panel, series in PANELS.items():
        for name, label in series:
            rows += _rows(panel, label, limit.series[name].mean, limit.series[name].error)
        rows += _outputs(limit) if panel == "loss" else []
    frame = pd.DataFrame(rows)
    looks: dict[str, Look] = dict.fromkeys(("loss", "f", "mean", "h1"), style.MARKS[0])
    looks |= dict.fromkeys(("variance over experts", "h3"), style.MARKS[1])
    line = Line(y="value", low="low", high="high", by="output", marker="o", look={"linewidth": 1.4, "markersize": 2.5})
    chart = Chart(
        x="update",
        lines=(line,),
        color="series",
        panel="panel",
        looks=looks,
        finish=lambda axes, *_: _over_updates(axes, ""),
        legend="panel",
    )
    return Block(
        title=f"The limit of {network.parameterization} in {regime}, {network.gate} gate ({how})",
        caption=f"Bands are {ERRORS:g} standard errors of the solver.",
        frame=frame,
        charts=(chart,),
        height=2.5,
        foot=0.2,
    )


def _rows(panel: str, label: str, mean: Floats, error: Floats | None, output: int = 0) -> list[dict[str, Any]]:
    """Return a row per update. No error is known of a single draw."""
    half = np.full(len(mean), np.nan) if error is None else ERRORS * error
    numbers = zip(mean, mean - half, mean + half, strict=True)
    of = {"panel": panel, "series": label, "output": output}
    return [of | {"update": t, "value": y, "low": low, "high": high} for t, (y, low, high) in enumerate(numbers)]


def _outputs(limit: Limit) -> list[dict[str, Any]]:
    """Return the rows of the outputs of the first few samples. Passes with other samples have none."""
    if len({each.shape for each in limit.outputs}) > 1:
        return []
    values = np.stack([each.reshape(-1) for each in limit.outputs]).T[:MOST_OUTPUTS]
    errors: Sequence[Floats | None] = [None] * len(values)
    if limit.output_errors is not None:
        errors = list(np.stack([each.reshape(-1) for each in limit.output_errors]).T[:MOST_OUTPUTS])
    pairs = enumerate(zip(values, errors, strict=True), start=1)
    return [row for k, (value, error) in pairs for row in _rows(OUTPUTS, "f", value, error, k)]


def _over_updates(axes: Axes, y: str) -> None:
    style.set_axes(axes, "updates", y)
    axes.xaxis.set_major_locator(MaxNLocator(style.TICKS, integer=True))


def against_blocks(found: Comparisons) -> dict[str, Block]:
    """Return name -> the numbers of the limit and of every size over updates, and distances against the size."""
    out = {}
    for arm in found.frames["arms"].itertuples():
        updates, sizes = (found.frames[name][found.frames[name]["arm"] == arm.arm] for name in ("updates", "sizes"))
        axis_arm = " ".join(reversed(str(arm.arm).split(" along ")))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", axis_arm).strip("-.")
        title = f"{arm.arm}, {arm.hp} {arm.value:g}: {VERDICTS[str(arm.verdict)]}"
        out[f"against-{name}"] = _against_block(
            title, str(arm.size), "the largest shape" if arm.verdict == "not judged" else "limit", updates, sizes
        )
    return out


def _end_numbers(y: str, least: float, axes: Axes, *_: object) -> None:
    _over_updates(axes, y)
    if least >= 0:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _finish_distances(axes: Axes, size: str, sizes: Sequence[float], bottom: float) -> None:
    style.set_axes(axes, size, "share of the fall of the loss")
    style.log_losses(axes)
    style.log2_scale_axis(axes, sizes, size)
    axes.set_ylim(bottom=bottom)


def _against_block(title: str, size: str, limit: str, updates: pd.DataFrame, sizes: pd.DataFrame) -> Block:
    """Return the figure of an arm. `size` is what grows, and `limit` the name of what stands for the limit."""
    # The loss on held-out samples is another one, and no part of the curves.
    seen = updates[~updates["held_out"].astype(bool)]
    spread, error = seen["spread"], ERRORS * seen["limit_error"]
    of_sizes = seen.assign(curve=seen["size"], number=seen["mean"], low=seen["mean"] - spread)
    of_sizes = of_sizes.assign(high=seen["mean"] + spread)
    of_limit = seen.assign(curve=limit, number=seen["limit"], low=seen["limit"] - error)
    of_limit = of_limit.assign(high=seen["limit"] + error).drop_duplicates(["quantity", "update"])
    looks: dict[Any, Look] = {at: (color, "") for at, color in style.scale_colors(seen["size"]).items()}
    left = [
        Chart(
            x="update",
            lines=tuple(Line(y="number", low="low", high="high", where={"quantity": name}) for name in names),
            color="curve",
            looks={**looks, limit: ("black", "", "--")},
            names={at: f"{size} {scale_text(at)}" for at in looks},
            legend="below" if "loss" in names else "keys",
            titles={None: title},
            finish=partial(_end_numbers, y, float(of["limit"].min())),
        )
        for names, (title, y) in QUANTITIES.items()
        if len(of := seen[seen["quantity"].isin(names)])
    ]
    parts = {NETWORK: sizes["one_network"], MEAN: sizes["mean_minus_limit"], NOISE: sizes["noise"]}
    for name, power in ((NETWORK, -0.5), (MEAN, -1.0)):
        known = parts[name] > 0
        n, start = sizes["size"], int(known.to_numpy().argmax())
        parts[f"N^{power:g}"] = parts[name].iloc[start] * (n / n.iloc[start]) ** power
    shown = pd.concat(sizes[["size"]].assign(curve=name, distance=each) for name, each in parts.items())
    shown = shown[shown["distance"] > 0]
    is_noise = shown["curve"] == NOISE
    bottom = float(shown.loc[~is_noise, "distance"].min()) / 1.3
    shown = shown.assign(below=np.where(is_noise, bottom, np.nan), above=shown["distance"].where(is_noise))
    ink = style.INK
    right = Chart(
        x="size",
        lines=(Line(y="distance", low="below", high="above", marker="arm", look={"alpha": 0.8}),),
        color="curve",
        looks={
            NETWORK: (ink, "o", "none"),
            MEAN: (ink, "s", "none"),
            NOISE: ("#8899aa", "", "-"),
            "N^-0.5": (ink, "", "--"),
            "N^-1": (ink, "", ":"),
        },
        x_log2=True,
        titles={None: f"distance to {'the limit' if limit == 'limit' else limit}"},
        finish=lambda axes, _, rows: _finish_distances(axes, size, rows["size"].dropna().tolist(), bottom),
    )
    return Block(
        title=title,
        caption="Bands: the standard deviation over seeds, and two standard errors of the limit. Distances of the loss "
        "are RMS over updates.",
        frame=pd.concat([of_sizes, of_limit, shown]),
        charts=(*left, right),
        height=3.4,
        foot=1.0,
        legend_columns=5,
    )


def bias_rate_block(found: BiasRate) -> Block:
    """Return the changed part of the active experts over the number of experts, a line per share of active ones."""
    power, shares = found.options.rate_exponent, found.options.active_shares
    frame = pd.DataFrame(found.rows)

    def finish(axes: Axes) -> None:
        style.set_axes(axes, "experts", "changed part of the active experts", y_ends=(0.0, None))
        style.log2_scale_axis(axes, found.options.num_experts, "experts")

    chart = Chart(
        x="num_experts",
        lines=(
            Line(y="changed", se="error", marker="arm"),
            Line(y="limit", look={"linestyle": "--", "linewidth": 1.0}, name="infinitely many experts"),
        ),
        color="active_share",
        looks={share: style.MARKS[index % len(style.MARKS)] for index, share in enumerate(shares)},
        names={share: f"K/M = {share:.4g}" for share in shares},
        x_log2=True,
        finish=lambda axes, *_: finish(axes),
    )
    return Block(
        title=f"LR of the router bias grows as experts^{power:g}" if power else "Constant LR of the router bias",
        caption="Bars are two standard errors.",
        frame=frame,
        charts=(chart,),
        height=3.8,
        foot=0.7,
        legend_columns=5,
    )
