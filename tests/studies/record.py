"""What all studies share: the Markdown table of the docs, and the line that keeps what was measured."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hpxfer

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "tools"))  # a study runs as a program, with its own folder alone on the path

from docs_markdown import table as table  # noqa: E402


def head(program: str, words: Sequence[str], *libraries: str) -> dict[str, Any]:
    """Return what a record says first: when it was measured, by which command and with which versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", f"tests/studies/{program}.py", *words]),
        "hpxfer": hpxfer.__version__,
        "versions": {**{name: version(name) for name in libraries}, "python": platform.python_version()},
    }


def keep(entry: dict[str, Any], folder: Path | None, program: str) -> None:
    """Append a record to the study's file in a folder, if one is given."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{program}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
