"""MLP: the options of the family `mlp`, and what its outputs and its loss are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Activation = Literal["linear", "relu", "gelu", "tanh"]
Aggregation = Literal["1/K", "1/M", "none"]
RouterBias = Literal["none", "fixed", "schedule", "learned", "learned_sgd"]
SampleLoss = Literal["cross_entropy", "squared_error"]

LEARNED: tuple[RouterBias, ...] = ("learned", "learned_sgd")
TOP = 5  # classes, of the top-5 error


@dataclass(frozen=True, kw_only=True)
class MLP:
    """What a trial's setting says of the model. A default is what an identity leaves out, so it must never change."""

    input_activation: Activation = "gelu"
    activation: Activation = "gelu"
    expert_matrices: int = 2
    residual: bool = False
    aggregation: Aggregation = "1/K"
    inverse_temperature: float = 1.0
    router_bias: RouterBias = "none"
    router_bias_std: float = 1.0
    tied_experts: bool = False
    loss: SampleLoss = "cross_entropy"


def num_outputs(loss: SampleLoss, classes: int, targets: int) -> int:
    """Return the outputs of a model: real targets, one for two classes under a squared error, or one per class."""
    if targets:
        return targets
    return 1 if loss == "squared_error" and classes == 2 else classes


def guess_loss(loss: SampleLoss, classes: int) -> float:
    """Return the loss of a model that has learned nothing: ln C, or the squared error of outputs that are all zero.

    The squared error of a class is 1. That of real targets is 1 where these have mean square 1.
    """
    return math.log(classes) if loss == "cross_entropy" else 1.0


def has_top5(classes: int) -> bool:
    """Return whether a top-5 error says anything: with at most 5 classes it is always zero."""
    return classes > TOP
