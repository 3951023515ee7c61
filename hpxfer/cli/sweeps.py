"""Commands that plan and train: `hpxfer plan|run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpxfer.cli.app import INTERRUPTED, TRIALS_FAILED, AsJson, ResultsRoot, Sweep, app, say, warn, written
from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.results import Results


@app.command()
def plan(sweep: Sweep, results: ResultsRoot = Path("results"), as_json: AsJson = False) -> None:
    """Say what a sweep will run and what it will cost. Runs nothing.

    Example: hpxfer plan sweeps/quickstart.yaml
    """
    from hpxfer.driver import prepare
    from hpxfer.plan_text import plan_text

    job = prepare(sweep, results=results)
    warn((*job.problems, *job.plan.cautions))
    say(json.dumps(job.plan.to_dict()) if as_json else plan_text(job.plan))


@app.command()
def run(
    sweep: Sweep,
    results: ResultsRoot = Path("results"),
    executor: Annotated[str | None, typer.Option(help="ray or local; default: the sweep's.")] = None,
    address: Annotated[str | None, typer.Option(help="Join a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train what is missing of a sweep, then report. A second run of a finished sweep trains nothing.

    Example: hpxfer run sweeps/quickstart.yaml
    """
    from rich.console import Console

    from hpxfer.driver import prepare
    from hpxfer.driver import run as train
    from hpxfer.plan_text import plan_text
    from hpxfer.progress import ProgressLine

    if executor == "local" and address is not None:
        raise HpxferError("--address joins a Ray cluster, --executor local uses none; leave one out")
    job = prepare(sweep, results=results, executor=executor)
    warn((*job.problems, *job.plan.cautions))
    if not as_json:
        say(plan_text(job.plan))
    progress = ProgressLine(Console(stderr=True))
    try:
        with progress:
            outcome = train(job, address=address, on_event=progress)
    except KeyboardInterrupt:
        say(f"interrupted; what was done is in {job.folder}, the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _conclude(outcome, as_json=as_json, plan=job.plan.to_dict())


def _conclude(outcome: Results, *, as_json: bool, plan: dict[str, Any]) -> None:
    """Report on a run: summary, figure, recipe, where they are; exit 1 if trials failed."""
    from hpxfer.analysis import transfer_report
    from hpxfer.recipe import recipe_from_results, write_recipe

    found = transfer_report(outcome)
    tables = [outcome.folder / name for name in ("trials.parquet", "curves.parquet")]
    files = [*(one for one in tables if one.exists()), *_draw(outcome, found, outcome.folder)]
    try:
        path = outcome.folder / "recipe.yaml"
        write_recipe(recipe_from_results(outcome, found), path)
        files.append(path)
        no_recipe = None
    except HpxferError as error:
        no_recipe = f"no recipe: {error}"
    # Of this sweep: the store may hold failures of cells that an edit has since removed.
    trials = outcome.trials[outcome.trials["trial_id"].isin(outcome.cells["trial_id"])]
    failed = trials[trials["status"] == "failed"]
    if as_json:
        data = {"plan": plan, "report": found.to_dict(), "num_failed": len(failed), "no_recipe": no_recipe}
        say(json.dumps({**data, "files": [str(one) for one in files]}))
    else:
        say(found.summary() + "\n\n" + written(files))
        if no_recipe:
            say(no_recipe)
    if len(failed):
        kinds = failed["error"].drop_duplicates()
        say(f"{len(failed)} trials failed; the next run tries them again. First errors:", err=True)
        for text in kinds.head(3):
            say(str(text), err=True)
        raise typer.Exit(TRIALS_FAILED)


def _draw(outcome: Results, found: Any, folder: Path) -> list[Path]:
    from hpxfer.figures import save_transfer, transfer_info

    return save_transfer(transfer_info(found, outcome.line(found.hp, found.loss)), folder)
