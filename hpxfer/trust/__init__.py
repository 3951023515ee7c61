"""How far the losses of a user's own trainer can be trusted: short trials of it, and what they show.

trials      which short trials: the base, the base again, with another seed, arm and LR, and a larger shape
evidence    what a trial has reported, as plain data
evaluate    from the evidence to the outcome of every check
check       train them where the sweep trains, and store the outcomes in the sweep's results folder
text        the outcomes as a table
"""

from hpxfer.trust.check import check_trainer
from hpxfer.trust.evaluate import Checks, Evidence, evaluate
from hpxfer.trust.trials import check_trials

__all__ = ["Checks", "Evidence", "check_trainer", "check_trials", "evaluate"]
