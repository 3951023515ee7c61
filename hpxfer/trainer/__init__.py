"""The user's own trainer: its contract, its supervisor, and how a trial of it ended."""

from hpxfer.trainer.ending import Ending
from hpxfer.trainer.follow import Seen, follow
from hpxfer.trainer.job import Job, Timeouts, next_attempt, write_config
from hpxfer.trainer.lines import Point
from hpxfer.trainer.placeholders import check, fill

__all__ = [
    "Ending",
    "Job",
    "Point",
    "Seen",
    "Timeouts",
    "check",
    "fill",
    "follow",
    "next_attempt",
    "write_config",
]
