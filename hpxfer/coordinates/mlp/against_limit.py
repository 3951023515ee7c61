"""Do the losses of the check's own MLP mixture approach the limit that its table claims?

The check measures losses alone here, which takes a small part of the time that all pieces of both passes take. So
there can be many seeds. Shapes, seeds and updates are fixed, whatever the rest of a check is asked for: the power of
the test is known for them (docs/check.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hpxfer.coordinates.cases import mlp_path
from hpxfer.coordinates.limit_answer import LimitAnswer, compared, not_compared
from hpxfer.coordinates.mlp.own import Options, OwnData, default_training, own_trials
from hpxfer.errors import HpxferError
from hpxfer.host import spell_time
from hpxfer.limit import Floats, solve
from hpxfer.limit.of_trials import Claimed, claimed_network
from hpxfer.limit.seen import SeedLimits, seen_by
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack, Trial

# Small widths and many seeds: the error of a mean over S networks of width N falls as (N S)^-1/2, and their time grows
# as N^2 S or N^3 S.
WIDTHS = {"regime-i": (32, 64, 128, 256), "regime-ii": (32, 64, 128, 256), "regime-iii": (24, 48, 96, 192)}
SEEDS = {"regime-i": 192, "regime-ii": 192, "regime-iii": 384}
STEPS = 6
# Of the solver. Its error is then below that of the means over networks.
SITES = 8192
SOLVES = 8
# A check takes a minute. It does not wait longer for limits, such as those of nonlinear experts with biases per seed.
MOST_S = 60.0
# Weights of the networks that are trained together, which bounds the memory: about four copies in float32.
_STACK = 2**24


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The check's own model under a table, and under the one that it claims to approach."""

    choice: Parameterization
    claim: Parameterization
    optimizer: Column
    options: Options

    def trials(self, shape: Shape, seeds: Sequence[int], *, claimed: bool = False) -> list[Trial]:
        training = default_training(self.claim, self.optimizer)
        choice = self.claim if claimed else self.choice
        return own_trials(choice, self.optimizer, shape, self.options, training, seeds=seeds, steps=STEPS)


def approach(
    choice: Parameterization,
    optimizer: Column,
    axis: str,
    options: Options,
    on_shape: Callable[[str], None] = lambda name: None,
) -> LimitAnswer:
    """Return whether losses approach the limit that the table of `choice` claims, or why that is not asked."""
    name = choice.table.limit
    if optimizer != "sgd":
        does = "divides entry by entry" if optimizer == "adam" else "orthogonalizes matrices"
        return not_compared(f"not solved for {optimizer}, whose update {does}; --optimizer sgd has limits")
    if name is None:
        return not_compared(f"{choice.name} claims none")
    regime = parameterization(name).table.regime
    assert regime is not None, "what has a limit grows along a regime"
    if axis != (own := f"regime-{regime.lower()}"):
        return not_compared(f"{choice.name} claims that of {name}, which is along {own}")
    case = _Case(choice=choice, claim=_claim(choice, name), optimizer=optimizer, options=options)
    path, seeds = mlp_path(axis, WIDTHS[axis]), SEEDS[axis]
    try:
        found = claimed_network(
            [case.trials(shape, (0,))[0] for shape in path],
            [case.trials(shape, (0,), claimed=True)[0] for shape in path],
            name,
        )
        on_shape(f"{axis}: limit of {name}")
        groups = seen_by(
            case.trials(path[0], range(seeds)),
            STEPS,
            has_bias=found.network.regime == "I",
            data=OwnData(options=options),
        )
        on_start = partial(_require_quick, len(groups))
        limits = [
            (seen, solve(found.network, seen.given, sites=SITES, seeds=SOLVES, on_start=on_start)) for seen in groups
        ]
    except HpxferError as error:
        return not_compared(str(error).removeprefix("limit: "))
    solved = SeedLimits(limits=limits, seeds=tuple(range(seeds)))
    return _answer(case, found, path, solved, lambda width: on_shape(f"{axis}: {seeds} networks of width {width}"))


def _require_quick(num_limits: int, seconds: float) -> None:
    """Raise HpxferError if the limits take longer than a check should."""
    if num_limits * seconds > MOST_S:
        raise HpxferError(
            f"its {num_limits} limits take about {spell_time(num_limits * seconds)} to solve; take linear activations, "
            "or no router bias, which each seed draws for itself"
        )


def _claim(choice: Parameterization, name: str) -> Parameterization:
    """Return the claimed table under the conventions of `choice`, as far as it has them."""
    known = parameterization(name).table.conventions
    return parameterization(
        name, {key: value for key, value in choice.conventions if key in known and known[key].allows(value)}
    )


def _answer(
    case: _Case,
    found: Claimed,
    path: Sequence[Shape],
    solved: SeedLimits,
    on_width: Callable[[int], None],
) -> LimitAnswer:
    losses = []
    for shape in path:
        on_width(shape.width)
        losses.append(_losses(case, shape, len(solved.seeds)))
    passes = range(STEPS + 1)
    result = compared(
        [shape.width for shape in path],
        np.stack(losses),
        solved.series("loss", passes),
        solved.error("loss", passes),
        solved.error_seeds,
    )
    return LimitAnswer.of(
        result,
        claim=case.claim.label(),
        differences=found.differences,
        cautions=solved.cautions,
    )


def _losses(case: _Case, shape: Shape, seeds: int) -> Floats:
    """Return the loss of every seed before training and after each update, [S, T + 1]."""
    weights = 2 * shape.num_experts * shape.expert_width * shape.width
    together = max(1, min(seeds, _STACK // weights))
    parts = []
    for first in range(0, seeds, together):
        parts.append(losses_of(case.trials(shape, range(first, min(first + together, seeds))), case.options))
    return np.concatenate(parts)


def losses_of(trials: Sequence[Trial], options: Options) -> Floats:
    """Return the full-batch loss of trials of one shape before training and after each update, [S, STEPS + 1]."""
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"), data=OwnData(options=options))  # type: ignore[arg-type]
    out = np.empty((len(trials), STEPS + 1))
    for step in range(STEPS + 1):
        output, gradients = state.forward_backward(step)
        out[:, step] = output.losses_KT.detach().double().mean(1).numpy()
        if step < STEPS:
            state.update(output, gradients)
    return out
