"""The follow-up: the sweep with everything added that undecided verdicts need, or else a missing control.

The follow-up keeps every cell and the sweep's name, and so its results folder. The id of a trial is a hash of what
determines its numbers, so running the follow-up trains only what is new. A sweep has one grid for all shapes: a value
that one shape needs is added at every shape. A control is added once, to verdicts that are decided: beside what is
undecided, or beside an HP that drifts, it would be trained for nothing. A control that is there is never added to.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.search import arms_of, kind_of
from hpxfer.spec import YamlFile, arm_budget, axes_of, check_edit, dump_sweep, stored_names
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict.findings import Addition, Finding
from hpxfer.verdict.report import TransferReport
from hpxfer.verdict.row_needs import value_text
from hpxfer.verdict.what_to_add import asks_nothing

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec

SAME = 1e-6  # values with a smaller relative difference count as equal
# Trials are counted without their data, of which only the identity would enter.
NO_DATA = DataRef(digest="0", tokenizer="bytes", vocab_size=256)


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """The sweep to run next. `yaml` loads as a sweep. It is None if nothing can be added to the file; see `why_not`."""

    yaml: str | None
    is_needed: bool = False  # whether a verdict is undecided or lacks a control
    added: tuple[str, ...] = ()  # in words, with the number of new trials: values, seeds, shapes
    not_added: tuple[str, ...] = ()  # what has to be added by hand, and why
    num_new_trials: int = 0  # the most of them, where a search chooses
    why_not: str | None = None


@dataclass
class _Draft:
    """The sweep as far as it was added to, and the file that names its keys and lines in messages."""

    spec: SweepSpec
    file: YamlFile
    added: list[str] = field(default_factory=list)
    not_added: list[str] = field(default_factory=list)
    num_new_trials: int = 0

    def add(self, words: str, **changes: Any) -> bool:
        """Change keys of the sweep file, and return whether a legal sweep file may hold that."""
        new = _changed(self.spec, {**_data(self.spec), **changes})
        try:
            check_edit(dump_sweep(new), self.file)
        except HpxferError as error:
            self.not_added.append(f"{words}: {error}")
            return False
        more, most = num_trials(new) - num_trials(self.spec), "" if kind_of(new).lists_trials else "at most "
        self.added.append(f"{words} ({most}{more} new {'trial' if more == 1 else 'trials'})")
        self.num_new_trials += more
        self.spec = new
        return True


def followup_sweep(spec: SweepSpec, reports: Sequence[TransferReport], file: YamlFile | None = None) -> FollowUp:
    """Return the sweep with everything added that the findings of the reports need.

    What cannot be added is said with the key and its line in `file`, the file that holds the sweep.
    """
    needs = list(_needs(reports))
    if not needs:
        why = "no verdict is undecided or lacks a control" if reports else "no HP could be judged"
        return FollowUp(yaml=None, why_not=why)
    draft = _Draft(spec=spec, file=file or YamlFile(name=f"sweep {spec.name}", data=None, lines={}))
    _add_values(draft, needs)
    _add_seeds(draft, needs)
    _add_shapes(draft, needs)
    _add_parameterizations(draft, needs)
    draft.not_added += [addition.text for _, _, addition in needs if addition is not None and asks_nothing(addition)]
    not_added = tuple(dict.fromkeys(draft.not_added))
    if not draft.added:
        why = "; ".join(not_added) or "nothing that a sweep file can add"
        return FollowUp(yaml=None, is_needed=True, not_added=not_added, why_not=why)
    return FollowUp(
        yaml=dump_sweep(draft.spec),
        is_needed=True,
        added=tuple(draft.added),
        not_added=not_added,
        num_new_trials=draft.num_new_trials,
    )


Need = tuple[str, Finding, Addition | None]  # an HP, what was found, and one of its additions; None if it has none


def _needs(reports: Sequence[TransferReport]) -> Iterator[Need]:
    """Yield what the verdicts need. A control beside other parameterizations needs nothing."""
    judged = [(report.hp, finding) for report in reports for finding in _judged(report)]
    undecided = [(hp, finding) for hp, finding in judged if finding.verdict == "undecided"]
    for hp, finding in undecided:
        wanted = [addition for addition in finding.to_add if addition.parameterization is None]
        yield from ((hp, finding, addition) for addition in wanted or (None,))
    if not undecided:
        yield from (
            (hp, finding, addition)
            for hp, finding in judged
            if finding.verdict == "transfers"
            for addition in finding.to_add
        )


def _judged(report: TransferReport) -> list[Finding]:
    """Return the findings that the report is about: all but controls beside others on their axis."""
    compared = {finding.axis for finding in report.findings if not finding.is_control}
    return [finding for finding in report.findings if not (finding.is_control and finding.axis in compared)]


def _additions(needs: Sequence[Need]) -> list[tuple[str, Finding, Addition]]:
    return [(hp, finding, addition) for hp, finding, addition in needs if addition is not None]


def _add_values(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add HP values to the grid, and say which of its cells are run again."""
    for hp, grid in draft.spec.grid.items():
        old = grid.numbers()
        wanted = {value for name, _, addition in _additions(needs) if name == hp for value in addition.values}
        again = [value for value in sorted(wanted) if _among(value, old)]
        if again:
            draft.added.append(f"{hp}: run again what has no result at {_listed(again)}")
        new: list[float] = []
        for value in sorted(wanted):
            if not _among(value, (*old, *new)):
                new.append(value)
        if new:
            _widen(draft, hp, new)


def _widen(draft: _Draft, hp: str, values: Sequence[float]) -> None:
    """Add new values of an HP: all of them, or else those that a sweep may have."""
    grid = {**_data(draft.spec)["grid"], hp: {"values": sorted((*draft.spec.grid[hp].numbers(), *values))}}
    search = _search_for(draft.spec, len(values), len(draft.spec.seeds))
    before = list(draft.not_added)
    words = f"{hp}: {_listed(values)} at every shape{_budget_words(draft.spec, search)}"
    if not draft.add(words, grid=grid, search=search) and len(values) > 1:
        draft.not_added[:] = before
        for value in values:
            _widen(draft, hp, [value])


def _among(value: float, others: Collection[float]) -> bool:
    return any(math.isclose(value, other, rel_tol=SAME) for other in others)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(map(value_text, values))


def _add_seeds(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add the lowest seeds that are not in the sweep, up to the largest number needed."""
    seeds = draft.spec.seeds
    wanted = max((addition.seeds or 0 for _, _, addition in _additions(needs)), default=0)
    missing = wanted - len(seeds)
    if missing <= 0:
        return
    free = (seed for seed in range(wanted + len(seeds)) if seed not in seeds)
    search = _search_for(draft.spec, 0, wanted)
    words = f"{missing} more seeds, {wanted} in all{_budget_words(draft.spec, search)}"
    draft.add(words, seeds=[*seeds, *(next(free) for _ in range(missing))], search=search)


def _search_for(spec: SweepSpec, num_values: int, num_seeds: int) -> Any:
    """Return the search section with a budget that buys as many points as before, and the new values, at all seeds."""
    search = _data(spec)["search"]
    if spec.search.budget is None:
        return search
    return {**search, "budget": (spec.search.budget // len(spec.seeds) + num_values) * num_seeds}


def _budget_words(spec: SweepSpec, search: Mapping[str, Any]) -> str:
    budget = search.get("budget")
    return "" if budget == spec.search.budget else f", with search.budget {budget} instead of {spec.search.budget}"


def _add_shapes(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add shapes to axes that are given as values, and say which must be added by hand."""
    scales_of: dict[str, set[float]] = {}
    for _, finding, addition in _additions(needs):
        if addition.new_scales:
            scales_of.setdefault(finding.axis, set()).add(max(addition.new_scales))
    for path in axes_of(draft.spec):
        if path.name not in scales_of:
            continue
        values, largest = draft.spec.axes[path.name].values, max(point.scale for point in path.points)
        wanted = max(scales_of[path.name])
        if not values:
            draft.not_added.append(
                f"{path.name}: a shape at {path.scale_name} {wanted:g}: write it into axes.{path.name}"
            )
            continue
        value = max(values) * wanted / largest
        axes = _data(draft.spec)["axes"]
        longer = {**axes[path.name], "values": [*values, value]}
        draft.add(f"{path.name}: {value:g}", axes={**axes, path.name: longer})


def _add_parameterizations(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add parameterizations, and say which no legal sweep can hold."""
    names = [addition.parameterization for _, _, addition in _additions(needs) if addition.parameterization]
    for name in dict.fromkeys(names):
        more = [*_data(draft.spec)["parameterizations"], {"table": name}]
        draft.add(f"parameterization {name} on the same grid", parameterizations=more)


def num_trials(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep; if a search chooses them, the most that its budget allows."""
    expansion = Expansion(spec, NO_DATA)
    if kind_of(spec).lists_trials:
        return sum(1 for _ in expansion.trials())
    return len(arms_of(expansion)) * arm_budget(spec)


def _data(spec: SweepSpec) -> dict[str, Any]:
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    return data


def _changed(spec: SweepSpec, data: dict[str, Any]) -> SweepSpec:
    """Return the sweep with this data. Names that its plug-ins register are legal without the plug-ins."""
    return spec.model_validate(data, strict=False, context=stored_names(spec.plugins or ()))
