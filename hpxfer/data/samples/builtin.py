"""builtin: samples that are made on the spot, so that examples run anywhere: images, and what random teachers say."""

from __future__ import annotations

from hpxfer.data.samples import shapes, teacher
from hpxfer.data.samples.endless import EndlessSamples, Maker
from hpxfer.data.samples.facts import Facts
from hpxfer.data.samples.row import SampleSource
from hpxfer.errors import nearest, shown

MAKERS = {
    "shapes": Maker(
        name=f"shapes {shapes.VERSION}",
        facts=Facts(shape=(shapes.SIDE, shapes.SIDE), is_pixels=True, num_classes=shapes.CLASSES),
        draw=shapes.draw,
        normalization=(shapes.MEAN, shapes.STD),
    ),
    "teacher/polynomial": Maker(
        name=f"teacher/polynomial {teacher.VERSION}",
        facts=Facts(shape=(teacher.POLYNOMIAL_INPUTS,), is_pixels=False, num_targets=1),
        draw=teacher.polynomial,
    ),
    "teacher/network": Maker(
        name=f"teacher/network {teacher.VERSION}",
        facts=Facts(shape=(teacher.NETWORK_INPUTS,), is_pixels=False, num_classes=teacher.CLASSES),
        draw=teacher.network,
    ),
    "teacher/few": Maker(
        name=f"teacher/few {teacher.VERSION}",
        facts=Facts(shape=(teacher.FEW_INPUTS,), is_pixels=False, num_targets=1),
        draw=teacher.few,
        cycle=teacher.FEW,
    ),
}


def _problem(name: str) -> str | None:
    if name in MAKERS:
        return None
    return f"unknown built-in samples {shown(name)}; {nearest(name, MAKERS)}"


BUILTIN = SampleSource(
    name="builtin",
    usage=" or ".join(f"builtin:{name}" for name in MAKERS),
    is_path=False,
    problem=_problem,
    open=lambda name: EndlessSamples(maker=MAKERS[name]),
    mismatch_fix="install the version of hpxfer that the sweep was made with",
)
