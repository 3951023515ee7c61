"""The user's own trainer: its contract, its supervisor, how a trial of it ended, and the checks of it."""

from hpxfer.trainer.check_trials import BASE, STEPS, Evidence, check_trials, evaluate
from hpxfer.trainer.ending import Ending
from hpxfer.trainer.follow import follow
from hpxfer.trainer.job import Job, check, fill, next_attempt, write_config
from hpxfer.trainer.lines import Point
from hpxfer.trainer.own_code import SENT, commit_of
from hpxfer.trainer.own_trainer import OwnTrainer
