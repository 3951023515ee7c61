"""The follow-up: the sweep with everything added that undecided verdicts need, or else a missing control.

The follow-up keeps every cell and the sweep's name, and so its results folder. The id of a trial is a hash of what
determines its numbers, so running the follow-up trains only what is new. A sweep has one grid for all shapes: a value
that one shape needs is added at every shape. A control is added once, to verdicts that are decided: beside what is
undecided, or beside an HP that drifts, it would be trained for nothing. A control that is there is never added to.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.host import value_text
from hpxfer.search import arms_of, kind_of
from hpxfer.spec import GridValues, YamlFile, arm_budget, axes_of, brief_sweep, check_edit, dump_sweep, stored_names
from hpxfer.trial import DataRef, Expansion
from hpxfer.verdict import Addition, TransferReport

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


Need = tuple[str, str, Addition]  # an HP, an axis, and one of the additions that the finding there asks for


@dataclass
class _Draft:
    """The sweep as far as it was added to, and the file that names its keys and lines in messages."""

    spec: SweepSpec
    file: YamlFile
    added: list[str] = field(default_factory=list)
    comments: dict[str, str] = field(default_factory=dict)  # top-level key -> what was added to it
    not_added: list[str] = field(default_factory=list)

    def add(self, words: str, **changes: Any) -> bool:
        """Change keys of the sweep file, and return whether a legal sweep file may hold that."""
        # Names that the sweep's plug-ins register are legal without the plug-ins.
        names = stored_names(self.spec.plugins or ())
        new = self.spec.model_validate({**_data(self.spec), **changes}, strict=False, context=names)
        try:
            check_edit(dump_sweep(new), self.file)
        except HpxferError as error:
            self.not_added.append(f"{words}: {error}")
            return False
        more, most = num_trials(new) - num_trials(self.spec), "" if kind_of(new).lists_trials else "at most "
        self.added.append(f"{words} ({most}{more} new {'trial' if more == 1 else 'trials'})")
        for key in changes:
            self.comments[key] = f"{self.comments[key]}; {words}" if key in self.comments else f"adds {words}"
        self.spec = new
        return True


def followup_sweep(spec: SweepSpec, reports: Sequence[TransferReport], file: YamlFile | None = None) -> FollowUp:
    """Return the sweep with everything added that the findings of the reports need.

    What cannot be added is said with the key and its line in `file`, the file that holds the sweep.
    """
    needs = _needs(reports)
    if needs is None:
        why = "no verdict is undecided or lacks a control" if reports else "no HP could be judged"
        why = "every HP has one value, so that no verdict is asked for" if spec.has_fixed_hps else why
        return FollowUp(yaml=None, why_not=why)
    draft = _Draft(spec=spec, file=file or YamlFile(name=f"sweep {spec.name}", data=None, lines={}))
    _add_values(draft, needs)
    _add_seeds(draft, needs)
    _add_shapes(draft, needs)
    for name in dict.fromkeys(addition.parameterization for _, _, addition in needs if addition.parameterization):
        more = [*_data(draft.spec)["parameterizations"], {"table": name}]
        draft.add(f"parameterization {name} on the same grid", parameterizations=more)
    draft.not_added += [addition.text for _, _, addition in needs if addition.asks_nothing]
    not_added = tuple(dict.fromkeys(draft.not_added))
    return FollowUp(
        yaml=_commented(brief_sweep(draft.spec), draft.comments) if draft.added else None,
        is_needed=True,
        added=tuple(draft.added),
        not_added=not_added,
        num_new_trials=num_trials(draft.spec) - num_trials(spec) if draft.added else 0,
        why_not=None if draft.added else "; ".join(not_added) or "nothing that a sweep file can add",
    )


def _commented(text: str, comments: Mapping[str, str]) -> str:
    """Return a sweep file with a comment at the keys that were added to."""
    lines = text.splitlines()
    added = ((line, comments.get(line.partition(":")[0])) for line in lines)
    return "".join(f"{line}  # {comment}\n" if comment else f"{line}\n" for line, comment in added)


def _needs(reports: Sequence[TransferReport]) -> list[Need] | None:
    """Return what the verdicts need; None if they need nothing. A control beside other arms needs nothing."""
    judged = []
    for report in reports:
        compared = {finding.axis for finding in report.findings if not finding.is_control}
        judged += [(report.hp, one) for one in report.findings if not (one.is_control and one.axis in compared)]
    undecided = [(hp, finding) for hp, finding in judged if finding.verdict == "undecided"]
    found = undecided or [(hp, finding) for hp, finding in judged if finding.verdict == "transfers" and finding.to_add]
    if not found:
        return None
    return [
        (hp, finding.axis, addition)
        for hp, finding in found
        for addition in finding.to_add
        if not (undecided and addition.parameterization)
    ]


def _add_values(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add HP values to the grid, and say which of its cells are run again."""
    for hp, grid in draft.spec.grid.items():
        old, again, new = grid.numbers(), list[float](), list[float]()
        for value in sorted({value for name, _, addition in needs if name == hp for value in addition.values}):
            if _among(value, old):
                again.append(value)
            elif not _among(value, new):
                new.append(value)
        if again:
            draft.added.append(f"{hp}: run again what has no result at {_listed(again)}")
        if new:
            _widen(draft, hp, new)


def _widen(draft: _Draft, hp: str, values: Sequence[float]) -> None:
    """Add new values of an HP: all of them, or else those that a sweep may have."""
    grid = {**_data(draft.spec)["grid"], hp: _spelled(sorted((*draft.spec.grid[hp].numbers(), *values)))}
    changes, budget = _budget(draft.spec, len(values), len(draft.spec.seeds))
    if draft.add(f"{hp}: {_listed(values)} at every shape{budget}", grid=grid, **changes) or len(values) < 2:
        return
    draft.not_added.pop()
    for value in values:
        _widen(draft, hp, [value])


def _spelled(values: Sequence[float]) -> dict[str, Any]:
    """Return values as a sweep file has them: as exponents where they are powers of two at even distances."""
    if values[0] > 0:  # which a weight decay need not be
        ends = math.log2(values[0]), math.log2(values[-1])
        step = (ends[1] - ends[0]) / (len(values) - 1)
        if step and GridValues(log2=ends, step=step).numbers() == (*values,):
            return {"log2": ends, "step": step}
    return {"values": values}


def _among(value: float, others: Collection[float]) -> bool:
    return any(math.isclose(value, other, rel_tol=SAME) for other in others)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(map(value_text, values))


def _add_seeds(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add the lowest seeds that are not in the sweep, up to the largest number needed."""
    seeds = draft.spec.seeds
    wanted = max((addition.seeds or 0 for _, _, addition in needs), default=0)
    if (missing := wanted - len(seeds)) > 0:
        free = [seed for seed in range(wanted + len(seeds)) if seed not in seeds]
        changes, budget = _budget(draft.spec, 0, wanted)
        draft.add(f"{missing} more seeds, {wanted} in all{budget}", seeds=[*seeds, *free[:missing]], **changes)


def _budget(spec: SweepSpec, num_values: int, num_seeds: int) -> tuple[dict[str, Any], str]:
    """Return the change to a budget that buys as many points as before, and the new values, at all seeds; in words."""
    old = spec.search.budget
    new = None if old is None else (old // len(spec.seeds) + num_values) * num_seeds
    if new == old:
        return {}, ""
    return {"search": {**_data(spec)["search"], "budget": new}}, f", with search.budget {new} instead of {old}"


def _add_shapes(draft: _Draft, needs: Sequence[Need]) -> None:
    """Add the largest shape needed to each axis that is given as values, and say which must be added by hand."""
    for path in axes_of(draft.spec):
        wanted = max((max(one.new_scales, default=0.0) for _, axis, one in needs if axis == path.name), default=0.0)
        values, axes = draft.spec.axes[path.name].values, _data(draft.spec)["axes"]
        if wanted and values:
            value = max(values) * wanted / max(point.scale for point in path.points)
            longer = {**axes[path.name], "values": [*values, value]}
            draft.add(f"{path.name}: {value:g}", axes={**axes, path.name: longer})
        elif wanted:
            where = f"write it into axes.{path.name}"
            draft.not_added.append(f"{path.name}: a shape at {path.scale_name} {wanted:g}: {where}")


def num_trials(spec: SweepSpec) -> int:
    """Return the number of trials of a sweep; if a search chooses them, the most that its budget allows."""
    expansion = Expansion(spec, NO_DATA)
    if kind_of(spec).lists_trials:
        return sum(1 for _ in expansion.trials())
    return len(arms_of(expansion)) * arm_budget(spec)


def _data(spec: SweepSpec) -> dict[str, Any]:
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True)
    return data
