"""Own bases: what tells the trials of two arms of a sweep apart at the base, e.g. a router that starts at zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.spec.blocks import model_roles
from hpxfer.trial import Trial, base_hps

if TYPE_CHECKING:
    from hpxfer.results import Results

MOST = 2  # differences that a sentence lists
NUMBERS = ("init_std", "lr", "forward", "weight_decay", "eps")  # of a role, in the order in which they are listed


def difference_at_base(results: Results, one: str, other: str) -> str | None:
    """Return in words what differs between the base models of two arms, e.g. `router init_std 0 against 0.02`.

    None if no number that a table resolves differs, and if the table of a plug-in is not registered here.
    """
    if results.spec.trainer is not None:
        return "your trainer scales them in its own ways"
    try:
        found = list(_differences(results, *(_at_base(results, label) for label in (one, other))))
    except HpxferError:
        return None
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more if found else None


def _at_base(results: Results, label: str) -> Trial:
    """Return a trial of an arm at the base, which may be another shape than the sweep's."""
    part, choice = results.expansion.arms[label]
    shape = part.spec.base_shape
    if results.base is not None:
        axis = next(axis for axis in part.axes if axis.name == results.base.axis)
        shape = next(point.shape for point in axis.points if axis.label(point.shape) == results.base.shape)
    return part.trial(choice, shape, base_hps(part.spec), part.spec.seeds[0])


def _differences(results: Results, one: Trial, other: Trial) -> Iterator[str]:
    yield from _unequal("", asdict(one.structure()), asdict(other.structure()))
    yield from _unequal("", {"ties": one.setting.ties}, {"ties": other.setting.ties})
    sides = one.resolved(), other.resolved()
    for name in NUMBERS:
        for role in model_roles(one.shape, results.spec.model):
            numbers = ({name: getattr(side[role], name)} for side in sides if role in side)
            yield from _unequal(f"{role} ", *numbers)
    yield from _unequal("", asdict(one.globals()), asdict(other.globals()))


def _unequal(of: str, here: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> Iterator[str]:
    for name, value in here.items():
        if there is not None and value != there[name]:
            sides = (f"{side:.3g}" if isinstance(side, float) else str(side) for side in (value, there[name]))
            yield f"{of}{name} {' against '.join(sides)}"
