"""Links and paths in the pages: each leads to a file, a folder or a heading that exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from docs_markdown import anchor, anchors, code_words, links

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("kernels/README.md", "sweeps/cluster/README.md", "results/README.md", "results/LOG.md")),
    ROOT / "results" / "published" / "check" / "README.md",
]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
# A path in code font is one of the repository if it starts with one of its folders. Users make results/NAME.
PATH = re.compile(r"(hpxfer|tests|sweeps|docs|kernels|notebooks|results/published|results/bench)(/[\w.-]+)*")


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    assert broken_links(page) == []


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, or to headings that their page has not."""
    out = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
            out.append(link)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_every_path_in_code_font_exists(name: str) -> None:
    words = [word for word in code_words((ROOT / name).read_text(encoding="utf-8")) if PATH.fullmatch(word)]
    missing = [word for word in words if "/" in word and not (ROOT / word).exists()]
    assert missing == []


def test_links_that_are_broken_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A `b`, c\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#a-b-c) [c](none.md) [d](other.md#a-b) [e](#page) [f](#pages)\n"
        "```text\n# no heading\n[g](nowhere.md)\n```\n[h](https://example.org/x) ![i](i.png)\n"
    )
    assert broken_links(page) == ["none.md", "other.md#a-b", "#pages", "i.png"]


def test_anchors_are_those_of_code_hosts() -> None:
    assert anchor("How often the verdict is wrong") == "how-often-the-verdict-is-wrong"
    assert anchor("axes.NAME.shapes") == "axesnameshapes"
    assert anchor("`hps` and more: early_stopping") == "hps-and-more-early_stopping"


def test_the_docs_link_only_to_one_another() -> None:
    """A site holds docs/ alone: a link out of it would be broken there."""
    for page in (ROOT / "docs").glob("*.md"):
        assert [link for link in links(page.read_text(encoding="utf-8")) if link.startswith("..")] == [], page.name


def test_the_site_and_the_first_page_have_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(name for entry in nav for name in entry.values()) == sorted(pages)
    index = {link.partition("#")[0] for link in links((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))}
    assert {link for link in index if link.endswith(".md")} == pages - {"index.md"}
    readme = {link.partition("#")[0] for link in links((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{name}" for name in pages - {"index.md"}} <= readme


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
