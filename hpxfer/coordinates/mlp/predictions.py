"""The claims on the blocks of the family `mlp`, as exponents along a path."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.predict import predict
from hpxfer.scaling.claims.block import Block, claims
from hpxfer.scaling.evaluate import Parameterization, ratios
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column


def predictions(
    choice: Parameterization, optimizer: Column, path: Sequence[Shape], block: Block | None = None
) -> tuple[Prediction, ...]:
    """Return what is predicted of a block along `path`, as powers of the width."""
    soft = all(shape.num_active == shape.num_experts for shape in path)
    scales = [float(shape.width) for shape in path]
    return predict(
        claims(choice, optimizer, block or Block(), soft=soft), scales, [ratios(path[0], shape) for shape in path]
    )
