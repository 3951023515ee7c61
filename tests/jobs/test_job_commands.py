"""What `hpxfer submit` sends and `hpxfer fetch` brings home. Without Ray."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer as call
from far_cluster import ADDRESS, JOB, Far
from fixture_types import Capsys, Patch
from made_results import DIGEST, SPEC, files, made, stored, trials_of
from sweep_text import SWEEP

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.jobs import answers, client, commands
from hpxfer.jobs.commands import ROOT_KEY, SWEEP_KEY, Offer, fetch, offer, submit
from hpxfer.jobs.request import Request
from hpxfer.plan.packing import Device
from hpxfer.spec import SweepSpec, load_sweep, parse_sweep
from hpxfer.store import Store
from hpxfer.trial import TRAINER_VERSION


class _Answers:
    """A cluster that accepts every sweep, and keeps what it was asked."""

    address = "http://h"

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.submitted: list[Request] = []

    def ask(self, request: Request) -> tuple[dict[str, Any], dict[str, bytes]]:
        self.asked.append(request)
        versions = {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION}
        said = {"versions": versions, "host": "head", "root": request.root, "plan": {}, "text": "", "warnings": []}
        return {**said, "precision": "bfloat16"}, {}

    def submit(self, request: Request, **_: Any) -> None:
        self.submitted.append(request)


def sent(text: str, folder: Path, **options: Any) -> tuple[_Answers, Offer]:
    """Submit a sweep with options. Return the cluster, which keeps what it was asked, and what it offered."""
    sweep, cluster = folder / "a.yaml", _Answers()
    sweep.write_text(text, encoding="utf-8")
    offered = offer(cluster, sweep, None, **options)
    submit(cluster, offered)
    return cluster, offered


def test_what_is_reused_and_how_a_trial_is_stopped_travel_with_the_sweep(tmp_path: Path) -> None:
    text, reuse = f"{SWEEP}early_stopping: {{asha: {{grace_steps: 10}}}}\n", ["~/b", "s3://bucket/c"]
    for chosen, asha in ((None, True), ("none", False)):
        cluster, _ = sent(text, tmp_path, reuse=reuse, early_stopping=chosen, strict_memory=asha)
        for there in (*cluster.asked, *cluster.submitted):
            assert (there.reuse, there.strict_memory, "asha" in there.sweep) == (tuple(reuse), asha, asha)
    with pytest.raises(HpxferError, match="--reuse must be a URI or an absolute path on the cluster, got 'results/a'"):
        sent(text, tmp_path, reuse=["results/a"])
    with pytest.raises(HpxferError, match="--early-stopping must be none, got 'all'"):
        sent(text, tmp_path, early_stopping="all")


def test_the_precision_that_the_cluster_decided_is_the_jobs(tmp_path: Path) -> None:
    """The plan that one agrees to and the run of the job have the same trials, whatever joins the cluster meanwhile."""
    for given, travels in (("auto", "bfloat16"), ("float32", "float32")):
        cluster, offered = sent(f"{SWEEP}precision: {given}\n", tmp_path)
        assert parse_sweep(cluster.asked[-1].sweep).precision == given
        assert parse_sweep(cluster.submitted[-1].sweep).precision == offered.spec.precision == travels


def test_what_is_set_and_what_a_recipe_gives_travel_with_the_sweep(tmp_path: Path) -> None:
    """The cluster has neither the command line nor the recipe's file."""
    recipe = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml"
    (tmp_path / "recipe.yaml").write_bytes(recipe.read_bytes())
    overrides = ["training.steps=77", f"hps.recipe={tmp_path / 'recipe.yaml'}"]
    cluster, given = sent(SWEEP, tmp_path, overrides=overrides)
    (tmp_path / "recipe.yaml").unlink()
    for request in (*cluster.asked, *cluster.submitted):
        there = parse_sweep(request.sweep)
        assert (there.steps, there.hps.lr) == (77, 2.0**-6)
        assert there.hps.recipe == given.spec.hps.recipe is not None


@pytest.fixture
def head(monkeypatch: Patch) -> Callable[[Device], None]:
    """Return what makes the cluster, as its head sees it, a device. No Ray is started."""

    def use(device: Device) -> None:
        monkeypatch.setattr("hpxfer.executors.ray_cluster.device_at", lambda address, resources: device)

    monkeypatch.setattr(answers, "session", lambda *_: nullcontext())
    monkeypatch.setattr(answers, "node_answers", lambda spec, triton: [{"triton": triton}])
    return use


def ask_head(folder: Path, sweep: str, **more: Any) -> dict[str, Any]:
    path = folder / "a.yaml"
    path.write_text(sweep, encoding="utf-8")
    request = Request(action="check", job="none", root=str(folder / "results"), name="small", **more)
    return answers.answer(request, path)[0]


GPUS = Device(cuda=True, num_gpus=2, name="H100")


def test_the_head_decides_by_its_workers_and_says_so(head: Callable[[Device], None], tmp_path: Path) -> None:
    for device, value in ((GPUS, "bfloat16"), (Device(num_cpus=2), "float32")):
        head(device)
        said = ask_head(tmp_path, f"{SWEEP}precision: auto\n")
        assert said["precision"] == said["plan"]["precision"] == value
        assert f"precision: auto is {value}, chosen by this device" in said["text"]
        assert "of the Ray cluster" in said["text"]


@pytest.mark.parametrize(("kernels", "asked"), [("auto", True), ("triton", True), ("torch", False)])
def test_the_nodes_with_gpus_need_triton(
    kernels: str, asked: bool, head: Callable[[Device], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    head(GPUS)
    assert ask_head(tmp_path, f"{SWEEP}resources: {{kernels: {kernels}}}\n")["nodes"] == [{"triton": asked}]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = answers._node_answer({"source": "builtin:stdlib"}, triton=asked)
    assert ("pip install 'hpxfer[triton]'" in answer.get("error", "")) is asked


def test_the_head_refuses_what_its_nodes_cannot_do_unless_it_is_to_try(
    head: Callable[[Device], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    head(Device(num_cpus=2, host_bytes=2**20))
    assert "memory: one trial of" in ask_head(tmp_path, SWEEP)["error"]
    tried = ask_head(tmp_path, SWEEP, strict_memory=False)
    assert "error" not in tried
    assert any("memory: one trial of" in text for text in tried["warnings"])
    triton = ask_head(tmp_path, f"{SWEEP}resources: {{kernels: triton}}\n", strict_memory=False)
    assert "resources.kernels: triton needs a CUDA device" in triton["error"]


@pytest.mark.parametrize(
    ("root", "watch"),
    [("/my root", f"'/my root/{SPEC.name}'  # on head"), ("s3://bucket/x", f"s3://bucket/x/{SPEC.name}")],
)
def test_submit_prints_the_commands_that_follow_the_job(
    root: str, watch: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    plan = {"num_left": 0, "gpu_hours": 0, "worker_hours": 0, "rate_from": ""}
    request = Request(action="run", job="none", root=root, name=SPEC.name)
    offered = Offer(spec=SPEC, request=request, host="head", plan=plan, text="", warnings=())
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


def store(folder: Path, *pairs: Any, spec: SweepSpec = SPEC) -> Store:
    found = Store.open(folder, write=True)
    found.append(pairs)
    found.save_sweep(spec, DIGEST)
    return found


TRIALS = trials_of()
FIRST, SECOND, THIRD = (made(trial) for trial in TRIALS[:3])
NOTHING = f"{JOB}: is RUNNING, and no trial of it has finished; see `ray job logs --address {ADDRESS} {JOB}`"


def bring(far: Far, results: Path) -> Any:
    return fetch(far, JOB, results)


def test_results_come_home_as_they_are(tmp_path: Path) -> None:
    far = Far(tmp_path / "far")
    store(tmp_path / "far" / SPEC.name, FIRST, made(TRIALS[1], "diverged"))
    found = bring(far, tmp_path / "here")
    assert (found.folder, found.num_new, found.num_known) == (tmp_path / "here" / SPEC.name, 2, 0)
    assert stored(found.folder) == stored(tmp_path / "far" / SPEC.name)
    assert load_sweep(found.folder / "sweep.yaml").data.digest == DIGEST
    assert far.asked == ["fetch"]
    again = bring(far, tmp_path / "here")
    assert (again.num_new, again.num_known) == (0, 2)


def test_results_that_are_here_stay_and_the_sweep_that_was_here_is_kept(tmp_path: Path) -> None:
    mine = made(TRIALS[0], at=5)
    other = SPEC.model_copy(update={"seeds": (0, 1, 2, 3)})
    here = store(tmp_path / "here" / SPEC.name, mine, made(TRIALS[2], "failed"), spec=other)
    store(tmp_path / "far" / SPEC.name, FIRST, SECOND, THIRD, made(TRIALS[3], "failed"))
    found = bring(Far(tmp_path / "far"), tmp_path / "here")
    assert (found.num_new, found.num_known) == (2, 1)  # a failed trial gives way to a finished one
    losses = {row["trial_id"]: row["validation_loss_nats"] for row in here.read_trials().to_pylist()}
    assert losses == {each[0].id: each[1].validation_loss_nats for each in (mine, SECOND, THIRD)}
    kept = [load_sweep(path).seeds for path in found.folder.glob("sweep-*.yaml")]
    assert kept == [(0, 1, 2, 3)]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_both_see_is_read_where_it_is(scheme: str, tmp_path: Path) -> None:
    root = f"{scheme}{tmp_path / 'shared'}"
    far = Far(tmp_path / "shared", metadata={SWEEP_KEY: SPEC.name, ROOT_KEY: root})
    store(tmp_path / "shared" / SPEC.name, FIRST)
    (tmp_path / "shared" / SPEC.name / "jobs.txt").write_text(f"hpxfer-other-1\n{JOB}\n")
    assert bring(far, tmp_path / "here").num_new == 1
    before = files(tmp_path / "shared" / SPEC.name)
    assert bring(far, tmp_path / "shared").num_known == 1  # into itself: there is nothing to bring
    assert files(tmp_path / "shared" / SPEC.name) == before
    assert far.asked == []


def test_a_folder_of_the_same_path_on_another_machine_is_not_taken_for_the_jobs(tmp_path: Path) -> None:
    far = Far(tmp_path / "far")
    store(tmp_path / "far" / SPEC.name, FIRST)
    (tmp_path / "far" / SPEC.name / "jobs.txt").write_text(f"{JOB}-of-another-name\n")
    bring(far, tmp_path / "here")
    assert far.asked == ["fetch"]


@pytest.mark.parametrize("left", ["nothing", "mark", "sweep", "failed trials"])
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "far"])
def test_a_job_without_results_brings_none(left: str, seen: bool, tmp_path: Path) -> None:
    """Whatever the job has left, and whether this machine sees its folder or not, nothing is written here."""
    folder = tmp_path / "far" / SPEC.name
    if left != "nothing":
        folder.mkdir(parents=True)
    if seen and left != "nothing":
        (folder / "jobs.txt").write_text(f"{JOB}\n")
    if left == "sweep":
        Store.open(folder, write=True).save_sweep(SPEC, DIGEST)
    if left == "failed trials":
        store(folder, made(TRIALS[0], "failed"))
    for here in ("here", "far"):
        before = set(tmp_path.rglob("*"))
        with pytest.raises(HpxferError, match=NOTHING):
            bring(Far(tmp_path / "far", "RUNNING"), tmp_path / here)
        assert set(tmp_path.rglob("*")) == before


def test_a_job_of_someone_else_has_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(
        HpxferError, match=r"must be a job of `hpxfer submit`, got another.* `ray job list --address http://head:8265`"
    ):
        bring(Far(tmp_path / "far", metadata={"name": "theirs"}), tmp_path / "here")


def test_too_much_for_a_log_is_said_before_it_is_sent(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(answers, "MAX_FETCH_BYTES", 1000)
    store(tmp_path / "far" / SPEC.name, FIRST)
    with pytest.raises(HpxferError, match="a job's log carries at most"):
        bring(Far(tmp_path / "far"), tmp_path / "here")


def test_names_in_an_answer_stay_inside_the_scratch_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    sent = {"../../harm.parquet": b"x"}
    monkeypatch.setattr(answers, "files_of", lambda folder: sent)
    with pytest.raises(HpxferError, match="sent a file of another name"):
        bring(Far(tmp_path / "far"), tmp_path / "here")
    assert not list(tmp_path.rglob("harm.parquet"))


def test_the_command_names_the_report(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    far, here = Far(tmp_path / "far", "RUNNING"), tmp_path / "my results"
    monkeypatch.setattr(client, "connect", lambda address: far)
    command = ("fetch", JOB, "--address", ADDRESS, "--results", here)
    assert call(capsys, *command) == (2, "", f"hpxfer: {NOTHING}\n")
    assert not here.exists()
    store(tmp_path / "far" / SPEC.name, FIRST)
    code, out, err = call(capsys, *command)
    assert (code, out) == (0, f"{here}/{SPEC.name}: 1 trials are new, 0 were here\n")
    assert shlex.split(err.removeprefix("next: ")) == ["hpxfer", "report", f"{here}/{SPEC.name}"]
