"""`hpxfer run`: train what is missing of a sweep, then report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hpxfer.cli.options import AsJson, Cluster, Hardware, SweepOptions, Text, Yes
from hpxfer.cli.output import TRIALS_FAILED, answer, say, warn, written
from hpxfer.cli.plan import plan_data, plan_lines
from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.driver import Cleared, PreparedSweep
    from hpxfer.progress import RunCounts
    from hpxfer.results import Results
    from hpxfer.trial import Event, Stack


def run(
    of: SweepOptions,
    executor: Annotated[Text, Option(help="ray or local; default: the sweep's.")] = None,
    address: Cluster = None,
    hardware: Hardware = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Train the trials of a sweep that are missing, then report.

    A second run of a finished sweep trains nothing. You may interrupt a run at any time: the same command goes on from
    what is stored.

    \b
    Examples:
      hpxfer run sweeps/quickstart.yaml
      hpxfer run sweeps/quickstart.yaml --address auto --max-gpu-hours 4
      hpxfer run sweeps/width.yaml --reuse results/quickstart
    """
    from hpxfer.cli.consent import ask, keep_within
    from hpxfer.driver import preflight

    if executor == "local" and address is not None:
        raise HpxferError("--address joins a Ray cluster, and --executor local uses none; leave one out")
    job = of.prepared(executor=executor, address=address, hardware=hardware)
    unfit = () if of.strict_memory else job.real.unfit
    warn(dict.fromkeys((*job.problems, *job.plan.cautions, *job.real.cautions, *unfit)))
    if not as_json:
        say(plan_lines(job))
    cleared = preflight(job, strict_memory=of.strict_memory, strict_code=of.strict_code)
    keep_within(job.plan, of.max_gpu_hours)
    keep_within(job.real, of.max_gpu_hours)
    ask(job.real, yes=yes)
    _conclude(_train(job, cleared), job, as_json=as_json)


def _train(job: PreparedSweep, cleared: Cleared) -> Results:
    """Run the job; end the program where it was interrupted, or where training has a bug."""
    from rich.console import Console

    from hpxfer.driver import TrainingFailed, train
    from hpxfer.host import Interrupted
    from hpxfer.progress import LiveProgress
    from hpxfer.report.under_way import PageUnderWay

    progress, page = LiveProgress(Console(stderr=True)), PageUnderWay(job.folder, lambda text: warn([text]))

    def on_event(stack: Stack, event: Event, counts: RunCounts) -> None:
        progress(stack, event, counts)
        page(stack, event, counts)

    def stored(end: BaseException) -> str:
        notes = "".join(f"{note}; " for note in getattr(end, "__notes__", ()))
        return f"{notes}all results are in {job.location.where}"

    try:
        with progress, page:
            return train(job, cleared, on_event=on_event, on_wait=lambda text: say(text, err=True))
    except Interrupted as end:
        say(f"interrupted; {stored(end)}, the same command goes on from there", err=True)
        raise typer.Exit(128 + end.signal_number) from None
    except TrainingFailed as end:
        stopped = f"the run stopped at {end.num_failed} failed trials, as the others would fail alike"
        say(f"{end}\n\n{stopped}; {stored(end)}; fix the error and give the same command again", err=True)
        raise typer.Exit(TRIALS_FAILED) from None


def _conclude(outcome: Results, job: PreparedSweep, *, as_json: bool) -> None:
    """Report on a run: its verdict, report and recipe, and what to do next. Exit with 1 if trials failed."""
    from hpxfer.recipe import recipe_from_results, write_recipe
    from hpxfer.report.write import write_report
    from hpxfer.store import list_parts

    found = write_report([outcome.folder], option="--results")
    new, no_recipe = [*found.files, outcome.folder / "recipe.yaml"], None
    try:
        write_recipe(recipe_from_results(outcome, found.reports[0]), new[-1])
    except HpxferError as error:
        del new[-1]
        no_recipe = None if outcome.spec.has_fixed_hps else f"no recipe: {error}"  # which tuned nothing
    job.location.push()
    parts = [file for part in list_parts(outcome.folder) for file in (part.trials, part.curves) if file]
    tables = [file for file in parts if not any(text.startswith(f"{file}: ") for text in outcome.problems)]
    # On an object store the figures are in the page alone: folders are not copied there.
    new = [path for path in new if path.is_file() or not job.location.is_remote]
    names = [str(path) for path in (*tables, *new)]
    # Of this sweep: the store may hold failures of cells that an edit has since removed.
    trials = outcome.trials[outcome.trials["trial_id"].isin(outcome.cells["trial_id"])]
    failed = trials[trials["status"] == "failed"]
    data = {
        "plan": plan_data(job),
        "report": found.report_data()[0],
        "num_failed": len(failed),
        "no_recipe": no_recipe,
        "next_step": found.next_steps[0],
        **({"trainer_checks": list(found.checks[0])} if found.checks[0] else {}),
    }
    said = [written(names), *([no_recipe] if no_recipe else []), found.next_steps[0]]
    answered = "\n".join([f"{found.text().rstrip()}\n", *said])
    answer(lambda: {**data, "files": names}, lambda: answered, as_json=as_json)
    if found.not_written:
        raise HpxferError("\n".join(found.not_written))
    if len(failed):
        say(f"{len(failed)} trials failed; the next run tries them again. First errors:", err=True)
        for text in failed["error"].drop_duplicates().head(3):
            say(str(text), err=True)
        raise typer.Exit(TRIALS_FAILED)
