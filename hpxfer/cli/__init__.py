"""The command line. Each module holds the commands of one room; the order here is that of `hpxfer --help`."""

from __future__ import annotations

import sys

# isort: off
from hpxfer.cli import sweeps, watch, jobs, reports, tables, schema, bench  # noqa: F401

# isort: on
from hpxfer.cli.app import BAD_INPUT, INTERRUPTED, app
from hpxfer.errors import HpxferError
from hpxfer.storage.uri import spelled

__all__ = ["main"]


def main() -> None:
    """Run the command line; a user's mistake is one message on stderr and exit code 2."""
    try:
        app()
    except HpxferError as error:
        print(f"hpxfer: {spelled(str(error))}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:  # before typer listens for it
        sys.exit(INTERRUPTED)
