"""The limit of a sweep's networks before any is trained: the network that an arm approaches, and what a seed sees."""

from __future__ import annotations

from hpxfer.data import data_ref, open_data
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.limit.against.measured import given_of
from hpxfer.limit.against.of_trials import network_of
from hpxfer.limit.network import Given, Network
from hpxfer.spec import SweepSpec
from hpxfer.trial import Expansion


def limit_of_sweep(
    spec: SweepSpec, *, axis: str | None = None, arm: str | None = None, value: float | None = None
) -> tuple[Network, Given]:
    """Return the network that an arm approaches along an axis at a value of the HP, and what its first seed sees.

    By default these are the first arm, axis and value of the sweep. Raise HpxferError if no such limit is solved.
    """
    cells = [cell for cell in Expansion(spec, data_ref(spec.data)).cells() if cell.trial.seed == spec.seeds[0]]
    cells = [cell for cell in cells if cell.line == cells[0].line]
    for name, of, asked in (("axis", "axis", axis), ("arm", "parameterization", arm)):
        legal = dict.fromkeys(getattr(cell, of) for cell in cells)
        chosen = next(iter(legal)) if asked is None else asked
        if chosen not in legal:
            raise HpxferError(f"--{name}: must be one of the sweep's, got {shown(chosen)}; {nearest(chosen, legal)}")
        cells = [cell for cell in cells if getattr(cell, of) == chosen]
    values = dict.fromkeys(cell.trial.hps.get(cell.line) for cell in cells)
    lowest = next(iter(values)) if value is None else value
    if lowest not in values:
        raise HpxferError(f"--value: must be one of {', '.join(f'{one:g}' for one in values)}, got {lowest:g}")
    trials = [cell.trial for cell in cells if cell.trial.hps.get(cell.line) == lowest]
    network, first = network_of(trials, f"{spec.name}: {cells[0].parameterization} along {cells[0].axis}"), trials[0]
    data = open_data(first.setting)
    return network, given_of(first, data, first.setting.steps, has_bias=network.regime == "I")
