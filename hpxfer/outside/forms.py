"""What a table probably is where it cannot be judged as it stands, and what makes it one with a row per run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpxfer.errors import shown
from hpxfer.outside.cells import Bad, is_empty, number, positive
from hpxfer.outside.guessed import may_hold

_NUMBER = r"\d+(?:\.\d+)?(?:(?:e|E|\^|\*\*)[-+]?\d+)?"
_LAST_NUMBER = re.compile(rf"(.*?)({_NUMBER})")
# What is left of the name of a column without its number, where the columns are those of sizes, values or seeds.
_WORDS = re.compile(r"[\s_=/.:-]*((loss|val|valid|validation|eval|test|train)[\s_=/.:-]*)*(.*?)[\s_=/.:-]*")
_SHORT = {"s": "seed", "run": "seed", "w": "width", "d": "scale", "l": "depth"}
_STEPS = ("step", "_step", "global_step", "steps", "iteration", "iter", "training_iteration", "epoch")


def other_form(own: Mapping[str, Sequence[Any]], used: Sequence[str], missing: Sequence[str]) -> str | None:
    """Return what a table with missing columns is, and what makes a table of runs of it; None if nothing shows that."""
    if packed := [name for name, cells in own.items() if _is_mapping(next(iter(cells), None))]:
        return (
            f"the cells of {' and '.join(map(shown, packed))} hold several values each; write a column for each, "
            "as `hpxfer judge wandb:ENTITY/PROJECT` does for runs of W&B"
        )
    return _wide(own, used, missing)


def _is_mapping(cell: Any) -> bool:
    return isinstance(cell, Mapping) or (isinstance(cell, str) and cell.strip().startswith("{"))


def _wide(own: Mapping[str, Sequence[Any]], used: Sequence[str], missing: Sequence[str]) -> str | None:
    """Return the line of pandas that gives each loss of a wide table its row; None for another table."""
    groups: dict[str, dict[str, float]] = {}
    for name in own:
        if name not in used and (found := _split(name)) is not None:
            groups.setdefault(found[0], {})[name] = found[1]
    for start, names in groups.items():
        if len(names) < 2 or (new := _varied(start, list(names.values()), missing)) is None or new in own:
            continue
        others = [name for name in own if name not in names]
        line = f"frame.melt(id_vars={others}, var_name={new!r}, value_name='loss')"
        if start:
            line += f".assign({new}=lambda long: long[{new!r}].str.removeprefix({start!r}))"
        first, *_, last = names
        return (
            f"columns {shown(first)} to {shown(last)} seem to hold the losses of one {new} each; a table has a row for "
            f"each run, in pandas: {line}"
        )
    return None


def _split(name: str) -> tuple[str, float] | None:
    """Return a name without the number at its end, and that number; None for a name without one."""
    try:
        return "", number(name)
    except Bad:
        found = _LAST_NUMBER.fullmatch(name.strip())
    return None if found is None else (found[1], number(found[2]))


def _varied(start: str, numbers: Sequence[float], missing: Sequence[str]) -> str | None:
    """Return the column that the numbers of some names would make; None if these seem to be no columns of losses."""
    words = _WORDS.fullmatch(start.strip().lower())
    last = words[3] if words else start
    if last:
        name = _SHORT.get(last, last)
        is_one = name == "scale" or any(may_hold(name, column) for column in ("value", "scale", "seed"))
        is_exponent = may_hold(name, "value") and max(numbers) >= 1  # `lr-9` may be 2^-9
        return name if is_one and not is_exponent else None
    if start:
        return "seed"
    if min(numbers) < 0:
        return "log2_lr"
    return "lr" if "value" in missing and ("scale" not in missing or max(numbers) < 1) else "scale"


def without_other_rows(own: Mapping[str, Sequence[Any]], loss: str, run: Sequence[str]) -> str | None:
    """Return the line of pandas that drops the rows of other metrics, of a table with a row per logged step.

    Such a row has no loss, but a number that no row with a loss has. `run` are the columns that say which run a row is
    of: what is dropped may be no run's only rows. None if there are no such rows.
    """
    empty = [is_empty(cell) for cell in own[loss]]
    other = [
        name
        for name, cells in own.items()
        if name != loss
        and all(is_empty(cell) for cell, lost in zip(cells, empty, strict=True) if not lost)
        and any(_is_number(cell) for cell in cells)
    ]
    keys = list(zip(*(map(str, own[name]) for name in run), strict=True))
    kept = {key for at, key in enumerate(keys) if all(is_empty(own[name][at]) for name in other)}
    if not other or kept != set(keys):
        return None
    return f"frame[frame[{other}].isna().all(axis=1)]"


def _is_number(cell: Any) -> bool:
    try:
        return not is_empty(cell) and number(cell) is not None
    except Bad:
        return False


def steps_column(names: Sequence[str]) -> str | None:
    """Return which of some columns counts steps, else epochs; None if none does."""
    last = {re.split(r"[./]", name.lower())[-1]: name for name in names}
    return next((last[step] for step in _STEPS if step in last), None)


def differing(own: Mapping[str, Sequence[Any]], used: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the unused columns in which the rows of each pair differ, but for measured numbers, few of which repeat."""
    for name, cells in own.items():
        if name in used:
            continue
        levels = set(map(_level, cells))
        if len(levels) <= len(cells) / 2 and all(_level(cells[a]) != _level(cells[b]) for a, b in pairs):
            yield name


def likely(own: Mapping[str, Sequence[Any]], free: Sequence[str], column: str) -> str | None:
    """Return which of some columns may hold a missing one, for an example; None without columns.

    Sizes and HP values are numbers that repeat, in every row, and sizes are no fractions. A loss is neither.
    """

    def fits(name: str) -> bool:
        levels = set(map(_level, own[name]))
        sizes = [level for level in levels if isinstance(level, float) and (column != "scale" or level >= 1)]
        repeats = len(sizes) == len(levels) and 2 <= len(levels) <= len(own[name]) / 2 and steps_column([name]) is None
        return repeats == (column != "loss")

    fit = [name for name in free if fits(name)]
    return next(iter([*fit[::-1], *free[::-1]]), None)


def _level(cell: Any) -> object:
    if is_empty(cell):
        return ""
    try:
        return positive(cell)
    except Bad:
        return str(cell).strip()
