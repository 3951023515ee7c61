"""transformers: a Trainer with the recipe's optimizer and schedule, written by hpxfer.

prepare(model), then HpxferTrainer(model, TrainingArguments(..., **training_arguments), ...).train(). granite_config
holds the forward multipliers as settings of a Granite or GraniteMoe config, if it can: then call recipe.attach with
by_hand=list(FORWARD) in place of prepare's.
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer

from hpxfer.export.adapters.torch import SCHEDULE, optimizer, scheduler

training_arguments: dict[str, Any] = {}
granite_config: dict[str, float] = {}


# The `optimizers=` of a Trainer are made before it wraps the model, and it calls these methods behind the wrapping.
class HpxferTrainer(Trainer):
    """A Trainer with the recipe's parameter groups and schedule. Call prepare(model) before it is made."""

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer of the recipe, once."""
        if self.optimizer is None:
            self.optimizer = optimizer(self.model if model is None else model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the recipe, once. A recipe without one leaves it to the Trainer."""
        if SCHEDULE is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            self.lr_scheduler = scheduler(self.optimizer if optimizer is None else optimizer)
            self._created_lr_scheduler = True
        return self.lr_scheduler
