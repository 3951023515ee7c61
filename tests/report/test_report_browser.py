"""The page in a real browser: nothing leaves it, tables sort and filter, dark, on a phone, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from chromium import needs_chromium, opened
from PIL import Image
from report_cases import EVIL, Stub, source, write_store

from hpxfer.report import make_report, to_html

pytestmark = needs_chromium
WIDE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 300"><path d="M 0 0 L 620 300" '
    'style="stroke: #123456"/></svg>'
)


@dataclass
class Visit:
    """An open page and all that it did that a page should not."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_inner_texts()
        return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on two sweeps: one whole, one half-finished with failures, hostile text in both."""
    folder = tmp_path_factory.mktemp("browser")
    whole = write_store(folder / "a", ("seeds: 2", "seeds: 4"))
    half = write_store(folder / "b", ("name: small", "name: half"), every=2, failing=(0, 2))
    pictures = [Stub(svg=WIDE), Stub(name="evil", title=EVIL, caption=EVIL, csv=EVIL, svg=WIDE)]
    made = make_report([source(whole, *pictures, notes=(EVIL,)), source(half, *pictures)])
    path = folder / "report.html"
    path.write_text(to_html(made), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser: Any, path: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The page, opened with the context that a test gives as parameter; a test fails if it said or asked anything."""
    with opened(browser, **getattr(request, "param", {})) as page:
        found = Visit(page=page)
        found.page.on("console", lambda message: found.console.append(message.text))
        found.page.on("pageerror", lambda error: found.console.append(str(error)))
        found.page.on("dialog", lambda dialog: found.console.append(f"dialog: {dialog.message}"))
        found.page.on("request", lambda asked: found.requests.append(asked.url))
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready]")
        yield found
        assert found.console == []
        assert [url for url in found.requests if not url.startswith("data:")] == [path.as_uri()]


def test_a_page_that_asks_for_something_is_noticed(browser: Any, tmp_path: Path) -> None:
    """The twin: what the fixture watches for is seen, and the page's policy is what stops a request."""
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('x')</script><img src='http://127.0.0.1:9/a.png'>")
    with (
        opened(browser) as page,
        page.expect_console_message(lambda message: message.text == "x"),
        page.expect_request("http://127.0.0.1:9/a.png"),
    ):
        page.goto(bad.as_uri())


def test_the_policy_stops_scripts_and_requests_that_get_in(visit: Visit) -> None:
    refused = visit.page.evaluate(
        """async () => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          const asked = await fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused");
          return [window.ran === undefined, asked];
        }"""
    )
    assert refused == [True, "refused"]
    assert all("Content Security Policy" in text for text in visit.console)
    assert len(visit.console) >= 2
    visit.console.clear()


def test_nothing_that_a_store_holds_runs(visit: Visit) -> None:
    assert "alert('x')" in visit.page.inner_text("#verdict")
    assert visit.page.locator("script").count() == 3


def test_a_click_sorts_by_a_column_and_another_turns_it_around(visit: Visit) -> None:
    page = visit.page
    losses = "#trials-0 tbody td:nth-child(8)"
    button = page.locator("#trials-0 th button", has_text="validation loss, nats")
    button.click()
    up = [float(text) for text in visit.texts(losses) if text != "-"]
    assert up == sorted(up)
    assert len(up) == 25
    assert button.locator("..").get_attribute("aria-sort") == "ascending"
    button.click()
    down = [float(text) for text in visit.texts(losses) if text != "-"]
    assert down == sorted(down, reverse=True)
    assert down[0] > up[-1]


def test_what_is_missing_comes_last_either_way(visit: Visit) -> None:
    page = visit.page
    button = page.locator("#trials-1 th button", has_text="validation loss, nats")
    for _ in range(2):
        button.click()
        assert visit.texts("#trials-1 tbody td:nth-child(8)")[0] != "-"


def test_a_plain_table_sorts_numbers_as_numbers(visit: Visit) -> None:
    page = visit.page
    page.locator(".card details summary").first.click()
    table = page.locator(".card table").first
    table.locator("th button", has_text="best loss").click()
    cells = [float(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
    assert cells == sorted(cells)
    table.locator("th button", has_text="best loss").click()
    assert [float(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()] == cells[::-1]


def test_a_link_to_a_closed_figure_opens_it_and_so_does_paper(browser: Any, tmp_path: Path) -> None:
    pictures = [Stub(name=f"judged-{i}", svg=WIDE) for i in range(6)] + [Stub(name="other", svg=WIDE, aside=True)]
    path = tmp_path / "report.html"
    path.write_text(to_html(make_report([source(write_store(tmp_path / "a"), *pictures)])), encoding="utf-8")
    with opened(browser) as page:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        closed = page.locator("#figure-7")
        assert not closed.is_visible()
        page.locator("ol.contents a").last.click()
        assert closed.is_visible()
        page.evaluate("document.getElementById('figures-aside').open = false")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert closed.is_visible()


def test_filters_leave_the_trials_asked_for(visit: Visit) -> None:
    page = visit.page
    tools = page.locator("#trials-1 .tools").first
    tools.locator("select").nth(3).select_option("failed")
    assert set(visit.texts("#trials-1 tbody td:nth-child(7)")) == {"failed"}
    assert page.inner_text("#trials-1 .status").startswith("1 to 2 of 2 trials")
    tools.locator("input").fill("no such trial")
    assert page.inner_text("#trials-1 .status") == "no trial matches"
    tools.locator("input").fill("")
    tools.locator("select").nth(3).select_option("")
    tools.locator("input").fill("sp w64")
    assert set(visit.texts("#trials-1 tbody td:nth-child(2)")) == {"sp"}


def test_pages_hold_every_trial_once(visit: Visit) -> None:
    page, seen = visit.page, []
    while True:
        seen += page.locator("#trials-0 tbody a").evaluate_all("links => links.map(link => link.title)")
        following = page.locator("#trials-0 button", has_text="Next")
        if following.is_disabled():
            break
        following.click()
    assert len(seen) == len(set(seen)) == 72


def test_a_trial_shows_its_multipliers_and_has_an_address(visit: Visit, path: Path) -> None:
    page = visit.page
    page.locator("#trials-0 tbody tr").nth(3).click()
    page.wait_for_selector("dialog[open]")
    assert {"expert_in", "router", "readout"} <= set(visit.texts("dialog tbody td:first-child"))
    address = page.url
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    page.wait_for_url(lambda url: url.endswith("#trials"))  # the page sets it just after the dialog closes
    page.goto(address)
    page.reload()
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("dialog h3") == f"Trial {address.partition('=')[2]}"
    visit.requests[:] = [url for url in visit.requests if url.partition("#")[0] != path.as_uri()] + [path.as_uri()]


def test_a_failed_trial_shows_its_error_as_text(visit: Visit) -> None:
    page = visit.page
    page.locator("#trials-1 .tools").first.locator("select").nth(3).select_option("failed")
    page.locator("#trials-1 tbody tr").first.click()
    page.wait_for_selector("dialog[open]")
    assert EVIL in page.inner_text("dialog pre")


@pytest.mark.parametrize(
    ("visit", "dark"), [({"color_scheme": "dark"}, True), ({"color_scheme": "light"}, False)], indirect=["visit"]
)
def test_light_and_dark_follow_the_reader_and_the_button_turns_them(visit: Visit, dark: bool) -> None:
    def is_dark() -> bool:
        """Return whether the page is dark. The ink of a figure, seen in a screenshot, must be the opposite."""
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        dark = sum(ground) < 300
        picture = Image.open(BytesIO(visit.page.locator(".picture img").first.screenshot())).convert("L")
        low, high = picture.getextrema()
        assert low < 60
        assert high > 180, "ground and ink differ"
        assert (picture.getpixel((picture.width // 2, 5)) < 60) == dark, "the ground shows through"
        return dark

    assert is_dark() == dark
    visit.page.click("#theme")
    assert is_dark() != dark
    visit.page.click("#theme")
    assert is_dark() == dark


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_on_a_phone_nothing_scrolls_sideways_but_tables_and_pictures(visit: Visit) -> None:
    visit.page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visit.page.evaluate("document.querySelector('.picture').scrollWidth") > 390
    visit.page.locator("#trials-0 tbody tr").first.click()
    visit.page.wait_for_selector("dialog[open]")
    assert visit.page.evaluate("document.querySelector('dialog').scrollWidth") <= 390


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_on_a_phone_losses_stay_in_view_and_a_picture_says_that_it_scrolls(visit: Visit) -> None:
    page = visit.page
    page.evaluate("document.querySelectorAll('.card details').forEach(details => { details.open = true; })")
    for table in (".card table", "#trials-0 table"):
        for left in (0, 10_000):
            page.evaluate(f"document.querySelector('{table}').closest('.wide').scrollLeft = {left}")
            for cell in ("td:first-child", "td.kept"):
                box = page.locator(f"{table} tbody tr").first.locator(cell).bounding_box()
                assert box["x"] >= 0, (table, cell, left)
                assert box["x"] + box["width"] <= 390, (table, cell, left)
    assert page.locator(".swipe").first.is_visible()


@pytest.mark.parametrize("visit", [{"viewport": {"width": 1400, "height": 900}}], indirect=True)
def test_on_a_desk_no_picture_scrolls(visit: Visit) -> None:
    assert not visit.page.locator(".swipe").first.is_visible()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1400
    assert visit.page.evaluate("[...document.querySelectorAll('.picture')].every(e => e.scrollWidth <= e.clientWidth)")


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_on_a_phone_verdicts_at_a_glance_need_no_scrolling(visit: Visit) -> None:
    page = visit.page
    assert page.evaluate("document.querySelector('.glance').scrollWidth") <= 390
    verdict = page.locator(".glance tbody tr").first.locator("td").nth(3)
    assert verdict.bounding_box()["width"] > 300
    assert page.evaluate("getComputedStyle(document.querySelector('.glance td:nth-child(4)'), '::before').content") == (
        '"small: "'
    )
    page.evaluate("document.querySelector('.glance tbody tr').hidden = true")
    assert not page.locator(".glance tbody tr").first.is_visible()


@pytest.mark.parametrize("visit", [{"color_scheme": "dark", "viewport": {"width": 794, "height": 1123}}], indirect=True)
def test_on_paper_it_is_light_without_tools(visit: Visit) -> None:
    page = visit.page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for selector in ("nav", "#trials-0 .tools"):
        assert not page.locator(selector).first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".card table").first.is_visible()
    for table in (".card table", "#trials-0 table", "#provenance table"):
        wide = page.locator(table).first.evaluate("table => table.scrollWidth - table.closest('.wide').clientWidth")
        assert wide <= 0, table
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    assert page.pdf().startswith(b"%PDF")
