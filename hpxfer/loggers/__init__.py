"""Loggers: they show the curves of trials while these train, in TensorBoard, Weights & Biases or MLflow."""

from hpxfer.loggers.feed import streaming
from hpxfer.loggers.kinds import Final, LoggedTrial, LoggerKind, Place, StepValues, logger_kinds, register_logger
from hpxfer.loggers.names import Names
