"""Trials: one training run each, its identity, its result, and the stacks that train together."""

from hpxfer.trial.divergence import BLOW_UP, blow_up_limit, is_bad
from hpxfer.trial.events import Ended, Event, Points, Progress, Started
from hpxfer.trial.expansion import PRODUCT, Cell, Expansion, hp_points
from hpxfer.trial.identity import LOCAL, canonical
from hpxfer.trial.process import MEMBER, STOP
from hpxfer.trial.result import Curve, ErrorKind, Status, TrialResult
from hpxfer.trial.setting import DataRef, Setting, base_hps, setting_of, trainer_code
from hpxfer.trial.stack import Stack, Team
from hpxfer.trial.trial import TRAINER_VERSION, Trial
