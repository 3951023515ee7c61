"""Ray Data for work that is no training: rows through a function, on all nodes, in their order. It imports ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpxfer.executors.ray_session import ray_errors, session  # before ray itself: it sets Ray's environment

# ruff: isort: split
import ray

# A batch of Ray Data: column -> values.
Columns = dict[str, Any]


def mapped(
    numbers: Sequence[int],
    rows_of: Callable[[Any], Any],
    *,
    address: str,
    workers: int | None = None,
) -> Iterator[Columns]:
    """Yield the rows that `rows_of` makes of each number, in order, computed on the cluster at `address`.

    `rows_of` gets the column `number` and yields batches of columns. It travels to the nodes, so it is a function of
    a module. At most `workers` of it run at once.
    """
    if not numbers:
        return
    with session(address, 0), ray_errors():
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        given = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        yield from given.map_batches(rows_of, batch_size=1, concurrency=workers).iter_rows()
