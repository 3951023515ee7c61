"""Lost curves: the trials whose losses are stored and whose curves are in no file that can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpxfer.scaling.shape import Shape
from hpxfer.store.schema import SHAPE_COLUMNS, shape_of_row
from hpxfer.store.store import Store
from hpxfer.store.sweep_file import SWEEP_FILE

OPTION = "--retrain-missing-curves"
# How many ids and shapes a message names, and how many characters of an id. `hpxfer plan --why` takes them too.
_MOST_IDS = 8
_MOST_SHAPES = 12
_ID_CHARACTERS = 8


@dataclass(frozen=True, kw_only=True)
class LostCurves:
    """The trials of a store that lost their curves, by shape."""

    ids: Mapping[Shape, tuple[str, ...]]
    num_done: int  # trials of the store that are done
    folder: Path
    name: str  # of the sweep

    def __len__(self) -> int:
        return sum(map(len, self.ids.values()))

    def all_ids(self) -> list[str]:
        """Return the ids of the trials, in order."""
        return sorted(trial_id for ids in self.ids.values() for trial_id in ids)

    def text(self) -> str:
        """Return who lost what and how to get it back, one line per shape."""
        # The sweep.yaml of a folder stands for the folder if that has the sweep's name.
        sweep = self.folder / SWEEP_FILE if self.folder.name == self.name else "SWEEP.yaml"
        lines = [
            f"{self.folder}: {len(self)} of {self.num_done} trials have lost their curves; their losses are stored. "
            f"`hpxfer run {sweep} {OPTION}` trains these trials again and keeps every stored result"
        ]
        shapes = sorted(self.ids, key=lambda shape: (-len(self.ids[shape]), shape.label()))
        several = len({shape.label() for shape in shapes}) < len(shapes)
        for shape in shapes[:_MOST_SHAPES]:
            lines.append(f"  {len(self.ids[shape])} of {shape.label(schedule=several)}: {_spelled(self.ids[shape])}")
        if others := shapes[_MOST_SHAPES:]:
            lines.append(f"  {sum(len(self.ids[shape]) for shape in others)} of {len(others)} more shapes")
        return "\n".join(lines)


def lost_curves(store: Store, name: str) -> LostCurves | None:
    """Return which trials of a sweep's store lost their curves. None if none did."""
    lost = store.without_curves()
    if not lost:
        return None
    rows = store.read_trials(["trial_id", *SHAPE_COLUMNS]).to_pylist()
    ids: dict[Shape, list[str]] = {}
    for row in rows:
        if row["trial_id"] in lost:
            ids.setdefault(shape_of_row(row), []).append(row["trial_id"])
    return LostCurves(
        ids={shape: tuple(found) for shape, found in ids.items()},
        num_done=len(store.done_ids()),
        folder=store.folder,
        name=name,
    )


def _spelled(ids: Sequence[str]) -> str:
    named = ", ".join(trial_id[:_ID_CHARACTERS] for trial_id in ids[:_MOST_IDS])
    return named + (f" and {len(ids) - _MOST_IDS} more" if len(ids) > _MOST_IDS else "")
