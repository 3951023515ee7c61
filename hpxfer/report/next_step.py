"""What to do after a sweep, in one sentence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.analysis.diverged import all_diverged
from hpxfer.report.best_points import asks_for_points
from hpxfer.report.provenance import Progress
from hpxfer.verdict.what_to_add import asks_nothing

if TYPE_CHECKING:
    from hpxfer.analysis import Finding, TransferReport
    from hpxfer.results import Results


def next_step(results: Results, report: TransferReport | None, folder: str, *, is_running: bool = False) -> str:
    """Return what to do next after a sweep.

    `report` is the one on the judged HP, or None without one. `folder` is how commands name the results folder. While
    `is_running`, what is missing is still to come.

    For example: `Next: use the tuned lr in your own model, with the recipe of: hpxfer recipe results/quickstart`.
    """
    hp = results.spec.judged_hp
    command = folder if results.base is None else f"{folder} --base '{results.base.name}'"
    every = report.findings if report is not None else ()
    progress = Progress.of(results)
    if is_running and progress.num_missing:
        return f"Next: nothing yet. The run goes on, and {progress.num_missing} trials are still to come."
    if doubted := [doubt for finding in every for doubt in finding.doubts]:
        return f"Next: mend the trainer, as more trials do not help: {doubted[0]}"
    if num := progress.num_missing + progress.num_failed:
        return f"Next: run the sweep again: that trains the {num} trials without a result, and nothing else."
    if (diverged := all_diverged(results)) is not None:
        return f"Next: find out why {diverged}."
    if asks_for_points(results.spec):
        return f"Next: start the next sweep from the recipe of: hpxfer recipe {command}"
    by_label: dict[str, list[Finding]] = {}
    for finding in every:
        if not finding.is_control:
            by_label.setdefault(finding.parameterization, []).append(finding)
    for label, findings in by_label.items():
        if all(finding.verdict == "transfers" for finding in findings):
            which = "" if len(by_label) == 1 else f" --parameterization '{label}'"
            return f"Next: use the tuned {hp} in your own model, with the recipe of: hpxfer recipe {command}{which}"
    judged = [finding for findings in by_label.values() for finding in findings] or every
    if undecided := [finding for finding in judged if finding.verdict == "undecided"]:
        wanted = [addition for finding in undecided for addition in finding.to_add if not addition.parameterization]
        if wanted and all(map(asks_nothing, wanted)):
            return f"Next: {wanted[0].text}."
        followup = f"hpxfer report {command} --write-followup more.yaml"
        return f"Next: write the sweep that would decide it, and run it: {followup}"
    if any(finding.verdict == "stays" for finding in judged):
        return (
            f"Next: add an arm whose optimum is expected to move, and name it as the control: until then nothing shows "
            f"that the optimum of {hp} stays because of the parameterization."
        )
    if not by_label:
        return f"Next: use the tuned HPs in your own model, with the recipe of: hpxfer recipe {command}"
    return f"Next: tune {hp} at the scale that you need, or try another parameterization: hpxfer explain lists them."
