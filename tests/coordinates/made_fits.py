"""A made-up fit of a check, and a report that holds such fits."""

from __future__ import annotations

from hpxfer.coordinates.measure import Fit
from hpxfer.coordinates.report import AxisReport, CheckReport

FIT = Fit(
    quantity="change",
    role="router",
    layer=None,
    step=1,
    slope=0.01,
    low=-0.02,
    high=0.04,
    predicted=0.0,
    verdict="ok",
    scales=(32.0, 64.0),
    magnitudes=(0.5, 0.51),
    source="a paper",
)


def report(*fits: Fit) -> CheckReport:
    axis = AxisReport(
        axis="width", scale_name="width", scales=(32.0, 64.0), shapes=("w32", "w64"), warnings=("careful",), fits=fits
    )
    return CheckReport(
        parameterization="mup",
        source="a paper",
        optimizer="adam",
        architecture="gpt",
        steps=2,
        seeds=3,
        tolerance=0.15,
        axes=(axis,),
    )
