"""Optimizers: the update rules that a sweep can name. One file per rule; torch is imported by no row at import time.

To add an optimizer, write one file that holds an `Optimizer` and add its line here.
`hpxfer.train.optimizer.StackOptimizer` does everything that all rules share.
"""

from hpxfer.registry import Rows
from hpxfer.scaling.muon import muon_of, spelled
from hpxfer.train.optimizers.row import MatrixRule, Optimizer


class Optimizers(Rows[Optimizer]):
    """The rows. The name of Muon may carry its options, e.g. `muon[scale=original]`."""

    options = r"^muon\[.*\]$"

    def get(self, name: str, where: str = "") -> Optimizer:
        """Return the row of this name. Raise HpxferError for a name or an option that does not exist."""
        if (options := muon_of(name)) is None:
            return super().get(name, where)
        from hpxfer.train.optimizers.muon import muon

        return muon(options)

    def spelled(self, name: str) -> str:
        """Return the name in one spelling. Raise HpxferError for an option that does not exist."""
        return super().spelled(spelled(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and muon_of(name) is not None)


OPTIMIZERS = Optimizers(
    "optimizer",
    {
        "adamw": "hpxfer.train.optimizers.adamw:ADAMW",
        "sgd": "hpxfer.train.optimizers.sgd:SGD",
        "muon": "hpxfer.train.optimizers.muon:MUON",
    },
    also={"adam": "adamw"},
)

__all__ = ["OPTIMIZERS", "MatrixRule", "Optimizer"]
