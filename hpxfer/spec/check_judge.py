"""Which losses a sweep may be judged by, given its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpxfer.spec.data import data_problems
from hpxfer.spec.mlp import TOP
from hpxfer.spec.problem import Problem

if TYPE_CHECKING:
    from hpxfer.spec.sweep import SweepSpec

TOP_OF = {"validation_error": 1, "validation_top5_error": TOP}  # loss -> classes among which a sample's must be
_SAYS_CLASSES = ("source", "inputs", "classes", "targets", "only")


def judge_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield why the data has no such error as the sweep is judged by."""
    loss = spec.judge.loss
    if loss not in TOP_OF:
        return
    # What is wrong with the samples comes first: which classes they have is not known before.
    if any(at[:1] == ("data",) and at[1:2] and at[1] in _SAYS_CLASSES for at, _ in data_problems(spec)):
        return
    classes = spec.data.classes
    if classes is None:
        rule = f"{loss} needs samples with classes, and {spec.data.source} has none; use validation"
        yield ("judge", "loss"), rule
    elif classes <= TOP_OF[loss]:
        rule = f"{loss} needs more than {TOP_OF[loss]} classes, and the data has {classes}; use validation_error"
        yield ("judge", "loss"), rule
