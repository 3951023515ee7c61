"""SVG as part of a page: only what draws, under ids of its own.

What a figure is made of comes from result files and sweep names. An element or attribute that is not known to be
harmless is dropped; text stays text.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hpxfer.figures.style import INK

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
DRAWING = frozenset(
    (
        *("svg", "g", "defs", "path", "use", "rect", "circle", "ellipse", "line", "polygon", "polyline", "image"),
        *("clipPath", "mask", "text", "tspan", "linearGradient", "radialGradient", "stop", "pattern", "title", "desc"),
    )
)
_URL = re.compile(r"url\(\s*['\"]?#([^)'\"]+)['\"]?\s*\)")


def embedded(svg: str, prefix: str, label: str) -> str | None:
    """Return an SVG document as an element for a page, or None if it cannot be read.

    Every id gets `prefix`, so that two figures never share one; `label` is what a screen reader says.
    """
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError:
        return None
    if root.tag != f"{{{SVG}}}svg":
        return None
    _clean(root, prefix)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str) -> None:
    for child in list(element):
        namespace, _, name = str(child.tag).rpartition("}")
        if namespace != f"{{{SVG}" or name not in DRAWING:
            element.remove(child)
        else:
            _clean(child, prefix)
    for key, value in list(element.attrib.items()):
        new = _attribute(key.rpartition("}")[2], value, prefix)
        if new is None:
            del element.attrib[key]
        else:
            element.set(key, new)


def _attribute(name: str, value: str, prefix: str) -> str | None:
    """Return what an attribute becomes; None if it goes."""
    if name.lower().startswith("on"):
        return None
    if name == "id":
        return prefix + value
    if name == "href":
        if value.startswith("#"):
            return f"#{prefix}{value[1:]}"
        return value if value.startswith("data:image/png;base64,") else None
    local = _URL.sub(rf"url(#{prefix}\1)", value)
    if "url(" in local.lower().replace(f"url(#{prefix}", ""):
        return None
    return local.replace(INK, "currentColor")
