"""Problem: what is wrong with a sweep. Every rule yields problems, and `load` puts file and line before them."""

from __future__ import annotations

from collections.abc import Callable

from hpxfer.spec.yaml_file import KeyPath

Problem = tuple[KeyPath, str]  # the key path, and what is wrong with it and how to fix it
WhyNot = Callable[[str], str | None]  # returns why an HP cannot be tuned at the base, or None
