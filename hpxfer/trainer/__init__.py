"""The user's own trainer: its contract, its supervisor, how a trial of it ended, and the checks of it."""

from hpxfer.trainer.ending import Ending
from hpxfer.trainer.follow import follow
from hpxfer.trainer.job import Job, check, fill, next_attempt, write_config
from hpxfer.trainer.lines import Point

__all__ = [
    "Ending",
    "Job",
    "Point",
    "check",
    "fill",
    "follow",
    "next_attempt",
    "write_config",
]
