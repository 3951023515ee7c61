"""One item of an acceptance, in a process of its own: `python -m hpxfer.bench.accept_item NAME`.

Each measured number is a JSON object on stdout as soon as it is there. An exception ends the item with a line that
names the error.
"""

from __future__ import annotations

import json
import os
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

from hpxfer.bench.accept_items import item_named, pytest_command, tests_folder
from hpxfer.host.machine import num_cpus

_MOST_WORKERS = 8
_PROFILED, _TOP = 5, 60
_MEMORY_STEPS = 4


def say(**row: Any) -> None:
    """Print one measured number with what it belongs to."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def run_tests(name: str) -> int:
    """Run the tests of an item, print how they ended, and return 0 if some ran and all of them passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        command = pytest_command(item_named(name), report, min(_MOST_WORKERS, num_cpus()))
        code = subprocess.run(command, cwd=tests_folder(), stdout=2, check=False).returncode
        if not report.exists():
            say(error=f"pytest ended with {code} and wrote no report")
            return code or 1
        counts, failed = counts_of(report)
    say(key=name, **counts, failures=failed)
    if code == 0 and not counts["passed"]:
        say(error="no test ran: all were skipped")
        return 1
    return code


def counts_of(report: Path) -> tuple[dict[str, int], list[str]]:
    """Return how many tests of a JUnit report passed, failed and were skipped, and the names of those that failed."""
    counts, failed = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case}
        end = "failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"
        counts[end] += 1
        if end == "failed":
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return counts, failed[:_TOP]


def environment() -> None:
    """Print the GPU, the versions and the peaks."""
    import numpy
    import torch
    import triton

    from hpxfer.bench.stock import copy_peak, matmul_peak

    device = torch.device("cuda")
    memory = torch.cuda.mem_get_info()
    say(
        key="env",
        gpu=torch.cuda.get_device_name(),
        capability=torch.cuda.get_device_capability(),
        torch=torch.__version__,
        triton=triton.__version__,
        numpy=numpy.__version__,
        cudnn=torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        mem=memory,
    )
    say(key="peak", tflops=matmul_peak(device) / 1e12, tb_s=copy_peak(device) / 1e12)


def layer(width: int) -> None:
    """Print the rows of the MoE layer, then the microseconds of each of its launches."""
    import torch

    from hpxfer.bench.kernels_cuda import EXPERTS, TOKENS, layer_rows
    from hpxfer.bench.layer import own, random_layer
    from hpxfer.bench.stock import both_ways, matmul_peak
    from hpxfer.train.device import setup_for

    device, backend = torch.device("cuda"), setup_for("cuda", "fast", "triton").backend
    for row in layer_rows(width, device, backend, matmul_peak(device)):
        say(**asdict(row))
    made = random_layer(1, TOKENS, width, width, EXPERTS, device, torch.bfloat16, backend)
    say(key=f"parts-{width}", us=launches(both_ways(lambda: own(made, backend), made.leaves)))


def launches(run: Callable[[], object], rounds: int = 10) -> dict[str, list[float]]:
    """Return kernel -> [microseconds, launches] per run, the slowest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as found:
        for _ in range(rounds):
            run()
        torch.cuda.synchronize()
    rows = {event.key[:80]: (event.self_device_time_total, event.count) for event in found.key_averages()}
    slowest = sorted(rows.items(), key=lambda row: -row[1][0])[:_TOP]
    return {name: [us / rounds, count / rounds] for name, (us, count) in slowest if us > 0}


def row_kernels() -> None:
    """Print the rows of cross entropy, AdamW and routing."""
    import torch

    from hpxfer.bench import kernels_cuda

    skipped = ("layer", "peak", "copy")
    for part in kernels_cuda.parts(torch.device("cuda")):
        if not part.keys[0].startswith(skipped):
            for row in part.run():
                say(**asdict(row))


def router() -> None:
    """Print the microseconds of the router at the base's size, forward alone and with its backward pass."""
    import torch

    from hpxfer.bench.clock import Job, interleaved, median
    from hpxfer.bench.kernels_cuda import ROUNDS, graphed
    from hpxfer.bench.stock import both_ways, normal
    from hpxfer.kernels.router import router as route
    from hpxfer.train.device import setup_for

    device, backend = torch.device("cuda"), setup_for("cuda", "fast", "triton").backend
    tokens, width, experts = 32768, 512, 4
    x, y = (normal(1, tokens, width, device=device, dtype=torch.bfloat16, grad=True) for _ in range(2))
    w = normal(1, width, experts, device=device, grad=True)
    balance, scale = torch.zeros(1, experts, device=device), torch.ones(1, device=device)

    def run() -> Any:
        return route(*(x, y, w), balance_KE=balance, score="sigmoid", scale_K=scale, num_active=1, backend=backend)

    def joined() -> Any:
        routed = run()
        return routed.stream + routed.h + routed.logits.sum(-1, keepdim=True).to(routed.h.dtype)

    jobs = {
        "forward": Job(run=graphed(lambda: run())),
        "forward_backward": Job(run=graphed(both_ways(joined, (x, y, w)))),
    }
    times = interleaved(jobs, rounds=ROUNDS, device=device)
    say(key="router", **{f"{name}_us": 1e6 * median(times, name) for name in jobs}, tokens=tokens, width=width)


def heads() -> None:
    """Print the microseconds of RMS norm with its sum, and of QK-norm with RoPE, beside compiled torch."""
    import torch

    from hpxfer.bench.clock import Job, interleaved, median
    from hpxfer.bench.kernels_cuda import ROUNDS, graphed
    from hpxfer.bench.stock import both_ways, normal
    from hpxfer.kernels.backend import TORCH
    from hpxfer.kernels.heads import place_heads
    from hpxfer.kernels.norm import added_norm
    from hpxfer.kernels.rope import rotation
    from hpxfer.train.device import setup_for

    device, triton = torch.device("cuda"), setup_for("cuda", "fast", "triton").backend
    tokens, width, head_dim, context = 32768, 1024, 128, 1024
    x, y = (normal(1, tokens, width, device=device, dtype=torch.bfloat16, grad=True) for _ in range(2))
    gain, head_gain = (torch.ones(1, size, device=device, requires_grad=True) for size in (width, head_dim))
    turned = rotation(context, head_dim, theta=1e4, share=1.0, device=device)
    sizes: dict[str, Any] = {"head_dim": head_dim, "context": context, "scope": "head"}

    def norms(backend: Any) -> Any:
        return sum(added_norm(x, y, gain, None, backend, kind="rmsnorm"))

    def placed(backend: Any) -> Any:
        return place_heads(x, head_gain, None, turned, **sizes, backend=backend)

    jobs = {}
    for name, call, leaves in (("norm", norms, (x, y, gain)), ("heads", placed, (x, head_gain))):
        for kernels, run in (("triton", lambda c=call: c(triton)), ("torch", torch.compile(lambda c=call: c(TORCH)))):
            jobs[f"{name}_{kernels}"] = Job(run=graphed(both_ways(run, leaves)))
    times = interleaved(jobs, rounds=ROUNDS, device=device)
    say(key="heads", **{f"{name}_us": 1e6 * median(times, name) for name in jobs}, tokens=tokens, width=width)


def rate(name: str, case: Any, num_trials: int = 1, determinism: str | None = None) -> None:
    """Print the speed of one stack, and its peak memory beside that of the plan's model."""
    import torch

    from hpxfer.bench import trainer_cuda

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = trainer_cuda.rate(
            case, Path(folder), torch.device("cuda"), trials_at_once=num_trials, determinism=determinism
        )
    say(
        key=name,
        tokens_per_s=found.tokens_per_s,
        tflops=found.flop_per_s / 1e12,
        params=found.params,
        trials=num_trials,
        step_tokens=num_trials * case.batch_tokens,  # the planner fills its stacks by it
        item_s=time.perf_counter() - began,
        peak_gib=torch.cuda.max_memory_reserved() / 2**30,
    )


def planned_stacks() -> None:
    """Print the speed of the stacks that the planner picks for the small trial, and of one trial alone at 2k tokens."""
    import torch

    from hpxfer.bench.cases import trials
    from hpxfer.bench.trainer_cuda import small_case
    from hpxfer.plan.packing import Device, stack_size

    memory = torch.cuda.get_device_properties(0).total_memory
    for tokens in (8192, 2048):
        with tempfile.TemporaryDirectory() as folder:
            (member,) = trials(replace(small_case(tokens), steps=1), 1, Path(folder))
        size = stack_size(member.shape, member.setting, Device(cuda=True, memory_bytes=memory))
        rate(f"r-stack-planned-{tokens // 1024}k", small_case(tokens, size), size)
    rate("r-alone-2k", small_case(2048))


def memory(name: str, case: Any, num_trials: int = 1) -> None:
    """Print the peak memory of a few steps, as allocated and as reserved, beside that of the plan's model."""
    import torch

    from hpxfer.bench.cases import trials
    from hpxfer.plan.footprint import footprint, stack_bytes
    from hpxfer.train.device import setup_for, switched
    from hpxfer.train.step import TrainStep
    from hpxfer.trial.stack import Stack

    setup = setup_for("cuda")
    with tempfile.TemporaryDirectory() as folder, switched(setup):
        members = trials(replace(case, steps=2 * _MEMORY_STEPS), num_trials, Path(folder))
        step = TrainStep(Stack(trials=members), setup)
        for number in range(_MEMORY_STEPS):
            step.update(*step.gradients(number))
        torch.cuda.synchronize()
    stack = members[0].shape, members[0].setting, num_trials
    model, planned = footprint(*stack, cuda=True).total, stack_bytes(*stack, cuda=True)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    counts = {"allocated": allocated, "model": model, "reserved": reserved, "planned": planned}
    gib = {f"{of}_gib": count / 2**30 for of, count in counts.items()}
    say(key=name, **gib, allocated_over_model=allocated / model, reserved_over_planned=reserved / planned)


def pieces() -> None:
    """Print speed and peak memory of the base trial with the paper's batch in pieces, beside the plan's model."""
    import torch

    from hpxfer.bench.cases import trials
    from hpxfer.bench.trainer_cuda import base_case
    from hpxfer.plan.footprint import Way, footprint
    from hpxfer.train.device import setup_for, switched
    from hpxfer.train.step import TrainStep
    from hpxfer.trial.stack import Stack

    setup, batch = setup_for("cuda"), 2**19
    for piece, again in ((2**16, False), (2**16, True), (2**14, False)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        way = Way(pieces=2**16 // piece, recompute=again)
        with tempfile.TemporaryDirectory() as folder, switched(setup):
            (member,) = trials(replace(base_case(batch), steps=2 * _MEMORY_STEPS), 1, Path(folder))
            cut = replace(member, setting=replace(member.setting, accumulation_tokens=piece))
            step = TrainStep(Stack(trials=(cut,), pieces=way.pieces, recompute=again), setup)
            step.update(*step.gradients(0))
            torch.cuda.synchronize()
            began = time.perf_counter()
            for number in range(1, _MEMORY_STEPS):
                step.update(*step.gradients(number))
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - began) / (_MEMORY_STEPS - 1)
        model, allocated = (
            footprint(cut.shape, cut.setting, 1, cuda=True, way=way).total,
            torch.cuda.max_memory_allocated(),
        )
        say(
            key=f"r-pieces-{piece // 1024}k{'-again' if again else ''}",
            tokens_per_s=batch / seconds,
            at_once=2**16,
            allocated_gib=allocated / 2**30,
            model_gib=model / 2**30,
            allocated_over_model=allocated / model,
        )
        del step


def base_profile() -> None:
    """Print the microseconds of a captured base step, by kernel."""
    import torch

    from hpxfer.bench.cases import trials
    from hpxfer.bench.trainer_cuda import base_case
    from hpxfer.train.device import setup_for, switched
    from hpxfer.train.step import TrainStep
    from hpxfer.trial.stack import Stack

    setup = setup_for("cuda")
    with tempfile.TemporaryDirectory() as folder, switched(setup):
        step = TrainStep(Stack(trials=trials(base_case(32768), 1, Path(folder))), setup)
        say(key="made_s", s=step.build_s)
        numbers = iter(range(10**6))

        def one() -> None:
            step.update(*step.gradients(next(numbers)))

        found = launches(one, _PROFILED)
        torch.cuda.synchronize()
    total, count = (sum(row[at] for row in found.values()) for at in (0, 1))
    say(key="step-us", total=total, kernels=count, top=[[*row, name] for name, row in found.items()])


def tune(features: int) -> None:
    """Print every candidate of an entry of the table of block sizes, and the entry that is found."""
    from hpxfer.bench.tune import tune_item

    tune_item(features, say)


def measure(name: str) -> None:
    """Measure one item that is no test."""
    from hpxfer.bench import trainer_cuda
    from hpxfer.bench.trainer_cuda import LARGE, base_case, small_case

    kind, _, rest = name.partition("-")
    rates: dict[str, tuple[Any, ...]] = {
        "r-base-32k": (base_case(32768), 1),
        "r-base-32k-dense": (replace(base_case(32768), dense=True), 1),
        "r-base-64k": (base_case(65536), 1),
        "r-strict-32k": (base_case(32768), 1, "strict"),
        "r-stack-64": (small_case(8192, 64), 64),
        "r-stack-8": (small_case(8192, 8), 8),
        "r-alone": (small_case(8192), 1),
        "r-large": (replace(LARGE, steps=64), 1),
        "r-large-dense": (replace(LARGE, steps=64, dense=True), 1),
    }
    memories = {"m-base-32k": (base_case(32768), 1), "m-base-64k": (base_case(65536), 1)}
    memories["m-stack-64"] = (small_case(8192, 64), trainer_cuda.SMALL_TRIALS)
    if name in rates:
        rate(name, *rates[name])
    elif name in memories:
        memory(name, *memories[name])
    elif kind == "tune":
        tune(int(rest))
    elif rest.startswith("layer-"):
        layer(int(rest.removeprefix("layer-")))
    else:
        {
            "env": environment,
            "k-rows": row_kernels,
            "k-router": router,
            "k-heads": heads,
            "r-stack-planned": planned_stacks,
            "r-pieces": pieces,
            "p-base-32k": base_profile,
        }[name]()


def main(name: str) -> int:
    """Run one item and return its exit code."""
    try:
        if item_named(name).tests:
            return run_tests(name)
        measure(name)
    except Exception as error:
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {str(error)[:300]}")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)  # the end of a process whose CUDA context is broken may hang
