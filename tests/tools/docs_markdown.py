"""Markdown: tables, the anchors of headings, and what a page holds. Pure functions on text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([_line(headings), _line(["---"] * len(headings)), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"\s+", " ", cell.replace("|", "\\|")) for cell in cells) + " |"


def anchor(heading: str) -> str:
    """Return the anchor that code hosts give a heading: lower case, no punctuation, `-` for each space."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: str) -> set[str]:
    """Return the anchors of all headings of a page, and those that it names itself."""
    page = without_blocks(page)
    headings = {anchor(text) for text in re.findall(r"^#{1,6} (.+)$", page, re.MULTILINE)}
    return headings | set(re.findall(r'<a id="([\w-]+)">', page))


def links(page: str) -> list[str]:
    """Return the targets of all links and images of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", without_blocks(page))


def blocks(page: str, language: str) -> Iterator[str]:
    """Yield the text of every fenced block of a language."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield found.group(1)


def without_blocks(page: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def code_words(page: str) -> list[str]:
    """Return the texts between single backticks outside of blocks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(page))
