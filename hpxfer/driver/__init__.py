"""The driver turns a sweep into a results folder. It trains only what is missing, and only it writes the store."""

from hpxfer.driver.dispatch import TrainingFailed, stacks_in_order
from hpxfer.driver.drive import run
from hpxfer.driver.prepared import RESULTS, PreparedSweep, measured, prepare

__all__ = ["RESULTS", "PreparedSweep", "TrainingFailed", "measured", "prepare", "run", "stacks_in_order"]
