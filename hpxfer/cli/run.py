"""`hpxfer run`: train what is missing of a sweep, then report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import (
    AsJson,
    EarlyStopping,
    MaxGpuHours,
    Overrides,
    Plugins,
    Price,
    ReuseFrom,
    RootOrUri,
    StrictCode,
    StrictMemory,
    Sweep,
    Yes,
)
from hpxfer.cli.output import TRIALS_FAILED, say, warn, written
from hpxfer.cli.plan import plan_data
from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.analysis import TransferReport
    from hpxfer.driver import PreparedSweep
    from hpxfer.progress.file import RunCounts
    from hpxfer.results import Results
    from hpxfer.trial.events import Event
    from hpxfer.trial.stack import Stack


def run(
    sweep: Sweep,
    results: RootOrUri = None,
    executor: Annotated[str | None, typer.Option(help="ray or local; default: the sweep's.")] = None,
    address: Annotated[str | None, typer.Option(help="Join a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")] = None,
    reuse: ReuseFrom = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Print the plan for this hardware. The run itself still trains here."),
    ] = None,
    price_per_hour: Price = None,
    max_gpu_hours: MaxGpuHours = None,
    early_stopping: EarlyStopping = None,
    strict_memory: StrictMemory = True,
    strict_code: StrictCode = False,
    yes: Yes = False,
    plugin: Plugins = None,
    overrides: Overrides = None,
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
    from hpxfer.driver import prepare
    from hpxfer.driver.kernels import require_kernels
    from hpxfer.driver.own_code import require_same_code
    from hpxfer.driver.prepared import located
    from hpxfer.loggers.kinds import logger_kinds
    from hpxfer.plan.cautions import require_fit
    from hpxfer.plan.text import plan_text
    from hpxfer.store import Store

    if executor == "local" and address is not None:
        raise HpxferError("--address joins a Ray cluster, and --executor local uses none; leave one out")
    job = prepare(
        sweep,
        results=results,
        executor=executor,
        address=address,
        reuse=reuse or (),
        hardware=hardware,
        price_per_hour=price_per_hour,
        early_stopping=early_stopping,
        plugins=plugin or (),
        overrides=overrides or (),
    )
    if job.missing:
        with located(job.file, job.overrides):
            if job.spec.trainer is None:
                require_kernels(job.spec, job.real.device, address)
            logger_kinds(job.spec.resources.loggers)
    unfit = () if strict_memory else job.real.unfit
    warn(dict.fromkeys((*job.problems, *job.plan.cautions, *job.real.cautions, *unfit)))
    if not as_json:
        say("\n".join([plan_text(job.plan), *job.reuse.lines()]))
    if strict_code:
        require_same_code(job.spec, Store.open(job.folder, write=False))
    keep_within(job.plan, max_gpu_hours)
    keep_within(job.real, max_gpu_hours)
    if strict_memory:
        require_fit(job.real)
    ask(job.real, yes=yes)
    outcome = _train(job, address)
    _conclude(outcome, job, as_json=as_json)


def _train(job: PreparedSweep, address: str | None) -> Results:
    """Run the job; end the program where it was interrupted, or where training has a bug."""
    from rich.console import Console

    from hpxfer.driver import TrainingFailed
    from hpxfer.driver import run as train
    from hpxfer.host.interrupts import Interrupted
    from hpxfer.progress.live import LiveProgress
    from hpxfer.report.under_way import PageUnderWay

    progress, page = LiveProgress(Console(stderr=True)), PageUnderWay(job.folder, lambda text: warn([text]))

    def on_event(stack: Stack, event: Event, counts: RunCounts) -> None:
        progress(stack, event, counts)
        page(stack, event, counts)

    try:
        with progress, page:
            return train(
                job, address=address, strict_memory=False, on_event=on_event, on_wait=lambda text: say(text, err=True)
            )
    except Interrupted as end:
        say(
            f"interrupted; {_notes(end)}all results are in {job.location.where}, the same command goes on from there",
            err=True,
        )
        raise typer.Exit(128 + end.signal_number) from None
    except TrainingFailed as end:
        say(f"{end}\n", err=True)
        say(
            f"the run stopped at {end.num_failed} failed trials, as the others would fail alike; {_notes(end)}all "
            "results are in "
            f"{job.location.where}; fix the error and give the same command again",
            err=True,
        )
        raise typer.Exit(TRIALS_FAILED) from None


def _notes(end: BaseException) -> str:
    """Return what the driver notes about a run that ended early, to stand within a sentence."""
    return "".join(f"{note}; " for note in getattr(end, "__notes__", ()))


def _conclude(outcome: Results, job: PreparedSweep, *, as_json: bool) -> None:
    """Report on a run: its verdict, report and recipe, and what to do next. Exit with 1 if trials failed."""
    from hpxfer.report.write import write_report

    found = write_report([outcome.folder], option="--results")
    recipe, no_recipe = _write_recipe(outcome, found.reports[0])
    job.location.push()
    # On an object store the figures are in the page alone: folders are not copied there.
    new = [path for path in (*found.files, *recipe) if path.is_file() or not job.location.is_remote]
    names = [str(path) for path in (*_tables(outcome), *new)]
    # Of this sweep: the store may hold failures of cells that an edit has since removed.
    trials = outcome.trials[outcome.trials["trial_id"].isin(outcome.cells["trial_id"])]
    failed = trials[trials["status"] == "failed"]
    if as_json:
        report = found.reports[0].to_dict()
        data = {"plan": plan_data(job), "report": report, "num_failed": len(failed), "no_recipe": no_recipe}
        data |= {"trainer_checks": list(found.checks[0])} if found.checks[0] else {}
        say(json.dumps({**data, "files": names, "next_step": found.next_steps[0]}))
    else:
        say(f"{found.text().rstrip()}\n\n{written(names)}")
        if no_recipe:
            say(no_recipe)
        say(found.next_steps[0])
    if found.not_written:
        raise HpxferError("\n".join(found.not_written))
    if len(failed):
        kinds = failed["error"].drop_duplicates()
        say(f"{len(failed)} trials failed; the next run tries them again. First errors:", err=True)
        for text in kinds.head(3):
            say(str(text), err=True)
        raise typer.Exit(TRIALS_FAILED)


def _write_recipe(outcome: Results, report: TransferReport) -> tuple[list[Path], str | None]:
    """Write recipe.yaml and return its path. Return why there is no recipe where there can be none."""
    from hpxfer.recipe import recipe_from_results, write_recipe

    path = outcome.folder / "recipe.yaml"
    try:
        write_recipe(recipe_from_results(outcome, report), path)
    except HpxferError as error:
        return [], f"no recipe: {error}"
    return [path], None


def _tables(outcome: Results) -> list[Path]:
    """Return the Parquet files that hold the results, without those in the folder that were passed over."""
    from hpxfer.store.parquet import list_parts

    files = [file for part in list_parts(outcome.folder) for file in (part.trials, part.curves)]
    return [file for file in files if file and not any(text.startswith(f"{file}: ") for text in outcome.problems)]


RUN = Command(name="run", run=run)
