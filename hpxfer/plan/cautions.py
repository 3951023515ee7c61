"""Cautions: what the author of a sweep should know before it runs, because a result would mean less than it seems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpxfer.plan.base_points import base_point_cautions
from hpxfer.scaling.coverage import control_notes, coverage_warnings, gate_warnings
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.spec import Axis
from hpxfer.trial import Expansion

CROSSING = (
    "early_stopping: asha: rankings of learning rates cross during decay: one whose loss is high early on is often the "
    "best at the end, and ASHA may stop it. The optimum that is left may be too low; take early_stopping out to know"
)


def cautions(expansion: Expansion) -> tuple[str, ...]:
    """Return the cautions of a sweep: of early stopping, of base values beside the grid, of its model, and of each
    table at the base and along each axis.
    """
    out = [*_of_early_stopping(expansion), *base_point_cautions(expansion), *_of_gate(expansion), *_of_dims(expansion)]
    for choice in expansion.choices:
        at_base = _warnings(expansion, choice, expansion.spec.base_shape)
        out += at_base
        for axis in expansion.axes:
            if found := _along(expansion, choice, axis, set(at_base)):
                out.append(f"{choice.label()} along {axis.name}: {'; '.join(found)}")
    return tuple(dict.fromkeys(out))


def _of_early_stopping(expansion: Expansion) -> Iterator[str]:
    if expansion.spec.early_stopping.asha is not None:
        yield CROSSING


def _of_gate(expansion: Expansion) -> Iterator[str]:
    """Yield what is wrong with the gate, at the first shape where it is."""
    found = [text for shape in expansion.shapes for text in gate_warnings(shape, expansion.setting.gate)]
    if found:
        more = len(found) - 1
        yield found[0] + (f"; and at {more} more shape{'s' if more > 1 else ''}" if more else "")


def _of_dims(expansion: Expansion) -> Iterator[str]:
    """Yield why the trials of a user's own trainer get no recipe, under tables that could give one."""
    base = expansion.spec.base_shape
    if expansion.spec.trainer is None or all(choice.is_own for choice in expansion.choices):
        return
    if (problem := check_shape(replace(base, own=""))) is not None:
        yield (
            f"model.dims: names too few dimensions for a recipe: {problem}; config.json has the numbers of roles only, "
            "and a dimension that is not named counts as one that never changes"
        )


def _along(expansion: Expansion, choice: Parameterization, axis: Axis, known: set[str]) -> list[str]:
    """Return the warnings along an axis that the base does not have. Of warnings that differ only in numbers, keep
    the last.
    """
    found: dict[str, str] = {}
    for point in axis.points:
        for text in _warnings(expansion, choice, point.shape):
            if text not in known:
                found[text.partition(":")[0]] = text
    return list(found.values())


def _warnings(expansion: Expansion, choice: Parameterization, shape: Shape) -> list[str]:
    base, column = expansion.spec.base_shape, expansion.setting.column
    facts = expansion.facts(choice, shape)
    return [
        *coverage_warnings(choice, base, shape, facts, column),
        *control_notes(choice, base, shape, facts, column),
    ]
