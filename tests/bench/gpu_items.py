"""One item of an acceptance, in a process of its own: `python tests/bench/gpu_items.py NAME`.

Each measured number is a JSON object on stdout as soon as it is there. An exception ends the item with a line that
names the error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from accept import ITEMS, ROOT
from goals import measured, ms_of
from products import Layer, both_ways, copy_peak, normal, own, random_layer, stock

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, interleaved, median, ratio
from hpxfer.bench.rates import LARGE, base_case, matmul_peak, rate, small_case
from hpxfer.host.machine import num_cpus
from hpxfer.plan.footprint import ONE, Way, footprint, stack_bytes
from hpxfer.train.device import setup_for, switched
from hpxfer.train.step import TrainStep
from hpxfer.trial.stack import Stack

ROUNDS, TOKENS, EXPERTS = 15, 65536, 4
_PR_SET_PDEATHSIG = 1
GPU = torch.device("cuda")
RATES: dict[str, tuple[Any, ...]] = {  # item -> case, trials at once, determinism
    "r-base-32k": (base_case(32768),),
    "r-base-32k-dense": (replace(base_case(32768), dense=True),),
    "r-base-64k": (base_case(65536),),
    "r-strict-32k": (base_case(32768), 1, "strict"),
    "r-stack-64": (small_case(8192, 64), 64),
    "r-stack-8": (small_case(8192, 8), 8),
    "r-alone": (small_case(8192),),
    "r-large": (replace(LARGE, steps=64),),
    "r-large-dense": (replace(LARGE, steps=64, dense=True),),
}
MEMORIES = {f"m-base-{tokens // 1024}k": (base_case(tokens), 1) for tokens in (32768, 65536)}
MEMORIES["m-stack-64"] = (small_case(8192, 64), 64)


def say(**row: Any) -> None:
    """Print one measured number with what it belongs to."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def run_tests(name: str, tests: str) -> int:
    """Run the tests of an item, print how they ended, and return 0 if some ran and all of them passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        # Of the machine's other plug-ins, pytest-benchmark warns beside xdist, and a warning is an error.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "--no-header"]
        command += ["-n", str(min(8, num_cpus()))] if importlib.util.find_spec("xdist") else []
        command += ["--timeout", "240"] if importlib.util.find_spec("pytest_timeout") else []
        given = [*command, f"--junitxml={report}", *tests.split()]
        code = subprocess.run(given, cwd=ROOT, stdout=2, check=False).returncode
        if not report.exists():
            say(error=f"pytest ended with {code} and wrote no report")
            return code or 1
        ends: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
        for case in ElementTree.parse(report).iter("testcase"):
            tags = {child.tag for child in case}
            end = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
            ends[end].append(f"{case.get('classname')}::{case.get('name')}")
    say(key=name, **{end: len(found) for end, found in ends.items()}, failures=ends["failed"][:60])
    if code == 0 and not ends["passed"]:
        say(error="no test ran: all were skipped")
        return 1
    return code


def backend() -> Any:
    return setup_for("cuda", "fast", "triton").backend


def graphed(run: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of `run` as a CUDA graph, which times the device and not Python's launches."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_: object = run) -> None:  # holds what `run` reads: a graph does not, and would read freed memory
        graph.replay()

    return replay


def seconds(jobs: dict[str, Callable[[], object]]) -> dict[str, tuple[float, ...]]:
    return interleaved({name: Job(run=graphed(run)) for name, run in jobs.items()}, rounds=ROUNDS, device=GPU)


def us_of(jobs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return NAME_us -> the median microseconds of the replays of each job."""
    times = seconds(jobs)
    return {f"{name}_us": 1e6 * median(times, name) for name in times}


def environment() -> None:
    """Print the GPU, the versions and the peaks."""
    import triton

    cudnn, memory = torch.backends.cudnn.version(), torch.cuda.mem_get_info()
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cudnn": cudnn}
    say(key="env", gpu=name, capability=capability, mem=memory, **versions)
    say(key="peak", tflops=matmul_peak(GPU) / 1e12, tb_s=copy_peak(GPU) / 1e12)


def layer(width: int) -> None:
    """Print the speed of the MoE layer over F.grouped_mm, by each choice of products, then its launches."""
    made = random_layer(1, TOKENS, width, EXPERTS, GPU, torch.bfloat16, backend())
    run = both_ways(lambda: own(made, backend()), made.leaves)
    jobs = {"own": run, "grouped_mm": both_ways(stock(made), made.leaves)}
    for products in ("triton", "library"):
        if (chosen := own_by(made, products)) is not None:
            jobs[f"by_{products}"] = chosen
    times = seconds(jobs)
    rates = {f"{name}_tflop_per_s": made.flops / median(times, name) / 1e12 for name in jobs}
    say(**asdict(measured(f"layer-{width}", ratio(times, "grouped_mm", "own"), numbers=ms_of(times) | rates)))
    if width == 2048:
        say(**asdict(measured("rate-2048", rates["own_tflop_per_s"])))
    say(key=f"parts-{width}", us=launches(run))


def own_by(layer: Layer, products: str) -> Callable[[], object] | None:
    """Return a job: the project's op in Triton, forward and backward, by these products whatever the table chooses.

    None if the library does not take this layer on this device.
    """
    from hpxfer.kernels import experts_library
    from hpxfer.kernels.experts import backward, forward
    from hpxfer.kernels.experts_launch import Rows, Weights, layer_for

    x_MD, w_in_GDH, w_out_GHD, gate_M = (leaf.detach() for leaf in layer.leaves)
    weights, gate_MA = Weights(w_in_GDH, None, w_out_GHD, None, None, None), gate_M.unsqueeze(1)
    if products == "library" and not experts_library.can_run(x_MD, weights):
        return None
    rows = Rows(*(index.to(torch.int32) for index in (layer.groups.token, layer.groups.slot, layer.groups.ends)))
    dy_MD = normal(*x_MD.shape, device=x_MD.device, dtype=x_MD.dtype)

    def run() -> object:
        made = layer_for(x_MD, weights, rows, 1, len(w_in_GDH), "gelu")
        made = replace(made, config=replace(made.config, products=products))
        y_MD, u_NH, v_NH = forward(made, x_MD, weights, gate_MA)
        return y_MD, backward(made, x_MD, weights, gate_MA, u_NH, v_NH, dy_MD)

    return run


def launches(run: Callable[[], object], rounds: int = 10) -> dict[str, list[float]]:
    """Return kernel -> [microseconds, launches] per run, the slowest first."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as found:
        for _ in range(rounds):
            run()
        torch.cuda.synchronize()
    rows = {event.key[:80]: (event.self_device_time_total, event.count) for event in found.key_averages()}
    slowest = sorted(rows.items(), key=lambda row: -row[1][0])[:60]
    return {name: [us / rounds, count / rounds] for name, (us, count) in slowest if us > 0}


def row_kernels() -> None:
    """Print the bandwidth of cross entropy and AdamW over that of a copy, and the microseconds of routing."""
    from hpxfer.kernels.adamw import adamw_
    from hpxfer.kernels.cross_entropy import cross_entropy_rows_
    from hpxfer.kernels.routing import choose_experts, group_rows

    given, copy = {"backend": backend()}, copy_peak(GPU)
    logits = normal(16384, 50304, device=GPU, dtype=torch.bfloat16)
    targets, scratch = torch.randint(50304, (16384,), device=GPU), torch.empty_like(logits)
    entropy = Job(prepare=lambda: scratch.copy_(logits), run=lambda: cross_entropy_rows_(scratch, targets, **given))
    p, g, m = (normal(64, 2**21, device=GPU) for _ in range(3))
    v = normal(64, 2**21, device=GPU).square()
    values = {"lr": 1e-6, "keep": 1 - 1e-7, "eps": 1e-8, "beta1": 0.9, "beta2": 0.95, "scale": 1.0}
    numbers = {f"{name}_K": torch.full((64,), value, device=GPU) for name, value in values.items()}
    alive_K = torch.ones(64, dtype=torch.bool, device=GPU)
    adam = Job(run=lambda: adamw_(p, g, m, v, **numbers, alive_K=alive_K))
    # float32: AdamW reads parameter, gradient and both moments, and writes all but the gradient.
    for key, job, num_bytes in (("cross-entropy", entropy, 4 * logits.numel()), ("adamw", adam, 28 * p.numel())):
        took = median(interleaved({key: job}, rounds=ROUNDS, device=GPU), key)
        found = {"ms": 1000 * took, "tb_per_s": num_bytes / took / 1e12}
        say(**asdict(measured(key, num_bytes / took / copy, numbers=found)))
    gates, bias = torch.sigmoid(normal(1, TOKENS, EXPERTS, device=GPU)), torch.zeros(1, EXPERTS, device=GPU)
    route = lambda: group_rows(choose_experts(gates, bias, 1, 1, **given), EXPERTS, **given)  # noqa: E731
    say(**asdict(measured("routing", us_of({"routing": route})["routing_us"])))


def router() -> None:
    """Print the microseconds of the router at the base's size, forward alone and with its backward pass."""
    from hpxfer.kernels.router import router as route

    tokens, width = 32768, 512
    x, y = (normal(1, tokens, width, device=GPU, dtype=torch.bfloat16, grad=True) for _ in range(2))
    w = normal(1, width, EXPERTS, device=GPU, grad=True)
    given: dict[str, Any] = {"balance_KE": torch.zeros(1, EXPERTS, device=GPU), "scale_K": torch.ones(1, device=GPU)}
    given |= {"score": "sigmoid", "num_active": 1, "backend": backend()}

    def joined() -> Any:
        routed = route(x, y, w, **given)
        return routed.stream + routed.h + routed.logits.sum(-1, keepdim=True).to(routed.h.dtype)

    jobs = {"forward": lambda: route(x, y, w, **given), "forward_backward": both_ways(joined, (x, y, w))}
    say(key="router", **us_of(jobs), tokens=tokens, width=width)


def heads() -> None:
    """Print the microseconds of RMS norm with its sum, and of QK-norm with RoPE, beside compiled torch."""
    from hpxfer.kernels.backend import TORCH
    from hpxfer.kernels.heads import place_heads
    from hpxfer.kernels.norm import added_norm
    from hpxfer.kernels.rope import rotation

    tokens, width, head_dim, context = 32768, 1024, 128, 1024
    x, y = (normal(1, tokens, width, device=GPU, dtype=torch.bfloat16, grad=True) for _ in range(2))
    gain, head_gain = (torch.ones(1, size, device=GPU, requires_grad=True) for size in (width, head_dim))
    turned = rotation(context, head_dim, theta=1e4, share=1.0, device=GPU)
    sizes: dict[str, Any] = {"head_dim": head_dim, "context": context, "scope": "head"}

    def norms(kernels: Any) -> Any:
        return sum(added_norm(x, y, gain, None, kernels, kind="rmsnorm"))

    def placed(kernels: Any) -> Any:
        return place_heads(x, head_gain, None, turned, **sizes, backend=kernels)

    jobs, triton = {}, backend()
    for name, call, leaves in (("norm", norms, (x, y, gain)), ("heads", placed, (x, head_gain))):
        for kernels, run in (("triton", lambda c=call: c(triton)), ("torch", torch.compile(lambda c=call: c(TORCH)))):
            jobs[f"{name}_{kernels}"] = both_ways(run, leaves)
    say(key="heads", **us_of(jobs), tokens=tokens, width=width)


def speed(name: str, case: Case, num_trials: int = 1, determinism: str | None = None) -> None:
    """Print the speed of one stack, and its peak memory."""
    began = time.perf_counter()
    found = rate(case, GPU, num_trials=num_trials, determinism=determinism)
    speeds = {"tokens_per_s": found.tokens_per_s, "tflops": found.flop_per_s / 1e12, "params": found.params}
    sizes = {"trials": num_trials, "step_tokens": num_trials * case.batch_tokens}
    peak = torch.cuda.max_memory_reserved() / 2**30
    say(key=name, **speeds, **sizes, item_s=time.perf_counter() - began, peak_gib=peak)


def planned_stacks() -> None:
    """Print the speed of the stacks that the planner picks for the small trial, and of one trial alone at 2k tokens."""
    from hpxfer.plan.packing import Device, Packer

    device = Device(cuda=True, memory_bytes=torch.cuda.get_device_properties(0).total_memory)
    for tokens in (8192, 2048):
        with tempfile.TemporaryDirectory() as folder:
            (member,) = trials(replace(small_case(tokens), steps=1), 1, Path(folder))
        size = Packer(device=device).size(member.shape, member.setting)
        speed(f"r-stack-planned-{tokens // 1024}k", small_case(tokens, size), size)
    speed("r-alone-2k", small_case(2048))


def steps(case: Case, num_trials: int, way: Way = ONE, piece: int | None = None) -> tuple[Stack, float]:
    """Take four steps of a stack, in pieces if they are named, and return it with the seconds of the last three."""
    setup = setup_for("cuda")
    with tempfile.TemporaryDirectory() as folder, switched(setup):
        members = trials(replace(case, steps=8), num_trials, Path(folder))
        if piece is not None:
            members = tuple(replace(one, setting=replace(one.setting, accumulation_tokens=piece)) for one in members)
        stack = Stack(trials=members, pieces=way.pieces, recompute=way.recompute)
        step = TrainStep(stack, setup)
        for number in range(4):
            if number == 1:
                torch.cuda.synchronize()
                began = time.perf_counter()
            step.update(*step.gradients(number))
        torch.cuda.synchronize()
    return stack, time.perf_counter() - began


def memory(name: str, case: Case, num_trials: int) -> None:
    """Print the peak memory of a few steps, as allocated and as reserved, beside that of the plan's model."""
    stack, _ = steps(case, num_trials)
    planned, reserved = stack_bytes(*_sizes(stack), cuda=True), torch.cuda.max_memory_reserved()
    more = {"reserved_gib": reserved / 2**30, "planned_gib": planned / 2**30}
    say(key=name, **_beside_model(stack, ONE), **more, reserved_over_planned=reserved / planned)


def _sizes(stack: Stack) -> tuple[Any, Any, int]:
    return stack.trials[0].shape, stack.trials[0].setting, len(stack.trials)


def _beside_model(stack: Stack, way: Way) -> dict[str, float]:
    """Return the most bytes that torch had allocated, beside those of the plan's model."""
    model, allocated = footprint(*_sizes(stack), cuda=True, way=way).total, torch.cuda.max_memory_allocated()
    return {"allocated_gib": allocated / 2**30, "model_gib": model / 2**30, "allocated_over_model": allocated / model}


def pieces() -> None:
    """Print speed and peak memory of the base trial with the paper's batch in pieces, beside the plan's model."""
    batch = 2**19
    for piece, again in ((2**16, False), (2**16, True), (2**14, False)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        way = Way(pieces=2**16 // piece, recompute=again)
        stack, took = steps(base_case(batch), 1, way, piece)
        key = f"r-pieces-{piece // 1024}k{'-again' if again else ''}"
        say(key=key, tokens_per_s=3 * batch / took, **_beside_model(stack, way))


def base_profile() -> None:
    """Print the microseconds of a captured base step, by kernel."""
    setup = setup_for("cuda")
    with tempfile.TemporaryDirectory() as folder, switched(setup):
        step = TrainStep(Stack(trials=trials(base_case(32768), 1, Path(folder))), setup)
        say(key="made_s", s=step.build_s)
        numbers = iter(range(10**6))
        found = launches(lambda: step.update(*step.gradients(next(numbers))), 5)
        torch.cuda.synchronize()
    total, count = (sum(row[at] for row in found.values()) for at in (0, 1))
    say(key="step-us", total=total, kernels=count, top=[[*row, name] for name, row in found.items()])


def measure(name: str) -> None:
    """Measure one item that is no test."""
    from tune_blocks import tune

    whole = {"env": environment, "k-rows": row_kernels, "k-router": router, "k-heads": heads}
    whole |= {"r-stack-planned": planned_stacks, "r-pieces": pieces, "p-base-32k": base_profile}
    if name in RATES:
        speed(name, *RATES[name])
    elif name in MEMORIES:
        memory(name, *MEMORIES[name])
    elif name in whole:
        whole[name]()
    else:
        (tune if name.startswith("tune") else layer)(int(name.rpartition("-")[2]))


def main(name: str) -> int:
    """Run one item and return its exit code."""
    try:
        tests = next(item.tests for item in ITEMS if item.name == name)
        if tests:
            return run_tests(name, tests)
        measure(name)
    except Exception as error:
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {str(error)[:300]}")
        return 1
    return 0


if __name__ == "__main__":
    if sys.platform == "linux":  # it is killed when its parent ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    code = main(sys.argv[1])
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)  # the end of a process whose CUDA context is broken may hang
