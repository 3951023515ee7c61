"""Tau of a weight decay: steps x LR x decay, by which runs of different length are compared (arXiv 2405.13698).

The weights forget what they were over 1 / (LR x decay) steps, so tau is how many times they do so in a run. Decay is
decoupled in every optimizer here: a step multiplies the weights by 1 - LR x decay. The LR is the peak one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hpxfer.results import Results

HP = "weight_decay"
PAD = 38  # points between a panel and its title


@dataclass(frozen=True, kw_only=True)
class Tau:
    """Tau of one parameterization along one axis."""

    per_decay: float  # of the base, over its weight decay: steps x LR
    holds: bool  # whether every role has the same tau at every shape


Taus = Mapping[tuple[str, str], Tau]  # axis, parameterization
NO_TAUS: Taus = {}


def taus_of(results: Results | None, line: pd.DataFrame, hp: str) -> Taus:
    """Return (axis, parameterization) -> tau, nothing if the line scans another HP or is that of a table."""
    if results is None or hp != HP:
        return {}
    trials = results.trials[["trial_id", "steps", "lr", "resolved"]]
    known = line[line["value"] > 0].merge(trials, on="trial_id").drop_duplicates(["axis", "parameterization", "shape"])
    out: dict[tuple[str, str], Tau] = {}
    for (axis, arm), rows in known.groupby(["axis", "parameterization"], sort=False):
        base = rows[rows["is_base"]]
        if len(base) == 1 and (per_decay := float(base["steps"].iloc[0] * base["lr"].iloc[0])) > 0:
            first, *others = [_by_role(row) for row in (*base.itertuples(), *rows.itertuples())]
            holds = all(math.isclose(of.get(role, tau), tau) for of in others for role, tau in first.items())
            out[str(axis), str(arm)] = Tau(per_decay=per_decay, holds=holds)
    return out


def draw_tau(axes: Axes, tau: Tau) -> None:
    """Add tau as a second x axis, above a panel over log2 weight decay, and make way for it."""
    shift = math.log2(tau.per_decay)
    top = axes.secondary_xaxis("top", functions=(lambda x: np.asarray(x) + shift, lambda x: np.asarray(x) - shift))
    top.set_xlabel(f"log2 tau{'' if tau.holds else ' at the base'} (octaves)")
    top.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    axes.set_title(axes.get_title(), pad=PAD)


def _by_role(row: Any) -> dict[str, float]:
    """Return role -> steps x LR x decay at a shape, over the HP."""
    roles = json.loads(row.resolved).get("roles", {})
    return {role: row.steps * of["lr"] * of["weight_decay"] / row.value for role, of in roles.items()}
