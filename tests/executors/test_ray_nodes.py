"""What a cluster has room for, in numbers and words, and a head that is gone. No Ray is started."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
import ray

from hpxfer.errors import HpxferError
from hpxfer.executors import ray_cluster, ray_session
from hpxfer.executors.ray_cluster import Bundle, Node, listing, most_workers
from hpxfer.executors.ray_session import ClusterMonitor
from hpxfer.host.interrupts import Interrupted, interrupts
from hpxfer.spec.precision import precision_on
from hpxfer.spec.resources_section import ResourcesSpec

HEAD = Node(id="a", has={"CPU": 2.0, "memory": 8e9, "node:10.0.0.1": 1.0})
BIG = Node(id="b", has={"CPU": 16.0, "GPU": 4.0, "accelerator_type:H100": 1.0})
OLD = Node(id="c", has={"CPU": 8.0, "GPU": 1.0, "accelerator_type:V100": 1.0})


@pytest.mark.parametrize(
    ("bundle", "count"),
    [
        (Bundle(), 26),
        (Bundle(cpus=3), 0 + 5 + 2),
        (Bundle(cpus=0.1), 20 + 160 + 80),
        (Bundle(cpus=32), 0),
        (Bundle(gpus=1), 5),
        (Bundle(gpus=1 / 8), 16 + 8),  # a CPU each
        (Bundle(cpus=0.5, gpus=1 / 8), 32 + 8),
        (Bundle(gpus=1, gpu_type="H100"), 4),
        (Bundle(gpus=1, gpu_type="A100"), 0),
        (Bundle(gpu_type="A100"), 26),  # asks for none of it
    ],
)
def test_workers_are_counted_node_by_node(bundle: Bundle, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [HEAD, BIG, OLD])
    assert most_workers((bundle,)) == count


@pytest.mark.parametrize(
    ("bundles", "count"),
    [
        ([Bundle(gpus=1)] * 4, 1),  # the four of one node, and one alone
        ([Bundle(gpus=1)] * 5, 1),  # over two nodes
        ([Bundle(gpus=1)] * 6, 0),
        ([Bundle(gpus=1, gpu_type="H100")] * 5, 0),
        ([Bundle(cpus=2)] * 3, 13 // 3),
        ([Bundle(cpus=8), Bundle(cpus=4, gpus=2)], 2),  # of unequal ones the larger are placed first
        ([Bundle(cpus=8), Bundle(cpus=1, gpus=8)], 0),
    ],
)
def test_a_worker_of_several_bundles_may_lie_on_several_nodes(
    bundles: list[Bundle], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [HEAD, BIG, OLD])
    assert most_workers(bundles) == count
    if count:
        ray_cluster.require_place(bundles)
    else:
        with pytest.raises(HpxferError, match=r"each stack needs .* at once, and the Ray cluster has not so much"):
            ray_cluster.require_place(bundles)


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
    alive: list[Node], resources: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "nodes", lambda: alive)
    monkeypatch.setattr(ray_cluster, "_gpu_bytes", lambda found: None)
    device = ray_cluster.cluster_device(ResourcesSpec(**resources))
    assert precision_on(cuda=device.cuda) == precision


def test_bundles_and_nodes_in_words_and_as_options() -> None:
    assert str(Bundle(cpus=2, gpus=0.25, gpu_type="H100")) == "2 CPU and 0.25 GPU of type H100"
    assert listing([HEAD, HEAD, BIG]) == "2 nodes with 2 CPU, 1 node with 16 CPU and 4 GPU (H100)"
    assert listing([]) == "no node that is alive"
    assert Bundle(gpus=1, gpu_type="H100").options() == {"num_cpus": 1.0, "num_gpus": 1, "accelerator_type": "H100"}
    assert Bundle(gpu_type="H100").options() == {"num_cpus": 1.0, "num_gpus": 0.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the monotonic clock."""
    now = [0.0]
    monkeypatch.setattr(ray_session.time, "monotonic", lambda: now[0])

    def set_to(seconds: float) -> None:
        now[0] = seconds

    return set_to


def test_a_head_that_is_gone_is_waited_for_a_while(clock: Callable[[float], None]) -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        port = head.getsockname()[1]
        monitor = ClusterMonitor(("127.0.0.1", port))
        clock(30.0)
        assert monitor.is_alive()
    clock(30.0 + ClusterMonitor.PATIENCE_S)
    assert not monitor.is_alive()
    monitor.require()
    clock(30.1 + ClusterMonitor.PATIENCE_S)
    with pytest.raises(
        HpxferError, match=rf"head of the Ray cluster is gone: nothing answers at 127.0.0.1:{port}.*run"
    ):
        monitor.require()


@pytest.mark.parametrize("code", [int(signal.SIGTERM), 1])  # of the two handlers that Ray's start installs
def test_a_sigterm_while_ray_starts_interrupts_the_run(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
