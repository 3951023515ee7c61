"""Where the numbers of a report come from, how much of the sweep is done, and what the report does not say. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from hpxfer.analysis import TransferReport
from hpxfer.host import Table, scale_text, text_table
from hpxfer.plan import CROSSING
from hpxfer.results import Results
from hpxfer.scaling.coverage import control_notes
from hpxfer.search import rules_of
from hpxfer.spec import OWN_DATA, TrainerSpec, arm_label, budget_text, choice_of
from hpxfer.store import checks_text
from hpxfer.verdict import STATUSES, Rules
from hpxfer.verdict.thresholds import MOVE_OCTAVES

# Column of the trials -> its name in the report. The report says how many trials have each value.
COLUMNS = {
    "device": "device",
    "precision": "precision",
    "optimizer": "optimizer",
    "determinism": "determinism",
    "backend": "kernels",
    "backend_reason": "why these kernels",
    "kernel_configs": "kernel configurations",
    "trainer_version": "trainer version",
}
SHOWN = 6  # distinct values per column


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many trials of a sweep have ended, and how."""

    num_trials: int
    num_finished: int
    num_diverged: int
    num_stopped: int
    num_failed: int
    num_missing: int

    @classmethod
    def of(cls, results: Results) -> Progress:
        """Count the trials of a sweep."""
        counts = results.cells.drop_duplicates("trial_id")["status"].value_counts()
        statuses = ("finished", "diverged", "stopped", "failed", "missing")
        return cls(num_trials=int(counts.sum()), **{f"num_{name}": int(counts.get(name, 0)) for name in statuses})

    def text(self, *, is_running: bool = False) -> str:
        """Return in a line or two how much of the sweep is there, and how to get what is missing."""
        text = f"{self.num_finished + self.num_diverged} of {self.num_trials} trials have a result"
        if self.num_diverged:
            text += f", {self.num_diverged} of them diverged"
        if self.num_stopped:
            text += f"; {self.num_stopped} were stopped early, so that their loss at the end is not known"
        if not (self.num_missing or self.num_failed):
            return text + "."
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        if is_running:
            return f"{text}{failed}; {self.num_missing} are still to come."
        return (
            f"{text}; {self.num_missing} were not run{failed}: running the sweep again trains these and nothing else."
        )


def progress_table(cells: pd.DataFrame, without_row: Mapping[tuple[str, str], int] | None = None) -> Table:
    """Return how many cells of each axis and parameterization are finished, diverged, failed or missing.

    `without_row` says how many cells of each are missing that have no row in `cells`.
    """
    counts = cells.groupby(["axis", "parameterization", "status"], sort=True).size()
    there = set(cells["status"])
    statuses = [status for status in STATUSES if status != "stopped" or status in there]
    rows = []
    for axis, label in dict.fromkeys((key[0], key[1]) for key in counts.index):
        more = {"missing": (without_row or {}).get((axis, label), 0)}
        by_status = [int(counts.get((axis, label, status), 0)) + more.get(status, 0) for status in statuses]
        rows.append((axis, label, sum(by_status), *by_status))
    return text_table("What was run", ("axis", "parameterization", "cells", *statuses), rows)


def failures(results: Results) -> tuple[str, ...]:
    """Return the distinct errors of the sweep's failed trials, the most frequent first."""
    trials = results.trials[results.trials["trial_id"].isin(results.cells["trial_id"])]
    errors = trials.loc[trials["status"] == "failed", "error"].dropna().value_counts()
    return tuple(f"{count} x {error}" for error, count in errors.head(SHOWN).items())


def provenance_table(results: Results) -> Table:
    """Return what the trials were made with: versions, devices, dates, data, plug-ins, and how long they took."""
    trials, data = results.trials, results.spec.data
    facts: list[tuple[str, str]] = [*_versions(trials)]
    facts += [(title, _counted(trials[name])) for name, title in COLUMNS.items() if trials[name].notna().any()]
    facts.append(("machines", str(trials["host"].nunique()) if trials["host"].notna().any() else "unknown"))
    ended = trials["finished_at"].dropna()
    if len(ended):
        facts.append(("trained", f"{ended.min()[:16]} to {ended.max()[:16]} UTC"))
    seconds = (trials["wall_s"] / trials["stack_size"]).sum()
    facts.append(("training time", f"{seconds / 60:.1f} min in all; the trials of a stack share its time"))
    facts.append(("budget", budget_text(results.spec)))
    if recipe := results.spec.hps.recipe:
        facts += [("recipe", f"{recipe.file}, digest {recipe.digest}, of {recipe.origin}")]
        facts += [("from the recipe", text) for text in recipe.gives or ()]
        facts += [("not from the recipe", text) for text in recipe.instead or ()]
    for arm in results.spec.parameterizations:
        if given := arm.given():
            label = arm_label(choice_of(arm).label(), arm.name)
            facts.append((label, ", ".join(f"{hp} {value:g}" for hp, value in given.items())))
    if (trainer := results.spec.trainer) is not None:
        facts += [("data", data.source.removeprefix(OWN_DATA)), *_of_trainer(trainer, trials)]
    else:
        facts += [("data", f"{data.source}, digest {data.digest}"), ("tokenizer", _counted(trials["tokenizer"]))]
    if data.validation is not None:
        facts.append(("validation data", f"{data.validation}, digest {data.validation_digest}"))
    # A report never imports a plug-in: it names those that the sweep was run with.
    if plugins := results.spec.plugins:
        facts.append(("plug-ins", ", ".join(f"{plugin.name} ({plugin.digest})" for plugin in plugins)))
    return text_table("Provenance", ("fact", "value"), facts)


def _of_trainer(trainer: TrainerSpec, trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield what is known of a user's own trainer and of its code."""
    yield "trainer", trainer.function or shlex.join(trainer.command or ())
    if trainer.version is not None:
        yield "version of the trainer", trainer.version
    for name, digest in (trainer.digests or {}).items():
        yield f"file {name}", digest
    for title, name in (("attempts", "attempts"), ("GPUs of a trial", "num_gpus"), ("nodes of a trial", "num_nodes")):
        if trials[name].notna().any():
            yield title, _counted(trials[name])
    codes = [json.loads(text) for text in trials["provenance"].dropna().unique()]
    if commits := sorted(
        {f"{code['commit']}{' with changes' if code['dirty'] else ''}" for code in codes if code["commit"]}
    ):
        yield "commit of the trainer", ", ".join(commits[:SHOWN])
    packages = {f"{name} {version}" for code in codes for name, version in code["packages"].items()}
    if packages:
        yield "packages beside it", ", ".join(sorted(packages))


def trainer_checks(results: Results) -> Iterator[str]:
    """Yield what the checks of a user's own trainer found in one line, and then each that failed, with the reason."""
    if (trainer := results.spec.trainer) is None:
        return
    yield checks_text(results.checks, trainer)
    if results.checks is not None and results.checks.counts_for(trainer):
        yield from results.checks.faults


def threshold_table(rules: Rules) -> Table:
    """Return the numbers that a verdict by these rules depends on."""
    rows = (
        ("largest loss given up that counts as none", _limit_text(rules)),
        ("move of an optimum that counts as none", f"less than {MOVE_OCTAVES:g} octave between any two shapes"),
        ("chance of a wrong verdict", f"at most {100 * rules.error:.3g}%"),
        ("control", rules.control or "none named"),
    )
    return text_table("What a verdict depends on", ("threshold", "value"), rows)


def _limit_text(rules: Rules) -> str:
    if rules.octaves is not None:
        return f"what {rules.octaves:g} octaves from the shape's own optimum cost"
    return f"{100 * (rules.loss or 0.0):.3g}% of the shape's best loss"


def limits(results: Results, reports: tuple[TransferReport, ...]) -> tuple[str, ...]:
    """Return what the report does not say, one sentence per limit."""
    return tuple(_limits(results, reports))


def _limits(results: Results, reports: tuple[TransferReport, ...]) -> Iterator[str]:
    yield from of_ranges(reports)
    yield from _of_control(results)
    yield from of_others(reports)
    if results.spec.early_stopping.asha is not None:
        yield CROSSING
    seeds = len(results.spec.seeds)
    if seeds < 3:
        yield f"With {seeds} seed{'s' * (seeds > 1)}, the noise of a seed is pooled over shapes and poorly known."
    if results.spec.trainer is not None:
        yield "The report does not cover longer training or other data than those of its trials."
    elif len(results.trials):
        largest = results.trials.nlargest(1, "params_total").iloc[0]
        tokens = int(largest["batch_tokens"]) * int(largest["steps"])
        reads = "samples" if results.spec.data.inputs else "tokens"
        yield (
            f"The largest model has {int(largest['params_total']):,} parameters and was trained on {tokens:,} {reads}. "
            "The report does not cover longer training or other data."
        )


def of_ranges(reports: Sequence[TransferReport]) -> Iterator[str]:
    """Yield that verdicts hold for what was measured, and that some lack a control."""
    ranges = {}
    findings = [finding for report in reports for finding in report.findings]
    for finding in findings:
        scales = [shape.scale for shape in finding.shapes]
        ranges[finding.axis] = f"{finding.scale_name} {scale_text(min(scales))} to {scale_text(max(scales))}"
    if ranges:
        yield f"A verdict holds for what was measured: {'; '.join(ranges.values())}. It says nothing beyond."
    if any(finding.lacks_control for finding in findings):
        named = f" ({control})" if (control := reports[0].control) else ""
        yield f"There is no control{named}: it is not known whether optima move along this axis at all."


def of_others(reports: Sequence[TransferReport]) -> Iterator[str]:
    """Yield that other HPs were not scanned."""
    for report in reports[:1]:
        yield (
            f"The verdict is about the {report.judged.words} and {report.hp}. HPs that were not scanned stayed at "
            "their base values; the optimum may move with them."
        )


def _of_control(results: Results) -> Iterator[str]:
    """Yield what the control holds along an axis, where that is not plain from its name."""
    expansion = results.expansion
    for choice in expansion.choices:
        for axis in expansion.axes if choice.name == rules_of(results.spec).control and not choice.is_own else ():
            shape, base = axis.points[-1].shape, results.spec.base_shape
            facts, column = expansion.facts(choice, shape), expansion.setting.column
            for note in control_notes(choice, base, shape, facts, column):
                yield f"Along {axis.name}, {note}."


def _versions(trials: pd.DataFrame) -> Iterator[tuple[str, str]]:
    found: dict[str, dict[str, int]] = {}
    for text, count in trials["versions"].dropna().value_counts().items():
        for name, version in json.loads(str(text)).items():
            known = found.setdefault(name, {})
            known[version] = known.get(version, 0) + int(count)
    for name, versions in found.items():
        yield name, ", ".join(_share(version, count, len(versions)) for version, count in versions.items())


def _counted(values: pd.Series) -> str:
    counts = values.dropna().value_counts()
    shown = [_share(_plain(value), int(count), len(counts)) for value, count in counts.head(SHOWN).items()]
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return (", ".join(shown) or "unknown") + more


def _share(value: str, count: int, num: int) -> str:
    return value if num == 1 else f"{value} ({count} trials)"


def _plain(value: object) -> str:
    """Return a value as text. A column with gaps holds whole numbers as floats: they are written without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
