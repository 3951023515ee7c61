"""Roofline tables: the predicted time of each part of a step, beside what a profile of an acceptance measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.roofline import Machine, Part, parts_of, seconds_of
from hpxfer.bench.trainer_cuda import LARGE, base_case
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host.json_lines import json_lines
from hpxfer.host.output import aligned
from hpxfer.plan.step_tokens import ACCEPT_FILE
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

BASE = "base-32k"
CASES: Mapping[str, Case] = {
    BASE: base_case(32768),
    "twin-32k": replace(base_case(32768), dense=True),
    "base-64k": base_case(65536),
    "large": LARGE,
    "large-twin": replace(LARGE, dense=True),
}
HEADINGS = ("part", "GFLOP", "GB", "bound by", "predicted", "measured")
UNMEASURED = "unmeasured"
# A part of a kernel's name -> the group of parts that it belongs to. The first that fits counts.
_KERNELS = {
    "cross_entropy": "cross entropy",
    "adamw": "optimizer",
    "stream_gradient": "router",
    "weight_gradient": "router",
    "route": "router",
    "count_pairs": "order of the rows",
    "place_": "order of the rows",
    "map_tiles": "order of the rows",
    "table_rows": "embedding",
    "long_pieces": "embedding",
    "embedding": "embedding",
    "rows_product": "experts",
    "hidden_": "experts",
    "gate_gradient": "experts",
    "matrix_gradient": "experts",
    "sum_": "experts",
    "up": "experts",
    "cudnn": "attention",
    "flash": "attention",
    "fmha": "attention",
    "nvjet": "products of a library",
    "gemm": "products of a library",
    "cutlass": "products of a library",
    "rms_": "norms",
    "heads_": "norms",
    "triton_": "norms",
}
_WHOLE_NAMES = ("up", "route")  # too short to be looked for inside of a name


def roofline_rows(name: str, machine: Machine, measured_us: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return the parts of a case, the slowest first, and the whole step. The cells are those of HEADINGS.

    `measured_us` are microseconds by group, see `groups_of`. They stand beside the first part of their group.
    """
    parts, setting = _parts(name)
    left = dict(measured_us)
    rows: list[tuple[str, ...]] = []
    for part in sorted(parts, key=lambda part: -part.seconds(machine)):
        if not measured_us:
            cell = UNMEASURED
        elif part.group in left:
            cell = _ms(left.pop(part.group) / 1e6)
        else:
            cell = f"see {part.group}" if part.group in measured_us else "not found"
        counted = part.name, f"{part.flops / 1e9:.0f}", f"{part.num_bytes / 1e9:.2f}"
        rows.append((*counted, str(part.bound(machine)), _ms(part.seconds(machine)), cell))
    rows += [(group, "", "", "", "", _ms(us / 1e6)) for group, us in left.items()]
    seconds = seconds_of(parts, machine)
    speed = f"{setting.batch_tokens / seconds / 1e6:.3g} M tokens/s"
    total = _ms(sum(measured_us.values()) / 1e6) if measured_us else UNMEASURED
    return [*rows, (f"a step: {speed} predicted", "", "", "", _ms(seconds), total)]


def roofline_text(name: str, machine: Machine, folder: Path) -> str:
    """Return the table for a terminal. `folder` holds the records of benchmarks."""
    rates = f"{machine.flop_per_s / 1e12:g} TFLOP/s in bfloat16, {machine.byte_per_s / 1e12:g} TB/s"
    rows = roofline_rows(name, machine, measured_groups(name, folder))
    return "\n".join([f"{name}: predicted from {rates}", *aligned([HEADINGS, *rows])])


def roofline_json(name: str, machine: Machine, folder: Path) -> dict[str, Any]:
    """Return the parts for a program to read."""
    parts, setting = _parts(name)
    seconds = seconds_of(parts, machine)
    found = [{**asdict(part), "bound": part.bound(machine), "predicted_s": part.seconds(machine)} for part in parts]
    return {
        "case": name,
        "machine": asdict(machine),
        "parts": found,
        "predicted_s": seconds,
        "predicted_tokens_per_s": setting.batch_tokens / seconds,
        "measured_us": measured_groups(name, folder),
    }


def machine_of(tflops: float, tb_s: float) -> Machine:
    """Return the machine with these rates. Raise HpxferError unless both are positive numbers."""
    for option, value in (("--tflops", tflops), ("--tb-s", tb_s)):
        if not 0 < value < math.inf:
            raise HpxferError(f"{option}: must be a number above 0, got {value:g}; e.g. {option} 4.3")
    return Machine(flop_per_s=tflops * 1e12, byte_per_s=tb_s * 1e12)


def measured_groups(name: str, folder: Path) -> dict[str, float]:
    """Return group -> microseconds as the last acceptance in `folder` profiled the case. Only the base is profiled."""
    path = folder / ACCEPT_FILE
    if name != BASE or not path.exists():
        return {}
    steps = [line for _, line in json_lines(path) if isinstance(line, dict) and line.get("key") == "step-us"]
    return groups_of(steps[-1].get("top", ())) if steps else {}


def groups_of(kernels: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Return group -> microseconds of a profile: rows (microseconds, launches, name) of the kernels of one step."""
    out: dict[str, float] = {}
    for us, _, name in kernels:
        group = next((group for key, group in _KERNELS.items() if _fits(key, str(name))), "others")
        out[group] = out.get(group, 0.0) + float(us)
    return out


def _fits(key: str, name: str) -> bool:
    return name == key if key in _WHOLE_NAMES else key in name


def _parts(name: str) -> tuple[tuple[Part, ...], Setting]:
    if name not in CASES:
        raise HpxferError(f"--case: unknown case {shown(name)}; {nearest(name, CASES)}")
    with TemporaryDirectory() as folder:
        (member,) = trials(replace(CASES[name], steps=1), 1, Path(folder))
    shape: Shape = member.shape
    return parts_of(shape, member.setting), member.setting


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"
