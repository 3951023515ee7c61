"""The process behind a live page that judges what is stored: `python -m hpxfer.live.judge`.

It reads requests from stdin and answers on stdout, one line of JSON each. It runs on one thread and at a low
priority, so that it slows no training on this machine. It ends when stdin does: with the server, however that ended.

    {"folder": "/tmp/x/quickstart", "where": "results/quickstart", "is_running": true, "problems": []}
    {"contents": "<section ..."}    or    {"why_not": "no trial has a result yet"}
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import escape

from hpxfer.errors import HpxferError, brief, first_line
from hpxfer.report import make_report
from hpxfer.report.html import to_contents
from hpxfer.report.write import garbage_collection_paused, source_of
from hpxfer.results import load_results
from hpxfer.store.parts import list_parts

# Beside a core that trains all the time, this gets a tenth of that core, for a fifth of the time (`judging.REST`). The
# lowest priority, 19, gets 1.5%: a report of four seconds would take more than four minutes.
NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")
# The page has no files beside it in which a reader finds what is left out, and it does not travel.
MOST_BYTES = 30_000_000


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the contents of the report on a copy of a results folder, or why there are none."""
    folder, where = Path(request["folder"]), str(request["where"])
    try:
        contents = contents_of(folder, is_running=request["is_running"], problems=tuple(request["problems"]))
    except HpxferError as error:
        return {"why_not": brief(str(error).replace(str(folder), where))}
    except Exception as error:
        traceback.print_exc()
        return {"why_not": brief(f"hpxfer has a bug: {type(error).__name__}: {first_line(error)}")}
    return {"contents": contents.replace(str(escape(str(folder))), str(escape(where)))}


def contents_of(folder: Path, *, is_running: bool, problems: tuple[str, ...]) -> str:
    """Return the sections of the report on a folder. Raise HpxferError if nothing can be reported.

    `problems` names the files that could not be copied to the folder.
    """
    if not any(part.trials for part in list_parts(folder).parts):
        raise HpxferError("no trial has a result yet")
    with garbage_collection_paused():
        results = load_results(folder)
        results = replace(results, problems=(*problems, *results.problems))
        return to_contents(make_report([source_of(results, is_running=is_running)]), MOST_BYTES)


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    _give_way()
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        print(json.dumps(answer(json.loads(requests.get()))), file=answers, flush=True)


def _give_way() -> None:
    """Give this process, and the session that it is alone in, a low priority.

    Where Linux groups processes by session (autogroup), the priority of a process counts within its session alone.
    """
    with suppress(OSError):
        os.nice(NICE)
    with suppress(OSError):
        AUTOGROUP.write_text(str(NICE), encoding="ascii")


def _read(requests: queue.SimpleQueue[str]) -> None:
    """Pass requests on. At the end of stdin end the process at once, also within an answer that nobody waits for."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
