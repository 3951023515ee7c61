"""The driver turns a sweep into a results folder. It trains only what is missing, and only it writes the store."""

from hpxfer.driver.drive import TrainingFailed, run
from hpxfer.driver.prepared import RESULTS, PreparedSweep, measured, prepare
from hpxfer.driver.trial_list import stacks_in_order

__all__ = ["RESULTS", "PreparedSweep", "TrainingFailed", "measured", "prepare", "run", "stacks_in_order"]
