"""OLMo-core: optimizer groups and schedule, written by hpxfer.

Use optim as the optimizer config of the train module and scheduler as its scheduler. Every parameter of the model is
in one group, so that the optimizer's own lr, eps and weight decay are not used.
"""

from __future__ import annotations

from typing import Any

from olmo_core import optim as kinds  # not all of its schedules are in all versions
from olmo_core.optim import AdamWConfig, OptimGroupOverride

OPTIMIZER: dict[str, Any] = {}  # the optimizer's own numbers, which no parameter has
GROUPS: list[dict[str, Any]] = []  # roles, globs of parameter names, and their numbers
SCHEDULE: dict[str, Any] | None = None  # None: the recipe has none


def _scheduler(plan: dict[str, Any] | None) -> Any:
    """Return the schedule. A floor is a share of the peak, but for WSD, which has one LR for all groups."""
    if plan is None:
        return None
    warmup = {"warmup": plan["warmup_steps"], "warmup_min_lr": 0.0}
    if plan["decay"] == "constant":
        return kinds.ConstantWithWarmup(**warmup)
    if plan["decay"] == "wsd":
        return kinds.WSD(**warmup, decay=plan["decay_steps"], decay_fraction=None, decay_min_lr=0.0)
    kind = kinds.CosWithWarmup if plan["decay"] == "cosine" else kinds.LinearWithWarmup
    return kind(**warmup, alpha_f=plan["final_fraction"], t_max=plan["steps"])


group_overrides = [OptimGroupOverride(params=group["names"], opts=group["numbers"]) for group in GROUPS]
optim = AdamWConfig(**OPTIMIZER, group_overrides=group_overrides)
scheduler = _scheduler(SCHEDULE)
