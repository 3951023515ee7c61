"""The coordinate check: train every shape of a path for a few steps, and compare what moved with what is predicted.

Eps and weight decay do not show in the features within so few steps. So eps is held against the gradient of its role,
and decay is measured by a step of its own. `not_tested` names what the check is silent on. A role is judged over all
its blocks together, so that a single block that learns too little can hide; its own slopes stand in the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from hpxfer.coordinates import mlp, transformer
from hpxfer.coordinates.answers import Path, answers
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
from hpxfer.coordinates.limit_answer import not_compared
from hpxfer.coordinates.measure import TOLERANCE, Observation
from hpxfer.coordinates.networks import Network, dit_network, gpt_network, mlp_network
from hpxfer.coordinates.optimizer import decays
from hpxfer.coordinates.path_facts import path_facts
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.data import data_ref
from hpxfer.errors import HpxferError, nearest
from hpxfer.model.dit.section import DiTModel
from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization, base_init_std
from hpxfer.scaling.evaluate import parameterization as by_name
from hpxfer.scaling.muon import spelled
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.spec import SweepSpec, decided, forward_problem, model_roles
from hpxfer.train.device import one_thread
from hpxfer.trial import DataRef, Trial, setting_of

Architecture = Literal["gpt", "dit", "mlp"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

MAX_POINT = 1e6  # no axis counts so far, and no ratio may be larger
STEPS = 6
SEEDS = 6
# A MoE layer has them all. A table without any of them is checked on a dense model.
EXPERT_ROLES = ("router", "expert_in", "expert_out")
# Batches of a sweep differ by step and seed, so that every seed has a limit of its own.
MLP: dict[str, Any] = {"names": mlp.NAMES, "kinds": mlp.KINDS}
Observe = Callable[..., Iterator[Observation]]
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
    held_to: Parameterization | None = None  # the table that predictions are of, in place of the one that is trained

    def of_transformer(self, axis: str, case: Case) -> AxisReport:
        """Return the report of one axis in a built-in transformer."""
        model, last = case.spec.model, case.axis.points[-1].shape
        gated = model.ffn == "swiglu"
        if isinstance(model, DiTModel):
            learned = model.dit.positions == "learned"
            network = dit_network(last, gated=gated, learned_positions=learned, classes=model.dit.classes_used)
        else:
            network = gpt_network(last, gated=gated)
        return self._of_case(axis, case, network, transformer.observe)

    def of_mlp(self, axis: str, case: Case) -> AxisReport:
        """Return the report of one axis of a sweep of the family mlp."""
        options, depth = case.spec.model.mlp, case.axis.points[-1].shape.depth
        assert options is not None, "a sweep of the family has its section"
        network = mlp_network(matrices=options.expert_matrices, residual=options.residual, depth=depth)
        return replace(self._of_case(axis, case, network, mlp.of_trials, **MLP), limit=not_compared(OF_SWEEPS))

    def of_own_mlp(self, axis: str, shapes: Sequence[Shape], options: mlp.Options) -> AxisReport:
        """Return the report of a regime in the check's own model of the family mlp."""
        training = mlp.default_training(self.choice, self.optimizer)

        def trials(shape: Shape) -> list[Trial]:
            given = (self.choice, self.optimizer, shape, options, training)
            return mlp.own_trials(*given, seeds=range(self.seeds), steps=self.steps)

        path = tuple(trials(shape)[0].shape for shape in shapes)  # all are refused before one is trained
        network = mlp_network(matrices=options.expert_matrices, residual=False, depth=1)
        widths = [float(shape.width) for shape in path]
        along = replace(self._path(axis, "width", widths, path[0], path, network, options.gate), **MLP)
        found = self._along(along, trials, partial(mlp.of_trials, data=mlp.OwnData(options=options)))
        return replace(found, limit=mlp.approach(self.choice, self.optimizer, axis, options, self.on_shape))

    def _of_case(self, axis: str, case: Case, network: Network, observe: Observe, **named: Any) -> AxisReport:
        """Return the report of an axis of a sweep, or of the check's own."""
        self._require_steps(case)
        self._require_rows(case)
        data, model, points = data_ref(case.spec.data), case.spec.model, case.axis.points
        roles, base, init = self._roles(case), case.spec.base_shape, model.base_init(data.num_inputs or None)
        drawn = (role for role in roles if ROLES[role] not in ("ones", "zeros"))
        path = self._path(
            axis,
            case.axis.scale_name,
            [point.scale for point in points],
            base,
            [point.shape for point in points],
            network,
            model.gate,
            tied_embeddings=model.tied_embeddings,
            decays=case.hps.weight_decay != 0,
            zeros=tuple(role for role in drawn if base_init_std(role, base, init, case.hps) == 0),
        )
        path = replace(path, roles=roles, **named)
        return self._along(path, lambda shape: self._trials(case, data, shape), observe, case.notes)

    def _path(
        self,
        axis: str,
        scale_name: str,
        scales: Sequence[float],
        base: Shape,
        shapes: Sequence[Shape],
        network: Network,
        gate: str,
        **facts: Any,
    ) -> Path:
        return Path(
            choice=self.held_to or self.choice,
            optimizer=self.optimizer,
            axis=axis,
            scale_name=scale_name,
            scales=tuple(scales),
            base=base,
            shapes=tuple(shapes),
            facts=path_facts(base, shapes, scales, network=network, gate=gate, optimizer=self.optimizer, **facts),
            gate=gate,
            roles=(*network.lookups, *(each.role for each in network.maps)),
        )

    def _along(
        self,
        path: Path,
        trials: Callable[[Shape], Sequence[Trial]],
        observe: Observe,
        notes: Sequence[str] = (),
    ) -> AxisReport:
        """Train the trials of every shape, and hold what is observed to what is predicted."""
        observations: list[Observation] = []
        for scale, shape in zip(path.scales, path.shapes, strict=True):
            self.on_shape(f"{path.axis}: {shape.label()}")
            made = trials(shape)
            observations += observe(made, scale=scale, steps=self.steps)
            observations += decays(made[0], path.roles, scale)
        return answers(path, observations, tolerance=self.tolerance, notes=notes)

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
    held_to: str | Parameterization | None = None,
    on_shape: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Return how features scale under a parameterization as a model grows, and whether that is as it should be.

    A table must pass two tests: the model follows the slopes that the table's rows imply, and features and their
    changes keep their size along each axis.

    Args:
        parameterization: a name, which means its table under the default conventions, or a parameterization.
        axes: by default those of the sweep, or those of the table that change the model's shape.
        optimizer: by default the sweep's, or the table's first column.
        sweep: check with the model, data, HPs and shapes of this sweep.
        points: values along one axis.
        steps: optimizer updates, at a constant LR from the first one on.
        seeds: trials per shape, trained together.
        tolerance: by how much an exponent may differ.
        architecture: `gpt`, `dit`, or `mlp` for the MLP mixture of the papers; by default the sweep's family, or
            `gpt`.
        options: of the check's own MLP mixture. A sweep has its own.
        held_to: predict by this table, in place of the one that is trained.
        on_shape: is called with the name of each shape before it is trained.

    Raises:
        HpxferError: no model can follow an axis, or the table lacks a row that the model needs.

    >>> found = hpxfer.check("completep", axes=["width"], points=[32, 64, 128, 256], steps=2, seeds=3)
    >>> found.axes[0].answer
    'passed'
    """
    choice = by_name(parameterization) if isinstance(parameterization, str) else parameterization
    family = sweep.model.family if sweep else "gpt"
    if sweep and family not in ARCHITECTURES:
        rule = f"model.family: must be {' or '.join(ARCHITECTURES)} for a check of a sweep, got {family}, whose parts"
        raise HpxferError(f"{rule} hpxfer does not see; hpxfer.check_module checks a module of your own")
    architecture = architecture or family
    first: Column = next(iter(choice.table.rows))
    column = spelled(optimizer or (_column(sweep) if sweep else first))
    asked = _Check(
        choice=choice,
        optimizer=column,
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        on_shape=on_shape,
        held_to=by_name(held_to) if isinstance(held_to, str) else held_to,
    )
    named = tuple(dict.fromkeys(axes or (sweep_axes(sweep) if sweep else own_axes(choice, column, architecture))))
    _require(asked, named, sweep, points, architecture, options)
    with one_thread():
        if architecture == "mlp" and sweep is None:
            regimes = {axis: mlp_path(axis, points) for axis in named}
            for path in regimes.values():
                require_mlp_memory(path, seeds)
            reports = [asked.of_own_mlp(axis, path, options or mlp.Options()) for axis, path in regimes.items()]
        else:
            cases = {axis: _case(asked, architecture, sweep, axis, points) for axis in named}
            for case in cases.values():
                require_memory(case, seeds)
            report = asked.of_mlp if architecture == "mlp" else asked.of_transformer
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
    if points is not None and len(axes) != 1:
        raise HpxferError(f"--points: must be values of one axis, got {', '.join(axes)}; name one with --axis")
    if wrong := [point for point in points or () if not 0 < point <= MAX_POINT]:
        raise HpxferError(f"--points: must be above 0 and at most {MAX_POINT:g}, got {wrong[0]:g}")


def _case(asked: _Check, architecture: str, sweep: SweepSpec | None, axis: str, points: Sequence[float] | None) -> Case:
    if sweep:
        return sweep_case(decided(sweep, cuda=False), axis, points)  # it trains on the CPU
    roles = {row.role for row in asked.choice.rows(asked.optimizer)}
    if missing := [role for role in EXPERT_ROLES if role not in roles and roles & {*EXPERT_ROLES}]:
        raise HpxferError(
            f"parameterization {asked.choice.name}: a table with experts must have rows for "
            f"{', '.join(EXPERT_ROLES)}, got none for {', '.join(missing)}; add them"
        )
    dense = "router" not in roles
    return own_case(asked.choice, asked.optimizer, axis, points, dense=dense, architecture=architecture)


def _column(sweep: SweepSpec) -> Column:
    found: Column = rows_of("optimizer").get(sweep.training.optimizer).column
    return found
