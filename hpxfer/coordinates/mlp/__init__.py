"""The coordinate check in the family `mlp`, for whose blocks MSSP and Why Routers Freeze derive their exponents."""

from hpxfer.coordinates.mlp.against_limit import approach
from hpxfer.coordinates.mlp.measures import KINDS
from hpxfer.coordinates.mlp.observe import observe, of_trials
from hpxfer.coordinates.mlp.own import Options, OwnData, Training, default_training, own_trials
from hpxfer.coordinates.mlp.quantities import NAMES

__all__ = [
    "KINDS",
    "NAMES",
    "Options",
    "OwnData",
    "Training",
    "approach",
    "default_training",
    "observe",
    "of_trials",
    "own_trials",
]
