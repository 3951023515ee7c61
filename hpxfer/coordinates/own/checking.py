"""The coordinate check of a user's own module: does it train as its recipe says, as it grows?

Without `optimizer` the check wires the model: it attaches the forward multipliers, initializes by the recipe and makes
the groups. So it checks the roles, the sites and the model. With `optimizer(model, shape)` the user's own code wires,
and `build` initializes. Then the check only watches, and finds an init, an LR or a multiplier that is not the recipe's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hpxfer.coordinates.expected import Expected
from hpxfer.coordinates.limits import require_size
from hpxfer.coordinates.measure import TOLERANCE, Observation, everywhere, fit, over_layers
from hpxfer.coordinates.not_tested import not_tested
from hpxfer.coordinates.own.calls import calling, require_finite, require_loss, require_module, require_optimizer
from hpxfer.coordinates.own.load import OwnModule
from hpxfer.coordinates.own.numbers import moving, of_recipe
from hpxfer.coordinates.own.observe import Found, Training, observe, reseed, seeded
from hpxfer.coordinates.own.parts import Held, held
from hpxfer.coordinates.own.path import OwnPath, given_path, grown_path
from hpxfer.coordinates.own.probe import Probe
from hpxfer.coordinates.path_facts import PathFacts, path_facts
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.errors import HpxferError
from hpxfer.recipe.explain import TensorRow
from hpxfer.recipe.forward_hooks import declared
from hpxfer.recipe.known_models import known_model
from hpxfer.recipe.match import Roles, pairs_of
from hpxfer.recipe.propose_roles import roles as proposed
from hpxfer.recipe.recipe import Recipe
from hpxfer.recipe.resolved import Base, Resolved
from hpxfer.recipe.unattached import unattached
from hpxfer.recipe.wrappers import plain_names
from hpxfer.scaling.coverage import ModelFacts, coverage_warnings
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
    hidden: dict[str, None] = field(default_factory=dict)  # keys of multipliers that no hook shows
    no_maps: dict[str, None] = field(default_factory=dict)  # roles whose tensors are in no linear map
    num_rows: int = 0  # tokens or samples in a batch


@dataclass(frozen=True, kw_only=True)
class _Built:
    """A model at one shape, and what the recipe says of its tensors."""

    model: nn.Module
    rows: tuple[TensorRow, ...]
    tensors: tuple[Held, ...]
    roles: Roles
    tied: bool


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
        forward = [Resolved(Base(self.recipe.file), shape).forward for shape in path.shapes]
        keys = moving(forward, path.scales)
        observations: list[Observation] = []
        built: list[_Built] = []
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

    def _report(self, path: OwnPath, built: Sequence[_Built], observations: Sequence[Observation]) -> AxisReport:
        choice, column = self.recipe.parameterization, self.recipe.column
        roles = tuple(dict.fromkeys(role for item in built[0].tensors for role in item.roles))
        gated = any(role.endswith("_gate") for role in roles)
        expected = Expected(choice=choice, optimizer=column)
        facts = self._facts(path, built[0].tied, gated)
        base = self.recipe.base_shape
        predictions = (
            *expected.predictions(base, path.shapes, path.scales, facts),
            *of_recipe([each.rows for each in built], path.scales),
        )
        whole = [*(seen for seen in observations if seen.layer is None), *over_layers(observations)]
        fits = fit([*whole, *everywhere(observations, len(path.scales))], predictions, self.tolerance)
        good = expected.stability(whole, facts, self.tolerance)
        model = ModelFacts(gate=self.recipe.file.model.gate, tied_embeddings=built[0].tied)
        judged = good if expected.is_registered else fits
        return AxisReport(
            axis=path.axis,
            scale_name=path.axis,
            scales=path.scales,
            shapes=tuple(shape.label() for shape in path.shapes),
            warnings=(
                *coverage_warnings(choice, base, path.shapes[-1], model, column),
                *self.notes.warnings,
                *self._large_batch(path),
            ),
            fits=fits,
            stability=good,
            must_be_stable=expected.is_registered,
            not_tested=(
                *self._not_possible(),
                *not_tested(choice, column, judged, roles, facts.gate_sums_over),
                NO_PROOF,
            ),
        )

    def _facts(self, path: OwnPath, tied: bool, gated: bool) -> PathFacts:
        return path_facts(
            self.recipe.base_shape,
            path.shapes,
            path.scales,
            gate=self.recipe.file.model.gate,
            gated=gated,
            tied_embeddings=tied,
            decays=self.recipe.hps.weight_decay != 0,
        )

    def _large_batch(self, path: OwnPath) -> Iterator[str]:
        """Warn of a batch beside which the smallest model is small: an update then aligns with no single row."""
        smallest = min(shape.width for shape in path.shapes)
        if path.axis == "width" and self.notes.num_rows > smallest:
            yield (
                f"the batch has {self.notes.num_rows} tokens or samples and the smallest model {smallest} features, so "
                "that `effective` may fall with the width under a right recipe; take a smaller batch or wider points"
            )

    def _not_possible(self) -> Iterator[str]:
        """Yield what no hook shows, one sentence per reason."""
        if self.notes.no_maps:
            roles = ", ".join(self.notes.no_maps)
            yield f"features of {roles}: not possible, as their modules are no linear maps that hooks see"
        if self.notes.hidden:
            keys = ", ".join(self.notes.hidden)
            yield f"multiplier of {keys}: not possible, as the model multiplies by hand where no hook sees it"

    def _trial(self, given: Any, shape: Shape, seed: int, keys: Sequence[str]) -> tuple[_Built, Found]:
        at, own = f"{shape.label()}, seed {seed}", self.module
        with seeded(seed):
            with calling("build", at):
                made = own.build(given)
            model = require_module(made, "build", at)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with calling("the recipe", at):
                    built = self._wired(model, shape, seed)
                optimizer = self._optimizer(built, given, shape, at)
            self._note(caught)
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

    def _wired(self, model: nn.Module, shape: Shape, seed: int) -> _Built:
        """Attach the multipliers and initialize, unless the user's code does so. Return the model with its roles."""
        own, recipe = self.module, self.recipe
        roles = own.roles(model) if callable(own.roles) else own.roles
        roles = proposed(model) if roles is None else tuple(roles.items() if isinstance(roles, Mapping) else roles)
        if own.optimizer is None:
            self._attach(model, shape)
            recipe.init_(model, roles, shape, generator=_generator(model, seed))
        rows = recipe.explain(model, roles, shape).rows
        self._compare_roles(model, rows)
        plain = plain_names(model)
        parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
        tied = any(row.note is not None and row.note.startswith("embedding and readout are one") for row in rows)
        return _Built(model=model, rows=rows, tensors=held(rows, parameters), roles=roles, tied=tied)

    def _attach(self, model: nn.Module, shape: Shape) -> None:
        """Attach the forward multipliers. A model that has them already keeps them."""
        own, numbers = self.module, Resolved(Base(self.recipe.file), shape).forward
        known = known_model(model) is not None
        if declared(model) is not None:
            return
        # Common attention divides by sqrt(d_head) without being told.
        common = bool(shape.head_dim) and numbers.get("attn_logits") == shape.head_dim**-0.5
        if own.sites is not None or own.by_hand or known:
            sites = () if own.sites is None and not known else own.sites
            has_site = sites is None or any(key == "attn_logits" for _, key in pairs_of(sites))
            by_hand = {*own.by_hand, *(("attn_logits",) if common and not has_site else ())}
            self.recipe.attach(model, shape, sites, by_hand=sorted(by_hand))
        elif unattached(model, shape, numbers):
            names = ", ".join(
                f"{key} ({by:.6g})"
                for key, by in numbers.items()
                if by != 1.0 and not (common and key == "attn_logits")
            )
            raise HpxferError(
                f"the forward multipliers must have a place, got none for {names}; give `sites`, e.g. "
                '{"*.attention": "attn_out", "head": "readout"}, or name in `by_hand` those that the model applies'
            )

    def _optimizer(self, built: _Built, given: Any, shape: Shape, at: str) -> torch.optim.Optimizer:
        own, recipe = self.module, self.recipe
        if own.optimizer is not None:
            with calling("optimizer", at):
                made = own.optimizer(built.model, given)
            return require_optimizer(made, built.model, "optimizer", at)
        with calling("the recipe", at):
            groups = recipe.param_groups(built.model, built.roles, shape)
        return torch.optim.SGD(groups) if recipe.column == "sgd" else torch.optim.AdamW(groups)

    def _look_at(self, built: _Built, shape: Shape, run: Callable[[], object], keys: Sequence[str]) -> None:
        """Note what hooks cannot see of this model: multipliers by hand, and tensors of no linear map."""
        probe = Probe(built.model, built.tensors, run)
        maps = probe.linear_maps()
        self.notes.num_rows = max(self.notes.num_rows, probe.num_rows())
        for item in built.tensors:
            is_map = item.role not in ("embedding", "position") and item.tensor.ndim > 1
            if is_map and item.name not in maps:
                self.notes.no_maps.update(dict.fromkeys(item.roles))
        numbers = Resolved(Base(self.recipe.file), shape).forward
        if declared(built.model) is None and unattached(built.model, shape, numbers):
            return  # nothing multiplies, which the slopes then show
        for key in keys:
            seen = probe.multiplied(key) or (key == "readout" and probe.sees_logits())
            if numbers.get(key, 1.0) != 1.0 and not seen:  # where it is 1 nothing need multiply
                self.notes.hidden[key] = None

    def _compare_roles(self, model: nn.Module, rows: Sequence[TensorRow]) -> None:
        """Warn of a tensor whose name says another role than the one that it was given."""
        names = {name: match.role for match in proposed(model).matches for name in match.names}
        for row in rows:
            by_name = names.get(row.name)
            if by_name is not None and by_name != row.role.partition("@")[0]:
                self.notes.warnings[f"{row.name} has the role {row.role}, and its name says {by_name}"] = None

    def _note(self, caught: Sequence[warnings.WarningMessage]) -> None:
        """Keep the warnings of hpxfer, and hand on those of others."""
        for each in caught:
            if type(each.message).__module__.startswith("hpxfer."):
                self.notes.warnings[str(each.message).partition("\n")[0]] = None
            else:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _generator(model: nn.Module, seed: int) -> torch.Generator:
    return torch.Generator(device=next(model.parameters()).device).manual_seed(seed)


def _observations(found: Sequence[Found], scale: float) -> Iterator[Observation]:
    """Yield the sizes that every seed has."""
    for (quantity, role, layer), step in found[0]:
        key = ((quantity, role, layer), step)
        if all(key in of_seed for of_seed in found):
            values = tuple(of_seed[key] for of_seed in found)
            yield Observation(quantity=quantity, role=role, layer=layer, step=step, scale=scale, values=values)
