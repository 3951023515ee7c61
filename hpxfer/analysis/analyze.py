"""The whole analysis of a sweep: a transfer report for every HP, every statistic, and the sweep to run next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpxfer.analysis.followup import FollowUp, followup_sweep
from hpxfer.analysis.references import References
from hpxfer.analysis.statistics import STATISTICS, Found, Inputs
from hpxfer.analysis.statistics.answers import answer_of
from hpxfer.analysis.statistics.reference_arm import chosen_arm
from hpxfer.analysis.statistics.statistic import frame_of, in_unit
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import CONTROL, NATS, JudgedLoss, json_ready
from hpxfer.search import judged_by
from hpxfer.spec import SweepSpec, YamlFile, model_roles, read_yaml, used_rows
from hpxfer.store import SWEEP_FILE
from hpxfer.trial import Trial, base_hps
from hpxfer.verdict import JudgedLine, Rules, TransferReport, judge_line

if TYPE_CHECKING:
    from hpxfer.results import Results


def transfer_report(results: Results, hp: str | None = None, loss: str | None = None) -> TransferReport:
    """Return the report on one HP of a sweep. By default the sweep names the HP, and the loss it is judged by.

    >>> report = hpxfer.transfer_report(hpxfer.load_results("results/published/quickstart"))
    >>> {finding.parameterization: finding.verdict for finding in report.findings}
    {'completep-moe': 'transfers', 'sp': 'drifts'}
    >>> report.headline
    'Use lr 2^-6 tuned at width 32 with completep-moe up to width 128: at most 0.0094 nats lost. ...'
    """
    spec = results.spec
    hp, judged = hp or spec.judged_hp, judged_by(spec, loss)
    return _verdicts(results, judged_line(results, results.line(hp, judged.name), hp, judged))


def judged_line(results: Results, line: pd.DataFrame, hp: str, loss: JudgedLoss) -> JudgedLine:
    """Return the report on a line of a sweep, with its estimates. The one value of a fixed HP is handed on as it is."""
    differ = partial(difference_at_base, results)
    judged = judge_line(line, sweep=results.name, hp=hp, loss=loss, rules=results.rules, differ=differ)
    if not results.spec.has_fixed_hps:
        return judged
    (value,) = results.spec.grid[hp].numbers()
    findings = tuple(replace(finding, base_value=value) for finding in judged.report.findings)
    return replace(judged, report=replace(judged.report, findings=findings))


def _verdicts(results: Results, line: JudgedLine) -> TransferReport:
    """Return the report on a line, which has no findings where HPs are fixed: nobody asks whether they transfer."""
    return replace(line.report, findings=()) if results.spec.has_fixed_hps else line.report


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


NO_RESULT = {
    "missing": "have not been run",
    "failed": "failed",
    "diverged": "diverged",
    "stopped": "were stopped early, so that only the others have a loss at the end",
}


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analysis of one sweep: its reports, and what each statistic found.

    What is not known stands in `Found.unknown`, with the reason. Nothing is left out.
    """

    sweep: str
    hp: str  # judged
    loss: str  # judged by, as in `judge.loss`
    reports: tuple[TransferReport, ...]  # one per HP scanned, the judged HP first
    statistics: Mapping[str, Found]  # by name, in the order of the registry
    follow_up: FollowUp
    judged: JudgedLoss = NATS  # what that loss is
    about: tuple[str, ...] = ()  # the statistics that a report opens with
    notes: tuple[str, ...] = ()  # trials without a result; HPs and statistics that cannot be computed, and why

    def found(self, name: str) -> Found:
        """Return what a statistic found, e.g. `collapse`."""
        if name not in self.statistics:
            raise HpxferError(f"statistic {shown(name)} is not known; {nearest(name, self.statistics)}")
        return self.statistics[name]

    @property
    def report(self) -> TransferReport | None:
        """The report on the judged HP; None if its line cannot be read, and `notes` say why."""
        return next((report for report in self.reports if report.hp == self.hp), None)

    @property
    def control(self) -> str | None:
        """The arm that all others are compared with; None if nobody named one."""
        return self.reports[0].control if self.reports else CONTROL

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, with a key per statistic. None stands for what is missing and for +inf."""
        out: dict[str, Any] = json_ready(
            {
                "sweep": self.sweep,
                "hp": self.hp,
                "loss": self.loss,
                "loss_unit": self.judged.unit,
                "reports": [asdict(report) for report in self.reports],
                **{name: {**found.to_dict(), "columns": _columns(name)} for name, found in self.statistics.items()},
                "follow_up": asdict(self.follow_up),
                "notes": self.notes,
                **({"about": self.about} if self.about else {}),
            }
        )
        return out


def analyze(results: Results, loss: str | None = None, references: References | None = None) -> Analysis:
    """Return all reports and statistics of a sweep.

    `results` comes from `load_results`, and may be partial: what cannot be computed says why. `loss` is one of
    those of `judge.loss`, by default the one that the sweep is judged by. `references` are what the arms are compared
    with over their whole runs. Raises HpxferError if they name an arm that the sweep does not have.

    >>> analysis = hpxfer.analyze(hpxfer.load_results("results/published/quickstart"))
    >>> gains = analysis.found("gains").frame  # does a larger model always win?
    >>> gains.groupby("parameterization")["monotone"].first().to_dict()
    {'completep-moe': True, 'sp': False}
    """
    references = references or References()
    if references.arm is not None:
        chosen_arm(results, references.arm)
    loss = loss or results.spec.judge.loss
    lines, notes = _lines(results, loss)
    if results.base is not None and results.left_out:
        notes.insert(0, f"judged from {results.base.name}, a shape that {', '.join(results.left_out)} do not have")
    inputs = Inputs(
        of_sweep=results,
        hp=results.spec.judged_hp,
        loss=loss,
        lines=tuple(lines),
        rules=results.rules,
        references=references,
    )
    statistics, failed = _statistics(inputs)
    notes += failed
    reports = tuple(_verdicts(results, line) for line in lines)
    diverged = all_diverged(results)
    return Analysis(
        sweep=results.name,
        hp=inputs.hp,
        loss=loss,
        judged=judged_by(results.spec, loss),
        reports=reports,
        about=_about(results.spec, statistics),
        statistics=statistics,
        follow_up=(
            FollowUp(yaml=None, is_needed=True, why_not=diverged)
            if diverged
            else followup_sweep(results.spec, reports, _sweep_file(results))
        ),
        notes=(*notes, *_no_result(results)),
    )


FIXED = ("gains", "experts_size")  # what a sweep of fixed HPs is about


def _about(spec: SweepSpec, statistics: Mapping[str, Found]) -> tuple[str, ...]:
    """Return the statistics that a report opens with. What nobody named opens it where it found something."""
    if spec.judge.about or not spec.has_fixed_hps:
        return spec.judge.about or ()
    return tuple(name for name in FIXED if name == FIXED[0] or not statistics[name].frame.empty)


def analyze_lines(
    lines: Sequence[JudgedLine], *, name: str, hp: str, rules: Rules, notes: Sequence[str] = ()
) -> Analysis:
    """Return the reports on the lines of a table, and every statistic that needs no more than lines.

    `hp` is the judged one of those that the lines scan, and `rules` are those that they were judged by.
    """
    judged = lines[0].report.judged
    statistics, failed = _statistics(Inputs(of_sweep=None, hp=hp, loss=judged.name, lines=tuple(lines), rules=rules))
    return Analysis(
        sweep=name,
        hp=hp,
        loss=judged.name,
        judged=judged,
        reports=tuple(line.report for line in lines),
        statistics=statistics,
        follow_up=FollowUp(yaml=None, why_not="a table names no sweep that could be run"),
        notes=(*notes, *failed),
    )


def _columns(name: str) -> dict[str, str]:
    """Return what the columns of a statistic hold."""
    return dict(STATISTICS.get(name).columns) if name in STATISTICS else {}


def _statistics(inputs: Inputs) -> tuple[dict[str, Found], list[str]]:
    """Return what every statistic found, and why others failed. Of a table, only those of lines have answers."""
    answers: dict[str, Found] = {}
    unit = inputs.lines[0].report.judged.unit if inputs.lines else NATS.unit
    failed = []
    for statistic in STATISTICS.rows():
        answers[statistic.name] = Found(frame=frame_of((), statistic.columns))
        if inputs.of_sweep is None and not statistic.of_lines:
            continue
        try:
            found = answer_of(statistic, inputs, STATISTICS.module(statistic.name))
            answers[statistic.name] = replace(found, title=in_unit(found.title, unit))
        except HpxferError as error:
            failed.append(f"{statistic.name}: {error}")
    return answers, failed


def _sweep_file(results: Results) -> YamlFile:
    """Return the stored sweep file, whose name and lines messages give. Without it they give its name alone."""
    path = results.folder / SWEEP_FILE
    try:
        return read_yaml(path)
    except HpxferError:
        return YamlFile(name=str(path), data=None, lines={})


def _lines(results: Results, loss: str) -> tuple[list[JudgedLine], list[str]]:
    """Return the line of each HP of the grid, the judged HP first, and why other lines cannot be read."""
    spec, out, notes = results.spec, [], []
    for hp in sorted(spec.grid, key=lambda name: name != spec.judged_hp):
        try:
            line = results.line(hp, loss)
        except HpxferError as error:
            notes.append(f"{hp}: {error}")
            continue
        if line.empty:
            why = results.why_no_line(hp)
            more = "" if why is None else f": {why}"
            notes.append(f"{hp}: no trial lies on a line of it, so nothing can be said about its transfer{more}")
        else:
            out.append(judged_line(results, line, hp, judged_by(spec, loss)))
    return out, notes


def _no_result(results: Results) -> list[str]:
    """Return in words how many trials of the sweep have no result, or diverged."""
    trials = results.cells.drop_duplicates("trial_id")
    counts = trials["status"].value_counts()
    return [
        f"{number} of {len(trials)} trials {words}"
        for status, words in NO_RESULT.items()
        if (number := int(counts.get(status, 0)))
    ]


def all_diverged(results: Results) -> str | None:
    """Return that every trial of the sweep diverged, and what to look at. Return None if one did not.

    For example: `all 12 trials diverged: look at the LRs, 0.004 to 0.06, as even the smallest may be too large`.
    """
    trials = results.cells.drop_duplicates("trial_id")
    if trials.empty or not (trials["status"] == "diverged").all():
        return None
    return f"all {len(trials)} trials diverged: look at {', and at '.join(_causes(results))}"


def _causes(results: Results) -> Iterator[str]:
    """Yield what may make every trial diverge: the LRs, and the rows of plug-ins that the trials use."""
    spec = results.spec
    lrs = results.trials.loc[results.trials["trial_id"].isin(results.cells["trial_id"]), "lr"]
    if lrs.nunique() > 1:
        yield f"the LRs, {lrs.min():.4g} to {lrs.max():.4g}, as even the smallest may be too large"
    else:
        yield f"the LR, {lrs.min():.4g}, as it may be too large"
    used = set(used_rows(spec))
    for plugin in spec.plugins or ():
        for kind, names in (plugin.registers or {}).items():
            yield from (f"{kind} {name!r} of the plug-in {plugin.name}" for name in names if (kind, name) in used)
