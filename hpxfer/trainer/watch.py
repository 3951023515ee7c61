"""Watch: hooks by which a torch training reports what the checks of its trainer ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from hpxfer.receipts import changes_since, receipt, weights_of
from hpxfer.receipts.changes import measure_sites
from hpxfer.recipe.known_models import known_model, known_sites
from hpxfer.recipe.propose_roles import roles as proposed_roles
from hpxfer.recipe.wrappers import unwrapped

if TYPE_CHECKING:
    from hpxfer.trainer.user_trial import UserTrial


def watch(
    trial: UserTrial,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    roles: Any,
    sites: Any,
) -> None:
    """Write the receipt of the start, and add the hooks. See `UserTrial.watch`."""
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    if roles is None and trial.recipe is not None:
        roles = proposed_roles(model)
    trial.groups(0, receipt(model, optimizers, roles, init=True))
    watcher = _Watcher(trial, model, optimizers, roles)
    optimizers[0].register_step_pre_hook(watcher.before)
    optimizers[-1].register_step_post_hook(watcher.after)
    watcher.batch_handle = unwrapped(model).register_forward_pre_hook(watcher.see_batch, with_kwargs=True)
    keys = {} if trial.recipe is None else trial.recipe.forward_multipliers()
    if sites is None and keys and known_model(model) is not None:
        sites = known_sites(model, keys)
    if sites is not None:
        measure_sites(model, sites, lambda output: trial.forward(watcher.step, [output]))


class _Watcher:
    """What the hooks know. `step` counts the updates so far."""

    def __init__(
        self, trial: UserTrial, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], roles: Any
    ) -> None:
        self.step, self.has_changed = 0, False
        self.batch: str | None = None
        self.batch_handle: torch.utils.hooks.RemovableHandle | None = None
        self._trial, self._model, self._optimizers, self._roles = trial, model, optimizers, roles
        self._weights: Mapping[str, torch.Tensor] | None = None
        warmup = int(trial.schedule.get("warmup_steps") or 0)
        # A step of the warm-up, the peak, the middle, and the last one.
        self._told = {warmup // 2, warmup, trial.steps // 2, trial.steps - 1}

    def see_batch(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hash the first batch."""
        if self.batch_handle is not None:
            self.batch = _digest([*args, *kwargs.values()])
            self.batch_handle.remove()
            self.batch_handle = None

    def before(self, *_: Any) -> None:
        """Copy the weights before the first update with an LR above 0."""
        groups = [group for each in self._optimizers for group in each.param_groups]
        if not self.has_changed and any(float(group["lr"]) > 0 for group in groups):
            self._weights = weights_of(self._model)

    def after(self, *_: Any) -> None:
        """Report the groups that an update had, and what it changed."""
        changes = None
        if self._weights is not None:
            changes = changes_since(self._model, self._weights)
            self._weights, self.has_changed = None, True
        if changes is not None or self.step in self._told:
            found = receipt(self._model, self._optimizers, self._roles)
            self._trial.groups(self.step, found, changes=changes, batch=self.batch)
        self.step += 1


def _digest(values: Iterable[Any]) -> str | None:
    """Return a hash of the bits of all tensors in values; None if there are none."""
    hashed, found = hashlib.blake2b(digest_size=8), False
    for tensor in _tensors(values):
        found = True
        hashed.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest() if found else None


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
