"""Samples: what the best trial of each shape and table draws, beside held-out samples of the same classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hpxfer.analysis import Analysis
from hpxfer.data import open_data
from hpxfer.errors import HpxferError
from hpxfer.figures.chart import Block, Panels, draw
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.text import shape_name
from hpxfer.host import hp_text
from hpxfer.model.families import Family
from hpxfer.registry import rows_of
from hpxfer.results import Results
from hpxfer.search import stored_trials
from hpxfer.store import LOSS_COLUMNS
from hpxfer.weights.kept import FOLDER, weights_from

MOST, ACROSS = 16, 8  # samples of a trial, and those side by side
MOST_TRIALS = 11
# Of all trials: about 15 s on one core. A model of billions of parameters is not for the machine that reports.
MOST_FLOPS = 4e11
STEPS = 50
GAP = 1  # pixels between samples
HELD_OUT = "held-out samples"
NOT_KEPT = "the weights of the best trials were not kept; set resources.keep: last"

Images = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures(Panels):
    """A picture in each panel."""

    pictures: Mapping[str, Images]  # panel -> [rows, columns] in gray or [rows, columns, 3], from 0 to 1

    def draw_panel(self, axes: Axes, value: str, rows: pd.DataFrame, frame: pd.DataFrame) -> list[Artist]:
        """Draw a panel, which has no legend."""
        axes.imshow(self.pictures[value], cmap="gray", vmin=0, vmax=1, interpolation="none")
        axes.set_axis_off()
        return []


def mosaic(samples: Images, low: float, high: float) -> Images:
    """Return samples [B, channels, side, side] side by side, with `low` as 0 and `high` as 1, and 1 between them.

    Three channels are red, green and blue. Of any other number, such as those of a latent, it is the first.
    """
    count, channels, side, _ = samples.shape
    shown = samples if channels == 3 else samples[:, :1]
    rows, size = -(-count // ACROSS), side + GAP
    out = np.ones((rows * size - GAP, min(count, ACROSS) * size - GAP, shown.shape[1]), np.float32)
    for number, sample in enumerate(shown):
        top, left = (place * size for place in divmod(number, ACROSS))
        out[top : top + side, left : left + side] = np.clip((sample.transpose(1, 2, 0) - low) / (high - low), 0, 1)
    return out if channels == 3 else out[..., 0]


def samples_block(results: Results, analysis: Analysis, family: Family) -> Block | str:
    """Return what the figure shows, or why there is none."""
    assert family.draw_samples is not None
    cells, column = results.cells, LOSS_COLUMNS[results.spec.judge.loss]
    known = cells[(cells["status"] == "finished") & cells[column].notna()]
    best = known.loc[known.groupby(["axis", "parameterization", "shape"], sort=False)[column].idxmin()]
    best = best.sort_values(["axis", "scale"], kind="stable")
    stored = results.trials[results.trials["trial_id"].isin(best["trial_id"])]
    trials = {trial.id: (trial, row) for _, trial, row in stored_trials(results.expansion, stored)}
    hp, flops, left_out = results.spec.judged_hp, 0.0, 0
    rows: list[dict[str, Any]] = []
    drawn: dict[str, Images] = {}
    for trial_id, same in best.groupby("trial_id", sort=False):
        trial, row = trials[str(trial_id)]
        # A third of the FLOPs of training are those of the forward pass.
        flops += family.flops_per_token(trial.shape, trial.setting) / 3 * MOST * STEPS
        if flops > MOST_FLOPS or len(rows) == MOST_TRIALS:
            left_out += 1
            continue
        try:
            weights = weights_from(results.folder / FOLDER, trial, row)
        except HpxferError:
            continue
        try:
            data = open_data(trial.setting)
        except HpxferError as error:
            return str(error)
        held_out, found = family.draw_samples(trial, weights.tensors, weights.router_bias, data, MOST, STEPS)
        cell = same.iloc[0]
        tables = " = ".join(dict.fromkeys(same["parameterization"]))
        place = f"{cell['scale_name'].replace('_', ' ')} {shape_name(cell['scale'], cell['is_base'])}"
        value = trial.hps.get(hp)
        name = f"{tables}, {place}\n{hp} {hp_text(value)}, loss {cell[column]:.4f}"
        drawn |= {name: found} if drawn else {HELD_OUT: held_out, name: found}
        rows.append({"panel": name, "parameterization": tables, "shape": cell["shape"], "hp": value})
        rows[-1] |= {"seed": cell["seed"], "best_nats": cell[column], "trial": trial.id, "steps": STEPS}
        rows[-1] |= {"variance": float(found.var() / held_out.var())}
    if not rows:
        return NOT_KEPT if not left_out else f"drawing them takes more than {MOST_FLOPS:.0e} FLOPs"
    frame = pd.DataFrame([{"panel": HELD_OUT, "variance": 1.0}, *rows])
    low, high = (float(end) for end in np.quantile(drawn[HELD_OUT], (0.001, 0.999)))
    pictures = {name: mosaic(samples, low, high) for name, samples in drawn.items()}
    ends = frame["variance"][1:]
    spread = f"{ends.min():.2f}" + (f" to {ends.max():.2f}" if len(ends) > 1 else "")
    more = f" {left_out} more trials would take too long to draw from." if left_out else ""
    return Block(
        title=f"Samples of the best trials have {spread} times the variance of held-out samples",
        caption=f"Samples that the trial of lowest loss at each shape draws, one seed: {STEPS} Euler steps from noise, "
        "which is the same for all. Each has the class of the held-out sample at its place, and variances are of the "
        f"samples shown. The loss is the {analysis.judged.words} ({analysis.judged.unit}).{more}",
        frame=frame,
        headings={str(name): hp if name == "hp" else str(name) for name in frame if name != "panel"},
        charts=(Pictures(x="variance", panel="panel", pictures=pictures),),
        judged=analysis.judged,
        height=1.5,
        foot=0.1,
    )


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    rows, name = rows_of("family"), results.spec.model.family
    if name not in rows or rows.get(name).draw_samples is None:
        return {}
    return {"": samples_block(results, analysis, rows.get(name))}


SAMPLES = SweepFigure(
    name="samples",
    question="What do the samples look like that the models draw?",
    infos=_infos,
    draw=draw,
)
