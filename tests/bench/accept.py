"""Accept a GPU: prove the kernels on it and measure it, in slices of a time budget: `python tests/bench/accept.py`.

    python tests/bench/accept.py --plan correct,kernels --budget 560
    python tests/bench/accept.py --dry

Each item runs in a process of its own, and each number is a JSON line of results/bench/accept.jsonl before the next
item begins. At its time limit an item is killed with all processes of its group, so an item that hangs, crashes or
lacks memory costs itself alone. A second run goes on where the first one ended. Exit code 0: all items have passed. 1:
one failed. 2: bad input. 3: none failed, but some were skipped, or there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goals import gpu_rows

from hpxfer.host.files import append_line, json_lines
from hpxfer.host.output import aligned

ROOT = Path(__file__).parents[2]
PLANS = ("correct", "kernels", "profile", "trainer", "tune", "late")
PASSED, FAILED, BAD, UNFINISHED = 0, 1, 2, 3
_LIMIT = 2.5  # times the usual seconds
_TAIL = 800
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TRITON_INTERPRET": "0",
    "TRITON_CACHE_DIR": str(ROOT / ".cache" / "triton"),
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "tools"), os.environ.get("PYTHONPATH", "")]),
}


@dataclass(frozen=True)
class Item:
    """A test or a measurement. The names are kept, so that numbers of two versions stand side by side. Seconds and
    memory are predicted, from an NVIDIA H200.
    """

    name: str
    plan: str
    usual_s: float  # it does not begin if less is left of the budget
    gib: float  # of GPU memory
    what: str
    needs: tuple[str, ...] = ()  # items that must have passed before it
    tests: str = ""  # what pytest runs
    command: tuple[str, ...] = ()  # instead of that of the item's name

    @property
    def limit_s(self) -> float:
        return _LIMIT * self.usual_s


_EXPERTS, _ROUTER, _TRAIN = ("t-experts",), ("t-experts", "t-router"), ("t-experts", "t-router", "t-strict")
_K = "tests/kernels/"
ITEMS = (
    Item("env", "correct", 20, 14, "the GPU, versions, and the peaks of products and copies"),
    Item(
        *("t-experts", "correct", 80, 8, "GPU tests of experts, cross entropy, embedding, AdamW and sums", ()),
        f"-m gpu {_K}test_experts_gpu.py {_K}test_cross_entropy.py {_K}test_embedding.py {_K}test_adamw.py "
        f"{_K}test_sums.py",
    ),
    Item(
        *("t-router", "correct", 40, 24, "GPU tests of the router, the head, norms and rotations", ()),
        f"-m gpu {_K}test_router_gpu.py {_K}test_head.py {_K}test_heads_gpu.py",
    ),
    Item(
        *("t-strict", "correct", 60, 8, "GPU tests of strict steps in any stack and of attention", _EXPERTS),
        f"-m gpu {_K}test_strict_step.py {_K}test_attention.py",
    ),
    Item(
        *("t-train", "correct", 120, 8, "GPU tests of training: capture, checkpoints, determinism", _EXPERTS),
        "-m gpu tests/train",
    ),
    Item("t-init", "correct", 20, 2, "GPU tests of the initial draws: the bits of a CPU", (), "-m gpu tests/model"),
    Item("k-layer-512", "kernels", 30, 4, "the MoE layer at 512 over F.grouped_mm, and each launch", _EXPERTS),
    Item("k-layer-1024", "kernels", 30, 6, "the same at 1024", _EXPERTS),
    Item("k-layer-2048", "kernels", 30, 10, "the same at 2048", _EXPERTS),
    Item("k-rows", "kernels", 30, 14, "cross entropy, AdamW and routing over a copy", _EXPERTS),
    Item("k-router", "kernels", 20, 2, "the router, forward and backward", _ROUTER),
    Item("k-heads", "kernels", 30, 4, "RMS norm, QK-norm and RoPE beside torch.compile", _ROUTER),
    Item("p-base-32k", "profile", 60, 40, "a captured base step by kernel", _TRAIN),
    Item("r-base-32k", "trainer", 60, 40, "tokens/s of the base trial, 32k tokens a step", _TRAIN),
    Item("r-base-32k-dense", "trainer", 50, 40, "the same of its dense twin", _TRAIN),
    Item("r-stack-64", "trainer", 50, 60, "64 trials of d 128, 8k tokens a step", _TRAIN),
    Item("r-stack-8", "trainer", 40, 12, "8 such trials", _TRAIN),
    Item("r-alone", "trainer", 40, 4, "one such trial", _TRAIN),
    Item("r-base-64k", "trainer", 60, 70, "tokens/s of the base trial, 64k tokens a step", _TRAIN),
    Item("m-base-32k", "trainer", 30, 40, "peak memory of the base trial beside the plan's model", _TRAIN),
    Item("m-base-64k", "trainer", 30, 70, "the same at 64k tokens a step", _TRAIN),
    Item("m-stack-64", "trainer", 30, 60, "the same of 64 trials of d 128", _TRAIN),
    Item(
        *("r-stack-planned", "trainer", 130, 120, "the stacks that the planner picks at d 128, 8k and 2k tokens"),
        _TRAIN,
    ),
    Item("r-pieces", "trainer", 90, 30, "the base trial at 512k tokens a step in pieces: speed and memory", _TRAIN),
    Item("tune-2048", "tune", 200, 10, "block sizes for features up to any size, by graph replay", _EXPERTS),
    Item("tune-512", "tune", 200, 4, "block sizes for features up to 512", _EXPERTS),
    Item("r-strict-32k", "late", 60, 40, "strict determinism, base trial, 32k tokens a step", _TRAIN),
    Item("r-large", "late", 120, 120, "d 2048, 16 layers, 2.1B parameters", _TRAIN),
    Item("r-large-dense", "late", 100, 120, "its dense twin", _TRAIN),
    Item(
        *("t-all-kernels", "late", 150, 16, "the tests of the kernels, compiled; what needs no GPU is left out", ()),
        f"tests/kernels --ignore={_K}test_hopper.py --ignore={_K}test_configs.py",
    ),
)
Keep = Callable[[dict[str, Any]], None]


def run_items(
    items: Iterable[Item], *, budget_s: float, before: Mapping[str, str], keep: Keep, untested: bool = False
) -> Iterator[tuple[str, str, float, str]]:
    """Run the items in order and yield (name, passed, failed or skipped, seconds, why) of each.

    `before` says how items ended in earlier runs. What passed is not repeated. An item whose need failed is skipped. So
    is an item whose need has never run, unless `untested` is true. `keep` stores one line.
    """
    ends, states = time.monotonic() + budget_s, dict(before)
    for item in items:
        left = max(0.0, ends - time.monotonic())
        unmet = [f"{need} failed" for need in item.needs if states.get(need) == "failed"]
        if not untested:
            never = [need for need in item.needs if states.get(need) not in ("passed", "failed")]
            unmet += [f"{need} has not passed; run it first, or give --untested" for need in never]
        if left < item.usual_s:
            unmet.append(f"it usually takes {item.usual_s:.0f} s, and {left:.0f} s of the budget are left")
        if states.get(item.name) == "passed":
            yield item.name, "passed", 0.0, "passed before"
            continue
        if unmet:
            state, seconds, reason = "skipped", 0.0, unmet[0]
            keep({"item": item.name, "ok": False, "skipped": reason})
        else:
            state, seconds, reason = run_item(item, min(item.limit_s, left), keep)
        states[item.name] = state
        yield item.name, state, seconds, reason


def run_item(item: Item, limit_s: float, keep: Keep) -> tuple[str, float, str]:
    """Run one item in a process group and a temporary folder of its own. Return its state, seconds, and why."""
    began = time.monotonic()
    command = item.command or (sys.executable, str(Path(__file__).with_name("gpu_items.py")), item.name)
    with tempfile.TemporaryDirectory(prefix=f"hpxfer-{item.name}-", ignore_cleanup_errors=True) as folder:
        said, errors, in_time = Path(folder, "stdout"), Path(folder, "stderr"), True
        given = {"env": {**os.environ, **ENVIRONMENT, "TMPDIR": folder}, "cwd": ROOT, "start_new_session": True}
        with said.open("wb") as out, errors.open("wb") as err:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **given)
            try:
                child.wait(limit_s)
            except subprocess.TimeoutExpired:
                in_time = False
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        took = round(time.monotonic() - began, 1)
        faults, tail = _kept(said.read_text(), item.name, took, keep), errors.read_text(errors="replace")[-_TAIL:]
    reason, state = "; ".join([*([f"exit code {child.returncode}"] if child.returncode else []), *faults]), "failed"
    if not in_time:
        reason = f"killed at its limit of {limit_s:g} s"
        if limit_s < item.limit_s:
            reason, state = f"the budget ended it after {limit_s:.0f} s", "skipped"
    line: dict[str, Any] = {"item": item.name, "ok": not reason, "rc": child.returncode, "s": took}
    keep({**line, "reason" if state == "failed" else "skipped": reason, "tail": tail} if reason else line)
    return state if reason else "passed", took, reason


def _kept(said: str, name: str, took: float, keep: Keep) -> list[str]:
    """Keep each JSON object that an item printed, and return what is wrong with them."""
    faults, count = list[str](), 0
    for text in said.splitlines():
        infinite: list[str] = []
        try:
            data = json.loads(text, parse_constant=infinite.append) if text.startswith("{") else None
        except ValueError:
            continue
        if isinstance(data, dict) and "item" not in data:
            count += 1
            faults += [str(data["error"])] if "error" in data and "key" not in data else []
            faults += [f"measured a number that is not finite: {text}"] if infinite else []
            keep({**data, "of": name, "s": took})
    return faults if count else [*faults, "it measured nothing"]


def states_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return how each item ended, by its last line that is not of a skipped run. What passed once has passed."""
    found: dict[str, str] = {}
    for line in lines:
        name = line.get("item")
        if isinstance(name, str) and "skipped" not in line and found.get(name) != "passed":
            found[name] = "passed" if line.get("ok") is True else "failed"
    return found


def accept(items: Sequence[Item], *, budget_s: float, done: Sequence[Path], output: Path, untested: bool) -> int:
    """Run the items on this machine's GPU, append each number to `output`, and say how they ended."""
    import torch

    from hpxfer.bench.command import machine_of, versions_of

    gpu = torch.device("cuda")
    stamp = {"machine": machine_of(gpu), "versions": versions_of(gpu)}
    # Of the output itself, only what was made on this machine's GPU with these versions counts.
    lines = [line for path in done for _, line in json_lines(path)]
    own = [line for _, line in json_lines(output)] if output.exists() else []
    lines += [line for line in own if all(line.get(key) == value for key, value in stamp.items())]
    append_line(output, None)

    def keep(line: dict[str, Any]) -> None:
        lines.append({**line, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), **stamp})
        append_line(output, lines[-1])

    ended = []
    for one in run_items(items, budget_s=budget_s, before=states_of(lines), keep=keep, untested=untested):
        ended.append(one)
        sys.stderr.write(f"{one[0]}: {one[1]} in {one[2]:.0f} s: {one[3]}\n")
    numbers = [line for line in lines if "of" in line]
    rows = [(name, state, f"{seconds:.0f} s", why) for name, state, seconds, why in ended]
    sys.stdout.write("\n".join([*aligned([("item", "state", "took", "why"), *rows]), "", *gpu_rows(numbers), ""]))
    states = {state for _, state, _, _ in ended}
    return FAILED if "failed" in states else UNFINISHED if "skipped" in states else PASSED


def dry_text(items: Sequence[Item]) -> str:
    """Return the items as a table: what each would need."""
    heads = ("item", "plan", "seconds", "GPU GiB", "depends on", "what")
    rows = [(i.name, i.plan, f"{i.usual_s:.0f}", f"{i.gib:g}", ", ".join(i.needs) or "-", i.what) for i in items]
    head = f"{len(items)} items, {sum(one.usual_s for one in items):.0f} s in all; predicted from an NVIDIA H200"
    return "\n".join([head, *aligned([heads, *rows])])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="accept.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", default=",".join(PLANS), help=f"some of {', '.join(PLANS)}")
    parser.add_argument("--item", action="append", default=[], choices=[item.name for item in ITEMS])
    parser.add_argument("--budget", type=float, default=560, help="the seconds that this run may take")
    parser.add_argument("--done", type=Path, action="append", default=[], help="do not repeat what passed in this file")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "bench" / "accept.jsonl")
    parser.add_argument("--untested", action="store_true", help="measure also what depends on tests that have not run")
    parser.add_argument("--dry", action="store_true", help="list the items and what each needs, and run none")
    options = parser.parse_args(arguments)
    plans = options.plan.split(",")
    if unknown := set(plans) - set(PLANS):
        parser.error(f"--plan: must be some of {', '.join(PLANS)}, got {', '.join(sorted(unknown))}")
    items = [one for one in ITEMS if (one.name in options.item if options.item else one.plan in plans)]
    import torch

    if options.dry or not torch.cuda.is_available():
        sys.stdout.write(dry_text(items) + "\n")
        return PASSED if options.dry else UNFINISHED
    given = {"budget_s": options.budget, "done": options.done, "output": options.output}
    return accept(items, **given, untested=options.untested)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
