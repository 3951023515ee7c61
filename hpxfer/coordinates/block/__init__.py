"""The coordinate check in the minimal MLP blocks for which MSSP and Why Routers Freeze derive their exponents."""

from hpxfer.coordinates.block.observe import default_training, observe
from hpxfer.coordinates.block.predictions import predictions
from hpxfer.coordinates.block.train import Training
from hpxfer.scaling.claims.block import Block

__all__ = ["Block", "Training", "default_training", "observe", "predictions"]
