"""What is observed of the family `mlp` at every step, one value per trial: the RMS of each piece, and what routers do.

Every quantity is measured on a fixed batch, except gradients, which are those of the step's batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpxfer.coordinates.measure import MIN_SCALES, Observation
from hpxfer.coordinates.mlp.measures import KINDS, ProbeMeasures, nominal_router_std
from hpxfer.coordinates.mlp.moments import Moment, moments
from hpxfer.coordinates.mlp.own import Options, OwnData, Training, default_training, own_trials
from hpxfer.coordinates.mlp.quantities import measured
from hpxfer.coordinates.optimizer import gradients_over_eps
from hpxfer.errors import HpxferError
from hpxfer.model.parameters import PROBE_SAMPLES
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.train.log import PROBE_SEED
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack, Trial

# RMS of what training added to a weight, in units of the weight's own. Rounding to float32 is 5% of this.
LEAST_CHANGE = 2.0**-21


def of_trials(
    trials: Sequence[Trial], *, scale: float, steps: int, data: OwnData | None = None
) -> Iterator[Observation]:
    """Yield what is seen in the trials of one shape, one trial per seed, before training and after each update.

    It is the sizes of all pieces, gradients in units of their eps, and the measures of
    `hpxfer.coordinates.mlp.measures`, which are those named in its `KINDS`.
    `data` replaces those of the trials' setting. Then the probe is the whole batch.
    """
    given = {} if data is None else {"data": data}
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"), **given)  # type: ignore[arg-type]
    seed, count = (0, state.setting.batch_tokens) if data else (PROBE_SEED, PROBE_SAMPLES)
    parts = state.data.train_batches(seed, 0, 1)
    probe = state.for_all((parts[0][0][:count], parts[1][0][:count]))
    pulled: set[str] = set()  # parameters that had a gradient
    measures = ProbeMeasures(state=state, inputs=probe[0], nominal_std=nominal_router_std(trials[0]))
    for moment in moments(state, steps, probe):
        _require_digits(moment, state.roles, trials[0], pulled)
        pulled |= {name for name, copies in moment.gradients.items() if any(copy.any() for copy in copies)}
        sizes = [
            _observation(moment, scale, quantity, role, layer, values.flatten(1).square().mean(1).sqrt())
            for quantity, role, layer, values in measured(moment, state.roles)
        ]
        yield from sizes
        yield from gradients_over_eps(sizes, trials[0])
        yield from (_observation(moment, scale, *found) for found in measures.of(moment))


def _observation(
    moment: Moment, scale: float, quantity: str, role: str, layer: int | None, values_K: Tensor
) -> Observation:
    values = tuple(values_K.tolist())
    return Observation(quantity=quantity, role=role, layer=layer, step=moment.step, scale=scale, values=values)


def _require_digits(moment: Moment, roles: dict[str, str], trial: Trial, pulled: set[str]) -> None:
    """Raise HpxferError if a weight has moved by so little that rounding decides by how much."""
    rates = trial.resolved()
    for name, copies in moment.weights.change.items():
        is_pulled = name in pulled and rates[roles[name]].lr > 0
        for change, start in zip(copies, moment.weights.initial[name], strict=True):
            moved, size = float(change.square().mean().sqrt()), float(start.square().mean().sqrt())
            if moved < LEAST_CHANGE * size and (moved or is_pulled):
                raise HpxferError(
                    f"{trial.shape.label()}: after {moment.step} updates {roles[name]} must have moved by "
                    f"{LEAST_CHANGE:.1g} of its size or more, got {moved / size:.1g}, which float32 rounds; take a "
                    "larger lr, or fewer blocks"
                )


def observe(
    choice: Parameterization,
    optimizer: Column,
    path: Sequence[Shape],
    *,
    seeds: Sequence[int],
    steps: int,
    options: Options | None = None,
    training: Training | None = None,
) -> tuple[Observation, ...]:
    """Return the sizes of all pieces along `path` on the check's own samples. The widths are the scales."""
    widths = [shape.width for shape in path]
    if len(set(widths)) != len(widths) or len(widths) < MIN_SCALES:
        raise HpxferError(f"mlp: path must have at least {MIN_SCALES} shapes of different width, got widths {widths}")
    options, training = options or Options(), training or default_training(choice, optimizer)
    out: list[Observation] = []
    for shape in path:
        trials = own_trials(choice, optimizer, shape, options, training, seeds=seeds, steps=steps)
        found = of_trials(trials, scale=float(shape.width), steps=steps, data=OwnData(options=options))
        out += (seen for seen in found if seen.quantity not in KINDS)
    return tuple(out)
