"""Results: the folder of a sweep as tables: its trials, its curves, and every cell of its grid with its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import scale_text, shape_label
from hpxfer.scaling.shape import DIMENSIONS
from hpxfer.search import cells_of, kind_of, rules_of
from hpxfer.spec import SweepSpec, data_sizes, is_own, points_with_data, source_row
from hpxfer.store import LOSS_NUMBERS, Store, TrainerChecks, load_stored, location_at, loss_row, read_checks
from hpxfer.trial import PRODUCT, TRAINER_VERSION, DataRef, Expansion, base_hps
from hpxfer.verdict import Rules

COUNT = "num_"  # the start of the names of counts, which a user may leave out
# The status of a cell whose trial is not in the store.
MISSING = "missing"
# The columns of its trial that a cell has. The others are in `trials`, under the same trial_id.
_OF_TRIAL = ["trial_id", "status", *LOSS_NUMBERS, "diverged_step", "last_finite_loss_nats"]
_LOCATION = ["axis", "scale_name", "scale", "shape", "is_base", "parameterization"]
_CELL = [*_LOCATION, "line", "seed", "trial_id"]
_LINE = [*_LOCATION, "value", "seed", "loss", "status", "trial_id", "diverged_step"]


@dataclass(frozen=True, kw_only=True)
class AxisShape:
    """One shape of one axis, by the names that results give it."""

    axis: str
    scale_name: str
    scale: float
    shape: str

    @property
    def name(self) -> str:
        """Its name within the axis, e.g. `width 64`."""
        return shape_label(self.scale_name, self.scale)

    def spellings(self) -> set[str]:
        """Return every way to spell it but the whole name, without blanks: name or first letter, and the scale."""
        counted = self.scale_name.removeprefix(COUNT)
        starts = (self.scale_name, counted, self.axis, counted[:1])
        return {_plain(start + scale_text(self.scale)) for start in starts}


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """A sweep and what has been measured of it. Made by `load_results`. The columns' units: `hpxfer.store.schema`."""

    folder: Path
    spec: SweepSpec
    trials: pd.DataFrame  # one row per stored trial, also of trials that an edited sweep no longer has
    problems: tuple[str, ...]  # the files that were passed over, and why; how many trials lost their curves
    trainer_version: int = TRAINER_VERSION  # of the trials in `cells`: the newest version in the folder
    checks: TrainerChecks | None = None  # of a user's own trainer, if it was checked
    base: AxisShape | None = None  # the shape that all is judged from, see `from_base`; None: the sweep's base

    @property
    def rules(self) -> Rules:
        """The rules of the verdicts on the sweep, which the checks of a user's own trainer are part of."""
        return rules_of(self.spec, self.checks)

    @property
    def name(self) -> str:
        """The sweep's name, with the base that it is judged from if that is not its own: `quickstart from width 64`."""
        return self.spec.name if self.base is None else f"{self.spec.name} from {self.base.name}"

    def from_base(self, spelled: str) -> Results:
        """Return the same results as they read with another shape as the base, spelled e.g. `w64` or `width 64`.

        Cells are left out on axes without this shape and at smaller shapes. An HP value stays in units of the sweep's
        base, as the factors of a parameterization compose: the best value at width 64 is handed to all larger widths.
        `hpxfer.analysis.statistics.bases` says why.
        """
        return replace(self, base=find_shape(self.axis_shapes, spelled, f"{self.folder}: base"))

    @property
    def axis_shapes(self) -> list[AxisShape]:
        """Every shape of every axis, by the names that a user may give it."""
        return [
            AxisShape(axis=axis.name, scale_name=axis.scale_name, scale=point.scale, shape=axis.label(point.shape))
            for axis in self.expansion.axes
            for point in axis.points
        ]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The axes that do not have the base, and that nothing can be said about from there."""
        having = self._base_labels
        return tuple(axis.name for axis in self.expansion.axes if axis.name not in having) if self.base else ()

    @property
    def _base_labels(self) -> dict[str, str]:
        """Axis -> its name of the base, for the axes that have this shape."""
        if (base := self.base) is None:
            return {}
        (own,) = (axis for axis in self.expansion.axes if axis.name == base.axis)
        shape = next(point.shape for point in own.points if own.label(point.shape) == base.shape)
        having = (axis for axis in self.expansion.axes if any(point.shape == shape for point in axis.points))
        return {axis.name: axis.label(shape) for axis in having}

    @cached_property
    def expansion(self) -> Expansion:
        """The sweep's expansion, computed without its data."""
        base, names = self.spec.base_shape, ("own",) if self.spec.base_shape.own else DIMENSIONS
        dims = self.trials[[*names]]
        at_base = self.trials[(dims == [getattr(base, name) for name in names]).all(axis=1)]
        own_at_base = set(at_base["parameterization"].dropna())
        return Expansion(self.spec, self._data, self.trainer_version, own_at_base=own_at_base)

    @cached_property
    def _data(self) -> DataRef:
        """The identity of the data. Its vocabulary is the stored one if a plug-in that is not loaded defines it."""
        data = self.spec.data
        assert data.digest is not None, "load_results checks it"
        stored = self.trials.loc[self.trials["data_digest"] == data.digest, ["tokenizer", "vocab_size"]]
        if is_own(data) or data.inputs is not None or source_row(data.source) is not None or stored.empty:
            sizes = data_sizes(data)
        else:
            sizes = {"tokenizer": str(stored["tokenizer"].iloc[0]), "vocab_size": int(stored["vocab_size"].iloc[0])}
        return DataRef(
            digest=data.digest,
            **sizes,
            validation_digest=data.validation_digest,
            others=tuple((own.source, own.digest or "") for _, _, own in points_with_data(self.spec)),
        )

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The curves of `trials`, one row per point: trial_id, metric, layer, role, step, value."""
        read = Store.open(self.folder, write=False).read_curves()
        table: pd.DataFrame = read.to_pandas(split_blocks=True, self_destruct=True)  # without a second copy of it
        if table["trial_id"].cat.categories.isin(self.trials["trial_id"]).all():
            return table
        return table[table["trial_id"].isin(self.trials["trial_id"])].reset_index(drop=True)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, with its location, its HPs and the result of its trial. Cells may share a trial.

        A search that is no grid has cells for its stored trials and for the trials that come next.
        """
        hps = kind_of(self.spec).hps(self.spec)
        rows = [
            {
                **vars(cell),
                "is_base": cell.trial.shape == cell.trial.base,
                "seed": cell.trial.seed,
                "trial_id": cell.trial.id,
                **{hp: cell.trial.hps.get(hp) for hp in hps},
            }
            for cell in cells_of(self.expansion, self.trials)
        ]
        cells = pd.DataFrame(rows, columns=[*_CELL, *hps])
        if self.base is not None:
            at_base = cells["shape"] == cells["axis"].map(self._base_labels)
            scales = cells["axis"].map(cells[at_base].groupby("axis")["scale"].first())
            # An axis without the shape has no scale to compare with.
            cells = cells.assign(is_base=at_base)[cells["scale"] >= scales].reset_index(drop=True)
        out = cells.merge(self.trials[_OF_TRIAL], how="left", on="trial_id", validate="many_to_one")
        return out.fillna({"status": MISSING})

    def line(self, hp: str | None = None, loss: str | None = None) -> pd.DataFrame:
        """Return the cells that scan `hp` (by default the judged HP), with all other HPs at their base values.

        Columns: axis, scale_name, scale, shape, is_base, parameterization, value (of the HP), seed, loss (in its unit;
        null unless finished), status, trial_id, diverged_step (null unless diverged). `loss` is one of those of
        `judge.loss`, by default the one that the sweep judges by.
        The table is empty if the search scans no line, see `why_no_line`.
        """
        hp = hp or self.spec.judged_hp
        column = loss_row(loss or self.spec.judge.loss).column
        cells = self.cells
        if self.why_no_line(hp) is not None:
            cells = (cells if hp in cells else cells.assign(**{hp: None})).head(0)
        elif hp not in self.spec.grid:
            raise HpxferError(
                f"{self.folder}: hp: must be scanned by the sweep, got {shown(hp)}; {nearest(hp, self.spec.grid)}"
            )
        else:
            cells = cells[cells["line"].isin([hp, PRODUCT])]
            for other in self.spec.grid if self.spec.product else ():
                if other != hp:
                    arms = self.expansion.arms.items()
                    base = {label: self._base_value(part.spec, other, hp) for label, (part, _) in arms}
                    cells = cells[cells[other] == cells["parameterization"].map(base)]
        found = cells.rename(columns={hp: "value", column: "loss"})[_LINE]
        return found.assign(loss=found["loss"].where(found["status"] == "finished")).reset_index(drop=True)

    def why_no_line(self, hp: str | None = None) -> str | None:
        """Return why the sweep's search scans no line of `hp` (by default the judged HP), or None if it scans one."""
        return kind_of(self.spec).why_no_line(self.spec, hp or self.spec.judged_hp)

    def _base_value(self, spec: SweepSpec, other: str, hp: str) -> float:
        """Return the base value of `other` as the grid spells it. Raise HpxferError if the grid does not have it."""
        values = self.spec.grid[other].numbers()
        base = None if other == "lr" and self.spec.hps.lr is None else base_hps(spec).get(other)
        for value in values:
            if base is not None and math.isclose(value, base, rel_tol=1e-9):
                return value
        raise HpxferError(
            f"{self.folder}: the line of {hp} needs {other} at its base value, got "
            f"{'none' if base is None else f'{base:g}'}; grid.{other}: {', '.join(f'{value:g}' for value in values)}"
        )


def load_results(folder: str | Path) -> Results:
    """Return the results of the sweep in a folder or at a URI. Raise HpxferError if it holds no results.

    It needs neither the data nor a finished run. Files that cannot be read are named in `problems`.

    >>> results = hpxfer.load_results("results/published/quickstart")
    >>> results.trials["status"].value_counts().to_dict()
    {'finished': 180}
    >>> sorted(results.cells["parameterization"].unique())
    ['completep-moe', 'sp']
    """
    path = location_at(folder).folder
    spec = load_stored(path)
    store = Store.open(path, write=False)
    trials = store.read_trials().to_pandas()
    if trials.empty:
        why = f"{path}: must hold at least one trial in trials*.parquet, got none; `hpxfer run SWEEP.yaml` makes it"
        raise HpxferError("\n".join([why, *store.problems]))
    version = store.trainer_version() or TRAINER_VERSION
    if spec.resources.curves == "all":
        store.without_curves()  # which notes those that are lost
    return Results(
        folder=path,
        spec=spec,
        trials=trials,
        problems=tuple(store.problems),
        trainer_version=version,
        checks=None if spec.trainer is None else read_checks(path),
    )


def find_shape(shapes: Sequence[AxisShape], spelled: str, where: str) -> AxisShape:
    """Return the shape that a user names. Raise HpxferError, which lists the legal names, if that is not exactly one.

    `where` says where the user names it, e.g. `--base`.
    """
    found = [shape for shape in shapes if _plain(shape.shape) == _plain(spelled)]
    found = found or [shape for shape in shapes if _plain(spelled) in shape.spellings()]
    if not found:
        raise HpxferError(
            f"{where}: must be a shape of the sweep, got {shown(spelled)}; the shapes are {_listed(shapes)}"
        )
    if len({shape.shape for shape in found}) > 1:
        whole = " or ".join(dict.fromkeys(shape.shape for shape in found))
        raise HpxferError(f"{where}: must name one shape, got {shown(spelled)}, which names several; give {whole}")
    return found[0]


def _listed(shapes: Sequence[AxisShape]) -> str:
    """Return the names of shapes; the whole name where the scale does not say which shape is meant.

    That is where another shape has the same scale, or where the scale is no single dimension, such as hidden weights.
    """
    wholes: dict[str, set[str]] = {}
    for shape in shapes:
        wholes.setdefault(shape.name, set()).add(shape.shape)
    named = (" " in shape.scale_name or len(wholes[shape.name]) > 1 for shape in shapes)
    return ", ".join(
        dict.fromkeys(shape.shape if whole else shape.name for shape, whole in zip(shapes, named, strict=True))
    )


def _plain(text: str) -> str:
    """Return a spelling without what users may vary: case, blanks, underscores and `=`."""
    return "".join(character for character in text.lower() if character not in " _=-")
