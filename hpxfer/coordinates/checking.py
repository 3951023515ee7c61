"""The coordinate check: train every shape of a path for a few steps, and compare what moved with what is predicted.

Eps and weight decay do not show in the features within so few steps. So eps is held against the gradient of its role,
and decay is measured by a step of its own. `not_tested` names what the check is silent on. A role is judged over all
its blocks together, so that a single block that learns too little can hide; its own slopes stand in the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hpxfer.coordinates import gpt, mlp
from hpxfer.coordinates.cases import (
    Case,
    mlp_path,
    own_axes,
    own_case,
    require_memory,
    require_mlp_memory,
    require_size,
    sweep_axes,
    sweep_case,
)
from hpxfer.coordinates.expected import Expected
from hpxfer.coordinates.limit_answer import not_compared
from hpxfer.coordinates.measure import (
    TOLERANCE,
    Observation,
    Prediction,
    by_scale,
    everywhere,
    fit,
    over_blocks,
    over_layers,
)
from hpxfer.coordinates.mlp.axes import MLPAxis, own_axis, sweep_axis
from hpxfer.coordinates.optimizer import decays, gradients_over_eps
from hpxfer.coordinates.optimizer_rules import decay_rule
from hpxfer.coordinates.path_facts import PathFacts, path_facts
from hpxfer.coordinates.report import MLP, AxisReport, CheckReport, not_tested
from hpxfer.coordinates.stability import VECTORS
from hpxfer.data import data_ref
from hpxfer.errors import HpxferError, nearest
from hpxfer.registry import rows_of
from hpxfer.scaling.claims import Claim
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.evaluate import parameterization as by_name
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.spec import SweepSpec, decided, forward_problem, model_roles
from hpxfer.train.device import one_thread
from hpxfer.trial import DataRef, Trial, setting_of

Architecture = Literal["gpt", "mlp"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

MAX_POINT = 1e6  # no axis counts so far, and no ratio may be larger
STEPS = 6
SEEDS = 6
# A MoE layer has them all. A table without any of them is checked on a dense model.
EXPERT_ROLES = ("router", "expert_in", "expert_out")
# Batches of a sweep differ by step and seed, so that every seed has a limit of its own.
OF_SWEEPS = "a sweep is compared with its limit once it has run: hpxfer limit --against RESULTS"


@dataclass(frozen=True, kw_only=True)
class _Check:
    """What all axes of a check share."""

    choice: Parameterization
    optimizer: Column
    steps: int
    seeds: int
    tolerance: float
    on_shape: Callable[[str], None]
    claims: Sequence[Claim] | None = None  # in place of those of the table

    @property
    def expected(self) -> Expected:
        """Where the predictions come from."""
        return Expected(choice=self.choice, optimizer=self.optimizer, claims=self.claims)

    @property
    def is_registered(self) -> bool:
        """Whether the table is a user's."""
        return self.expected.is_registered

    def gpt(self, axis: str, case: Case) -> AxisReport:
        """Return the report of one axis in the built-in GPT."""
        points, base, model = case.axis.points, case.spec.base_shape, case.spec.model
        self._require_steps(case)
        self._require_rows(case)
        data = data_ref(case.spec.data)
        observations: list[Observation] = []
        whole: list[Observation] = []
        for point in points:
            self.on_shape(f"{axis}: {point.shape.label()}")
            trials = self._trials(case, data, point.shape)
            found = list(gpt.observe(trials, scale=point.scale, steps=self.steps, weight_changes=self._watched))
            of_shape = [*(seen for seen in found if seen.layer is None), *over_layers(found)]
            gradients = (seen for seen in of_shape if seen.quantity == "gradient")
            whole += [*of_shape, *gradients_over_eps(gradients, trials[0])]
            whole += decays(trials[0], self._roles(case), point.scale)
            observations += found
        shapes = [point.shape for point in points]
        facts = _facts(case)
        scales = tuple(point.scale for point in points)
        predictions = self.expected.predictions(base, shapes, scales, facts)
        fits = fit([*whole, *everywhere(observations, len(points))], predictions, self.tolerance)
        good = self.expected.stability(whole, facts, self.tolerance)
        return AxisReport(
            axis=axis,
            scale_name=case.axis.scale_name,
            scales=scales,
            shapes=tuple(shape.label() for shape in shapes),
            warnings=(
                *self._warnings(base, shapes, ModelFacts(gate=model.gate, tied_embeddings=model.tied_embeddings)),
                *case.notes,
            ),
            fits=fits,
            stability=good,
            must_be_stable=self.is_registered,
            not_tested=not_tested(
                self.choice,
                self.optimizer,
                good if self.is_registered else fits,
                self._roles(case),
                facts.gate_sums_over,
            ),
        )

    def mlp(self, axis: str, path: MLPAxis) -> AxisReport:
        """Return the report of one axis in the family mlp."""
        observations: list[Observation] = []
        whole: list[Observation] = []
        measures: list[Observation] = []
        for scale, shape in zip(path.scales, path.shapes, strict=True):
            self.on_shape(f"{axis}: {shape.label()}")
            trials = path.trials(shape)
            seen = list(mlp.of_trials(trials, scale=scale, steps=self.steps, data=path.data))
            found = [each for each in seen if each.quantity not in mlp.KINDS]
            measures += [each for each in seen if each.quantity in mlp.KINDS]
            whole += [*(each for each in found if each.layer is None), *over_layers(found)]
            roles = dict.fromkeys(each.role for each in found if each.quantity == "gradient")
            whole += decays(trials[0], (role for role in roles if role != "router_bias"), scale)
            observations += found
        facts = ModelFacts(gate=path.gate, tied_embeddings=False)
        expected = (*path.predictions, *self._mlp_decay(path)) if path.predictions else ()
        one_block = all(each.layer is None for each in measures)
        return AxisReport(
            axis=axis,
            scale_name=path.scale_name,
            scales=path.scales,
            shapes=tuple(shape.label() for shape in path.shapes),
            warnings=(*self._warnings(path.shapes[0], path.shapes, facts), *path.notes),
            fits=fit([*whole, *everywhere(observations, len(path.shapes))], expected, self.tolerance),
            measures=by_scale(
                measures if one_block else [*over_blocks(measures, mlp.KINDS), *everywhere(measures, len(path.shapes))],
                mlp.KINDS,
            ),
            not_tested=MLP,
        )

    def of_sweep(self, axis: str, case: Case) -> AxisReport:
        """Return the report of one axis of a sweep of the family mlp."""
        self._require_rows(case)
        self._require_steps(case)
        data = data_ref(case.spec.data)
        path = sweep_axis(self.choice, self.optimizer, case, lambda shape: self._trials(case, data, shape))
        return replace(self.mlp(axis, path), limit=not_compared(OF_SWEEPS))

    def _mlp_decay(self, path: MLPAxis) -> Iterator[Prediction]:
        """Yield what weight decay should take from each role in one step, as in the GPT."""
        base = path.shapes[0]
        facts = path_facts(
            base, path.shapes, path.scales, gate=path.gate, gated=False, tied_embeddings=False, decays=False
        )
        return decay_rule(self.choice, self.optimizer, facts)

    @property
    def _watched(self) -> Collection[str]:
        """The roles whose weights are watched themselves. A registered table is held to the changes of all."""
        return ROLES if self.is_registered else VECTORS

    def _roles(self, case: Case) -> tuple[str, ...]:
        """Return the roles of the optimizer's tensors."""
        roles = model_roles(case.axis.points[-1].shape, case.spec.model)
        tied = ("readout",) if case.spec.model.tied_embeddings else ()
        return tuple(role for role in roles if role not in ("router_bias", *tied))

    def _require_steps(self, case: Case) -> None:
        if self.steps >= (most := min(point.shape.steps for point in case.axis.points)):
            raise HpxferError(f"--steps: must be below the {most} steps that the data is held for, got {self.steps}")

    def _require_rows(self, case: Case) -> None:
        """Raise HpxferError unless the table has a row for every role of the model.

        The model must apply each forward multiplier of these rows too.
        """
        known = {row.role for row in self.choice.rows(self.optimizer)}
        shape = case.axis.points[-1].shape
        if missing := [role for role in model_roles(shape, case.spec.model) if role not in known]:
            raise HpxferError(
                f"parameterization {self.choice.name}: must have a row for every role of the model {shape.label()}, "
                f"got none for {', '.join(missing)}; add them to its {self.optimizer} column"
            )
        shapes = [point.shape for point in case.axis.points]
        if wrong := forward_problem(case.spec.model, self.choice, self.optimizer, case.spec.base_shape, shapes):
            raise HpxferError(wrong)

    def _warnings(self, base: Shape, path: Sequence[Shape], facts: ModelFacts) -> tuple[str, ...]:
        """Return what the table's source does not cover along the path, and how far the last shape goes beyond it."""
        return tuple(coverage_warnings(self.choice, base, path[-1], facts, self.optimizer))

    def _trials(self, case: Case, data: DataRef, shape: Shape) -> list[Trial]:
        setting = setting_of(case.spec, data, shape, self.choice)
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
    optimizer: Column | None = None,
    sweep: SweepSpec | None = None,
    points: Sequence[float] | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    architecture: str | None = None,
    options: mlp.Options | None = None,
    claims: Sequence[Claim] | None = None,
    on_shape: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Return how features scale under a parameterization as a model grows, and whether that is as it should be.

    A table of hpxfer is compared with what its source claims. A table that you registered must pass two tests: the
    model follows the slopes that its rows imply, and features and their changes keep their size along each axis.

    Args:
        parameterization: a name, which means its table under the default conventions, or a parameterization.
        axes: by default those of the sweep, or those of the table that change the model's shape.
        optimizer: by default the sweep's, or the table's first column.
        sweep: check with the model, data, HPs and shapes of this sweep.
        points: values along one axis.
        steps: optimizer updates, at a constant LR from the first one on.
        seeds: trials per shape, trained together.
        tolerance: by how much an exponent may differ.
        architecture: `gpt`, or `mlp` for the MLP mixture of the papers; by default the sweep's family, or `gpt`.
        options: of the check's own MLP mixture. A sweep has its own.
        claims: replace those of the table, in the GPT.
        on_shape: is called with the name of each shape before it is trained.

    Raises:
        HpxferError: no model can follow an axis, or the table lacks a row that the model needs.
    """
    choice = by_name(parameterization) if isinstance(parameterization, str) else parameterization
    family = sweep.model.family if sweep else "gpt"
    if sweep and family not in ARCHITECTURES:
        rule = f"model.family: must be {' or '.join(ARCHITECTURES)} for a check of a sweep, got {family}, whose parts"
        raise HpxferError(f"{rule} hpxfer does not see; hpxfer.check_module checks a module of your own")
    architecture = architecture or family
    first: Column = next(iter(choice.table.rows))
    column = optimizer or (_column(sweep) if sweep else first)
    asked = _Check(
        choice=choice,
        optimizer=column,
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        on_shape=on_shape,
        claims=claims,
    )
    named = tuple(dict.fromkeys(axes or (sweep_axes(sweep) if sweep else own_axes(choice, column, architecture))))
    _require(asked, named, sweep, points, architecture, options)
    with one_thread():
        if architecture == "mlp" and sweep is None:
            regimes = {axis: mlp_path(axis, points) for axis in named}
            for path in regimes.values():
                require_mlp_memory(path, seeds)
            chosen = options or mlp.Options()
            paths = {
                axis: own_axis(choice, column, path, chosen, seeds=seeds, steps=steps) for axis, path in regimes.items()
            }
            reports = [
                replace(asked.mlp(axis, path), limit=mlp.approach(choice, column, axis, chosen, on_shape))
                for axis, path in paths.items()
            ]
        else:
            cases = {axis: _case(asked, sweep, axis, points) for axis in named}
            for case in cases.values():
                require_memory(case, seeds)
            report = asked.of_sweep if architecture == "mlp" else asked.gpt
            reports = [report(axis, case) for axis, case in cases.items()]
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
    asked: _Check,
    axes: Sequence[str],
    sweep: SweepSpec | None,
    points: Sequence[float] | None,
    architecture: str,
    options: mlp.Options | None,
) -> None:
    """Raise HpxferError unless what was asked goes together."""
    require_size(asked.steps, asked.seeds, points)
    if architecture not in ARCHITECTURES:
        fix = nearest(architecture, ARCHITECTURES)
        raise HpxferError(f"--architecture: unknown architecture {architecture!r}; {fix}")
    asked.choice.rows(asked.optimizer)  # raises, and names the columns there are
    if sweep and asked.optimizer != _column(sweep):
        got = f"--optimizer {asked.optimizer}"
        raise HpxferError(f"{got}: the sweep trains with {sweep.training.optimizer}; leave one out")
    if sweep and architecture != sweep.model.family:
        raise HpxferError(
            f"--architecture {architecture}: the model of the sweep is of the family {sweep.model.family}; leave it out"
        )
    if options is not None and (sweep or architecture != "mlp"):
        got = "a sweep" if sweep else f"--architecture {architecture}"
        raise HpxferError(
            f"--gate, --activation, --matrices, --top-k and --bias: are of the check's own model of the family mlp, "
            f"got {got}; give --architecture mlp and no sweep, or leave them out"
        )
    if not axes:
        raise HpxferError(f"{asked.choice.name}: its axes change no shape; name one to check with --axis")
    if architecture == "mlp" and asked.is_registered and asked.choice.table.block_claims is None:
        raise HpxferError(f"--architecture mlp: {asked.choice.name} has no block_claims to compare with; leave it out")
    if points is not None and len(axes) != 1:
        raise HpxferError(f"--points: must be values of one axis, got {', '.join(axes)}; name one with --axis")
    if wrong := [point for point in points or () if not 0 < point <= MAX_POINT]:
        raise HpxferError(f"--points: must be above 0 and at most {MAX_POINT:g}, got {wrong[0]:g}")


def _case(asked: _Check, sweep: SweepSpec | None, axis: str, points: Sequence[float] | None) -> Case:
    if sweep:
        return sweep_case(decided(sweep, cuda=False), axis, points)  # it trains on the CPU
    roles = {row.role for row in asked.choice.rows(asked.optimizer)}
    if missing := [role for role in EXPERT_ROLES if role not in roles and roles & {*EXPERT_ROLES}]:
        raise HpxferError(
            f"parameterization {asked.choice.name}: a table with experts must have rows for "
            f"{', '.join(EXPERT_ROLES)}, got none for {', '.join(missing)}; add them"
        )
    return own_case(asked.choice, asked.optimizer, axis, points, dense="router" not in roles)


def _facts(case: Case) -> PathFacts:
    """Return what the derivation reads of a case."""
    model, points = case.spec.model, case.axis.points
    return path_facts(
        case.spec.base_shape,
        [point.shape for point in points],
        [point.scale for point in points],
        gate=model.gate,
        gated=model.ffn == "swiglu",
        tied_embeddings=model.tied_embeddings,
        decays=case.hps.weight_decay != 0,
    )


def _column(sweep: SweepSpec) -> Column:
    found: Column = rows_of("optimizer").get(sweep.training.optimizer).column
    return found
