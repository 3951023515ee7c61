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


def watch(
    trial: UserTrial,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    roles: Any,
    sites: Any,
) -> None:
    """Report the receipt of the start, and add hooks that report the rest, see `UserTrial.watch`.

    Receipts are of a step of the warm-up, the peak, the middle and the last one, and of the first update with an LR
    above 0.
    """
    optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    roles = proposed_roles(model) if roles is None and trial.recipe is not None else roles
    warmup = int(trial.schedule.get("warmup_steps") or 0)
    reported = {warmup // 2, warmup, trial.steps // 2, trial.steps - 1}
    step, has_changed = 0, False  # updates so far
    weights: Mapping[str, torch.Tensor] | None = None
    batch: str | None = None  # a hash of the first batch

    def see_batch(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal batch
        batch = digest([*args, *kwargs.values()])
        handle.remove()

    def before(*_: Any) -> None:
        nonlocal weights
        rates = (float(group["lr"]) for each in optimizers for group in each.param_groups)
        if not has_changed and any(rate > 0 for rate in rates):
            weights = weights_of(model)

    def after(*_: Any) -> None:
        nonlocal weights, has_changed, step
        changes = None if weights is None else changes_since(model, weights)
        weights, has_changed = None, has_changed or changes is not None
        if changes is not None or step in reported:
            trial.groups(step, receipt(model, optimizers, roles), changes=changes, batch=batch)
        step += 1

    trial.groups(0, receipt(model, optimizers, roles, init=True))
    optimizers[0].register_step_pre_hook(before)
    optimizers[-1].register_step_post_hook(after)
    handle = unwrapped(model).register_forward_pre_hook(see_batch, with_kwargs=True)
    keys = {} if trial.recipe is None else trial.recipe.forward_multipliers()
    if sites is None and keys and known_model(model) is not None:
        sites = known_sites(model, keys)
    if sites is not None:
        measure_sites(model, sites, lambda output: trial.forward(step, [output]))
