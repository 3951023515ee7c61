"""What each question of `hpxfer limit` is answered with: solves, and writes the files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.status import Status

from hpxfer.cli.limit_batch import given_of
from hpxfer.cli.limit_network import network_of
from hpxfer.cli.output import say
from hpxfer.host.files import make_folder
from hpxfer.host.output import spell_time
from hpxfer.limit.solve import SEEDS, solve
from hpxfer.limit.text import WHAT, Solved, save

if TYPE_CHECKING:
    from hpxfer.limit.against.report import Comparisons
    from hpxfer.limit.bias_rate import BiasRate

LONG_S = 60.0  # a solution of so many seconds says its time before it starts


def limit(
    asked: dict[str, Any], sites: int | None, seeds: int | None, output: Path | None
) -> tuple[Solved, list[Path]]:
    """Return what was solved, and the files written to `output`."""
    network = network_of(asked)
    given = given_of(asked, network)
    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of solving
    with Console(stderr=True).status("solving") as status:
        on_start = partial(_started, status, "solving")
        found = solve(network, given, sites=sites, seeds=SEEDS if seeds is None else seeds, on_start=on_start)
    solved = Solved(network=network, given=given, limit=found)
    return solved, [] if output is None else _write(solved, output)


class Answer(Protocol):
    """What each question of the command is answered with."""

    @property
    def cautions(self) -> tuple[str, ...]: ...

    def to_dict(self) -> dict[str, Any]: ...

    def table(self) -> str: ...


def against(folder: str, options: dict[str, Any], output: Path | None) -> tuple[Comparisons, list[Path]]:
    """Return the networks of a results folder beside their limits, and the files written to `output`."""
    from hpxfer.limit.against import against as compare
    from hpxfer.results import load_results

    if output is not None:
        make_folder(output, WHAT)
    results = load_results(folder)
    given = {name: value for name, value in options.items() if value is not None}
    with Console(stderr=True).status("solving") as status:
        found = compare(results, **given, on_limit=partial(_started, status))
    if output is None:
        return found, []
    from hpxfer.limit.against.figure import against_figures

    return found, save(output, found.table(), found.to_dict(), against_figures(found.arms))


def _started(status: Status, name: str, seconds: float) -> None:
    """Say what is solved and, if it takes long, about how long."""
    status.update(name)
    if seconds >= LONG_S:
        say(f"{name}: about {spell_time(seconds)} on one core", err=True)


def bias_rate(repeats: int | None, output: Path | None) -> tuple[BiasRate, list[Path]]:
    """Return the simulation of the bias rate, and the files written to `output`."""
    from hpxfer.limit.bias_rate import BiasRateOptions
    from hpxfer.limit.bias_rate import bias_rate as simulate

    if output is not None:
        make_folder(output, WHAT)
    with Console(stderr=True).status("simulating"):
        found = simulate(BiasRateOptions() if repeats is None else BiasRateOptions(repeats=repeats))
    if output is None:
        return found, []
    from hpxfer.limit.bias_rate_figure import bias_rate_figure

    return found, save(output, found.table(), found.to_dict(), {"bias-rate": bias_rate_figure(found)})


def _write(solved: Solved, folder: Path) -> list[Path]:
    """Write limit.txt, limit.json and the figure to a folder, and return their paths."""
    from hpxfer.limit.figure import draw_limit, limit_info

    return save(folder, solved.table(), solved.to_dict(), {"limit": draw_limit(limit_info(solved))})
