"""The live page in a real browser, while a sweep runs: it follows without a reload, and a reader keeps his place."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from chromium import PATIENCE_MS, needs_chromium, opened
from report_cases import planted
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.executors.executor import More, OnEvent, Train
from hpxfer.live.serve import Served, served
from hpxfer.store.location import location_at
from hpxfer.trial.events import Ended, Progress, Started

pytestmark = needs_chromium
LIMIT_S = 300
# The process that judges, at the priority of any other: a test on a busy machine has no time to give way.
JUDGE = "from hpxfer.live import judge; judge._give_way = lambda: None; judge.main()"


class Over(Exception):
    """The test is over."""


@dataclass
class Gated:
    """An executor that makes losses up, and ends a stack whenever the test lets it."""

    ends: queue.Queue[bool] = field(default_factory=queue.Queue)

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        del train
        while stacks := more():
            for stack in stacks:
                on_event(stack, Started(host="a-machine", pid=1))
                tokens = stack.setting.batch_tokens * len(stack.trials)
                on_event(stack, Progress(tokens=tokens, step=1, losses=(4.5,) * len(stack.trials)))
                self.ends.get(timeout=LIMIT_S)
                results = tuple(replace(planted(trial), curves=()) for trial in stack.trials)
                on_event(stack, Ended(results=results))

    def let(self, num_stacks: int) -> None:
        for _ in range(num_stacks):
            self.ends.put(True)


def started(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")


@pytest.fixture
def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The live page of a sweep that has not begun."""
    monkeypatch.setattr("hpxfer.live.judging.REST", 0)
    monkeypatch.setattr("hpxfer.live.judging.LEAST_S", 0.1)
    monkeypatch.setattr("hpxfer.live.judging._start", lambda: started(JUDGE))
    over = threading.Event()

    def sleep(seconds: float) -> None:
        if over.wait(seconds):
            raise Over

    def follow() -> None:
        with suppress(Over):
            page.follow(sleep)

    with served(location_at(tmp_path / "tiny")) as page:
        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield page
        finally:
            over.set()
            thread.join()


def until(page: Any, what: str, has_come: Callable[[], bool]) -> None:
    """Wait for something on the page."""
    for _ in range(PATIENCE_MS // 100):
        if has_come():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{what} never came: {page.inner_text('#run')}")


def done(page: Any) -> list[list[str]]:
    """Return shape, trials, done and missing, shape by shape."""
    rows = [row.split("\t") for row in page.locator("#run table").first.locator("tbody tr").all_inner_texts()]
    return [[row[0], row[1], row[2], row[4]] for row in rows]


def test_the_page_follows_a_run_without_a_reload(page_of: Served, browser: Any, tmp_path: Path) -> None:
    executor, said, asked = Gated(), [], []
    path = write_tiny(tmp_path, ("workers: 2", "workers: 1, stack_size: 5"), ("log2: [-8, -4]", "log2: [-8, -5]"))
    driver = threading.Thread(daemon=True, target=run, args=(path,), kwargs={"results": tmp_path, "executor": executor})
    with opened(browser, viewport={"width": 1100, "height": 700}) as page:
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_of.url)
        page.evaluate("window.isTheSamePage = true")
        page.wait_for_selector("html[data-state=unknown]")
        assert "this page waits for one" in page.inner_text("#run")
        assert page.locator("nav a:visible").all_inner_texts() == ["Run"]

        driver.start()
        page.wait_for_selector("html[data-state=running]")
        until(page, "the running stack", lambda: "a-machine" in page.inner_text("#run"))
        assert [row[2] for row in done(page)] == ["0", "0"]
        assert "4.5000" in page.inner_text("#run")  # the loss of the running stack
        executor.let(1)
        page.wait_for_selector("#verdict")
        until(page, "the first stack", lambda: sum(int(row[2]) for row in done(page)) > 0)
        assert page.locator(".badge").first.inner_text() == "undecided"
        assert "are still to come" in page.inner_text("#verdict")
        assert "Next: nothing yet." in page.inner_text(".next")
        assert "Trials" in page.locator("nav a:visible").all_inner_texts()

        # What a reader has opened, filtered and scrolled to.
        page.locator(".card details summary").first.click()
        page.locator("#trials-0 th button", has_text="validation loss, nats").click()
        tools = page.locator("#trials-0 .tools").first
        tools.locator("select").nth(3).select_option("finished")
        tools.locator("input").fill("w16")
        before = page.inner_text("#trials-0 .status")
        page.evaluate("document.getElementById('trials').scrollIntoView()")
        top = page.evaluate("document.getElementById('trials').getBoundingClientRect().top")
        number = page.get_attribute("html", "data-report")
        executor.let(1)
        until(page, "a newer report", lambda: page.locator("#newer").is_visible())  # the filter has the focus
        assert page.get_attribute("html", "data-report") == number
        page.click("#newer")
        until(page, "the newer report", lambda: page.get_attribute("html", "data-report") != number)
        until(page, "more rows", lambda: page.inner_text("#trials-0 .status") != before)
        assert tools.locator("input").input_value() == "w16"
        assert tools.locator("select").nth(3).input_value() == "finished"
        losses = [float(text) for text in page.locator("#trials-0 tbody td:nth-child(8)").all_inner_texts()]
        assert losses == sorted(losses)
        assert page.locator(".card details").first.get_attribute("open") is not None
        assert abs(page.evaluate("document.getElementById('trials').getBoundingClientRect().top") - top) < 3

        # A trial that is open stays open.
        page.locator("#trials-0 tbody tr").first.click()
        page.wait_for_selector("dialog[open]")
        executor.let(100)
        page.wait_for_selector("html[data-state=ended]")
        driver.join(LIMIT_S)
        until(page, "the last report", lambda: not page.locator("#newer").is_hidden())
        assert page.locator("dialog[open]").count() == 1
        page.keyboard.press("Escape")
        until(page, "the verdict", lambda: "of 24 trials have a result." in page.inner_text("#verdict"))
        assert {row[3] for row in done(page)} == {"0"}
        assert "The run has ended." in page.inner_text("#run")
        assert page.locator(".badges .badge").all_inner_texts() != ["undecided", "undecided"]
        assert page.title() == f"24 of 24 · {tmp_path / 'tiny'}"
        assert page.evaluate("window.isTheSamePage")
        assert said == []
        assert all(url.startswith((page_of.url, "data:")) for url in asked)
        assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"


def test_a_page_whose_server_has_ended_says_so_and_stays(browser: Any, tmp_path: Path) -> None:
    with opened(browser) as page:
        with served(location_at(tmp_path / "none")) as found:
            page.goto(found.url)
            page.wait_for_selector("html[data-state=unknown]")
            assert page.locator("#silent").is_hidden()
        page.wait_for_selector("#silent:not([hidden])")
        assert "hpxfer watch has ended, or the connection is down" in page.inner_text("#silent")
        assert "Nothing is known of a run yet" in page.inner_text("#run")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_scrolls_sideways_in_either_light(
    scheme: str, page_of: Served, browser: Any, tmp_path: Path
) -> None:
    executor = Gated()
    path = write_tiny(tmp_path)
    driver = threading.Thread(daemon=True, target=run, args=(path,), kwargs={"results": tmp_path, "executor": executor})
    driver.start()
    with opened(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        page.goto(page_of.url)
        until(page, "a stack", lambda: "a-machine" in page.inner_text("#run"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (sum(ground) < 300) is (scheme == "dark")
        cell = page.locator("#run table tbody td.kept").first.bounding_box()
        assert cell["x"] + cell["width"] <= 390
    executor.let(100)
    driver.join(LIMIT_S)
    assert not driver.is_alive()
