"""Which losses a sweep may be judged by, given its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpxfer.spec.mlp import TOP
from hpxfer.spec.problem import Problem

if TYPE_CHECKING:
    from hpxfer.spec.sweep import SweepSpec

TOP_OF = {"validation_error": 1, "validation_top5_error": TOP}  # loss -> classes among which a sample's must be


def judge_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why the data has no such error as the sweep is judged by."""
    loss = spec.judge.loss
    if loss not in TOP_OF:
        return
    classes = spec.data.classes
    if classes is None:
        rule = f"{loss} needs samples with classes, and {spec.data.source} has none; use validation"
        yield ("judge", "loss"), rule
    elif classes <= TOP_OF[loss]:
        rule = f"{loss} needs more than {TOP_OF[loss]} classes, and the data has {classes}; "
        yield ("judge", "loss"), rule + ("use validation_error" if classes > 1 else "use validation")
