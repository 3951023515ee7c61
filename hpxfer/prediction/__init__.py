"""Prediction: what a sweep says of a bigger model: the HPs of its tensors, and its loss with an interval."""

from hpxfer.prediction.explain import explain_files, explain_recipe, explain_sweep, of_sweep
from hpxfer.prediction.laws import Forecast, LawShare, forecast
from hpxfer.prediction.losses import LossAnswer, MeasuredShape, loss_at
from hpxfer.prediction.prediction import Prediction, TargetHPs, predict

__all__ = [
    "Forecast",
    "LawShare",
    "LossAnswer",
    "MeasuredShape",
    "Prediction",
    "TargetHPs",
    "explain_files",
    "explain_recipe",
    "explain_sweep",
    "forecast",
    "loss_at",
    "of_sweep",
    "predict",
]
