"""The coordinate check of a user's own module: does it train as its recipe says, as it grows?

Without `optimizer` the check wires the model: it attaches the forward multipliers, initializes by the recipe and makes
the groups. So it checks the roles, the sites and the model. With `optimizer(model, shape)` the user's own code wires,
and `build` initializes. Then the check only watches, and finds an init, an LR or a multiplier that is not the recipe's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from hpxfer.coordinates.answers import Path, answers
from hpxfer.coordinates.cases import require_size
from hpxfer.coordinates.measure import TOLERANCE, Observation
from hpxfer.coordinates.networks import gpt_network
from hpxfer.coordinates.own.load import OwnModule, calling, require_finite, require_loss, require_module
from hpxfer.coordinates.own.numbers import moving, of_recipe
from hpxfer.coordinates.own.observe import Found, Training, observe, reseed, seeded
from hpxfer.coordinates.own.path import OwnPath, given_path, grown_path
from hpxfer.coordinates.own.probe import RANDOM, Probe
from hpxfer.coordinates.own.wiring import Built, optimizer_of, role_conflicts, wired
from hpxfer.coordinates.path_facts import path_facts
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.errors import HpxferError
from hpxfer.recipe import OutOfRangeWarning, Recipe, Resolved, declared, left_to_multiply, unattached
from hpxfer.scaling.muon import NAME as MUON
from hpxfer.scaling.muon import kind_of
from hpxfer.scaling.roles import fan_in_dim
from hpxfer.scaling.shape import Shape

STEPS = 5
SEEDS = 3
NO_PROOF = "a pass shows the scaling of these few steps at these sizes; it is no proof that the HPs transfer"
# Keys of forward multipliers -> the roles and parts whose outputs they multiply.
ACTS_ON = {
    "attn_out": ("attn_out",),
    "expert_out": ("moe",),
    "shared_out": ("shared_out",),
    "dense_out": ("dense_out", "dense"),
    "router": ("router",),
    "readout": ("readout",),
    "embedding": ("embedding",),
}
FEATURES = ("activation", "change", "effective", "propagating")


@dataclass
class _Notes:
    """What a check learns on its way, each sentence once."""

    warnings: dict[str, None] = field(default_factory=dict)
    out_of_range: tuple[str, ...] = ()  # that of the largest shape
    hidden: dict[str, None] = field(default_factory=dict)  # keys of multipliers that no hook shows
    no_maps: dict[str, None] = field(default_factory=dict)  # roles whose tensors are in no linear map


def check_module(
    build: Callable[[Any], nn.Module],
    batch: Callable[[Any], Any],
    loss_fn: Callable[[nn.Module, Any], Tensor],
    recipe: Recipe,
    *,
    axis: str = "width",
    points: Sequence[float] | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    on_shape: Callable[[str], None] = lambda name: None,
    **options: Any,
) -> CheckReport:
    """Return how the features of a model of your own scale as it grows, beside what its recipe says.

    Args:
        build: a shape -> the model. The shape is a Shape that grows out of the recipe's base, or an entry of `shapes`.
        batch: a shape -> a batch, on the model's device. Its seed is that of the trial, at every width.
        loss_fn: model, batch -> the loss, one number. It calls the model.
        recipe: gives the table, the base and the base HPs.
        axis: `width` or `depth`; with `shapes` any dimension that differs between them.
        points: values along the axis; by default 1, 2, 4 and 8 times the base.
        steps: optimizer updates.
        seeds: trials per shape.
        tolerance: by how much an exponent may differ.
        on_shape: is called with the name of each shape before it is trained.
        **options: `optimizer(model, shape)` of your own, and then `build` initializes and attaches too; `roles` as
            recipes take them, or a function of the model, by default `hpxfer.roles`; `sites` and `by_hand` as
            `Recipe.attach` takes them; `shapes`, a list of shapes or of dictionaries of your own, and then
            `dims(entry)` returns the dimensions of an entry.

    Raises:
        HpxferError: a function raises or returns something else, or the recipe does not fit the model.
    """
    name = f"{getattr(build, '__module__', 'your')}:{getattr(build, '__qualname__', 'build')}"
    try:
        module = OwnModule(name=name, build=build, batch=batch, loss_fn=loss_fn, **options)
    except TypeError as error:
        raise HpxferError(f"check_module: {error}".replace("OwnModule.__init__() got an ", "")) from None
    return check_own(
        module, recipe, axis=axis, points=points, steps=steps, seeds=seeds, tolerance=tolerance, on_shape=on_shape
    )


def check_own(
    module: OwnModule,
    recipe: Recipe,
    *,
    axis: str = "width",
    points: Sequence[float] | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    on_shape: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Return the report of `check_module` for the functions of a module."""
    require_size(steps, seeds, points)
    if kind_of(recipe.column) == MUON:
        name = recipe.parameterization.label()
        raise HpxferError(
            f"a module must have a recipe of adam or sgd to be checked, got {recipe.column}; its table is checked by "
            f"hpxfer check --parameterization '{name}' --optimizer '{recipe.column}'"
        )
    path = (
        grown_path(recipe.base_shape, axis, points)
        if module.shapes is None
        else given_path(axis, module.shapes, module.dims, points)
    )
    report = _Check(module=module, recipe=recipe, steps=steps, seeds=seeds, tolerance=tolerance).axis(path, on_shape)
    return CheckReport(
        parameterization=recipe.parameterization.label(),
        source=recipe.parameterization.table.source,
        optimizer=recipe.column,
        architecture=module.name,
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        axes=(report,),
    )


@dataclass(frozen=True, kw_only=True)
class _Check:
    module: OwnModule
    recipe: Recipe
    steps: int
    seeds: int
    tolerance: float
    notes: _Notes = field(default_factory=_Notes)

    def axis(self, path: OwnPath, on_shape: Callable[[str], None]) -> AxisReport:
        """Return the report along a path."""
        forward = [Resolved(self.recipe, shape).forward for shape in path.shapes]
        keys = moving(forward, path.scales)
        observations: list[Observation] = []
        built: list[Built] = []
        for at, shape in enumerate(path.shapes):
            on_shape(f"{path.axis}: {shape.label()}")
            found: list[Found] = []
            for seed in range(self.seeds):
                made, sizes = self._trial(path.given[at], shape, seed, keys)
                found.append(sizes)
            built.append(made)
            observations += _observations(found, path.scales[at])
        hidden = {part for key in self.notes.hidden for part in ACTS_ON.get(key, ())}
        observations = [seen for seen in observations if not (seen.role in hidden and seen.quantity in FEATURES)]
        return self._report(path, built, observations)

    def _report(self, path: OwnPath, built: Sequence[Built], observations: Sequence[Observation]) -> AxisReport:
        roles = tuple(dict.fromkeys(role for item in built[0].tensors for role in item.roles))
        gate = self.recipe.file.model.gate
        network = gpt_network(path.shapes[-1], gated=any(role.endswith("_gate") for role in roles))
        facts = path_facts(
            self.recipe.base_shape,
            path.shapes,
            path.scales,
            network=network,
            gate=gate,
            tied_embeddings=built[0].tied,
            decays=self.recipe.hps.weight_decay != 0,
        )
        along = Path(
            choice=self.recipe.parameterization,
            optimizer=self.recipe.column,
            axis=path.axis,
            scale_name=path.axis,
            scales=path.scales,
            base=self.recipe.base_shape,
            shapes=path.shapes,
            facts=facts,
            gate=gate,
            roles=roles,
        )
        found = answers(
            along,
            # Where the fan-in stays, both parts of what an update adds scale alike.
            [seen if facts.symbols[fan_in_dim(seen.role)] else replace(seen, random=()) for seen in observations],
            more=tuple(of_recipe([each.rows for each in built], path.scales)),
            tolerance=self.tolerance,
            notes=(*self.notes.warnings, *self.notes.out_of_range),
        )
        return replace(found, not_tested=(*self._not_possible(), *found.not_tested, NO_PROOF))

    def _not_possible(self) -> Iterator[str]:
        """Yield what no hook shows, one sentence per reason."""
        if self.notes.no_maps:
            roles = ", ".join(self.notes.no_maps)
            yield f"features of {roles}: not possible, as their modules are no linear maps that hooks see"
        if hidden := dict.fromkeys((*self.notes.hidden, *self.module.by_hand)):
            keys = ", ".join(hidden)
            yield f"multiplier of {keys}: not possible, as the model multiplies by hand where no hook sees it"

    def _trial(self, given: Any, shape: Shape, seed: int, keys: Sequence[str]) -> tuple[Built, Found]:
        at, own = f"{shape.label()}, seed {seed}", self.module
        with seeded(seed):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with calling("build", at):
                    made = own.build(given)
                model = require_module(made, "build", at)
                built = wired(own, self.recipe, model, shape, seed=seed, at=at)
                optimizer = optimizer_of(own, self.recipe, built, given, shape, at=at)
            self._note(caught)
            self.notes.warnings.update(dict.fromkeys(role_conflicts(built)))
            reseed(seed)
            with calling("batch", at):
                batch = own.batch(given)

            def loss() -> Tensor:
                with calling("loss_fn", at):
                    out = own.loss_fn(model, batch)
                return require_loss(out, "loss_fn", at)

            model.train()
            require_finite(loss(), "loss_fn", at)
            self._look_at(built, shape, loss, keys)
            training = Training(
                model=model,
                tensors=built.tensors,
                optimizer=optimizer,
                column=self.recipe.column,
                loss=loss,
            )
            with calling("training", at):
                return built, observe(training, self.steps)

    def _look_at(self, built: Built, shape: Shape, run: Callable[[], object], keys: Sequence[str]) -> None:
        """Note what hooks cannot see of this model: multipliers by hand, and tensors of no linear map."""
        probe = Probe(built.model, built.tensors, run)
        maps = probe.linear_maps()
        for item in built.tensors:
            is_map = item.role not in ("embedding", "position") and item.tensor.ndim > 1
            if is_map and item.name not in maps:
                self.notes.no_maps.update(dict.fromkeys(item.roles))
        numbers = left_to_multiply(built.model, Resolved(self.recipe, shape))
        if declared(built.model) is None and (why := unattached(built.model, shape, numbers)):
            self.notes.warnings[why.partition("\n")[0]] = None  # the user's code may have silenced the recipe's warning
            return  # nothing multiplies, which the slopes then show
        for key in keys:
            seen = probe.multiplied(key) or (key == "readout" and probe.sees_logits())
            if numbers.get(key, 1.0) != 1.0 and not seen:  # where it is 1 nothing need multiply
                self.notes.hidden[key] = None

    def _note(self, caught: Sequence[warnings.WarningMessage]) -> None:
        """Keep the warnings of hpxfer, and hand on those of others."""
        for each in caught:
            said = str(each.message).partition("\n")[0]
            if isinstance(each.message, OutOfRangeWarning):
                self.notes.out_of_range = (said,)
            elif type(each.message).__module__.startswith("hpxfer."):
                self.notes.warnings[said] = None
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _observations(found: Sequence[Found], scale: float) -> Iterator[Observation]:
    """Yield the sizes that every seed has."""
    for (quantity, role, layer), step in found[0]:
        key, beside = ((quantity, role, layer), step), ((RANDOM, role, layer), step)
        if quantity != RANDOM and all(key in of_seed for of_seed in found):
            values = tuple(of_seed[key] for of_seed in found)
            random = tuple(of_seed[beside] for of_seed in found) if quantity == "effective" else ()
            yield Observation(
                quantity=quantity, role=role, layer=layer, step=step, scale=scale, values=values, random=random
            )
