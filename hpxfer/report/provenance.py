"""Where the numbers come from, what of the sweep is done, and what they do not say. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd

from hpxfer.analysis import TransferReport, thresholds
from hpxfer.analysis.basin import STATUSES
from hpxfer.analysis.text import loss_name, scale_text
from hpxfer.analysis.thresholds import CONTROL
from hpxfer.plan.cautions import CROSSING
from hpxfer.report.tables import Column, Table
from hpxfer.results import Results
from hpxfer.spec.search_defaults import budget_text

# Columns of the trials that are told with how often each value stands.
COLUMNS = (
    *(("device", "device"), ("precision", "precision"), ("optimizer", "optimizer"), ("determinism", "determinism")),
    *(("backend", "kernels"), ("backend_reason", "why these kernels"), ("kernel_configs", "kernel configurations")),
    ("trainer_version", "trainer version"),
)
SHOWN = 6  # distinct values of one fact


def progress_table(results: Results) -> Table:
    """Return how many cells of each axis and parameterization are finished, diverged, failed or missing."""
    counts = results.cells.groupby(["axis", "parameterization", "status"], sort=True).size()
    there = set(results.cells["status"])
    statuses = [one for one in STATUSES if one != "stopped" or one in there]
    rows = []
    for axis, label in dict.fromkeys((key[0], key[1]) for key in counts.index):
        by_status = [int(counts.get((axis, label, status), 0)) for status in statuses]
        rows.append((axis, label, sum(by_status), *by_status))
    names = ("axis", "parameterization", "cells", *statuses)
    return Table(title="What was run", columns=tuple(Column(name=name) for name in names), rows=tuple(rows))


def progress_text(results: Results) -> str:
    """Return in one line how much of the sweep is there and, if something is missing, how to get it."""
    trials = results.cells.drop_duplicates("trial_id")["status"].value_counts()
    done, total = int(trials.get("finished", 0) + trials.get("diverged", 0)), int(trials.sum())
    text = f"{done} of {total} trials have a result"
    if diverged := int(trials.get("diverged", 0)):
        text += f", {diverged} of them diverged"
    stopped = int(trials.get("stopped", 0))
    if stopped:
        text += f"; {stopped} were stopped early, and say nothing of the loss at the end"
    if done + stopped == total:
        return text + "."
    failed = int(trials.get("failed", 0))
    lacking = f"{total - done - stopped - failed} were not run" + (f", {failed} failed" if failed else "")
    return f"{text}; {lacking}: running the sweep again runs these and nothing else."


def failures(results: Results) -> tuple[str, ...]:
    """Return the distinct errors of failed trials of the sweep, the most frequent first."""
    trials = results.trials[results.trials["trial_id"].isin(results.cells["trial_id"])]
    errors = trials.loc[trials["status"] == "failed", "error"].dropna().value_counts()
    return tuple(f"{count} x {error}" for error, count in errors.head(SHOWN).items())


def provenance_table(results: Results) -> Table:
    """Return what the trials were made with: versions, devices, dates, data, and how long it took."""
    trials = results.trials
    facts: list[tuple[str, str]] = [*_versions(trials)]
    facts += [(title, _counted(trials[name])) for name, title in COLUMNS if trials[name].notna().any()]
    facts.append(("machines", str(trials["host"].nunique()) if trials["host"].notna().any() else "unknown"))
    ended = trials["finished_at"].dropna()
    if len(ended):
        facts.append(("trained", f"{ended.min()[:16]} to {ended.max()[:16]} UTC"))
    seconds = (trials["wall_s"] / trials["stack_size"]).sum()
    facts.append(("training time", f"{seconds / 60:.1f} min in all, a stack's time shared by its trials"))
    data = results.spec.data
    facts.append(("budget", budget_text(results.spec)))
    facts += [("data", f"{data.source}, digest {data.digest}"), ("tokenizer", _counted(trials["tokenizer"]))]
    columns = (Column(name="fact"), Column(name="value"))
    return Table(title="Provenance", columns=columns, rows=tuple(facts))


def threshold_table() -> Table:
    """Return the numbers that a verdict rests on."""
    rows = (
        ("regret that counts as none", f"{thresholds.REGRET_SHARE:.0%} of the loss or {thresholds.NUM_SE:g} errors"),
        ("how far an optimum may move", f"{thresholds.MOVE_OCTAVES:g} octave from the smallest to the largest scale"),
        ("chance of error, a side", f"{thresholds.ERROR_RATE:.0%}"),
        ("control", CONTROL),
    )
    columns = (Column(name="threshold"), Column(name="value"))
    return Table(title="What a verdict rests on", columns=columns, rows=rows)


def limits(results: Results, reports: tuple[TransferReport, ...]) -> tuple[str, ...]:
    """Return what the report does not say, a sentence each."""
    return tuple(_limits(results, reports))


def _limits(results: Results, reports: tuple[TransferReport, ...]) -> Iterator[str]:
    findings = [finding for report in reports for finding in report.findings]
    ranges = {}
    for finding in findings:
        scales = [shape.scale for shape in finding.shapes]
        ranges[finding.axis] = f"{finding.scale_name} {scale_text(min(scales))} to {scale_text(max(scales))}"
    if ranges:
        yield f"A verdict holds for what was measured: {'; '.join(ranges.values())}. Beyond, nothing is claimed."
    if any(finding.lacks_control for finding in findings):
        yield f"There is no control ({CONTROL}): whether this axis tells parameterizations apart is not known."
    for report in reports[:1]:
        yield (
            f"Judged by the {loss_name(report.loss)} of {report.hp}; an HP that was not scanned stayed at its base "
            "value, and another value of it may move the optimum."
        )
    if results.spec.early_stopping.asha is not None:
        yield CROSSING
    seeds = len(results.spec.seeds)
    if seeds < 3:
        yield f"{seeds} seed{'s' if seeds > 1 else ''}: the noise of seeds is pooled over shapes, and little known."
    if len(results.trials):
        largest = results.trials.nlargest(1, "params_total").iloc[0]
        tokens = int(largest["batch_tokens"]) * int(largest["steps"])
        yield (
            f"The largest model has {int(largest['params_total']):,} parameters and saw {tokens:,} tokens; longer "
            "training and other data are other questions."
        )


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
    """Return a value as text: a whole number that a gap in its column made a float is whole again."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
