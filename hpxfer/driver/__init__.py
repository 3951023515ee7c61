"""The driver turns a sweep into a results folder. It trains only what is missing, and only it writes the store."""

from hpxfer.driver.check_trainer import check_trainer
from hpxfer.driver.drive import TrainingFailed, run, train
from hpxfer.driver.preflight import Cleared, preflight
from hpxfer.driver.prepared import PreparedSweep, located, measured, overridden, prepare
from hpxfer.driver.trial_list import stacks_in_order, trials_of, trials_text
