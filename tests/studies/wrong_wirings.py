"""Wrong wirings of a GPT in plain torch, which the check of an own module should find.

    PYTHONPATH=tests/helpers python tests/studies/wrong_wirings.py

Each wiring keeps one number of one role at its value of the base, as code does that forgot to scale it. It counts as
found if a quantity of that very role misses. The right wiring is checked with other seeds, and must never miss.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from checked_models import GPT_BASE, GPT_SITES, VOCAB, gpt, gpt_recipe, lm_loss
from torch import Tensor, nn

import hpxfer
from hpxfer.coordinates.report import CheckReport
from hpxfer.scaling.shape import Shape

RECIPE = gpt_recipe(weight_decay=0.1)
BASE = Shape(**GPT_BASE)
GROWN = {"width": replace(BASE, width=128, dense_width=256), "depth": replace(BASE, depth=8)}
NUMBERS = ("lr", "init_std", "eps", "weight_decay")
SEEDS_OF_CORRECT = range(0, 800, 100)


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """A GPT that its user wires by the recipe, but for one number of one role. `role` None is the right wiring."""

    axis: str = "width"
    role: str | None = None
    number: str = "lr"
    first_seed: int = 0

    def build(self, shape: Shape) -> nn.Module:
        """Return the model with its multipliers and its init."""
        torch.manual_seed(torch.initial_seed() + self.first_seed)
        model = gpt(shape)
        RECIPE.attach(model, shape, GPT_SITES, by_hand=["attn_logits"])
        RECIPE.init_(model, hpxfer.roles(model), shape)
        if self.role is not None and self.number == "init_std":
            factor = RECIPE.multipliers(BASE)[self.role].init_std / RECIPE.multipliers(shape)[self.role].init_std
            roles = roles_by_name(model)
            with torch.no_grad():
                for name, tensor in model.named_parameters():
                    tensor.mul_(factor if roles[name] == self.role else 1.0)
        return model

    def optimizer(self, model: nn.Module, shape: Shape) -> torch.optim.Optimizer:
        """Return AdamW with one group per parameter."""
        roles, groups = roles_by_name(model), []
        for group in RECIPE.param_groups(model, hpxfer.roles(model), shape):
            for name, tensor in zip(group["names"], group["params"], strict=True):
                own = {key: group[key] for key in ("lr", "eps", "weight_decay", "betas")}
                if roles[name] == self.role and self.number in own:
                    own[self.number] = getattr(RECIPE.multipliers(BASE)[self.role], self.number)
                groups.append({"params": [tensor], **own})
        return torch.optim.AdamW(groups)

    def batch(self, shape: Shape) -> Tensor:
        """Return ids, [2, 9]."""
        generator = torch.Generator().manual_seed(torch.initial_seed() + self.first_seed)
        return torch.randint(0, VOCAB, (2, 9), generator=generator)

    def report(self, **options: Any) -> CheckReport:
        """Return the check of this wiring."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return hpxfer.check_module(
                self.build, self.batch, lm_loss, RECIPE, optimizer=self.optimizer, axis=self.axis, **options
            )


def roles_by_name(model: nn.Module) -> dict[str, str]:
    """Return name -> role of each parameter."""
    return {name: match.role for match in hpxfer.roles(model).matches for name in match.names}


def wrong_wirings() -> Iterator[Wiring]:
    """Yield a wiring for each number of each role that changes along an axis."""
    roles = dict.fromkeys(roles_by_name(gpt(BASE)).values())
    for axis, shape in GROWN.items():
        at_base, at = RECIPE.multipliers(BASE), RECIPE.multipliers(shape)
        for role in roles:
            for number in NUMBERS:
                if getattr(at_base[role], number) != getattr(at[role], number):
                    yield Wiring(axis=axis, role=role, number=number)


def missed(report: CheckReport) -> set[str]:
    """Return the roles that miss."""
    (axis,) = report.axes
    return {judged.role for judged in (*axis.judged, *axis.judged_stability) if judged.verdict == "miss"}


def main() -> None:
    """Print which wirings are not found, and the counts."""
    torch.set_num_threads(1)
    wrong = list(wrong_wirings())
    hidden = [wiring for wiring in wrong if wiring.role not in missed(wiring.report())]
    right = [Wiring(axis=axis, first_seed=first) for axis in GROWN for first in SEEDS_OF_CORRECT]
    alarms = [(wiring.axis, wiring.first_seed) for wiring in right if missed(wiring.report())]
    for wiring in hidden:
        print(f"not found: {wiring}")  # noqa: T201
    print(f"found {len(wrong) - len(hidden)} of {len(wrong)} wrong wirings")  # noqa: T201
    print(f"false alarms {len(alarms)} of {len(right)}: {alarms}")  # noqa: T201


if __name__ == "__main__":
    main()
