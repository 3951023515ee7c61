"""What a cluster and a machine have room for, in numbers and words, and a head that is gone. No Ray is started."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from fixture_types import Patch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.errors import HpxferError
from hpxfer.executors import ray_cluster, ray_session
from hpxfer.executors.executor import Placement
from hpxfer.executors.local import LocalBackend
from hpxfer.executors.ray_cluster import Claim, Node, claim_of, listing
from hpxfer.executors.ray_session import ClusterMonitor
from hpxfer.host.interrupts import Interrupted, interrupts
from hpxfer.spec.precision import precision_on
from hpxfer.spec.resources_section import ResourcesSpec

HEAD = Node(id="a", has={"CPU": 2.0, "memory": 8e9, "node:10.0.0.1": 1.0})
BIG = Node(id="b", has={"CPU": 16.0, "GPU": 4.0, "accelerator_type:H100": 1.0})
OLD = Node(id="c", has={"CPU": 8.0, "GPU": 1.0, "accelerator_type:V100": 1.0})


@pytest.mark.parametrize(
    ("claim", "count"),
    [
        (Claim(), 26),
        (Claim(cpus=3), 0 + 5 + 2),
        (Claim(cpus=0.1), 20 + 160 + 80),
        (Claim(cpus=32), 0),
        (Claim(gpus=1), 5),
        (Claim(gpus=1 / 8), 16 + 8),  # a CPU each
        (Claim(cpus=0.5, gpus=1 / 8), 32 + 8),
        (Claim(gpus=1, gpu_type="H100"), 4),
        (Claim(gpus=1, gpu_type="A100"), 0),
        (Claim(gpu_type="A100"), 26),  # asks for none of it
        (Claim(gpus=1, ranks=4), 1),  # the four of one node, and one alone
        (Claim(gpus=1, ranks=5), 1),  # over two nodes
        (Claim(gpus=1, ranks=6), 0),
        (Claim(gpus=1, gpu_type="H100", ranks=5), 0),
        (Claim(cpus=2, ranks=3), 13 // 3),
    ],
)
def test_workers_are_counted_node_by_node(claim: Claim, count: int) -> None:
    found = [HEAD, BIG, OLD]
    assert claim.most(found) == count
    if count:
        claim.require(found)
    else:
        with pytest.raises(HpxferError, match=r"each stack needs .* (on one node, and no|at once, and the Ray) "):
            claim.require(found)


@pytest.mark.parametrize(
    ("alive", "resources", "precision"),
    [
        ([HEAD], {}, "float32"),
        ([HEAD, BIG], {}, "bfloat16"),  # with GPUs in the cluster, no stack goes to a node without one
        ([BIG, OLD, HEAD], {"gpu_type": "V100"}, "bfloat16"),
        ([HEAD, BIG], {"device": "cpu"}, "float32"),
    ],
)
def test_the_nodes_that_will_train_decide_the_precision(
    alive: list[Node], resources: dict[str, Any], precision: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(ray_cluster, "nodes", lambda: alive)
    monkeypatch.setattr(ray_cluster, "_gpu_bytes", lambda found: None)
    device = ray_cluster.cluster_device(ResourcesSpec(**resources))
    assert precision_on(cuda=device.cuda) == precision


def test_claims_and_nodes_in_words_and_as_options() -> None:
    assert str(Claim(cpus=2, gpus=0.25, gpu_type="H100")) == "2 CPU and 0.25 GPU of type H100"
    assert listing([HEAD, HEAD, BIG]) == "2 nodes with 2 CPU, 1 node with 16 CPU and 4 GPU (H100)"
    assert listing([]) == "no node that is alive"
    assert Claim(gpus=1, gpu_type="H100").options == {"num_cpus": 1.0, "num_gpus": 1, "accelerator_type": "H100"}
    assert Claim(gpu_type="H100").options == {"num_cpus": 1.0, "num_gpus": 0.0}


def test_a_head_that_is_gone_is_waited_for_a_while(monkeypatch: Patch) -> None:
    now = [0.0]
    monkeypatch.setattr(ray_session.time, "monotonic", lambda: now[0])
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        port = head.getsockname()[1]
        monitor = ClusterMonitor(("127.0.0.1", port))
        now[0] = 30.0
        assert monitor.is_alive()
    now[0] += ClusterMonitor.PATIENCE_S
    assert not monitor.is_alive()
    monitor.require()
    now[0] += 0.1
    gone = rf"head of the Ray cluster is gone: nothing answers at 127.0.0.1:{port}.*run"
    with pytest.raises(HpxferError, match=gone):
        monitor.require()


@pytest.mark.parametrize("code", [int(signal.SIGTERM), 1])  # of the two handlers that Ray's start installs
def test_a_sigterm_while_ray_starts_interrupts_the_run(code: int, monkeypatch: Patch) -> None:
    def start(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with interrupts(), pytest.raises(Interrupted) as end, ray_session.session(None, 1):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.signal_number == signal.SIGTERM


def test_a_ray_that_does_not_come_up_is_no_traceback(monkeypatch: Patch) -> None:
    def start(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    says = r"Ray did not start on this machine: .*timed out.*executor: local"
    with pytest.raises(HpxferError, match=says), ray_session.session(None, 1):
        pass


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
    assert claim_of(resources, 0.0, 2.0).most(has) == most_by_trial(tuple(sorted(fits)), apart)


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
    gpus: float, visible: str | None, expected: list[str | None], monkeypatch: Patch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    backend = LocalBackend(Placement(), SimpleNamespace(node_gpus=gpus))
    assert [backend.gpus_of(place) for place in range(3)] == expected
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
