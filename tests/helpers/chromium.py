"""A real browser, for pages that are read in one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_MS = 120_000  # for anything that a page or the browser does; a loaded machine is slow
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        # A container's root has no sandbox of its own; the page comes from this test.
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[Any]:
    """An empty page that is patient."""
    with browser.new_context(**options) as context:
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()
