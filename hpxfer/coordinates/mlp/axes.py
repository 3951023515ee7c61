"""What is checked along an axis of the family `mlp`: the trials of every shape, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpxfer.coordinates.cases import Case
from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.mlp.own import Options, OwnData, default_training, own_trials
from hpxfer.coordinates.predict import predict
from hpxfer.scaling.claims.block import Block, claims
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.regimes import follows
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.trial import Trial


def predictions(
    choice: Parameterization, optimizer: Column, path: Sequence[Shape], block: Block | None = None
) -> tuple[Prediction, ...]:
    """Return what is predicted of a block along `path`, as powers of the width."""
    soft = all(shape.num_active == shape.num_experts for shape in path)
    scales = [float(shape.width) for shape in path]
    return predict(
        claims(choice, optimizer, block or Block(), soft=soft), scales, [ratios(path[0], shape) for shape in path]
    )


NO_CLAIM = "nothing is predicted"
# Role -> the convention of a table under which it starts at zero.
ZERO_STARTS = {"readout": "readout_init", "router": "router_init"}


@dataclass(frozen=True, kw_only=True)
class MLPAxis:
    """A path of shapes, with all that is needed to train and to judge it."""

    scale_name: str
    scales: tuple[float, ...]
    shapes: tuple[Shape, ...]
    gate: str
    trials: Callable[[Shape], Sequence[Trial]]
    data: OwnData | None  # in place of that of the trials
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]


def own_axis(
    choice: Parameterization,
    optimizer: Column,
    path: Sequence[Shape],
    options: Options,
    *,
    seeds: int,
    steps: int,
) -> MLPAxis:
    """Return a regime of the check's own model."""

    def trials(shape: Shape) -> list[Trial]:
        training = default_training(choice, optimizer)
        return own_trials(choice, optimizer, shape, options, training, seeds=range(seeds), steps=steps)

    shapes = tuple(trials(shape)[0].shape for shape in path)  # all are refused before one is trained
    claimed = predictions(choice, optimizer, shapes, options.block)
    notes = () if claimed else (f"{NO_CLAIM}: no source derives it for this gate, top-k and number of matrices",)
    return MLPAxis(
        scale_name="width",
        scales=tuple(float(shape.width) for shape in shapes),
        shapes=shapes,
        gate=options.gate,
        trials=trials,
        data=OwnData(options=options),
        predictions=claimed,
        notes=notes,
    )


def sweep_axis(
    choice: Parameterization, optimizer: Column, case: Case, trials: Callable[[Shape], Sequence[Trial]]
) -> MLPAxis:
    """Return an axis of a sweep of the family."""
    model, points = case.spec.model, case.axis.points
    assert model.mlp is not None, "a sweep of the family has its section"
    shapes = tuple(point.shape for point in points)
    block = Block(
        experts="two" if model.mlp.expert_matrices == 2 else "one",
        gate="sigmoid" if model.gate == "sigmoid" else "softmax",
        activation=model.mlp.activation,
        has_bias=model.mlp.router_bias != "none",
    )
    started, why = _as_it_starts(choice, optimizer, case.hps)
    why = why or _unclaimed(started, shapes, residual=model.mlp.residual)
    claimed = () if why else predictions(started, optimizer, shapes, block)
    if not claimed:
        why = why or f"no source derives it of {started.label()} for this gate, top-k and number of matrices"
    # The sources count in powers of the width, whatever else grows with it.
    widths = tuple(float(shape.width) for shape in shapes)
    by_width = len(set(widths)) == len(widths)
    return MLPAxis(
        scale_name="width" if by_width else case.axis.scale_name,
        scales=widths if by_width else tuple(point.scale for point in points),
        shapes=shapes,
        gate=model.gate,
        trials=trials,
        data=None,
        predictions=claimed,
        notes=(*case.notes, *([f"{NO_CLAIM}: {why}"] if why else ())),
    )


def _as_it_starts(choice: Parameterization, optimizer: Column, hps: HPs) -> tuple[Parameterization, str | None]:
    """Return the table under whose claims a sweep falls, or why it falls under none.

    Multipliers of zero make the readout or the router start at zero, as the table's own conventions for that do. Of a
    control nothing is claimed but that it must miss.
    """
    table, chosen = choice.table, dict(choice.conventions)
    if table.block_claims is None or table.block_claims.is_control:
        return choice, None
    for role, convention in ZERO_STARTS.items():
        if dict(hps.multipliers).get(f"{role}.init_mult") != 0 or (role == "router" and choice.zero_router(optimizer)):
            continue
        if convention not in table.conventions:
            return choice, f"the sweep starts the {role} at zero, which the source of {choice.name} does not treat"
        chosen[convention] = "zero"
    return parameterization(choice.name, chosen), None


def _unclaimed(choice: Parameterization, shapes: Sequence[Shape], *, residual: bool) -> str | None:
    """Return why no claim holds along the shapes of a sweep, or None if claims may hold.

    From a zero readout all blocks of a stack start to move together, and each is as a single block (MSSP, Theorem 3).
    From a random one, a gradient enters the last block as a fluctuation, and leaves it as another.
    """
    regime = choice.table.regime or "I"
    base = shapes[0]
    if any(shape.depth != base.depth for shape in shapes) or not all(
        follows(regime, ratios(base, shape)) for shape in shapes
    ):
        return f"the sources' claims are about regime {regime}, along which only its dimensions grow"
    zero_readout = dict(choice.conventions).get("readout_init") == "zero"
    if not zero_readout and (base.depth > 1 or residual):
        what = "one block without a residual" if residual else "one block"
        return f"from a random readout the sources derive it for {what}; readout_init=zero has claims on stacks"
    return None
