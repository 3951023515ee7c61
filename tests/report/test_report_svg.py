"""SVG for a page: what draws stays, all else goes."""

from __future__ import annotations

import re

import pytest
from report_cases import SVG

from hpxfer.figures.style import INK
from hpxfer.report.svg import embedded

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'


def test_a_drawing_stays_and_takes_the_pages_ink() -> None:
    out = embedded(SVG, "p-", 'a "title" <b>')
    assert out is not None
    assert 'd="M 0 0 L 100 50"' in out
    assert ">picture</text>" in out
    assert "stroke: currentColor" in out
    assert INK not in out
    assert 'aria-label="a &quot;title&quot; &lt;b&gt;"' in out
    assert 'width="100pt"' not in out


@pytest.mark.parametrize(
    "bad",
    [
        "<script>alert(1)</script>",
        "<g><script>alert(1)</script></g>",
        "<foreignObject><b/></foreignObject>",
        "<style>*{display:none}</style>",
        '<animate attributeName="href" to="x"/>',
        '<html:script xmlns:html="http://www.w3.org/1999/xhtml">alert(1)</html:script>',
        "<!-- alert -->",
    ],
)
def test_an_element_that_does_not_draw_goes(bad: str) -> None:
    out = embedded(f'{HEAD}<path d="M 0 0"/>{bad}</svg>', "p-", "t")
    assert out is not None
    assert '<path d="M 0 0"' in out
    assert not re.search("script|foreign|style|animate|alert", out)


@pytest.mark.parametrize(
    "bad",
    [
        'onclick="alert(1)"',
        'OnLoad="alert(1)"',
        'xlink:href="javascript:alert(1)"',
        'href="https://alert.example/a.png"',
        'xlink:href="data:text/html,alert"',
        'style="fill: url(https://alert.example/a)"',
        'style="fill: url(#a); mask: url(//alert.example/a)"',
    ],
)
def test_an_attribute_that_runs_or_loads_something_goes(bad: str) -> None:
    out = embedded(f'{HEAD}<use x="3" {bad}/></svg>', "p-", "t")
    assert out is not None
    assert 'x="3"' in out
    assert "alert" not in out


def test_ids_get_a_prefix_wherever_they_are_named() -> None:
    body = '<defs><clipPath id="c"/></defs><use xlink:href="#c"/><g clip-path="url(#c)" style="mask: url(\'#c\')"/>'
    out = embedded(f"{HEAD}{body}</svg>", "s0-", "t")
    assert out is not None
    assert out.count("s0-c") == 4
    assert "#c" not in out


@pytest.mark.parametrize("text", ["", "not svg", "<svg", "<html/>", "<svg/>"])
def test_what_is_no_svg_is_refused(text: str) -> None:
    assert embedded(text, "p-", "t") is None
