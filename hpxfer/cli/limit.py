"""`hpxfer limit`: what a mixture of MLPs approaches as it grows, solved, and how far trained networks are from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hpxfer.cli.options import AsJson, File, Plugins, Real, Text, Whole, excludes
from hpxfer.cli.output import answer, say, warn
from hpxfer.errors import HpxferError

LONG_S = 60.0  # a solution of so many seconds says its time before it starts


def limit(
    network: Annotated[File, Argument(metavar="NETWORK", help="A network file, or a sweep of the family mlp.")] = None,
    against: Annotated[Text, Option(metavar="RESULTS", help="Compare this sweep's networks with their limit.")] = None,
    bias_rate: Annotated[
        bool, Option("--bias-rate", help="How many experts a balancing bias changes per step.")
    ] = False,
    axis: Annotated[Text, Option(help="Of a sweep: this axis alone.")] = None,
    arm: Annotated[Text, Option(help="Of a sweep: this arm alone, e.g. mssp-ii.")] = None,
    value: Annotated[Real, Option(help="Of a sweep: the value of the HP; default of --against: the best.")] = None,
    steps: Annotated[Whole, Option(help="Of --against: the first updates alone; default: all.")] = None,
    tolerance: Annotated[Real, Option(help="Of --against: near enough, as a share of the loss; default: 0.05.")] = None,
    sites: Annotated[Whole, Option(help="Sites of every population; default: 32768, or 2048 in regime III.")] = None,
    seeds: Annotated[Whole, Option(help="Of the solver; default: 4, of --against 8. Repeats of --bias-rate.")] = None,
    output: Annotated[File, Option(help="Write figures, limit.txt and limit.json to this folder.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Solve the training of an infinite mixture of MLPs, with the error of the solver.

    A network file has a sweep's sections model, hps, training and data, and two keys of its own: `regime: I` (infinite
    width), II (width and experts), III (width, experts and expert width) or residual, and `parameterization: mup` or
    mssp. Of a sweep file the limit of one arm is solved. Numbers are shown before training and after every update.

    With --against the networks of a sweep of the family mlp are compared with the limit that their table approaches:
    how far is each width from it, and do they approach it?

    \b
    Examples:
      hpxfer limit network.yaml --json
      hpxfer limit sweeps/limit/limit_regime_ii.yaml --arm mssp-ii
      hpxfer limit --against results/limit-regime-ii --output limits
      hpxfer limit --bias-rate
    """
    from rich.console import Console

    from hpxfer.host import make_folder
    from hpxfer.limit import WHAT, save

    of_sweep = {"axis": axis, "arm": arm, "value": value}
    of_against = {**of_sweep, "steps": steps, "tolerance": tolerance}
    if bias_rate:
        excludes("--bias-rate", NETWORK=network, against=against, sites=sites, **of_against)
        solve, draw = _bias_rate(repeats=seeds)
    elif against is not None:
        excludes("--against", NETWORK=network)
        solve, draw = _against(against, **of_against, sites=sites, seeds=seeds)
    elif network is not None:
        excludes("NETWORK", steps=steps, tolerance=tolerance)
        solve, draw = _network(network, of_sweep, sites=sites, seeds=seeds)
    else:
        raise HpxferError("limit: needs a network file, or --against, or --bias-rate")
    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of solving
    with Console(stderr=True).status("solving"):
        found = solve()
    files = [] if output is None else save(output, found.table(), found.to_dict(), draw(found))
    warn(found.cautions)
    answer(found.to_dict, found.table, as_json=as_json, files=files)


# What solves, and what is found -> the blocks of its figures by name.
Job = tuple[Callable[[], Any], Callable[[Any], Mapping[str, Any]]]


def _network(path: Path, of_sweep: Mapping[str, Any], **solver: int | None) -> Job:
    from hpxfer.limit import solve
    from hpxfer.limit.figures import limit_block
    from hpxfer.limit.network_file import load_network
    from hpxfer.limit.of_trials import limit_of_sweep
    from hpxfer.recipe import load_sweep
    from hpxfer.spec import read_yaml

    if isinstance(data := read_yaml(path).data, dict) and "axes" in data:
        network, given = limit_of_sweep(load_sweep(path), **of_sweep)
    else:
        excludes("a network file", **of_sweep)
        network, given = load_network(path)

    solved = partial(solve, network, given, on_start=partial(_started, "solving"), **_given(solver))
    return solved, lambda found: {"limit": limit_block(found)}


def _against(folder: str, **options: Any) -> Job:
    from hpxfer.limit.against import against
    from hpxfer.limit.figures import against_blocks
    from hpxfer.results import load_results

    solve = partial(against, load_results(folder), on_limit=_started, **_given(options))
    return solve, against_blocks


def _bias_rate(**options: int | None) -> Job:
    from hpxfer.limit import BiasRateOptions, bias_rate
    from hpxfer.limit.figures import bias_rate_block

    return partial(bias_rate, BiasRateOptions(**_given(options))), lambda found: {"bias-rate": bias_rate_block(found)}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _started(name: str, seconds: float) -> None:
    """Say what is solved, if it takes long, and about how long."""
    from hpxfer.host import spell_time

    if seconds >= LONG_S:
        say(f"{name}: about {spell_time(seconds)} on one core", err=True)
