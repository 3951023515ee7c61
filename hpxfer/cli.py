"""The command line: `hpxfer plan|run|report|recipe|explain|check|bench`.

Exit codes: 0 ok, 1 trials failed or a check was missed, 2 bad input. What a program reads goes to stdout, progress and
errors to stderr.
Every command imports what it needs when it runs, so that `hpxfer --help` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.results import Results
    from hpxfer.scaling.table import Optimizer

BENCH_FOLDER = Path("results/bench")
OK, TRIALS_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
MISSED = 1

app = typer.Typer(
    name="hpxfer",
    help="Tune LR and initialization on a small MoE model, prove that they transfer, reuse them on the big one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench_app = typer.Typer(name="bench", invoke_without_command=True, rich_markup_mode=None)
app.add_typer(bench_app)

Sweep = Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file, e.g. sweeps/quickstart.yaml.")]
Folder = Annotated[Path, typer.Argument(metavar="RESULTS", help="A results folder, e.g. results/quickstart.")]
ResultsRoot = Annotated[Path, typer.Option("--results", help="The folder above the sweep's own.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for a program to read.")]
Hp = Annotated[str | None, typer.Option("--hp", help="The HP to judge; default: the sweep's.")]
Loss = Annotated[str | None, typer.Option("--loss", help="validation or final_window; default: the sweep's.")]
BenchOutput = Annotated[Path, typer.Option("--output", help="Append the numbers to NAME.jsonl in this folder.")]
BenchDevice = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Name = Annotated[str | None, typer.Option("--parameterization", help="By name; default: the sweep's first.")]


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit code 2."""
    try:
        app()
    except HpxferError as error:
        print(f"hpxfer: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)


@app.command()
def plan(sweep: Sweep, results: ResultsRoot = Path("results"), as_json: AsJson = False) -> None:
    """Say what a sweep will run and what it will cost. Runs nothing.

    Example: hpxfer plan sweeps/quickstart.yaml
    """
    from hpxfer.driver import prepare
    from hpxfer.plan_text import plan_text

    job = prepare(sweep, results=results)
    _warn((*job.problems, *job.plan.cautions))
    _say(json.dumps(job.plan.to_dict()) if as_json else plan_text(job.plan))


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
    _warn((*job.problems, *job.plan.cautions))
    if not as_json:
        _say(plan_text(job.plan))
    progress = ProgressLine(Console(stderr=True))
    try:
        with progress:
            outcome = train(job, address=address, on_event=progress)
    except KeyboardInterrupt:
        _say(f"interrupted; what was done is in {job.folder}, the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _conclude(outcome, as_json=as_json, plan=job.plan.to_dict())


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="One or several results folders.")],
    output: Annotated[
        Path | None, typer.Option(help="Where files go; default: the results folder, of several the one above.")
    ] = None,
    hp: Hp = None,
    loss: Loss = None,
    form: Annotated[str, typer.Option("--format", help="html, md, json, or text for the verdict alone.")] = "html",
    write_followup: Annotated[
        Path | None, typer.Option(help="Write the sweep that decides undecided verdicts to this new file.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the HP transfers, and write it as one page with figures, tables and every trial.

    A half-finished sweep gives what can be said and says what is missing.

    \b
    Examples:
      hpxfer report results/quickstart --open
      hpxfer report results/width results/depth --output report
      hpxfer report results/width --write-followup sweeps/more.yaml
    """
    from hpxfer.report.command import report as write_report

    found = write_report(results, output=output, hp=hp, loss=loss, form=form, followup=write_followup, show=show)
    _warn(found.warnings)
    _say(json.dumps(found.to_dict()) if as_json else f"{found.text()}\n\n{_written(list(found.files))}")


@app.command()
def recipe(
    results: Folder,
    parameterization: Name = None,
    output: Annotated[Path | None, typer.Option(help="Default: recipe.yaml in the results folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the tuned base HPs as a recipe for your own model.

    Example: hpxfer recipe results/quickstart --parameterization completep-moe
    """
    from hpxfer.analysis import transfer_report
    from hpxfer.recipe import recipe_from_results, write_recipe
    from hpxfer.results import load_results

    outcome = load_results(results)
    made = recipe_from_results(outcome, transfer_report(outcome), parameterization)
    path = output or results / "recipe.yaml"
    write_recipe(made, path)
    _warn(outcome.problems)
    _say(json.dumps({"recipe": str(path)}) if as_json else f"{made.dump()}\n{_written([path])}")


@app.command()
def explain(
    parameterization: Name = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam or sgd; default: the sweep's or recipe's, or adam.")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="JSON file with the base shape.")] = None,
    target: Annotated[Path | None, typer.Option(help="JSON file with the target shape.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Take base, HPs and initialization from a sweep file.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Take them from a recipe.")] = None,
    convention: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the table; may be repeated.")] = None,
    gate: Annotated[
        str | None, typer.Option(help="sigmoid, softmax, normalized_sigmoid or normalized_softmax, for the warnings.")
    ] = None,
    tied: Annotated[bool | None, typer.Option("--tied/--untied", help="Embeddings, for the warnings.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse (exit code 2) a target that the source does not cover.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the parameterizations and their conventions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which init std, LR, eps, weight decay and forward multiplier every role gets at a shape, and why.

    A shape is a JSON file such as {"width": 128, "depth": 4, "num_experts": 8, "num_active": 2, "expert_width": 128,
    "head_dim": 32}; a dense model gives dense_width instead of the experts; num_shared, shared_width, num_groups,
    batch_tokens and steps may stand in it too.

    \b
    Examples:
      hpxfer explain --list
      hpxfer explain --sweep sweeps/quickstart.yaml
      hpxfer explain --parameterization completep-moe --base base.json --target target.json --strict
    """
    from hpxfer.explain import explain as explain_table
    from hpxfer.explain import list_parameterizations, parameterizations_to_dict, require_covered
    from hpxfer.explain_source import from_files, from_recipe, from_sweep, model_facts, read_conventions

    if list_all:
        _say(json.dumps(parameterizations_to_dict()) if as_json else list_parameterizations())
        return
    if sweep is not None and recipe is not None:
        raise HpxferError("give one of --sweep and --recipe, got both")
    conventions, facts = read_conventions(convention or ()), model_facts(gate, tied)
    if sweep is not None:
        source = from_sweep(sweep, parameterization, base, target, conventions, facts)
    elif recipe is not None:
        source = from_recipe(recipe, parameterization, base, target, conventions, facts)
    else:
        source = from_files(parameterization, base, target, conventions, facts)
    column = _column(optimizer) or source.optimizer
    found = explain_table(source.choice, source.base, source.target, column, values=source.values, facts=source.facts)
    if strict:
        require_covered(found)
    _say(json.dumps(found.to_dict()) if as_json else found.table())
    if source.note:
        _say(f"note: {source.note}", err=True)


@app.command()
def check(
    parameterization: Name = None,
    convention: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the table; may be repeated.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="May be repeated; default: the sweep's or table's.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam or sgd; default: the sweep's, or adam if there.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Check with its model, data, HPs and shapes.")] = None,
    points: Annotated[str | None, typer.Option(help="Values along one axis, e.g. 32,64,128,256.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; default: 6.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds, trained together; default: 6.")] = None,
    architecture: Annotated[str, typer.Option(help="gpt, or block: the papers' minimal MLP block.")] = "gpt",
    output: Annotated[Path | None, typer.Option(help="Write figures, check.txt and check.json to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove on small models that features move as a table predicts: slopes against scale, with a verdict each.

    Exit code 1 if a prediction is missed, or if nothing was shown. An axis is what moves the model's shape: width,
    depth, experts, active, capacity, granularity, expert_ratio, expert_width, shared, groups, dense_ratio, regime-i
    to regime-iii.

    \b
    Examples:
      hpxfer check --parameterization completep-moe --axis width
      hpxfer check --sweep sweeps/quickstart.yaml --points 32,64,128,256
    """
    from hpxfer.coordinates.command import check as run_check
    from hpxfer.explain_source import read_conventions

    found, files = run_check(
        *(parameterization, read_conventions(convention or ()), axis, _column(optimizer), sweep, points),
        *(steps, seeds, architecture, output),
    )
    if as_json:
        _say(json.dumps({**found.to_dict(), "files": [str(one) for one in files]}))
    else:
        _say(found.table() + (f"\n\n{_written(files)}" if files else ""))
    if not found.passed:
        raise typer.Exit(MISSED)


@bench_app.callback()
def bench(
    context: typer.Context,
    output: BenchOutput = BENCH_FOLDER,
    device: BenchDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure this machine, each speed beside its own yardstick. Alone it runs every benchmark there is.

    \b
    Examples:
      hpxfer bench
      hpxfer bench trainer --device cpu
    """
    if context.invoked_subcommand is None:
        _bench(("trainer", "kernels", "sweep"), output, device, as_json)
    elif (output, device, as_json) != (BENCH_FOLDER, "auto", False):
        raise HpxferError(f"options stand after the benchmark's name: hpxfer bench {context.invoked_subcommand} ...")


@bench_app.command()
def trainer(output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False) -> None:
    """Measure training steps: stacked trials against the plain way, and both against the machine's peak.

    Example: hpxfer bench trainer
    """
    _bench(("trainer",), output, device, as_json)


@bench_app.command()
def kernels(output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False) -> None:
    """Measure single operators: experts, cross entropy, optimizer, routing.

    Example: hpxfer bench kernels
    """
    _bench(("kernels",), output, device, as_json)


@bench_app.command(name="sweep")
def bench_sweep(output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False) -> None:
    """Measure whole runs: one persistent worker with stacked trials against cold processes one by one.

    Example: hpxfer bench sweep
    """
    _bench(("sweep",), output, device, as_json)


def _bench(names: tuple[str, ...], output: Path, device: str, as_json: bool) -> None:
    from hpxfer.bench.command import run_benches

    ran = run_benches(names, device, output)
    if as_json:
        _say(json.dumps([one.to_dict() for one in ran.records]))
    else:
        _say(f"{ran.text}\n\n{_written(list(ran.files))}")


def _column(optimizer: str | None) -> Optimizer | None:
    match optimizer:
        case None:
            return None
        case "adam" | "adamw":
            return "adam"
        case "sgd":
            return "sgd"
        case _:
            raise HpxferError(f"--optimizer must be adam or sgd, got {optimizer!r}")


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
        _say(json.dumps({**data, "files": [str(one) for one in files]}))
    else:
        _say(found.summary() + "\n\n" + _written(files))
        if no_recipe:
            _say(no_recipe)
    if len(failed):
        kinds = failed["error"].drop_duplicates()
        _say(f"{len(failed)} trials failed; the next run tries them again. First errors:", err=True)
        for text in kinds.head(3):
            _say(str(text), err=True)
        raise typer.Exit(TRIALS_FAILED)


def _draw(outcome: Results, found: Any, folder: Path) -> list[Path]:
    from hpxfer.figures import save_transfer, transfer_info

    return save_transfer(transfer_info(found, outcome.line(found.hp, found.loss)), folder)


def _warn(problems: Iterable[str]) -> None:
    for problem in problems:
        _say(f"warning: {problem}", err=True)


def _written(files: list[Path]) -> str:
    return "written:\n" + "\n".join(f"  {one}" for one in files)


def _say(text: str, *, err: bool = False) -> None:
    typer.echo(text, err=err)


if __name__ == "__main__":
    main()
