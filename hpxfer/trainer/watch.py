"""Watch: hooks by which a torch training reports what the checks of its trainer ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hpxfer.receipts.receipt import changes_since, digest, measure_sites, receipt, weights_of
from hpxfer.recipe.known_models import known_model, known_sites
from hpxfer.recipe.propose_roles import roles as proposed_roles
from hpxfer.recipe.wrappers import unwrapped

if TYPE_CHECKING:
    import torch

    from hpxfer.trainer.user_trial import UserTrial


class Watch:
    """Reports the receipt of the start, and adds hooks that report the rest, see `UserTrial.watch`.

    `step` counts the updates so far. Receipts are of a step of the warm-up, the peak, the middle and the last one, and
    of the first update with an LR above 0.
    """

    def __init__(
        self,
        trial: UserTrial,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        roles: Any,
        sites: Any,
    ) -> None:
        optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
        roles = proposed_roles(model) if roles is None and trial.recipe is not None else roles
        self._trial, self._model, self._optimizers, self._roles = trial, model, optimizers, roles
        self._batch: str | None = None  # a hash of the first batch
        self._weights: Mapping[str, torch.Tensor] | None = None
        self.step, self._has_changed = 0, False
        warmup = int(trial.schedule.get("warmup_steps") or 0)
        self._told = {warmup // 2, warmup, trial.steps // 2, trial.steps - 1}
        trial.groups(0, receipt(model, optimizers, roles, init=True))
        optimizers[0].register_step_pre_hook(self._before)
        optimizers[-1].register_step_post_hook(self._after)
        self._handle = unwrapped(model).register_forward_pre_hook(self._see_batch, with_kwargs=True)
        keys = {} if trial.recipe is None else trial.recipe.forward_multipliers()
        if sites is None and keys and known_model(model) is not None:
            sites = known_sites(model, keys)
        if sites is not None:
            measure_sites(model, sites, lambda output: trial.forward(self.step, [output]))

    def _see_batch(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._batch = digest([*args, *kwargs.values()])
        self._handle.remove()

    def _before(self, *_: Any) -> None:
        rates = (float(group["lr"]) for each in self._optimizers for group in each.param_groups)
        if not self._has_changed and any(rate > 0 for rate in rates):
            self._weights = weights_of(self._model)

    def _after(self, *_: Any) -> None:
        changes = None if self._weights is None else changes_since(self._model, self._weights)
        if changes is not None:
            self._weights, self._has_changed = None, True
        if changes is not None or self.step in self._told:
            found = receipt(self._model, self._optimizers, self._roles)
            self._trial.groups(self.step, found, changes=changes, batch=self._batch)
        self.step += 1
