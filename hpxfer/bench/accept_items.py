"""The items of an acceptance: what a GPU is tested and measured for, in order. The module needs no torch.

The names are kept from one version to the next, so that the numbers of two versions stand side by side. Seconds and
memory are predicted, from an NVIDIA H200.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hpxfer
from hpxfer.bench.accept_runner import Item
from hpxfer.errors import HpxferError, nearest, shown

PLANS = ("correct", "kernels", "profile", "trainer", "tune", "late")
_CLONE = Path(hpxfer.__file__).resolve().parents[1]
_LIMIT = 2.5  # times the usual seconds


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """One item: what it does, and what it would need."""

    name: str
    plan: str
    what: str
    usual_s: float
    gib: float  # of GPU memory
    needs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()  # what pytest runs in a clone


_KERNEL_TESTS = tuple(
    f"tests/kernels/{name}.py" for name in ("test_experts_gpu", "test_cross_entropy", "test_embedding", "test_adamw")
)
_EXPERTS, _ROUTER, _TRAIN = ("t-experts",), ("t-experts", "t-router"), ("t-experts", "t-router", "t-strict")


def _row(
    name: str, plan: str, usual_s: float, gib: float, what: str, needs: tuple[str, ...] = (), *tests: str
) -> Acceptance:
    return Acceptance(name=name, plan=plan, what=what, usual_s=usual_s, gib=gib, needs=needs, tests=tests)


ITEMS = (
    _row("env", "correct", 20, 14, "the GPU, versions, and the peaks of products and copies"),
    _row(
        *("t-experts", "correct", 80, 8, "GPU tests of experts, cross entropy, embedding, AdamW and sums", ()),
        *("-m", "gpu", *_KERNEL_TESTS, "tests/kernels/test_sums.py"),
    ),
    _row(
        *("t-router", "correct", 40, 24, "GPU tests of the router, the head, norms and rotations", ()),
        *("-m", "gpu", "tests/kernels/test_router_gpu.py", "tests/kernels/test_head.py"),
        "tests/kernels/test_heads_gpu.py",
    ),
    _row(
        *("t-strict", "correct", 60, 8, "GPU tests of strict steps in any stack and of attention", _EXPERTS),
        *("-m", "gpu", "tests/kernels/test_strict_step.py", "tests/kernels/test_attention.py"),
    ),
    _row(
        *("t-train", "correct", 120, 8, "GPU tests of training: capture, checkpoints, determinism", _EXPERTS),
        *("-m", "gpu", "tests/train"),
    ),
    _row(
        *("t-init", "correct", 20, 2, "GPU tests of the initial draws: the bits of a CPU", ()),
        *("-m", "gpu", "tests/model"),
    ),
    _row("k-layer-512", "kernels", 30, 4, "the MoE layer at 512 over F.grouped_mm, and each launch", _EXPERTS),
    _row("k-layer-1024", "kernels", 30, 6, "the same at 1024", _EXPERTS),
    _row("k-layer-2048", "kernels", 30, 10, "the same at 2048", _EXPERTS),
    _row("k-rows", "kernels", 30, 14, "cross entropy, AdamW and routing over a copy", _EXPERTS),
    _row("k-router", "kernels", 20, 2, "the router, forward and backward", _ROUTER),
    _row("k-heads", "kernels", 30, 4, "RMS norm, QK-norm and RoPE beside torch.compile", _ROUTER),
    _row("p-base-32k", "profile", 60, 40, "a captured base step by kernel", _TRAIN),
    _row("r-base-32k", "trainer", 60, 40, "tokens/s of the base trial, 32k tokens a step", _TRAIN),
    _row("r-base-32k-dense", "trainer", 50, 40, "the same of its dense twin", _TRAIN),
    _row("r-stack-64", "trainer", 50, 60, "64 trials of d 128, 8k tokens a step", _TRAIN),
    _row("r-stack-8", "trainer", 40, 12, "8 such trials", _TRAIN),
    _row("r-alone", "trainer", 40, 4, "one such trial", _TRAIN),
    _row("r-base-64k", "trainer", 60, 70, "tokens/s of the base trial, 64k tokens a step", _TRAIN),
    _row("m-base-32k", "trainer", 30, 40, "peak memory of the base trial beside the plan's model", _TRAIN),
    _row("m-base-64k", "trainer", 30, 70, "the same at 64k tokens a step", _TRAIN),
    _row("m-stack-64", "trainer", 30, 60, "the same of 64 trials of d 128", _TRAIN),
    _row(
        "r-stack-planned", "trainer", 130, 120, "the stacks that the planner picks at d 128, 8k and 2k tokens", _TRAIN
    ),
    _row("r-pieces", "trainer", 90, 30, "the base trial at 512k tokens a step in pieces: speed and memory", _TRAIN),
    _row("tune-2048", "tune", 200, 10, "block sizes for features up to any size, by graph replay", _EXPERTS),
    _row("tune-512", "tune", 200, 4, "block sizes for features up to 512", _EXPERTS),
    _row("r-strict-32k", "late", 60, 40, "strict determinism, base trial, 32k tokens a step", _TRAIN),
    _row("r-large", "late", 120, 120, "d 2048, 16 layers, 2.1B parameters", _TRAIN),
    _row("r-large-dense", "late", 100, 120, "its dense twin", _TRAIN),
    _row(
        *("t-all-kernels", "late", 150, 16, "the tests of the kernels, compiled; what needs no GPU is left out", ()),
        *("tests/kernels", "--ignore=tests/kernels/test_hopper.py", "--ignore=tests/kernels/test_configs.py"),
    ),
)
_BY_NAME = {item.name: item for item in ITEMS}


def chosen(plans: str | None, names: Sequence[str]) -> tuple[Acceptance, ...]:
    """Return the items of these plans, `correct` first, or the named items alone. Raise HpxferError for what is
    unknown.
    """
    for name in names:
        if name not in _BY_NAME:
            raise HpxferError(f"--item: unknown item {shown(name)}; {nearest(name, _BY_NAME)}")
    if names:
        if plans is not None:
            raise HpxferError("--item names what is run; leave out --plan")
        return tuple(item for item in ITEMS if item.name in names)
    asked = PLANS if plans is None else tuple(plan.strip() for plan in plans.split(","))
    for plan in asked:
        if plan not in PLANS:
            raise HpxferError(f"--plan: must be some of {', '.join(PLANS)}, got {shown(plan)}")
    return tuple(item for item in ITEMS if item.plan in asked)


def runnable(item: Acceptance, folder: Path = _CLONE) -> Item:
    """Return the item as the runner takes it. Tests are in `folder`, a clone."""
    return Item(
        name=item.name,
        command=(sys.executable, "-m", "hpxfer.bench.accept_item", item.name),
        usual_s=item.usual_s,
        limit_s=_LIMIT * item.usual_s,
        needs=item.needs,
        missing=_missing_tests(folder) if item.tests else None,
    )


def _missing_tests(folder: Path) -> str | None:
    """Return why tests cannot run, or None."""
    if not (folder / "tests" / "kernels").is_dir():
        return "the tests are not installed; they are in a clone of the repository: pip install -e '.[dev]' there"
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed; pip install pytest"
    return None


def pytest_command(item: Acceptance, report: Path, num_workers: int) -> list[str]:
    """Return the command that runs the item's tests. It uses pytest's plug-ins where they are installed."""
    # Of the machine's other plug-ins, pytest-benchmark warns beside xdist, and a warning is an error.
    off = ("-p", "no:cacheprovider", "-p", "no:benchmark")
    command = [sys.executable, "-m", "pytest", "-q", *off, "--no-header", f"--junitxml={report}"]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(num_workers)]
    if importlib.util.find_spec("pytest_timeout") is not None:
        command += ["--timeout", "240"]
    return [*command, *item.tests]


def tests_folder() -> Path:
    """Return the clone, in which the tests run."""
    return _CLONE


def item_named(name: str) -> Acceptance:
    """Return the item of this name."""
    return _BY_NAME[name]
