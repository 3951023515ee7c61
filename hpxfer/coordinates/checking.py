"""The coordinate check: train every shape of a path for a few steps, and hold what moved against what is claimed.

It cannot see factors that do not show in so few steps: on eps (far below the gradients in the check's own model), on
weight decay (0 in it) and on the betas. Of position, gains and biases it judges the gradient, not what they learn. A
role is judged over all its blocks together: one among them that learns too little hides, and stands in the JSON alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from hpxfer.coordinates import block, gpt
from hpxfer.coordinates.measure import TOLERANCE, Observation, fit, over_layers
from hpxfer.coordinates.paths import Case, block_path, own_axes, own_case, sweep_axes, sweep_case
from hpxfer.coordinates.predict import predict
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.data import data_ref
from hpxfer.errors import HpxferError, nearest
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import Parameterization, ratios
from hpxfer.scaling.evaluate import parameterization as by_name
from hpxfer.scaling.predictions import Claim
from hpxfer.scaling.predictions.gpt import claims as gpt_claims
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Optimizer
from hpxfer.spec import SweepSpec
from hpxfer.trial import DataRef, Trial, setting_of

Architecture = Literal["gpt", "block"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

MAX_POINT = 1e6  # no axis counts as far, and a ratio may not
STEPS = 6
SEEDS = 6


@dataclass(frozen=True, kw_only=True)
class _Check:
    """What all axes of a check share."""

    choice: Parameterization
    optimizer: Optimizer
    steps: int
    seeds: int
    tolerance: float
    on_shape: Callable[[str], None]

    def gpt(self, axis: str, case: Case, claims: Sequence[Claim]) -> AxisReport:
        """Return the report of one axis in the built-in GPT."""
        points, base, model = case.path.points, case.spec.base_shape, case.spec.model
        if self.steps >= (most := min(point.shape.steps for point in points)):
            raise HpxferError(f"--steps: must be below the {most} steps that the data is held for, got {self.steps}")
        data = data_ref(case.spec.data)
        observations: list[Observation] = []
        for point in points:
            self.on_shape(f"{axis}: {point.shape.label()}")
            trials = self._trials(case, data, point.shape)
            observations += gpt.observe(trials, scale=point.scale, steps=self.steps)
        scales = tuple(point.scale for point in points)
        found = predict(claims, scales, [ratios(base, point.shape) for point in points])
        facts = ModelFacts(gate=model.gate, tied_embeddings=model.tied_embeddings)
        outside = [one for one in observations if one.layer is None]
        every = [*outside, *over_layers(observations), *_everywhere(observations, len(points))]
        return AxisReport(
            axis=axis,
            scale_name=case.path.scale_name,
            scales=scales,
            shapes=tuple(point.shape.label() for point in points),
            warnings=(*self._warnings(base, [point.shape for point in points], facts), *case.notes),
            lines=fit(every, found, self.tolerance),
        )

    def block(self, axis: str, path: Sequence[Shape]) -> AxisReport:
        """Return the report of one regime in the minimal MLP block."""
        self.on_shape(f"{axis}: the MLP block")
        observations = block.observe(
            self.choice, self.optimizer, path, seeds=tuple(range(self.seeds)), steps=self.steps
        )
        return AxisReport(
            axis=axis,
            scale_name="width",
            scales=tuple(float(shape.width) for shape in path),
            shapes=tuple(shape.label() for shape in path),
            warnings=self._warnings(path[0], path, ModelFacts(gate="sigmoid", tied_embeddings=False)),
            lines=fit(observations, block.predictions(self.choice, self.optimizer, path), self.tolerance),
        )

    def _warnings(self, base: Shape, path: Sequence[Shape], facts: ModelFacts) -> tuple[str, ...]:
        """Return what the table's source does not cover on the way, and at the far end how far that goes."""
        return tuple(coverage_warnings(self.choice, base, path[-1], facts, self.optimizer))

    def _trials(self, case: Case, data: DataRef, shape: Shape) -> list[Trial]:
        setting = setting_of(case.spec, data, shape)
        return [
            Trial(
                id=f"check {self.choice.label()} {shape.label()} seed {seed}",
                setting=setting,
                shape=shape,
                base=case.spec.base_shape,
                parameterization=self.choice,
                hps=case.hps,
                seed=seed,
            )
            for seed in range(self.seeds)
        ]


def check(
    parameterization: str | Parameterization,
    *,
    axes: Sequence[str] | None = None,
    optimizer: Optimizer | None = None,
    sweep: SweepSpec | None = None,
    points: Sequence[float] | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    architecture: str = "gpt",
    claims: Sequence[Claim] | None = None,
    on_shape: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Return what a parameterization does to the features of a model that grows, against what theory claims.

    A name means its table under the default conventions.
    `axes`: by default the sweep's, or the table's own, that move the model's shape. `points` are values along one axis.
    `optimizer`: by default the sweep's, or the table's first. `claims` stand in for those of the table's name, in the
    GPT. `on_shape` hears what is being trained. The LR is constant from the first step on. Raises HpxferError where no
    model can follow an axis.
    """
    choice = by_name(parameterization) if isinstance(parameterization, str) else parameterization
    first: Optimizer = next(iter(choice.table.rows))
    column = optimizer or (_column(sweep) if sweep else first)
    asked = _Check(choice=choice, optimizer=column, steps=steps, seeds=seeds, tolerance=tolerance, on_shape=on_shape)
    named = tuple(dict.fromkeys(axes or (sweep_axes(sweep) if sweep else own_axes(choice, column, architecture))))
    _require(asked, named, sweep, points, architecture)
    with _one_thread():
        if architecture == "block":
            regimes = {axis: block_path(axis, points) for axis in named}  # all are refused before one is trained
            reports = [asked.block(axis, path) for axis, path in regimes.items()]
        else:
            known = tuple(gpt_claims(choice, column) if claims is None else claims)
            cases = {axis: _case(asked, sweep, axis, points) for axis in named}
            reports = [asked.gpt(axis, case, known) for axis, case in cases.items()]
    return CheckReport(
        parameterization=choice.label(),
        source=choice.table.source,
        optimizer=column,
        architecture=architecture,
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        axes=tuple(reports),
    )


def _require(
    asked: _Check, axes: Sequence[str], sweep: SweepSpec | None, points: Sequence[float] | None, architecture: str
) -> None:
    """Raise HpxferError unless what was asked goes together."""
    if asked.steps < 1 or asked.seeds < 1:
        raise HpxferError(f"--steps and --seeds must be at least 1, got {asked.steps} and {asked.seeds}")
    if architecture not in ARCHITECTURES:
        fix = nearest(architecture, ARCHITECTURES)
        raise HpxferError(f"--architecture: unknown architecture {architecture!r}; {fix}")
    asked.choice.rows(asked.optimizer)  # says which columns there are
    if sweep and asked.optimizer != _column(sweep):
        got = f"--optimizer {asked.optimizer}"
        raise HpxferError(f"{got}: the sweep trains with {sweep.training.optimizer}; leave one out")
    if sweep and architecture == "block":
        raise HpxferError("--architecture block: has a model and data of its own; leave --sweep out")
    if points is not None and len(axes) != 1:
        raise HpxferError(f"--points: must be values of one axis, got {', '.join(axes)}; name one with --axis")
    if wrong := [one for one in points or () if not 0 < one <= MAX_POINT]:
        raise HpxferError(f"--points: must be above 0 and at most {MAX_POINT:g}, got {wrong[0]:g}")


def _case(asked: _Check, sweep: SweepSpec | None, axis: str, points: Sequence[float] | None) -> Case:
    if sweep:
        return sweep_case(sweep, axis, points)
    dense = not any(row.role == "router" for row in asked.choice.rows(asked.optimizer))
    return own_case(asked.choice, asked.optimizer, axis, points, dense=dense)


def _everywhere(observations: Sequence[Observation], num_scales: int) -> Iterator[Observation]:
    """Yield what was seen inside single blocks, of those blocks that every shape of the path has."""
    seen: dict[tuple[str, str, int | None, int], list[Observation]] = {}
    for one in observations:
        seen.setdefault((one.quantity, one.role, one.layer, one.step), []).append(one)
    for group in seen.values():
        if group[0].layer is not None and len(group) == num_scales:
            yield from group


def _column(sweep: SweepSpec) -> Optimizer:
    return "sgd" if sweep.training.optimizer == "sgd" else "adam"


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
