"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.errors import HpxferError, shown

if TYPE_CHECKING:
    from hpxfer.scaling.table import Column

Sweep = Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file, e.g. sweeps/quickstart.yaml.")]
Folder = Annotated[str, typer.Argument(metavar="RESULTS", help="A results folder or its URI, e.g. results/quickstart.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for a program to read.")]

# Of a Ray cluster, for `submit` and `fetch`.
Address = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="RAY_API_SERVER_ADDRESS",
        help="The address of Ray's dashboard on the cluster's head.",
    ),
]

# Where results go.
ResultsRoot = Annotated[Path, typer.Option("--results", help="The folder that holds the sweep's results folder.")]
RootOrUri = Annotated[
    str | None,
    typer.Option(
        "--results",
        help="The folder or URI that holds the sweep's results folder; default: the sweep's storage, or results; a "
        "sweep.yaml in a results folder goes on there.",
    ),
]
ReuseFrom = Annotated[
    list[str] | None,
    typer.Option("--reuse", help="Copy what is needed from this results folder or URI; may be repeated."),
]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the sweep file, e.g. training.steps=100; null takes it out; may be repeated.",
    ),
]

# What a run may cost.
OnHardware = Annotated[
    str | None, typer.Option("--hardware", help="Plan for this hardware: cpu, h200, h100, a100, l40s, ...")
]
Price = Annotated[
    float | None, typer.Option("--price-per-hour", min=0, help="The price of one GPU or one CPU worker per hour.")
]
MaxGpuHours = Annotated[
    float | None, typer.Option("--max-gpu-hours", min=0, help="Refuse a plan that needs more GPU-hours than this.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a run that costs much.")]
EarlyStopping = Annotated[
    str | None,
    typer.Option("--early-stopping", help="none: ignore the sweep's rule; a trial then stops only if it diverges."),
]

# What a table of rules is asked about.
Parameterization = Annotated[
    str | None,
    typer.Option(
        "--parameterization", help="A table, or an arm of the sweep by its label or name; default: the sweep's first."
    ),
]
Convention = Annotated[
    list[str] | None, typer.Option("--convention", help="KEY=VALUE, an option of the table; may be repeated.")
]

# What a sweep is judged from.
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="SHAPE",
        help="Judge as if this shape were the base, e.g. w64 or 'width 64'; default: the sweep's base.",
    ),
]

StrictMemory = Annotated[
    bool,
    typer.Option(
        "--strict-memory/--no-strict-memory",
        help="Refuse a sweep with a shape that does not fit into memory even alone, or try all the same.",
    ),
]

StrictCode = Annotated[
    bool,
    typer.Option(
        "--strict-code",
        help="With a trainer of your own: refuse if its commit, uncommitted changes or packages differ from those of "
        "the last stored trial, instead of a warning.",
    ),
]

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Import this Python code first, which registers e.g. a gate; may be repeated.",
    ),
]


def load_plugins(names: list[str] | None) -> None:
    """Import the plug-ins that `--plugin` names; a relative file starts at the current folder."""
    from hpxfer.spec.load import import_plugin

    for name in names or ():
        import_plugin(name, Path())


def column(optimizer: str | None) -> Column | None:
    """Return the column of a table that `--optimizer` names."""
    from hpxfer.registry import rows_of

    if optimizer is None:
        return None
    rows = rows_of("optimizer")
    if optimizer not in rows:
        raise HpxferError(f"--optimizer must be {' or '.join(rows.names())}, got {shown(optimizer)}")
    named: Column = rows.get(optimizer).column
    return named


def read_hps(given: Iterable[str]) -> dict[str, float]:
    """Return the HPs in texts such as `lr=0.004`."""
    out: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals, number = "", 0.0
        if not name or not equals:
            raise HpxferError(f"--hp must be NAME=NUMBER, e.g. lr=0.004, got {shown(text)}")
        if name in out:
            raise HpxferError(f"--hp {name} stands twice; keep one")
        out[name] = number
    return out
