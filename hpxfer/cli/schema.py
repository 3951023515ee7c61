"""`hpxfer schema`: the JSON Schema of a sweep file."""

from __future__ import annotations

import json

from hpxfer.cli.output import say


def schema() -> None:
    """Print the JSON Schema of a sweep file, with which an editor completes and checks it.

    \b
    Examples:
      hpxfer schema > sweep.schema.json
    A sweep file that starts with this line is then checked by every editor that runs yaml-language-server:
      # yaml-language-server: $schema=sweep.schema.json
    """
    from hpxfer.spec import sweep_schema

    say(json.dumps(sweep_schema(), indent=2))
