"""What to do after a sweep, in one sentence that ends with the command to type where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hpxfer.analysis.analyze import all_diverged
from hpxfer.analysis.followup import followup_sweep
from hpxfer.errors import HpxferError, spelled
from hpxfer.host import CONTROL, JudgedLoss
from hpxfer.registry import registry
from hpxfer.report.provenance import Progress
from hpxfer.results import Results
from hpxfer.scaling.coverage import coverage_warnings
from hpxfer.search import ArmBest, arm_points, best_of_arms, is_base_alone, judged_by, tunes_points
from hpxfer.spec import SweepSpec, parse_sweep, write_yaml
from hpxfer.trial import Expansion

if TYPE_CHECKING:
    from hpxfer.analysis import Finding, TransferReport

DEFAULT_ROOT = "results"  # of `hpxfer run`, where the sweep names no storage


def next_step(results: Results, report: TransferReport | None, folder: str, *, is_running: bool = False) -> str:
    """Return what to do next after a sweep.

    `report` is the one on the judged HP, or None without one. `folder` is how commands name the results folder. While
    `is_running`, what is missing is still to come.

    For example: `Next: use the tuned lr in your own model, with the recipe of: hpxfer recipe write results/quickstart`.
    """
    hp = results.spec.judged_hp
    command = quote(folder) if results.base is None else f"{quote(folder)} --base '{results.base.name}'"
    every = report.findings if report is not None else ()
    progress = Progress.of(results)
    if is_running and progress.num_missing:
        return f"Next: nothing yet. The run goes on, and {progress.num_missing} trials are still to come."
    if doubted := [doubt for finding in every for doubt in finding.doubts]:
        return f"Next: mend the trainer, as more trials do not help: {doubted[0]}"
    if num := progress.num_missing + progress.num_failed:
        run = f": {again}" if (again := run_again(results)) else "."
        return f"Next: run the sweep again, which trains the {num} trials without a result, and nothing else{run}"
    if (diverged := all_diverged(results)) is not None:
        return f"Next: find out why {diverged}."
    if asks_for_points(results.spec):
        return f"Next: start the next sweep from the recipe of: hpxfer recipe write {command}"
    if results.spec.has_fixed_hps:
        more = f"To ask whether {hp} transfers, give it at least 3 values in grid.{hp}"
        return f"Next: nothing is left to run. {more}."
    if names := results.spec.judge.about:
        return f"Next: see what report.html draws of {', '.join(names)}. The verdict on {hp} stands below it."
    by_label: dict[str, list[Finding]] = {}
    for finding in every:
        if not finding.is_control:
            by_label.setdefault(finding.parameterization, []).append(finding)
    for label, findings in by_label.items():
        if all(finding.verdict == "transfers" for finding in findings):
            if any(finding.to_add for finding in findings) and _adds_control(results, report):
                return f"Next: add the control, without which staying may be no merit: {_follow_up(results, command)}"
            which = "" if len(by_label) == 1 else f" --parameterization '{label}'"
            return (
                f"Next: use the tuned {hp} in your own model, with the recipe of: hpxfer recipe write {command}{which}"
            )
    judged = [finding for findings in by_label.values() for finding in findings] or every
    if undecided := [finding for finding in judged if finding.verdict == "undecided"]:
        wanted = [addition for finding in undecided for addition in finding.to_add if not addition.parameterization]
        if wanted and all(each.asks_nothing for each in wanted):
            return f"Next: {wanted[0].text}."
        return f"Next: write the sweep that would decide it, and run it: {_follow_up(results, command)}"
    if any(finding.verdict == "stays" for finding in judged):
        return (
            f"Next: add an arm whose optimum is expected to move, and name it as the control: until then nothing shows "
            f"that the optimum of {hp} stays because of the parameterization."
        )
    if not by_label:
        return f"Next: use the tuned HPs in your own model, with the recipe of: hpxfer recipe write {command}"
    if (again := run_again(results)) and (tables := _other_tables(results)):
        arms = ", ".join([*tables, CONTROL])
        return (
            f"Next: tune {hp} again at the scale that you need, or try other tables on the same grid: {again} --set "
            f"'parameterizations=[{arms}]'"
        )
    return f"Next: tune {hp} again at the scale that you need."


def _adds_control(results: Results, report: TransferReport | None) -> bool:
    """Return whether a follow-up adds an arm: it does where nothing is undecided, and a sweep file may hold the arm."""
    found = () if report is None else followup_sweep(results.spec, [report]).added
    return any(words.startswith("parameterization ") for words in found)


def _follow_up(results: Results, command: str) -> str:
    """Return the commands that write a follow-up and run it. A folder that has to be renamed first is not run."""
    run = f" && hpxfer run more.yaml{elsewhere(results)}" if not rename(results) else ""
    return f"hpxfer report {command} --write-followup more.yaml{run}"


def run_again(results: Results) -> str:
    """Return the command that goes on with a sweep; empty where its results folder alone does not say it."""
    if results.spec.trainer is not None or results.spec.plugins or rename(results):
        return ""  # code lies beside the sweep file, wherever that is
    return f"hpxfer run {quote(f'{spelled(str(results.folder))}/sweep.yaml')}{elsewhere(results)}"


def elsewhere(results: Results) -> str:
    """Return the option that makes a run write to this results folder; empty where it would without."""
    default = results.spec.storage or Path(DEFAULT_ROOT).resolve()
    return "" if root(results) == str(default).rstrip("/") else f" --results {quote(root(results))}"


def rename(results: Results) -> str:
    """Return how the results folder must be renamed so that a run of the sweep finds it; empty if a run finds it."""
    folder, name = _where(results), results.spec.name
    return "" if folder.rpartition("/")[2] == name else f"rename the results folder {folder} to {name}"


def root(results: Results) -> str:
    """Return the folder or URI that holds the results folder."""
    return _where(results).rpartition("/")[0] or "/"


def _where(results: Results) -> str:
    """Return the results folder as an absolute path, or as the URI that it is the mirror of."""
    given = str(results.folder)
    return str(results.folder.resolve()) if spelled(given) == given else spelled(given)


def _other_tables(results: Results) -> list[str]:
    """Return the tables that a sweep lacks, that its model may have, and that cover every shape of its axes."""
    spec, out = results.spec, []
    data = spec.model_dump(mode="json", exclude_none=True)
    for name in registry("parameterization").names():
        if name == CONTROL or name in {arm.table for arm in spec.parameterizations}:
            continue
        try:
            other = parse_sweep(write_yaml({**data, "parameterizations": [name]}), trusted=False)
        except HpxferError:
            continue
        expansion = Expansion(other, results.expansion.data)
        (choice,) = expansion.choices
        shapes = [point.shape for axis in expansion.axes for point in axis.points]
        facts = [(expansion.spec.base_shape, shape, expansion.facts(choice, shape)) for shape in shapes]
        if not any(coverage_warnings(choice, *each, expansion.setting.column) for each in facts):
            out.append(name)
    return out


def asks_for_points(spec: SweepSpec) -> bool:
    """Return whether a sweep asks for the best point of its base, and not whether an HP transfers."""
    return tunes_points(spec) and is_base_alone(spec)


def points_headline(arms: Sequence[ArmBest], judged: JudgedLoss) -> str:
    """Return the best point of each arm, with the HPs that are bounds there."""
    return " ".join(_sentence(arm, judged) for arm in arms) or "No trial of the search has ended."


def _sentence(arm: ArmBest, judged: JudgedLoss) -> str:
    where = f"At the base, {arm.parameterization}"
    if arm.best_nats is None:
        return f"{where}: {arm.why_not or 'no point has ended'}."
    diverged = f", {arm.num_diverged} points diverged" if arm.num_diverged else ""
    loss = judged.level(arm.best_nats)
    best = f"{where} is best at {arm.at} ({loss}, {arm.num_trials} trials{diverged})."
    kept = f"The search keeps {arm.kept}." if arm.kept else ""
    bounds = f"Bounds, no optima: {arm.on_edge}." if arm.on_edge else ""
    return " ".join(part for part in (best, kept, bounds) if part)


def points_question(judged: JudgedLoss, sweep: str = "") -> str:
    """Return the question that the sweep asks, and by which loss. `sweep` is named where it is given."""
    of = f"Sweep {sweep}, judged" if sweep else "Judged"
    return f"Which HPs are best at the base? {of} by {judged.words}. There is no larger shape, so nothing transfers."


def gains_question(spec: SweepSpec, judged: JudgedLoss, sweep: str = "") -> str:
    """Return the question that a sweep of fixed HPs asks, and by which loss. `sweep` is named where it is given."""
    hps = ", ".join(f"{name} {value:.4g}" for name, values in spec.grid.items() for value in values.numbers())
    of = f"Sweep {sweep}, judged" if sweep else "Judged"
    return f"Does a larger shape win at {hps}? {of} by {judged.words}. Every HP has one value, so nothing transfers."


def points_text(results: Results) -> str:
    """Return the headline and the question as text for a terminal."""
    arms = best_of_arms(arm_points(results), results.spec)
    judged = judged_by(results.spec)
    return f"{points_headline(arms, judged)}\n{points_question(judged, results.name)}\n"
