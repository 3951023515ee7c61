"""The website: `make site` builds every page, without a warning and without anything from another server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("zensical", reason="the website needs what `pip install 'hpxfer[docs]'` installs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_there_with_its_text(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"{title}</h1>" in html or f">{title}<" in html, page.name
        assert "```" not in html, page.name
        assert html.count("<table") >= page.read_text(encoding="utf-8").count("\n| --- "), page.name


def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    for page in site.glob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert re.findall(r'(?:src|<link[^>]+href)="https?://', html) == [], page.name


def test_every_link_between_pages_leads_somewhere(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        for target, anchor in re.findall(r'href="([\w-]+\.html)?#([\w-]+)"', html):
            if not anchor.startswith("__"):
                there = site / (target or page.with_suffix(".html").name)
                assert f'id="{anchor}"' in there.read_text(encoding="utf-8"), f"{page.name}: {target}#{anchor}"
