"""The driver: from a sweep to a results folder. The only writer of the store; it runs what is missing and no more."""

from hpxfer.driver.dispatch import TrainingFailed, longest_first
from hpxfer.driver.drive import run
from hpxfer.driver.prepared import RESULTS, PreparedSweep, measured, prepare

__all__ = ["RESULTS", "PreparedSweep", "TrainingFailed", "longest_first", "measured", "prepare", "run"]
