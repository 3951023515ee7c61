"""What the compiler says of the rows of a head: they stay in a GPU's cache between their two reads, and nothing spills.

It compiles for sm_90 in a process of its own, because kernels of this one may be interpreted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded import compiled_by

# An H200: its multiprocessors and its cache.
MULTIPROCESSORS, CACHE_BYTES = 132, 60e6
PADDED, UNPADDED = 50304, 50257
COLUMNS = (PADDED, UNPADDED, 4096, 256, 67)
SCRIPT = """
import json, sys, torch
from compiled import compiling
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.cross_entropy import cross_entropy_rows_

backend, found = Backend(name="triton", reason="a test", strict=True), []
with compiling(capability=90) as facts:
    for columns in json.loads(sys.argv[1]):
        rows = torch.zeros(2, columns, dtype=torch.bfloat16)
        cross_entropy_rows_(rows, torch.zeros(2, dtype=torch.int64), backend=backend)
        found.append([columns, {**facts[-1].row(), "threads": 32 * facts[-1].num_warps}])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[int, dict[str, Any]]:
    """Return the facts of the kernel by the length of its rows, in bfloat16."""
    return dict(compiled_by("cross_entropy", ("-c", SCRIPT, json.dumps(COLUMNS)), ()))


@pytest.mark.parametrize("columns", COLUMNS)
def test_nothing_spills(compiled: dict[int, dict[str, Any]], columns: int) -> None:
    assert compiled[columns]["spill_bytes"] == 0


@pytest.mark.parametrize("columns", [PADDED, UNPADDED])
def test_the_rows_in_flight_fit_into_the_cache(compiled: dict[int, dict[str, Any]], columns: int) -> None:
    rows = MULTIPROCESSORS * compiled[columns]["blocks_per_multiprocessor"]
    assert 2 * columns * rows <= CACHE_BYTES


def test_long_rows_fill_the_threads_of_a_multiprocessor(compiled: dict[int, dict[str, Any]]) -> None:
    assert compiled[PADDED]["blocks_per_multiprocessor"] * compiled[PADDED]["threads"] == 2048


@pytest.mark.parametrize(("columns", "threads"), [(4096, 512), (256, 32), (67, 32)])
def test_short_rows_have_few_threads(compiled: dict[int, dict[str, Any]], columns: int, threads: int) -> None:
    assert compiled[columns]["threads"] == threads
