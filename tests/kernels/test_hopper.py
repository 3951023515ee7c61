"""The Triton kernels compile for sm_90 without a GPU, in a separate process, with warnings as errors.

Every product of the table of block sizes keeps its registers and copies ahead of its main loop. A table that asks for
more registers than there are still gives right results, and only the compiler says that it is slow.
"""

from __future__ import annotations

from typing import Any

import pytest
from hopper import CASES
from recorded import compiled_by

from hpxfer.kernels.configs import table
from hpxfer.kernels.size_limits import has_pipeline

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return the failures by case, the faults of the planted products, and the facts of the table's products."""
    inputs = ("tests/kernels/hopper.py", "tests/tools/compile_facts.py")
    answer: dict[str, Any] = compiled_by("hopper", inputs[:1], inputs)
    return answer


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile(case: str, found: dict[str, Any]) -> None:
    assert case not in found["failures"], found["failures"][case]


@pytest.mark.parametrize("entry", range(len(table()["sm90"])))
def test_products_of_the_table_spill_next_to_nothing_and_are_pipelined(entry: int, found: dict[str, Any]) -> None:
    rows = [row for row in found["products"] if row["entry"] == entry]
    assert {row["kernel"] for row in rows} == {"up", "rows_product", "hidden_gradient", "matrix_gradient"}
    assert {row["layer"] for row in rows} == {"one matrix", "two matrices"}
    assert sum(row["kernel"] == "matrix_gradient" for row in rows) >= 3  # rows gathered left, right and not at all
    assert sum(len(row["loops"]) == 2 for row in rows) == 1  # two matrices: the sum of both products
    for row in rows:
        assert row["fault"] is None, row
        assert row["spill_bytes"] <= 64, row
        assert all(max(waits) > 0 for waits in row["loops"]), row


def test_a_multiprocessor_takes_two_blocks_of_a_layer_of_512_features(found: dict[str, Any]) -> None:
    rows = [row for row in found["products"] if row["max_features"] == 512]
    assert {row["blocks_per_multiprocessor"] for row in rows} == {2}


def test_a_product_that_spills_and_one_without_a_pipeline_are_found(found: dict[str, Any]) -> None:
    (spilled,), (single,) = found["planted"]["needs 256 registers"], found["planted"]["one stage"]
    assert "spills" in spilled
    assert "without a pipeline" in single


@pytest.mark.parametrize("columns", [264, 260, 257])
def test_sizes_that_16_does_not_divide_are_copied_ahead_too(columns: int, found: dict[str, Any]) -> None:
    assert has_pipeline(columns, 2) == (found["planted"][str(columns)] == []), found["planted"]
    assert has_pipeline(columns, 2) == (columns != 257)
