"""Find the block sizes of `configs.json` on this GPU, for `hpxfer bench tune`.

Tuning is offline: nothing is tuned at run time. An entry is measured on random data at the largest shape of its class.
One field varies at a time while the others stay. What the compiler shows to spill, or without a pipeline, is not
timed. A candidate is timed as a CUDA graph, because launches from Python take longer than a small layer. Each candidate
is on the disk before the next one begins, and a second run goes on where the first one ended.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.bench.compiled import compiling, fault_of
from hpxfer.bench.kernels_cuda import graphed
from hpxfer.bench.machine import machine_of, versions_of
from hpxfer.bench.tune_table import Written
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host.json_lines import append_line, json_lines, require_appendable
from hpxfer.kernels import experts, experts_library, grouped_launch
from hpxfer.kernels.configs import Config, Gradient, Product, architecture, table
from hpxfer.kernels.experts_launch import Layer, Rows, Weights

ENTRY_S = 190.0
FIELDS = ("m", "hidden", "up", "product", "gradient", "programs", "gated", "products")
_GROUPS = 4
_WIDEST = 2048
_MOST_ROWS = 16384
_ROUNDS = 7
# Places of matrix gradients: 132 multiprocessors, with one to eight blocks on each.
_PROGRAMS = (132, 264, 528, 792, 1056)
# The share of a field's time in which its candidates are compiled; timing one is quick.
_CHECK_SHARE = 0.8
_CHECKED = (80, 90)  # the capabilities whose limits `compiled` knows

Tell = Callable[[dict[str, Any]], None]
Clock = Callable[[Config, "Sample"], float]
Check = Callable[[Sequence[Config], "Sample", float], Mapping[Config, str | None]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A layer of random data in the class of an entry."""

    x: Tensor
    dy: Tensor
    weights: Weights
    gate: Tensor
    rows: Rows


def sample(config: Config, *, gated: bool, device: torch.device) -> Sample:
    """Return a layer of the largest shape that `config` covers."""
    size = config.max_features or _WIDEST
    num_rows = (config.max_rows or _MOST_ROWS) * _GROUPS
    dtype = torch.bfloat16 if config.dtype_bytes == 2 else torch.float32

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    w_gate = normal(_GROUPS, size, size) if gated else None
    order = torch.randperm(num_rows, device=device).to(torch.int32)
    ends = torch.arange(1, _GROUPS + 1, device=device, dtype=torch.int32) * (num_rows // _GROUPS)
    return Sample(
        x=normal(num_rows, size),
        dy=normal(num_rows, size),
        weights=Weights(normal(_GROUPS, size, size), w_gate, normal(_GROUPS, size, size), None, None, None),
        gate=torch.rand(num_rows, 1, device=device),
        rows=Rows(order, order, ends),
    )


def layer_of(config: Config, drawn: Sample) -> Layer:
    """Return the sample's layer under this config."""
    return Layer(
        rows=drawn.rows,
        num_active=1,
        groups_at_once=_GROUPS,
        activation="gelu" if drawn.weights.w_gate is None else "swiglu",
        config=config,
        tiles=grouped_launch.tiles_of(drawn.rows.ends, drawn.x.shape[0], config.m),
    )


def step(config: Config, drawn: Sample) -> Callable[[], object]:
    """Return a function that runs the layer forward and backward, with the products that the config names."""
    layer = layer_of(config, drawn)

    def run() -> object:
        _, u, v = experts.forward(layer, drawn.x, drawn.weights, drawn.gate)
        return experts.backward(layer, drawn.x, drawn.weights, drawn.gate, u, v, drawn.dy)

    return run


def candidates(config: Config, field: str) -> Iterator[Config]:
    """Yield `config` with other values of one of its fields, of the sizes that fit its class."""
    wide = config.dtype_bytes == 2 and (config.max_features or _WIDEST) > 128
    k = 64 if config.dtype_bytes == 2 else 32
    values: Sequence[Any]
    match field:
        case "m":
            values = (32, 64, 128)
        case "programs":
            values = _PROGRAMS
        case "products":
            values = ("triton", "library") if config.dtype_bytes == 2 else ()  # F.grouped_mm takes bf16 alone
        case "gradient":
            sides = ((128, 128), (128, 256)) if wide else ((64, 64), (64, 128))
            values = [
                Gradient(i=i, o=o, n=n, warps=warps, stages=stages)
                for (i, o), n, warps, stages in itertools.product(sides, (32, 64), (4, 8), (3, 4))
            ]
        case _:
            columns = (128, 256) if wide else (64, 128)
            values = [
                Product(n=n // 2 if field == "gated" else n, k=k, warps=warps, stages=stages, registers=registers)
                for n, (warps, registers), stages in itertools.product(
                    columns, ((4, None), (8, None), (8, 128)), (3, 4)
                )
            ]
    for value in values:
        if value != getattr(config, field):
            blocks: dict[str, Any] = {field: value}
            yield replace(config, **blocks)


def best(
    config: Config,
    device: torch.device,
    *,
    clock: Clock,
    check: Check,
    tell: Tell,
    known: Mapping[str, Mapping[str, Any]],
    seconds: float = ENTRY_S,
) -> Config:
    """Return the fastest config found from `config` in so many seconds.

    `tell` gets a line per candidate: its milliseconds, or why it was skipped. `known` are lines of an earlier run by
    `key_of`. Fields that the time does not reach keep their values, and a line says so.
    """
    ends = time.monotonic() + seconds
    drawn = sample(config, gated=False, device=device)
    for number, field in enumerate(FIELDS):
        now = time.monotonic()
        if field in ("gated", "products"):
            drawn = sample(config, gated=field == "gated", device=device)
        others = list(candidates(config, field))
        fresh = [other for other in others if key_of(other, field) not in known]
        faults: Mapping[Config, str | None] = dict.fromkeys(fresh)  # programs are no constant of a kernel
        if field == "products" and not experts_library.can_run(drawn.x, drawn.weights):
            faults = dict.fromkeys(fresh, "F.grouped_mm does not take this layer here")
        elif field not in ("programs", "products"):
            faults = check(fresh, drawn, now + _CHECK_SHARE * (ends - now) / (len(FIELDS) - number))
        timed: list[tuple[float, int, Config]] = []
        own_timed, left_out = True, 0
        for index, one in enumerate([config, *others]):
            line = known.get(key_of(one, field))
            if line is None:
                if time.monotonic() > ends or (index and one not in faults):
                    left_out += 1
                    own_timed &= index > 0
                    continue
                line = _line(one, field, drawn, clock, faults.get(one))
                tell(line)
            if _finite(line.get("ms")):
                timed.append((line["ms"], index, one))
        if left_out:
            tell({"entry": name_of(config), "field": field, "left_out": f"{left_out} candidates, for lack of time"})
        # The entry that stands stays unless another is faster, or it cannot run at all.
        if timed and own_timed:
            config = min(timed, key=lambda entry: entry[:2])[2]
    return config


def _line(config: Config, field: str, drawn: Sample, clock: Clock, fault: str | None) -> dict[str, Any]:
    """Return the line of one candidate. One that cannot run on this device is skipped."""
    line = {"entry": name_of(config), "field": field, "key": key_of(config, field), "config": asdict(config)}
    if fault is None:
        try:
            return {**line, "ms": clock(config, drawn)}
        except Exception as error:  # of the compiler or the launch, which have no class in common
            fault = f"{type(error).__name__}: {str(error)[:200]}"
    return {**line, "skipped": fault}


def key_of(config: Config, field: str) -> str:
    """Return what a time belongs to: the config, and whether the layer was gated."""
    return json.dumps([field == "gated", asdict(config)], sort_keys=True)


def checked(configs: Sequence[Config], drawn: Sample, until: float) -> dict[Config, str | None]:
    """Return config -> why the compiler shows it to be slow or impossible, or None, of those that the time allows.

    Triton keeps what it compiles, so a launch does not compile it again.
    """
    major, minor = torch.cuda.get_device_capability()
    capability = 10 * major + minor
    if capability not in _CHECKED:
        return dict.fromkeys(configs)
    found: dict[Config, str | None] = {}
    with compiling(capability) as facts:
        for config in configs:
            if time.monotonic() > until:
                break
            facts.clear()
            try:
                step(config, drawn)()
                found[config] = next((fault for one in facts if (fault := fault_of(one))), None)
            except Exception as error:  # the assembler refuses, e.g. a bound on registers that is too low
                found[config] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def replayed_ms(config: Config, drawn: Sample) -> float:
    """Return the milliseconds of the layer, forward and backward, as the replay of a CUDA graph."""
    job = Job(run=graphed(step(config, drawn)))
    return 1000 * median(interleaved({"layer": job}, rounds=_ROUNDS, device=drawn.x.device), "layer")


def name_of(config: Config) -> str:
    """Return the name of an entry, e.g. bf16-512, or bf16-any-64-rows."""
    features = "any" if config.max_features is None else str(config.max_features)
    rows = "" if config.max_rows is None else f"-{config.max_rows}-rows"
    return f"{'bf16' if config.dtype_bytes == 2 else 'fp32'}-{features}{rows}"


def tune_item(features: int, say: Callable[..., None]) -> None:
    """Search the bf16 entry for up to so many features, and print each candidate and what was found."""
    device = torch.device("cuda")
    entry = next(
        config
        for config in table()[architecture(device)]
        if config.dtype_bytes == 2 and config.max_rows is None and (config.max_features or _WIDEST) == features
    )
    found = best(
        entry, device, clock=replayed_ms, check=checked, tell=lambda line: say(**{**line, "key": f"tune-{features}"}),
        known={},
    )  # fmt: skip
    say(key=f"tuned-{features}", entry=name_of(found), config=asdict(found))


def tune(names: Sequence[str], out: Path, tell: Callable[[str], None]) -> tuple[Path, ...]:
    """Search the named entries of this GPU's part of the table, or all, and write each into the table `out` as soon as
    it is found. Return the files that were written. Raise HpxferError without a GPU, or for an unknown entry.
    """
    if not torch.cuda.is_available():
        raise HpxferError("hpxfer bench tune needs a CUDA device, got none; run it on the machine that will train")
    device = torch.device("cuda")
    arch = architecture(device)
    written = Written.read(out)
    entries = {name_of(config): config for config in written.tables[arch]}
    for name in names:
        if name not in entries:
            raise HpxferError(f"--entry: {arch} has no entry {shown(name)}; {nearest(name, entries)}")
    stamp = {"machine": machine_of(device), "versions": versions_of(device)}
    lines = out.with_name(f"{out.name}l") if out.suffix == ".json" else out.with_name(f"{out.name}.jsonl")
    require_appendable(lines)
    known = known_lines(lines, stamp)

    def keep(line: dict[str, Any]) -> None:
        append_line(lines, {**line, **stamp})
        tell(f"{line['entry']} {line['field']}: {line.get('ms', line.get('skipped', line.get('left_out')))}")

    for name in names or entries:
        found = best(entries[name], device, clock=replayed_ms, check=checked, tell=keep, known=known)
        written = written.with_entry(arch, entries[name], found, {"entry": name, **stamp})
        written.write(out)
    return (out, lines)


def known_lines(path: Path, stamp: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return `key_of` -> the line of each candidate that was timed or skipped on this machine with these versions."""
    if not path.exists():
        return {}
    lines = [line for _, line in json_lines(path)]
    return {
        line["key"]: line
        for line in lines
        if isinstance(line, dict) and "key" in line and all(line.get(name) == value for name, value in stamp.items())
    }


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
