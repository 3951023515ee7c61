"""Optimizers: the update rules that a sweep can name. One file per rule; torch is imported by no row at import time.

To add an optimizer, write one file that holds an `Optimizer` and add its line here, or call `register_optimizer` in a
plug-in. `hpxfer.train.optimizer.StackOptimizer` does everything that all rules share.
"""

from hpxfer.registry import Registry
from hpxfer.train.optimizers.row import Optimizer

OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    {
        "adamw": "hpxfer.train.optimizers.adamw:ADAMW",
        "sgd": "hpxfer.train.optimizers.sgd:SGD",
    },
    also={"adam": "adamw"},
)
register_optimizer = OPTIMIZERS.register

__all__ = ["OPTIMIZERS", "Optimizer", "register_optimizer"]
