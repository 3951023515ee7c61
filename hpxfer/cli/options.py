"""The options that several commands share, and how a dataclass of options becomes options of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from typer import Argument, Context, Option

from hpxfer.errors import HpxferError, shown

if TYPE_CHECKING:
    from hpxfer.driver import PreparedSweep
    from hpxfer.scaling.table import Column

Value = TypeVar("Value")


def import_plugins(context: Context, names: list[str] | None) -> list[str] | None:
    """Import the plug-ins that `--plugin` names; a relative file starts at the current folder."""
    if names and not context.resilient_parsing:  # which is a completion in a shell
        from hpxfer.spec import import_plugin

        for name in names:
            import_plugin(name, Path())
    return names


# Options that need not be given.
Text = str | None
Texts = list[str] | None
File = Path | None
Whole = int | None
Real = float | None

Plugins = Annotated[
    Texts,
    Option(
        "--plugin",
        metavar="FILE|MODULE",
        callback=import_plugins,
        help="Import this Python code first, e.g. a gate; may be repeated.",
    ),
]

Folder = Annotated[str, Argument(metavar="RESULTS", help="A results folder or its URI, e.g. results/quickstart.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON on stdout, for a program to read.")]
Yes = Annotated[bool, Option("--yes", help="Do not ask before a run that costs much.")]
Address = Annotated[
    str, Option(envvar="RAY_API_SERVER_ADDRESS", help="The address of Ray's dashboard on the cluster's head.")
]
Cluster = Annotated[Text, Option("--address", help="A Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")]
Hardware = Annotated[Text, Option("--hardware", help="Plan for cpu, h200, h100, a100, l40s, ... A run stays here.")]
Parameterization = Annotated[
    Text,
    Option("--parameterization", help="A table, or an arm of the sweep by its label or name; default: the first."),
]
Conventions = Annotated[Texts, Option("--convention", metavar="KEY=VALUE", help="Of the table; may be repeated.")]
Optimizer = Annotated[
    Text, Option("--optimizer", help="adamw, sgd or muon; default: the sweep's, recipe's or table's.")
]
Base = Annotated[
    Text,
    Option(metavar="SHAPE", help="Judge as if this shape were the base, e.g. w64 or 'width 64'; default: the sweep's."),
]


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """A sweep and what is changed of it, where it runs, and what it may cost: of `plan`, `run` and `submit`."""

    sweep: Annotated[Path, Argument(metavar="SWEEP", help="A sweep file, e.g. sweeps/quickstart.yaml.")]
    results: Annotated[
        Text,
        Option(
            help="The folder or URI that holds the sweep's results folder; default: the sweep's storage, or "
            "results, or ~/hpxfer-results on the head of a cluster; a sweep.yaml in a results folder goes on there."
        ),
    ] = None
    reuse: Annotated[Texts, Option("--reuse", help="Copy trials from this results folder or URI; repeatable.")] = None
    price_per_hour: Annotated[Real, Option(min=0, help="The price of a GPU or a CPU worker per hour.")] = None
    max_gpu_hours: Annotated[Real, Option(min=0, help="Refuse a plan of more GPU-hours than this.")] = None
    early_stopping: Annotated[Text, Option(help="none: ignore the sweep's rule; only divergence stops.")] = None
    strict_memory: Annotated[bool, Option(help="Refuse a shape that cannot fit into memory, or try it.")] = True
    strict_code: Annotated[
        bool,
        Option(
            "--strict-code",
            help="With a trainer of your own: refuse if its commit, uncommitted changes or packages differ from "
            "those of the last stored trial, instead of a warning.",
        ),
    ] = False
    plugin: Plugins = None
    overrides: Annotated[
        Texts,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the sweep file, e.g. training.steps=100; null takes it out; may be repeated.",
        ),
    ] = None

    def prepared(self, **more: Any) -> PreparedSweep:
        """Return the sweep as the driver has prepared it. `more` are further arguments of `hpxfer.driver.prepare`."""
        from hpxfer.driver import prepare

        return prepare(self.sweep, **self.given(), **more)

    def given(self) -> dict[str, Any]:
        """Return what changes a sweep, as the driver and the jobs take it."""
        lists = {"reuse": self.reuse or (), "plugins": self.plugin or (), "overrides": self.overrides or ()}
        prices = {"price_per_hour": self.price_per_hour, "early_stopping": self.early_stopping}
        return {"results": self.results, **prices, **lists}


def spread(run: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer reads it: the fields of a parameter that is a dataclass are options of their own."""
    hints = get_type_hints(run, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, one in inspect.signature(run).parameters.items():
        own = get_type_hints(groups[name], include_extras=True) if name in groups else hints
        several = inspect.signature(groups[name]).parameters.values() if name in groups else [one]
        parameters += [each.replace(kind=each.KEYWORD_ONLY, annotation=own[each.name]) for each in several]

    @functools.wraps(run)
    def command(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        run(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def column(optimizer: str | None) -> Column | None:
    """Return the column of a table that `--optimizer` names."""
    from hpxfer.registry import rows_of

    if optimizer is None:
        return None
    named: Column = rows_of("optimizer").get(optimizer, "--optimizer").column
    return named


def pairs(given: Iterable[str] | None, option: str, read: Callable[[str], Value]) -> dict[str, Value]:
    """Return name -> value of options NAME=VALUE. `read` raises ValueError for a text that is no value."""
    out: dict[str, Value] = {}
    for text in given or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        try:
            if not (name and equals and value):
                raise ValueError
            found = read(value)
        except ValueError:
            rule = "NAME=NUMBER" if read is float else "NAME=VALUE"
            raise HpxferError(f"{option}: must be {rule}, got {shown(text)}") from None
        if name in out:
            raise HpxferError(f"{option}: must name {name} once, got it twice")
        out[name] = found
    return out


def read_conventions(given: Iterable[str] | None) -> dict[str, float | str]:
    """Return the conventions in texts such as `router_init=zero`. A value that looks like a number becomes a number."""
    from hpxfer.spec import convention_value

    return pairs(given, "--convention", convention_value)


def excludes(option: str, **others: object) -> None:
    """Raise HpxferError for options that do not go with `option`."""
    given = [name for name, value in others.items() if value is not None and value is not False and value != []]
    if given := [name if name.isupper() else f"--{name.replace('_', '-')}" for name in given]:
        raise HpxferError(f"{', '.join(given)}: not read with {option}")
