"""Expansion: the trials and the cells of a sweep, computed lazily from the sweep alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from hpxfer.scaling.coverage import ModelFacts
from hpxfer.scaling.evaluate import Parameterization, evaluate, parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec import (
    ScheduleSpec,
    SweepSpec,
    are_registered,
    arm_label,
    axes_of,
    choice_of,
    digests_used,
    model_roles,
    own_at,
    parts_of,
    stored_names,
    ties_at,
)
from hpxfer.trial.identity import canonical, digest_of, hps_of, identity
from hpxfer.trial.setting import DataRef, Setting, base_hps, setting_of, trainer_text
from hpxfer.trial.trial import TRAINER_VERSION, Trial

PRODUCT = "product"
_TABLE = "parameterization:"  # how the key of a registered table starts


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An entry of the sweep's grid. Several cells may share one trial, e.g. the cells of the base shape."""

    axis: str
    scale_name: str
    scale: float
    shape: str  # the shape's name on this axis
    parameterization: str  # label of the arm
    line: str  # the HP that this line scans, or `product`
    trial: Trial


def hp_points(spec: SweepSpec) -> Iterator[tuple[str, HPs]]:
    """Yield (line, HPs) of every point of the grid: one line per HP through the base values, or the full product."""
    start = base_hps(spec)
    if spec.product:
        names = list(spec.grid)
        for values in itertools.product(*(spec.grid[name].numbers() for name in names)):
            point = start
            for name, value in zip(names, values, strict=True):
                point = point.with_value(name, value)
            yield PRODUCT, point
        return
    for name, values_of in spec.grid.items():
        for value in values_of.numbers():
            yield name, start.with_value(name, value)


class Expansion:
    """The lazy expansion of one sweep over given data. Everything that cells share is computed once.

    A stored sweep expands without the code of its plug-ins. Whether a table agrees with the others at the base cannot
    be evaluated then: `own_at_base` names the tables that have trials of their own there.
    """

    def __init__(
        self,
        spec: SweepSpec,
        data: DataRef,
        trainer_version: int = TRAINER_VERSION,
        plugins: Mapping[str, str] | None = None,
        own_at_base: Collection[str] | None = None,
        name: str | None = None,
    ) -> None:
        self.spec = spec
        # kind:name -> digest of the plug-in that registers what trials use, by default as the loaded sweep says
        self.plugins = dict(digests_used(spec) if plugins is None else plugins)
        self._own_at_base = None if are_registered(stored_names(spec.plugins or ())) else frozenset(own_at_base or ())
        self.data = data
        self.trainer_version = trainer_version  # today's, or that of the stored trials whose ids are asked for
        self.setting = setting_of(spec, data)  # of the base
        self.choices = tuple(dict.fromkeys(map(choice_of, spec.parameterizations)))
        self.axes = axes_of(spec)
        self.name = name  # of its arms
        # What the trials of a parameterization at a shape share, whatever their HPs and seed.
        self._shared: dict[tuple[Parameterization, Shape], Callable[[HPs, str, int], Trial]] = {}
        # Arms of the same name, HPs and balance, as a sweep of plain tables. A sweep of these is its own only part.
        self.parts: tuple[Expansion, ...] = tuple(self._parts())

    def _parts(self) -> Iterator[Expansion]:
        for name, under in parts_of(self.spec):
            if under is self.spec:
                yield self
                return
            part = Expansion(under, self.data, self.trainer_version, self.plugins, self._own_at_base, name)
            if part.setting == self.setting:
                part._shared = self._shared
            yield part

    def label(self, choice: Parameterization) -> str:
        """Return the label of the arm of a table: its own label, with the name of this part."""
        return arm_label(choice.label(), self.name)

    @cached_property
    def arms(self) -> dict[str, tuple[Expansion, Parameterization]]:
        """Label -> the part of the sweep that the arm belongs to, and the arm's table."""
        return {part.label(choice): (part, choice) for part in self.parts for choice in self.choices}

    def setting_at(self, shape: Shape, choice: Parameterization | None = None) -> Setting:
        """Return the setting of the trials at a shape: those of `choice`, or what all of them share."""
        same = (shape.batch_tokens, shape.steps) == (self.setting.batch_tokens, self.setting.steps)
        setting = self.setting if same and shape not in self._own_schedules else setting_of(self.spec, self.data, shape)
        ties, trainer = ties_at(self.spec, choice, shape), trainer_text(self.spec, choice)
        same = (ties, trainer) == (setting.ties, setting.trainer)
        return setting if same else replace(setting, ties=ties, trainer=trainer)

    def facts(self, choice: Parameterization, shape: Shape) -> ModelFacts:
        """Return what the rules of coverage need to know about the model of a table at a shape."""
        setting = self.setting_at(shape, choice)
        return ModelFacts(gate=setting.gate, tied_embeddings=setting.tied_embeddings, ties=setting.ties)

    @cached_property
    def _own_schedules(self) -> dict[Shape, ScheduleSpec]:
        return own_at(self.spec, "schedule")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape, once, in the order of the axes."""
        return tuple(dict.fromkeys(point.shape for axis in self.axes for point in axis.points))

    def cells(self) -> Iterator[Cell]:
        """Yield every cell of the grid: part, axis, shape, parameterization, HP point, seed."""
        if self.parts != (self,):
            yield from itertools.chain.from_iterable(part.cells() for part in self.parts)
            return
        grid: Iterator[tuple[str, HPs, str]] = ((line, hps, _hps_json(hps)) for line, hps in hp_points(self.spec))
        for axis in self.axes:
            for point in axis.points:
                if self.spec.search.where == "base" and point.shape != self.spec.base_shape:
                    continue
                place: dict[str, Any] = {"axis": axis.name, "scale_name": axis.scale_name, "scale": point.scale}
                place["shape"] = axis.label(point.shape)
                for choice in self.choices:
                    make, label = self._maker(choice, point.shape), self.label(choice)
                    grid, points = itertools.tee(grid)  # computed once, and only as far as someone reads
                    for line, hps, hps_json in points:
                        for seed in self.spec.seeds:
                            trial = make(hps, hps_json, seed)
                            yield Cell(**place, parameterization=label, line=line, trial=trial)

    def trial(self, choice: Parameterization, shape: Shape, hps: HPs, seed: int) -> Trial:
        """Return the trial of one of `choices` at a shape. At the base, tables that agree there share their trials."""
        return self._maker(choice, shape)(hps, _hps_json(hps), seed)

    def trials(self) -> Iterator[Trial]:
        """Yield every trial once."""
        seen: set[str] = set()
        for cell in self.cells():
            if cell.trial.id not in seen:
                seen.add(cell.trial.id)
                yield cell.trial

    def own_parameterization(self, choice: Parameterization, shape: Shape) -> Parameterization | None:
        """Return None where `choice` gives the base model itself: at the base shape, unless it differs there."""
        if shape != self.spec.base_shape or choice.is_own:
            return choice
        if self._own_at_base is not None:
            return choice if choice.name in self._own_at_base else None
        plain = parameterization("sp")
        roles, column = model_roles(shape, self.spec.model), self.setting.column
        factors, plain_factors = (evaluate(table, shape, shape, column) for table in (choice, plain))
        if self.spec.trainer is not None:
            roles = tuple(factors)  # which of them its model has is not known
        same = all(factors[role] == plain_factors.get(role) for role in roles)
        # A structure concerns experts and routers, which a dense base does not have.
        same = same and ("router" not in roles or choice.structure() == plain.structure())
        same = same and ties_at(self.spec, choice, shape) == ties_at(self.spec, None, shape)
        return None if same else choice

    def _maker(self, choice: Parameterization, shape: Shape) -> Callable[[HPs, str, int], Trial]:
        """Return (HPs, their JSON, seed) -> the trial of a choice at a shape, with all that such trials share made."""
        if (found := self._shared.get((choice, shape))) is not None:
            return found
        own = self.own_parameterization(choice, shape)
        # The JSON that their ids hash before the HPs, between the HPs and the seed, and after the seed.
        before, _, rest = canonical(self.identity(own, shape)).partition('"<hps>"')
        middle, _, after = rest.partition('"<seed>"')
        shared: dict[str, Any] = {
            "setting": self.setting_at(shape, own),
            "shape": shape,
            "base": self.spec.base_shape,
            "parameterization": own,
            "plugins": tuple(sorted(self.plugins_of(own).items())),
        }

        def make(hps: HPs, hps_json: str, seed: int) -> Trial:
            return Trial(id=digest_of(f"{before}{hps_json}{middle}{seed}{after}"), hps=hps, seed=seed, **shared)

        self._shared[choice, shape] = make
        return make

    def identity(
        self, choice: Parameterization | None, shape: Shape, hps: Any = "<hps>", seed: Any = "<seed>"
    ) -> dict[str, Any]:
        """Return what determines a trial's numbers. `choice` is what `own_parameterization` gives."""
        return identity(
            setting=self.setting_at(shape, choice),
            shape=shape,
            base=self.spec.base_shape,
            choice=choice,
            hps=hps,
            seed=seed,
            trainer_version=self.trainer_version,
            plugins=self.plugins_of(choice),
        )

    def plugins_of(self, choice: Parameterization | None) -> dict[str, str]:
        """Return the part of `plugins` that trials of a choice use: all but the tables of other choices."""
        own = f"{_TABLE}{choice.name}" if choice is not None else None
        return {key: digest for key, digest in self.plugins.items() if key == own or not key.startswith(_TABLE)}


@lru_cache(maxsize=1024)  # seeds, and then arms, share points
def _hps_json(hps: HPs) -> str:
    return canonical(hps_of(hps))
