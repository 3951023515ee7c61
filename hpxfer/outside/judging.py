"""`judge`: the verdicts on a table of runs that were trained elsewhere, as text, as data and as a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpxfer.analysis.analyze import Analysis, analyze_lines
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import NATS, JudgedLoss, is_control, shape_label
from hpxfer.outside.axes import place
from hpxfer.outside.checks import check, odd, without_duplicates
from hpxfer.outside.files import read_table, write_table
from hpxfer.outside.runs import TOLERANCE, Read, join_values, read_runs
from hpxfer.outside.trackers.table import Choices, is_address, read_address
from hpxfer.verdict import DEFAULT_RULES, Rules, TransferReport, judge_line
from hpxfer.verdict.thresholds import ERROR_RATE

if TYPE_CHECKING:
    from hpxfer.report.contents import Report


CHOICES = Choices()
_UNIT_OF = {"bpb": "bits per byte", "bpc": "bits per character", "ppl": "perplexity", "perplexity": "perplexity"}
_ERROR = re.compile(r"(^|[^a-z])(err|errors?|acc|accuracy|percent|share)([^a-z]|$)", re.IGNORECASE)
_OF_NUMBERS = re.compile(r"squared|square|absolute|abs|mean|relative", re.IGNORECASE)  # the error of a regression
_UNIT = re.compile(r"[A-Za-z][A-Za-z0-9 /%-]{0,30}")


def judge(
    table: pd.DataFrame | str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    shape: Sequence[str] = (),
    control: str | None = None,
    base: str | Sequence[str] = (),
    duplicates: str = "refuse",
    empty: str = "refuse",
    hp: str | None = None,
    regret_limit: Mapping[str, float] | None = None,
    error: float = ERROR_RATE,
    tolerance: float = TOLERANCE,
    unit: str | None = None,
    name: str | None = None,
    tracker: Choices = CHOICES,
    save: str | Path | None = None,
) -> JudgedTable:
    """Return the verdicts on a table with one row per run: a frame, a file of `files.KINDS`, or the runs of a tracker.

    The runs of a tracker have an address: `wandb:ENTITY/PROJECT`, `mlflow:URI#EXPERIMENT` or `tensorboard:LOGDIR`.

    - `columns` maps a column of `hpxfer.outside.columns.COLUMNS` to the table's own, e.g. `{"value": "lr", "scale":
      "width"}`. Columns of these names, and of well-known ones such as `learning_rate`, need no mapping. `shape` names
      columns that hold dimensions of a shape instead.
    - `control` names the arm that the others are compared with, and `base` the base, e.g. `scale=64`. Without either no
      HP is said to transfer.
    - `duplicates` says what to do with two rows of one HP value, shape, arm and seed: `refuse`, or keep the `last`.
    - `empty` says what an empty loss is, where no status does: of a run that `diverged`, or a `missing` one.
    - `hp` is the HP to judge: by default `lr`, else the first of the table.
    - `regret_limit` is `{"loss": 0.01}`, a share of the best loss, or `{"octaves": 0.5}`; `error` bounds the chance of
      a wrong verdict, as in a sweep's `judge` section.
    - HP values within `tolerance` octaves are one.
    - `unit` is that of the loss, by default nats. A share of samples that are wrong is no loss, and is refused.
    - `tracker` says how the runs of a tracker become a table, and `save` names a new file for the table that is judged.

    Raises HpxferError that names the row and the column of what cannot be judged.

    >>> runs = [{"lr": 2.0**k, "width": w, "seed": s, "loss": 3 - w / 400 + 0.02 * (k + 6) ** 2 + 0.001 * s}
    ...         for w in (64, 128, 256) for k in range(-9, -3) for s in range(3)]
    >>> found = hpxfer.judge(pandas.DataFrame(runs), columns={"value": "lr", "scale": "width"}, base="scale=64")
    >>> found.report.findings[0].verdict  # without a control, nothing shows that staying is a merit
    'stays'
    """
    where = name or (str(table) if isinstance(table, str | Path) else "table")
    of_tracker: tuple[str, ...] = ()
    if isinstance(table, str) and is_address(table):
        table, of_tracker = read_address(table, columns or {}, shape, tracker)
    elif given := [name for name, value in vars(tracker).items() if value is not None]:
        raise HpxferError(f"--{given[0]}: goes with the runs of a tracker, such as wandb:ENTITY/PROJECT")
    frame = table if isinstance(table, pd.DataFrame) else read_table(table)
    if save is not None:
        write_table(frame, Path(save))
    read = prepare(
        frame,
        where=where,
        columns=columns,
        shape=shape,
        base=[base] if isinstance(base, str) else base,
        duplicates=duplicates,
        empty=empty,
        tolerance=tolerance,
    )
    arms, hps = read.runs["arm"].unique().tolist(), read.runs["hp"].unique().tolist()
    if control is not None and not any(is_control(arm, control) for arm in arms):
        rule = f"must be an arm of the table, got {shown(control)}"
        raise HpxferError(f"{where}: --control: {rule}; {nearest(control, arms)}")
    if hp is not None and hp not in hps:
        raise HpxferError(f"{where}: --hp: must be an HP of the table, got {shown(hp)}; {nearest(hp, hps)}")
    rules = replace(
        _rules(regret_limit, error),
        control=control,
        outside=True,
        assumed_bases=read.assumed_bases,
        seeds_differ=True,
    )
    loss, notes = _loss(read, unit), (*of_tracker, *read.notes, *odd(read))
    if unit is None and read.runs["unit"].isna().all():
        notes = (*notes, f"no unit is named: losses count as {loss.unit}; --unit names another")
    hp, title = hp or ("lr" if "lr" in hps else hps[0]), Path(where).name
    lines = {each: _line(read.runs, each, title) for each in sorted(hps, key=lambda one: one != hp)}
    judged = [
        judge_line(line, sweep=title, hp=each, loss=loss, rules=rules, of_table=True) for each, line in lines.items()
    ]
    analysis = analyze_lines(judged, name=title, hp=hp, rules=rules, notes=notes)
    return JudgedTable(name=title, where=where, read=read, rules=rules, lines=lines, analysis=analysis)


def prepare(
    frame: pd.DataFrame,
    *,
    where: str,
    columns: Mapping[str, str] | None = None,
    shape: Sequence[str] = (),
    base: Sequence[str] = (),
    duplicates: str = "refuse",
    empty: str = "refuse",
    tolerance: float = TOLERANCE,
) -> Read:
    """Return the runs of a table as `judge` takes them: each run on its axis, one per cell and seed, and nothing that
    no verdict may rest on. Raise HpxferError that names what is wrong.
    """
    read = read_runs(frame, where=where, columns=columns, shape=shape, empty=empty)
    read = without_duplicates(place(join_values(read, tolerance), base), duplicates)
    check(read)
    return read


def _rules(limit: Mapping[str, float] | None, error: float) -> Rules:
    """Return the rules that the user chose. Raise HpxferError for one that no verdict can go by."""
    if not (isinstance(error, int | float) and 0 < error <= 0.2):
        raise HpxferError(f"--error: must be a chance above 0 and at most 0.2, got {error}")
    if limit is None:
        return replace(DEFAULT_RULES, error=error)
    most = {"loss": 0.5, "octaves": 8.0}
    if len(limit) != 1 or (kind := next(iter(limit))) not in most:
        raise HpxferError(f"--regret-limit: must be loss=SHARE or octaves=NUMBER, got {shown(dict(limit))}")
    if not (isinstance(limit[kind], int | float) and 0 < limit[kind] <= most[kind]):
        rule = f"must be above 0 and at most {most[kind]:g}"
        raise HpxferError(f"--regret-limit: {kind} {rule}, got {shown(limit[kind])}")
    return Rules(error=error, loss=limit.get("loss"), octaves=limit.get("octaves"))


def _loss(read: Read, unit: str | None) -> JudgedLoss:
    """Return what the loss of a table is. Raise HpxferError if it is an error rate or an accuracy."""
    with_result, column = read.runs[read.runs["loss"].notna()], read.columns["loss"]
    first = (read.runs if with_result.empty else with_result).iloc[0]
    if unit is not None and first["unit"] is not None and unit != first["unit"]:
        raise read.fault(first["row"], "unit", f"must be that of --unit, {shown(unit)}, got {shown(first['unit'])}")
    unit, words = first["unit"] if unit is None else unit, first["loss_name"] or "loss"
    for said in (column, words) if unit is None else (unit,):
        if _ERROR.search(said) and not _OF_NUMBERS.search(said):
            raise HpxferError(
                f"{read.where}: column loss: must be a loss, got an error rate or an accuracy, {shown(said)}; name the "
                "column of the loss with --map loss=NAME, or the unit with --unit if it is one"
            )
    of_column = re.split(r"[\W_]+", column.lower())
    if unit is None:
        unit = next((unit for word, unit in _UNIT_OF.items() if word in of_column), NATS.unit)
    if not _UNIT.fullmatch(unit):
        raise HpxferError(f"{read.where}: --unit: must be a unit such as nats or bits per byte, got {shown(unit)}")
    return JudgedLoss(name=words, words=words, unit=unit)


def _line(runs: pd.DataFrame, hp: str, name: str) -> pd.DataFrame:
    """Return the runs of an HP as the room `verdict` reads them. A run without a result is missing."""
    own = runs[runs["hp"] == hp].reset_index(drop=True)
    rows = pd.Series([f"row {row} of {name}" for row in own["row"]], dtype=object)
    return pd.DataFrame(
        {
            **own[["axis", "scale_name", "scale"]],
            "shape": own["shape"].where(own["shape"] != "", list(map(shape_label, own["scale_name"], own["scale"]))),
            "is_base": own["is_base"].astype(bool),
            "parameterization": own["arm"],
            **own[["value", "seed"]],
            "loss": own["loss"].where(own["status"] == "finished").astype(float),
            "status": own["status"].where(own["loss"].notna(), "missing"),
            "trial_id": own["run_id"].where(own["run_id"].notna(), rows),
        }
    )


# What would turn `stays` into `transfers`, for each of `Finding.lacking`.
SHOWS = {
    "no control": "an arm whose optimum is expected to move (--control ARM)",
    "no arm beside the control": "runs of the arm that the control is compared with",
    "no base named": "the shape that the HP was tuned at (--base scale=SIZE)",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JudgedTable:
    """A table with its verdicts. Made by `hpxfer.judge`."""

    name: str
    where: str  # the file, or `table`
    read: Read  # the runs that were judged; a run at the base may be on several axes
    rules: Rules
    lines: Mapping[str, pd.DataFrame]  # HP -> what was judged, the judged HP first
    analysis: Analysis
    spell: Callable[[str], str] = str  # how options are spelled where the table was judged

    @property
    def report(self) -> TransferReport:
        """The report on the judged HP."""
        return self.analysis.reports[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, joined or left out."""
        return self.analysis.notes

    def __repr__(self) -> str:
        return f"{self.summary()}{self.next_step()}"

    def summary(self) -> str:
        """Return the verdicts on the judged HP as plain text, and what was assumed, joined or left out."""
        return self.report.summary() + "".join(f"- {note}\n" for note in self.notes)

    def to_text(self) -> str:
        """Return every finding with its reasons and tables."""
        texts = "\n".join(report.to_text() for report in self.analysis.reports)
        return texts + "".join(f"- {note}\n" for note in self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: the report on the judged HP, and notes."""
        return {**self.report.to_dict(), "notes": list(self.notes)}

    def next_step(self) -> str:
        """Return what to do next, in one sentence."""
        return self.spell(f"Next: {next(_steps(self.report))}.")

    def page(self) -> Report:
        """Return the page with the verdicts, the figures that a table can feed, and every run. It needs matplotlib."""
        from hpxfer.outside.page import page_of

        return page_of(self)

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, its figures and transfer.png into a folder, and return the files.

        Raises HpxferError if they cannot be written.
        """
        from hpxfer.outside.page import write_page

        return write_page(self, Path(folder))


def _steps(report: TransferReport) -> Iterator[str]:
    """Yield what to do next, the most useful first."""
    shown = [finding for finding in report.findings if not finding.is_control] or list(report.findings)
    for finding in shown:
        if finding.verdict == "undecided" and finding.to_add:
            first = finding.to_add[0]
            which = f"for {finding.parameterization} along {finding.axis}"
            yield f"{which}, {first.text if first.asks_nothing else f'add {first.text}'}"
    staying = [finding for finding in shown if finding.verdict in ("transfers", "stays")]
    if staying:
        lacking = dict.fromkeys(SHOWS[why] for finding in staying for why in finding.lacking if why in SHOWS)
        more = f"; {' and '.join(lacking)} would show more" if lacking else ""
        yield f"use the {report.hp} tuned at the base up to the largest scale of the table, and not beyond{more}"
    yield f"tune {report.hp} at the scale that you need"
