"""Hardware: the devices that a plan can be made for, how fast each is, and the records of what was measured.

    a CPU core    seconds = tokens x CPU_S_PER_TOKEN + FLOPs / CPU_FLOP_PER_S, both measured, on one CPU of ours
                  until `hpxfer bench` measures them on the user's
    a GPU         seconds = FLOPs / (peak x share) + steps x GPU_STEP_S / trials of the stack; the peak is
                  published, the share is assumed until `hpxfer bench` measures it, the time of a step is assumed

Measurements of the sweep's own stored trials replace all of this, see `hpxfer.plan.make`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import append_line, cpu_name, gpu_bytes, gpu_name, has_cuda, host_bytes, json_lines, num_cpus
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan.packing import Device
from hpxfer.scaling.shape import Shape
from hpxfer.spec import TrainerSpec
from hpxfer.trial import Setting

Kind = Literal["cpu", "cuda"]
RECORD_VERSIONS = (2, 3)  # that are read, the last one written: a line of 2 holds a whole run, one of 3 a row of one
SPEEDS = "speeds"  # the name of the records that `hpxfer bench` writes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number. `numbers` are what it was computed from, by name, with the unit at its end."""

    key: str
    what: str
    value: float
    unit: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Rows of one run of one benchmark on one kind of device. Records of one run differ in their rows alone."""

    name: str  # of the benchmark, e.g. SPEEDS
    device: Kind
    date: str  # UTC, ISO 8601
    command: str
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    run: str = ""  # the same in all records of a run; empty in a record that holds a whole run

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready data, with its version."""
        return {"version": RECORD_VERSIONS[-1], **asdict(self)}

    def row(self, key: str) -> Row | None:
        """Return the row with this key, or None if the run did not measure it."""
        return next((row for row in self.rows if row.key == key), None)

    def provenance(self) -> str:
        """Return date, machine, versions and command as one line."""
        machine = [str(self.machine["gpu"])] if self.device == "cuda" else []
        machine += [f"{self.machine['cpu']}, {self.machine['cores']} cores, {self.machine['threads']} thread(s)"]
        versions = [f"{name} {version}" for name, version in self.versions.items()]
        return "; ".join((self.date, *machine, ", ".join(versions), f"`{self.command}`"))


def append(record: Record, folder: Path) -> Path:
    """Append the record as one JSON line to `folder`/<name>.jsonl, and return that file."""
    path = file_of(record.name, folder)
    append_line(path, record.to_dict())
    return path


def file_of(name: str, folder: Path) -> Path:
    """Return the file that keeps the records of a benchmark."""
    return folder / f"{name}.jsonl"


def latest(
    folder: Path, name: str, device: Kind, is_it: Callable[[Mapping[str, str | int]], bool] = lambda _: True
) -> Record | None:
    """Return what is known of a benchmark on this kind of device, or None if it never ran.

    This is the last run on a machine that `is_it` knows. A run may lack rows, because it was asked for one row or
    because it was killed. It then keeps the rows of the run before it, if that ran on the same machine with the same
    versions. Raise HpxferError for a line that is no record.
    """
    found: Record | None = None
    path = file_of(name, folder)
    for number, data in json_lines(path, "a benchmark record") if path.exists() else ():
        try:
            if data.pop("version", None) not in RECORD_VERSIONS or data["device"] != device:
                continue  # lines of another version stay in the file as history
            record = Record(**{**data, "rows": tuple(Row(**row) for row in data["rows"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HpxferError(f"{path}:{number}: must be a benchmark record, got {error}") from None
        if is_it(record.machine):
            found = record if found is None or not record.run else _joined(found, record)
    return found


def _joined(before: Record, record: Record) -> Record:
    """Return both records as one if they are of one run, or of one machine with the same versions; else the later."""
    if (before.machine, before.versions) != (record.machine, record.versions):
        return record
    rows = tuple({row.key: row for row in (*before.rows, *record.rows)}.values())
    if before.run == record.run:
        return replace(before, rows=rows)
    if len(rows) == len(record.rows):  # nothing of the run before is left
        return replace(record, rows=rows)
    first = before.date.partition(" to ")[0]
    date = record.date if first == record.date else f"{first} to {record.date}"
    return replace(record, rows=rows, date=date, command=record.command.partition(" --row ")[0])


# One CPU core in float32 with full stacks: the time per token at any width, and the rate of the rest. Measured on two
# AMD EPYC cores (2026-11, torch 2.13).
CPU_S_PER_TOKEN = 3e-6
CPU_FLOP_PER_S = 54e9
# The share of a GPU's peak that a full stack of small models is assumed to reach. Unmeasured. float32 has a lower peak.
ASSUMED_MFU: Mapping[str, float] = {"bfloat16": 0.1, "float32": 0.3}
# The least time of a step, however small the stack: kernel launches, and the host's reads. Assumed, unmeasured.
GPU_STEP_S = 2e-3
# A stack fills the GPU at the fewest tokens per step whose speed is this part of the best.
ENOUGH = 0.95
BENCH = Path("results/bench")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device. Peaks are dense, in FLOP/s. A CPU means one core, and has no peak here."""

    name: str  # the name that `--hardware` takes
    title: str
    cuda: bool = True
    memory_bytes: int | None = None
    peak: Mapping[str, float] | None = None  # precision -> FLOP/s
    source: str = ""
    marker: str = ""  # a part of the name that CUDA gives the device


_GPUS = (
    # TFLOP/s in bfloat16, and in float32 without tensor cores. GiB as CUDA reports them, rounded down.
    ("b200", "NVIDIA B200", 178, 2250, 75, "B200"),
    ("h200", "NVIDIA H200 SXM", 139, 989, 67, "H200"),
    ("h100", "NVIDIA H100 SXM", 79, 989, 67, "H100"),
    ("h100-pcie", "NVIDIA H100 PCIe", 79, 756, 51, "H100 PCIe"),
    ("a100", "NVIDIA A100 80GB", 79, 312, 19.5, "A100"),
    ("a100-40gb", "NVIDIA A100 40GB", 39, 312, 19.5, "A100-SXM4-40GB"),
    ("l40s", "NVIDIA L40S", 44, 362, 91.6, "L40S"),
    ("l4", "NVIDIA L4", 22, 121, 30.3, "L4"),
    ("a10", "NVIDIA A10", 22, 125, 31.2, "A10"),
)
CPU_CORE = Hardware(name="cpu", title="one core of a two-core AMD EPYC", cuda=False, source="measured 2026-11")
HARDWARE = (
    CPU_CORE,
    *(
        Hardware(
            name=name,
            title=title,
            memory_bytes=gib * 2**30,
            peak={"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12},
            source="NVIDIA's data sheet, dense",
            marker=marker,
        )
        for name, title, gib, bfloat16, float32, marker in _GPUS
    ),
)
_BY_NAME = {hardware.name: hardware for hardware in HARDWARE}
# A GPU whose name is unknown, or not in the table.
OTHER_GPU = replace(_BY_NAME["h200"], name="gpu", title="GPU taken for an NVIDIA H200 SXM", memory_bytes=None)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How the seconds of a plan are computed: by the formula above, with what a benchmark measured on that hardware."""

    hardware: Hardware
    source: str  # e.g. `assumed: 10% of an NVIDIA H200 SXM's peak`
    measured: tuple[tuple[float, float], ...] = ()  # of a GPU: (parameters, FLOP/s) per case of a benchmark
    core: tuple[float, float] = (CPU_S_PER_TOKEN, CPU_FLOP_PER_S)  # of a CPU core
    stated: Callable[[Shape], float | None] | None = None  # of a user's own trainer: a trial's seconds, if known

    def trial_s(self, shape: Shape, setting: Setting, num_trials: float = 1) -> float:
        """Return the seconds that one of this many trials in a stack keeps a core, or a whole GPU, busy.

        Of a user's own trainer they are the seconds of a trial with all that it runs on, NaN if the user gives none.
        """
        if self.stated is not None:
            return self.stated(shape) or math.nan
        flops = train_flops(shape, setting)
        if not self.hardware.cuda:
            return setting.steps * setting.batch_tokens * self.core[0] + flops / self.core[1]
        return flops / self._flop_per_s(shape, setting) + setting.steps * GPU_STEP_S / num_trials

    def _flop_per_s(self, shape: Shape, setting: Setting) -> float:
        if self.measured:
            size = math.log(count_params(shape, setting).total)
            return min(self.measured, key=lambda case: abs(math.log(case[0]) - size))[1]
        assert self.hardware.peak is not None
        return self.hardware.peak[setting.precision] * ASSUMED_MFU[setting.precision]


def hardware_named(name: str) -> Hardware:
    """Return the hardware of this name. Raise HpxferError, which names the nearest, if there is none."""
    found = _BY_NAME.get(name.lower())
    if found is None:
        raise HpxferError(f"--hardware: unknown hardware {shown(name)}; {nearest(name, _BY_NAME)}")
    return found


def hardware_of(device: Device) -> Hardware:
    """Return the hardware that a device is: a GPU by the name that CUDA gives it, and an unknown one as OTHER_GPU."""
    return CPU_CORE if not device.cuda else _gpu_named(device.name or "") or OTHER_GPU


def _gpu_named(name: str) -> Hardware | None:
    gpus = [row for row in HARDWARE if row.cuda and re.search(rf"\b{re.escape(row.marker)}\b", name)]
    return max(gpus, key=lambda row: len(row.marker), default=None)


def device_of(hardware: Hardware, device: Device) -> Device:
    """Return the device to plan for if the user names hardware: as many devices as the user's own machine has."""
    if not hardware.cuda:
        return device if not device.cuda else Device(num_cpus=device.num_cpus, host_bytes=device.host_bytes)
    number = (device.num_gpus if device.cuda else None) or 1
    named, memory = hardware.title, hardware.memory_bytes
    return filled(Device(cuda=True, memory_bytes=memory, num_gpus=number, num_cpus=device.num_cpus, name=named))


def filled(device: Device) -> Device:
    """Return the device with the fewest tokens per step that were measured to fill its GPUs, if two stacks were."""
    hardware = hardware_of(device)
    record = _record(BENCH, hardware) if device.cuda and hardware != OTHER_GPU else None
    measured = () if record is None else record.rows
    rates = {row.numbers["step_tokens"]: row.value for row in measured if "step_tokens" in row.numbers}
    if len(rates) < 2:
        return device
    enough = ENOUGH * max(rates.values())
    return replace(device, step_tokens=int(min(tokens for tokens, rate in rates.items() if rate >= enough)))


def rate_of(hardware: Hardware, precision: str, bench: Path = BENCH) -> Rate:
    """Return how fast this hardware is: as the benchmark records in `bench` measured it, else as assumed."""
    record = _record(bench, hardware)
    source = f"measured by `hpxfer bench`, {record.date}" if record else ""
    if not hardware.cuda:
        if record is not None and (core := _core(record)):
            return Rate(hardware=hardware, core=core, source=source)
        return Rate(hardware=hardware, source=f"{hardware.source} on {hardware.title}")
    if record is not None and precision == "bfloat16" and (peak := record.row("peak-cuda")):
        cases = [(row.numbers.get("m_params"), row.numbers.get("mfu")) for row in record.rows]
        if measured := tuple((params * 1e6, mfu * peak.value * 1e12) for params, mfu in cases if params and mfu):
            return Rate(hardware=hardware, measured=measured, source=source)
    share = f"{ASSUMED_MFU[precision]:.0%} of the {precision} peak of an {hardware.title} ({hardware.source})"
    return Rate(hardware=hardware, source=f"assumed: {share}; unmeasured")


def stated_by(trainer: TrainerSpec, hardware: Hardware) -> Rate:
    """Return the rate of a user's own trainer: what `trainer.cost` says, if anything."""
    unknown = "unknown until a trial of each shape is stored; trainer.cost may say it"
    source = unknown if trainer.cost is None else "by trainer.cost"
    return Rate(hardware=hardware, source=source, stated=trainer.seconds_of)


def _record(bench: Path, hardware: Hardware) -> Record | None:
    """Return what is known of such a GPU, or of this machine's own CPU."""

    def is_it(machine: Mapping[str, str | int]) -> bool:
        if not hardware.cuda:
            return machine.get("cpu") == cpu_name()
        return _gpu_named(str(machine.get("gpu", ""))) == hardware

    try:
        return latest(bench, SPEEDS, "cuda" if hardware.cuda else "cpu", is_it)
    except HpxferError:
        return None  # `hpxfer bench` reports a damaged record; a plan can do without it


def _core(record: Record) -> tuple[float, float] | None:
    """Return seconds per token and FLOP/s of a core: the line through its time per token, by least squares of the
    relative errors. None if the rows do not determine it.
    """
    cases = [(row.numbers.get("flop_per_token"), row.numbers.get("us_per_token")) for row in record.rows]
    points = [(flop, 1e-6 * us) for flop, us in cases if flop and us]
    if len(points) < 2:
        return None
    flops, seconds = np.array(points).T
    slope, start = np.polyfit(flops, seconds, 1, w=1 / seconds)
    return (max(0.0, float(start)), 1 / float(slope)) if slope > 0 else None


def this_machine(asked: str = "auto") -> Device:
    """Return this machine as a device for stacks. `asked` is auto (a GPU if there is one), cpu or cuda."""
    cuda = has_cuda(asked)
    memory_bytes, name = (gpu_bytes(), gpu_name()) if cuda else (None, None)
    cpus = num_cpus()
    return filled(Device(cuda=cuda, memory_bytes=memory_bytes, name=name, num_cpus=cpus, host_bytes=host_bytes()))
