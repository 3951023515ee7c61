"""Optimizers: the update rules that a sweep can name. One file per rule; torch is imported by no row at import time.

To add an optimizer, write one file that holds an `Optimizer` and add its line here.
`hpxfer.train.optimizer.StackOptimizer` does everything that all rules share.
"""

from hpxfer.registry import Rows
from hpxfer.train.optimizers.row import Optimizer

OPTIMIZERS: Rows[Optimizer] = Rows(
    "optimizer",
    {
        "adamw": "hpxfer.train.optimizers.adamw:ADAMW",
        "sgd": "hpxfer.train.optimizers.sgd:SGD",
    },
    also={"adam": "adamw"},
)

__all__ = ["OPTIMIZERS", "Optimizer"]
