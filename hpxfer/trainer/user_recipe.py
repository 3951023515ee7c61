"""TrialRecipe: the recipe of a trial at the trial's shape, so that user code names neither."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

# The public face, as user code imports it: this runs in the process of the user's training, and not in a driver.
import hpxfer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrialRecipe:
    """What a recipe gives the trial's model. `text` is that of a recipe file, `shape` has the dimensions of a Shape."""

    text: str
    shape: Mapping[str, int]

    @cached_property
    def recipe(self) -> hpxfer.Recipe:
        """The recipe itself, for its other methods."""
        return hpxfer.Recipe.parse(self.text, "config.json: recipe")

    def init_(
        self, model: torch.nn.Module, roles: Any = None, *, generator: torch.Generator | None = None
    ) -> torch.nn.Module:
        """Initialize the model as `Recipe.init_` does. Without `roles`, those of `hpxfer.roles(model)` are taken."""
        return self.recipe.init_(model, self._roles(model, roles), self.shape, generator=generator)

    def param_groups(self, model: torch.nn.Module, roles: Any = None) -> list[dict[str, Any]]:
        """Return the groups for the optimizer, see `Recipe.param_groups`."""
        return self.recipe.param_groups(model, self._roles(model, roles), self.shape)

    def attach(self, model: torch.nn.Module, sites: Any = None, *, by_hand: Collection[str] = ()) -> Any:
        """Attach the forward multipliers, see `Recipe.attach`."""
        return self.recipe.attach(model, self.shape, sites, by_hand=by_hand)

    def forward_multipliers(self) -> dict[str, float]:
        """Return key -> forward multiplier, see `Recipe.forward_multipliers`."""
        return self.recipe.forward_multipliers(self.shape)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Return a schedule that keeps the ratios between groups, see `Recipe.scheduler`."""
        return self.recipe.scheduler(optimizer, factor)

    def check_lr_ratios(self, optimizer: torch.optim.Optimizer) -> float:
        """Return the factor on the peak LR of all groups, see `Recipe.check_lr_ratios`."""
        return self.recipe.check_lr_ratios(optimizer)

    @staticmethod
    def _roles(model: torch.nn.Module, roles: Any) -> Any:
        return hpxfer.roles(model) if roles is None else roles
