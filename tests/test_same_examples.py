"""The examples of property-based tests do not depend on which modules other tests have loaded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples


def drawn() -> list[float]:
    """Return the numbers that Hypothesis draws from [0, 1e9]."""
    numbers: list[float] = []

    @settings(max_examples=examples(300))
    @given(st.floats(0, 1e9))
    def draw(number: float) -> None:
        numbers.append(number)

    draw()
    return numbers


def test_a_module_that_is_loaded_later_changes_no_example(tmp_path: Path) -> None:
    before = drawn()
    # Outside any folder called "tests", where Hypothesis would not look for numbers.
    path = tmp_path / "of_the_project.py"
    path.write_text("".join(f"A{i} = {i}.125\n" for i in range(100, 999)))
    spec = importlib.util.spec_from_file_location("of_the_project", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["of_the_project"] = module
    try:
        spec.loader.exec_module(module)
        assert drawn() == before
    finally:
        del sys.modules["of_the_project"]
