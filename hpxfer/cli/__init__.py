"""The command line, the uppermost room. `commands` is the table of commands; each command is a file of its name."""

from __future__ import annotations

import sys
from typing import NoReturn

from hpxfer.errors import HpxferError, brief, spelled

__all__ = ["main"]

# Exit codes; `hpxfer.cli.output` has the others.
BAD_INPUT, INTERRUPTED = 2, 130


def main() -> None:
    """Run the command line. A user's mistake is one message on stderr and exit code 2."""
    try:
        import hpxfer.host
        from hpxfer.cli.app import app

        app(prog_name="hpxfer")
    except HpxferError as error:
        _refuse(str(error))
    except OSError as error:
        from hpxfer.host import path_problem

        if (problem := path_problem(error)) is None:
            raise
        _refuse(problem)
    except KeyboardInterrupt:  # before typer listens for it
        sys.exit(INTERRUPTED)


def _refuse(message: str) -> NoReturn:
    print(f"hpxfer: {brief(spelled(message))}", file=sys.stderr)  # noqa: T201
    sys.exit(BAD_INPUT)
