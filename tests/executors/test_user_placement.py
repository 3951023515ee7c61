"""Where the trials of a user's own trainer run: nodes apart counted exactly, and the GPUs of local workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.executors import ray_cluster
from hpxfer.executors.local import LocalExecutor
from hpxfer.executors.ray_cluster import bundles_of, most_workers
from hpxfer.spec.resources_section import ResourcesSpec


@cache
def most_by_trial(fits: tuple[int, ...], apart: int) -> int:
    """Return the most workers, each on `apart` nodes, by trying every way to place one and then the rest."""
    best = 0
    for chosen in itertools.combinations(range(len(fits)), apart):
        if all(fits[node] for node in chosen):
            left = tuple(sorted(fit - (node in chosen) for node, fit in enumerate(fits)))
            best = max(best, 1 + most_by_trial(left, apart))
    return best


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(0, 3), max_size=4), st.integers(2, 3))
def test_workers_on_nodes_apart_are_counted_exactly(fits: Sequence[int], apart: int) -> None:
    resources = ResourcesSpec(gpus_per_trial=2.0 * apart, gpus_per_node=2)
    has = [ray_cluster.Node(id=str(index), has={"CPU": 99.0, "GPU": 2.0 * fit}) for index, fit in enumerate(fits)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "nodes", lambda: has)
        found = most_workers(bundles_of(resources, 0.0), apart=True)
    assert found == most_by_trial(tuple(sorted(fits)), apart)


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (1.0, None, ["0", "1", "2"]),
        (2.0, None, ["0,1", "2,3", "4,5"]),
        (0.5, None, ["0", "0", "1"]),
        (1.0, "4,6,7", ["4", "6", "7"]),  # as Slurm gives them
        (2.0, "4,5,6,7", ["4,5", "6,7", "4,5"]),
        (1.0, "GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb", "GPU-aa"]),
        (0.0, "4,5", [None, None, None]),
        (0.0, None, [None, None, None]),
    ],
)
def test_a_local_worker_sees_its_own_gpus(
    gpus: float, visible: str | None, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    executor = LocalExecutor(gpus=gpus)
    assert [executor._gpus(place) for place in range(3)] == expected
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
