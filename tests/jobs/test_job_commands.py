"""What `hpxfer submit` sends of its options. Without Ray."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer as call
from made_results import SPEC
from sweep_text import SWEEP

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.jobs import check as job_check
from hpxfer.jobs import client, commands
from hpxfer.jobs.commands import Offer, offer, submit
from hpxfer.jobs.request import Answer, Request
from hpxfer.plan.packing import Device
from hpxfer.spec import parse_sweep
from hpxfer.trial import TRAINER_VERSION


class _Answers:
    """A cluster that accepts every sweep, and keeps what it was asked."""

    address = "http://h"

    def __init__(self) -> None:
        self.asked: list[tuple[Request, str]] = []
        self.submitted: list[tuple[Request, str]] = []

    def ask(self, request: Request, sweep: str) -> Answer:
        self.asked.append((request, sweep))
        versions = {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION}
        said = {"versions": versions, "host": "head", "root": request.root, "plan": {}, "text": "", "warnings": []}
        return Answer(data={**said, "precision": "bfloat16"}, files={})

    def submit(self, request: Request, sweep: str, **_: Any) -> None:
        self.submitted.append((request, sweep))


def test_what_is_reused_and_how_a_trial_is_stopped_travel_with_the_sweep(tmp_path: Path) -> None:
    sweep, cluster = tmp_path / "a.yaml", _Answers()
    sweep.write_text(f"{SWEEP}early_stopping: {{asha: {{grace_steps: 10}}}}\n", encoding="utf-8")
    for chosen, asha in ((None, True), ("none", False)):
        offered = offer(cluster, sweep, None, reuse=["~/b", "s3://bucket/c"], early_stopping=chosen)  # type: ignore[arg-type]
        submit(cluster, offered)  # type: ignore[arg-type]
        for request, text in (cluster.asked[-1], cluster.submitted[-1]):
            assert request.reuse == ("~/b", "s3://bucket/c")
            assert ("asha" in text) is asha
    with pytest.raises(HpxferError, match="--reuse must be a URI or an absolute path on the cluster, got 'results/a'"):
        offer(cluster, sweep, None, reuse=["results/a"])  # type: ignore[arg-type]
    with pytest.raises(HpxferError, match="--early-stopping must be none, got 'all'"):
        offer(cluster, sweep, None, early_stopping="all")  # type: ignore[arg-type]
    assert len(cluster.asked) == 2


def test_the_precision_that_the_cluster_decided_is_the_jobs(tmp_path: Path) -> None:
    """The plan that one agrees to and the run of the job have the same trials, whatever joins the cluster meanwhile."""
    sweep, cluster = tmp_path / "a.yaml", _Answers()
    for given, travels in (("auto", "bfloat16"), ("float32", "float32")):
        sweep.write_text(f"{SWEEP}precision: {given}\n", encoding="utf-8")
        offered = offer(cluster, sweep, None)  # type: ignore[arg-type]
        submit(cluster, offered)  # type: ignore[arg-type]
        assert parse_sweep(cluster.asked[-1][1]).precision == given
        assert parse_sweep(cluster.submitted[-1][1]).precision == offered.spec.precision == travels


def test_what_is_set_and_what_a_recipe_gives_travel_with_the_sweep(tmp_path: Path) -> None:
    """The cluster has neither the command line nor the recipe's file."""
    sweep, recipe, cluster = tmp_path / "a.yaml", tmp_path / "recipe.yaml", _Answers()
    sweep.write_text(SWEEP, encoding="utf-8")
    recipe.write_bytes(
        (Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml").read_bytes()
    )
    given = offer(cluster, sweep, None, overrides=["training.steps=77", f"hps.recipe={recipe}"])  # type: ignore[arg-type]
    submit(cluster, given)  # type: ignore[arg-type]
    recipe.unlink()
    for _, text in (*cluster.asked, *cluster.submitted):
        there = parse_sweep(text)
        assert (there.steps, there.hps.lr) == (77, 2.0**-6)
        assert there.hps.recipe == given.spec.hps.recipe is not None


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_travels(value: bool, tmp_path: Path) -> None:
    sweep, cluster = tmp_path / "a.yaml", _Answers()
    sweep.write_text(SWEEP, encoding="utf-8")
    submit(cluster, offer(cluster, sweep, None, strict_memory=value))  # type: ignore[arg-type]
    assert [request.strict_memory for request, _ in (*cluster.asked, *cluster.submitted)] == [value, value]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], None]:
    """Return what makes the cluster, as its head sees it, a device. No Ray is started."""

    def use(device: Device) -> None:
        monkeypatch.setattr("hpxfer.executors.ray_cluster.device_at", lambda address, resources: device)

    monkeypatch.setattr(job_check, "session", lambda *_: nullcontext())
    monkeypatch.setattr(job_check, "node_answers", lambda spec, triton: [{"triton": triton}])
    return use


def ask_head(folder: Path, sweep: str, **more: Any) -> dict[str, Any]:
    path = folder / "a.yaml"
    path.write_text(sweep, encoding="utf-8")
    request = Request(action="check", job="none", root=str(folder / "results"), name="small", **more)
    return job_check.check(request, path)


def test_the_head_decides_by_its_workers_and_says_so(head: Callable[[Device], None], tmp_path: Path) -> None:
    for device, value in ((Device(cuda=True, num_gpus=2, name="H100"), "bfloat16"), (Device(num_cpus=2), "float32")):
        head(device)
        said = ask_head(tmp_path, f"{SWEEP}precision: auto\n")
        assert said["precision"] == said["plan"]["precision"] == value
        assert f"precision: auto is {value}, chosen by this device" in said["text"]
        assert "of the Ray cluster" in said["text"]


@pytest.mark.parametrize(("kernels", "asked"), [("auto", True), ("triton", True), ("torch", False)])
def test_the_nodes_with_gpus_need_triton(
    kernels: str, asked: bool, head: Callable[[Device], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head(Device(cuda=True, num_gpus=2, name="H100"))
    sweep = f"{SWEEP}resources: {{kernels: {kernels}}}\n"
    assert ask_head(tmp_path, sweep)["nodes"] == [{"triton": asked}]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = job_check._node_answer({"source": "builtin:stdlib"}, triton=asked)
    assert ("pip install 'hpxfer[triton]'" in answer.get("error", "")) is asked


def test_the_head_refuses_kernels_that_its_nodes_cannot_have(
    head: Callable[[Device], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    head(Device(num_cpus=2))
    said = ask_head(tmp_path, f"{SWEEP}resources: {{kernels: triton}}\n")
    assert "resources.kernels: triton needs a CUDA device" in said["error"]


def test_the_head_refuses_what_does_not_fit_unless_it_is_to_try(head: Callable[[Device], None], tmp_path: Path) -> None:
    head(Device(num_cpus=2, host_bytes=2**20))
    assert "memory: one trial of" in ask_head(tmp_path, SWEEP)["error"]
    tried = ask_head(tmp_path, SWEEP, strict_memory=False)
    assert "error" not in tried
    assert any("memory: one trial of" in text for text in tried["warnings"])


@pytest.mark.parametrize(
    ("root", "watch"),
    [("/my root", f"'/my root/{SPEC.name}'  # on head"), ("s3://bucket/x", f"s3://bucket/x/{SPEC.name}")],
)
def test_submit_prints_the_commands_that_follow_the_job(
    root: str, watch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"num_left": 0, "gpu_hours": 0, "worker_hours": 0, "rate_from": ""}
    offered = Offer(spec=SPEC, root=root, host="head", plan=plan, text="", warnings=())
    monkeypatch.setattr(client, "connect", lambda address: _Answers())
    monkeypatch.setattr(commands, "offer", lambda *_, **__: offered)
    monkeypatch.setattr(commands, "submit", lambda *_: "hpxfer-a-1")
    code, out, err = call(capsys, "submit", tmp_path / "a.yaml")
    assert (code, out) == (0, "hpxfer-a-1\n")
    assert err.splitlines()[-5:] == [
        "  ray job logs --address http://h --follow hpxfer-a-1",
        "  ray job status --address http://h hpxfer-a-1",
        "  ray job stop --address http://h hpxfer-a-1",
        f"  hpxfer watch {watch}",
        "  hpxfer fetch hpxfer-a-1 --address http://h",
    ]
    data = json.loads(call(capsys, "submit", tmp_path / "a.yaml", "--json")[1])
    assert (data["job"], data["address"]) == ("hpxfer-a-1", "http://h")
