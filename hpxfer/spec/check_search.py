"""Rules of a sweep's search and early stopping. Each yields (key path, what is wrong and how to fix it)."""

from __future__ import annotations

from collections.abc import Iterator

from hpxfer.errors import nearest
from hpxfer.spec.problem import Problem, WhyNot
from hpxfer.spec.search import SearchSpec
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath


def search_problems(spec: SweepSpec, *, broken: bool, why_not: WhyNot) -> Iterator[Problem]:
    """Yield every broken rule of `search` and `early_stopping`. `broken` says whether the HPs that they scan are."""
    kind = spec.search_row
    found = list(_unread(spec.search))
    if spec.product and not kind.lists_trials:
        found.append((("product",), f"is of the search grid, got {kind.name}; take it out"))
    yield from found
    yield from _early_stopping(spec)
    if not found and not broken:
        yield from kind.problems(spec, why_not)


def _unread(search: SearchSpec) -> Iterator[Problem]:
    """Yield the keys that the kind does not read."""
    own = [*SearchSpec.model_fields, *search.row.settings.model_fields]
    for name in search.given:
        if name not in own:
            yield ("search", name), f"unknown key; {nearest(name, own)}"


def _early_stopping(spec: SweepSpec) -> Iterator[Problem]:
    asha = spec.early_stopping.asha
    if asha is None:
        return
    at: KeyPath = ("early_stopping", "asha")
    if not spec.search_row.can_stop_early:
        yield at, f"cannot be with search {spec.search.kind}, which decides by the loss at the end of every trial"
    if asha.grace_steps >= spec.steps:
        yield (*at, "grace_steps"), f"must be less than the run's {spec.steps} steps, got {asha.grace_steps}"
