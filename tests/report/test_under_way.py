"""The page of a run that is under way: made for a small share of the time, and never in the way of the run."""

from __future__ import annotations

from pathlib import Path
from threading import Event as Signal
from types import SimpleNamespace
from typing import Any

import pytest
from chromium import needs_chromium, opened
from made_runs import Clock, stack_of
from report_cases import write_store
from tiny_trials import BASE

from hpxfer.errors import HpxferError
from hpxfer.report import under_way, write_report
from hpxfer.report.under_way import PRESUMED_S, SHARE, PageUnderWay
from hpxfer.results import load_results
from hpxfer.trial.events import Ended, Event, Progress

STACK, RESULTS = stack_of(BASE, 1), Ended(results=())


def take(page: PageUnderWay, event: Event = RESULTS, left: float | None = None, *, wait: bool = True) -> None:
    page(STACK, event, SimpleNamespace(run_status=lambda: SimpleNamespace(eta_s=left)))  # type: ignore[arg-type]
    if wait and page._thread is not None:
        page._thread.join()


def test_pages_take_their_share_of_the_time_and_a_problem_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, made, said = Clock(), list[float](), list[str]()

    def costly(folder: Path) -> None:
        made.append(clock.now)
        clock.sleep(6)
        raise HpxferError("no room")

    monkeypatch.setattr(under_way, "load_results", costly)
    with PageUnderWay(tmp_path, said.append, clock) as page:
        while clock.now < 1000:
            take(page, left=5.0 if made and clock.now < 400 else None)
            clock.sleep(1)
    assert made[0] == pytest.approx(PRESUMED_S / SHARE, abs=1)
    assert made[1] == 400  # while less than a page is left to train, the last page is near
    assert made[2:] == [600, 800]
    assert said == ["no page while the run is under way: no room"]


def test_a_page_waits_for_new_results(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    with PageUnderWay(tmp_path, lambda text: None, clock) as page:
        clock.sleep(1000)
        take(page, Progress(tokens=1))
        assert page._thread is None


def test_no_page_is_written_after_a_run_that_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, over, folder, load = Clock(), Signal(), write_store(tmp_path), load_results
    monkeypatch.setattr(under_way, "load_results", lambda folder: over.wait(300) and load(folder))
    page = PageUnderWay(folder, lambda text: None, clock)
    clock.sleep(1000)
    take(page, wait=False)
    page.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    over.set()
    assert page._thread is not None
    page._thread.join()
    assert not (folder / "report.html").exists()


@pytest.mark.slow
@needs_chromium
def test_a_page_says_that_more_is_to_come_and_loads_itself_again_until_the_run_has_ended(
    tmp_path: Path, browser: Any
) -> None:
    clock, folder = Clock(), write_store(tmp_path, every=2)
    path = folder / "report.html"
    with PageUnderWay(folder, pytest.fail, clock) as page:
        clock.sleep(1000)
        take(page)
    assert "are still to come." in path.read_text()
    assert not (folder / "figures").exists()
    with opened(browser) as view:
        view.clock.install()
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready]")
        view.locator("#trials-0 .tools select").first.select_option(index=1)
        view.evaluate("window.before = true")
        view.clock.run_for(31_000)
        assert view.evaluate("window.before")  # nobody's filter is taken away
        write_report([folder])
        view.locator("#trials-0 .tools select").first.select_option(index=0)
        with view.expect_navigation():
            view.clock.run_for(31_000)
        view.wait_for_selector("html[data-ready]")
        assert view.evaluate("window.before === undefined && !('running' in document.body.dataset)")
