"""Serve: follow the run of a results folder for as long as the page is wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from hpxfer.errors import HpxferError
from hpxfer.live.judging import Judging
from hpxfer.live.page import live_page
from hpxfer.live.server import LiveServer
from hpxfer.live.state import LiveState
from hpxfer.progress.watch import EVERY_REMOTE_S, EVERY_S, view_now, views
from hpxfer.storage.uri import spelled
from hpxfer.store.location import ResultsLocation


@dataclass(frozen=True, kw_only=True)
class Served:
    """A live page that is served. `problem` says what is wrong with the folder so far; empty if nothing is."""

    location: ResultsLocation
    url: str
    state: LiveState
    judging: Judging
    problem: str

    def follow(self, sleep: Callable[[float], None] = time.sleep) -> NoReturn:
        """Follow the run, and those after it, without an end."""
        every_s = EVERY_REMOTE_S if self.location.is_remote else EVERY_S
        while True:
            try:
                for view in views(self.location, stay=True, sleep=sleep):
                    self.state.show(view)
                    self.judging.look(is_running=not view.is_over, is_watched=self.state.is_watched)
            except HpxferError as error:  # the folder may come, and a damaged file may be written again
                self.state.show_problem(spelled(str(error)))
            sleep(every_s)


@contextmanager
def served(location: ResultsLocation, port: int = 0) -> Iterator[Served]:
    """Serve the live page of a results folder while entered. Call `follow` of what is yielded to keep it up to date.

    Raises HpxferError for a port that cannot be had, or a path that can never be a results folder.
    """
    problem = _problem(location)
    judging = Judging(location.folder, location.where)
    try:
        state = LiveState(location.where, judging)
        with LiveServer(live_page(location.where), state, port) as server:
            thread = threading.Thread(target=server.serve_forever, name="hpxfer-live", daemon=True)
            thread.start()
            try:
                yield Served(location=location, url=server.url, state=state, judging=judging, problem=problem)
            finally:
                server.shutdown()
                thread.join()
    finally:
        judging.close()


def _problem(location: ResultsLocation) -> str:
    """Return why there is no run to see yet, or nothing. Raise HpxferError if the path is no folder."""
    try:
        view_now(location).require_folder()
    except HpxferError as error:
        if location.folder.exists() and not location.folder.is_dir():
            raise
        return str(error)
    return ""
