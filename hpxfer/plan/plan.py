"""Plan: what a sweep will run and what it will cost, as data. `hpxfer.plan.make` makes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpxfer.host import json_ready
from hpxfer.plan.packing import CPU, Device
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, axes_of, own_data, precision_on

if TYPE_CHECKING:
    from hpxfer.plan.outlook import Outlook


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The precision of the trials of a sweep, and where it comes from."""

    asked: str  # what the sweep says: float32, bfloat16 or auto
    value: str  # float32 or bfloat16: what the trials have, and a part of their ids
    on_device: str  # what auto stands for on the device that will train
    device: str  # that device, in words
    began: str | None = None  # what the results folder began with
    folder: str = ""  # the results folder, as the user knows it
    hardware: str | None = None  # other hardware that the plan is for
    priced: str | None = None  # the precision that the trials would have there

    @property
    def is_auto(self) -> bool:
        """Whether the sweep leaves the precision to the device."""
        return self.asked != self.value

    def on(self, hardware: str, *, cuda: bool) -> Precision:
        """Return this for a plan that is made for other hardware. A folder that has begun keeps its precision there."""
        begins = self.is_auto and self.began is None
        return replace(self, hardware=hardware, priced=precision_on(cuda=cuda) if begins else self.value)

    def caution(self) -> str | None:
        """Return what the user should know if the device would choose another precision than the folder has."""
        if not self.is_auto or self.value == self.on_device:
            return None
        return (
            f"precision: {self.folder} began with {self.value} and goes on with it; this device ({self.device}) would "
            f"choose {self.on_device}; give another folder with --results for that, or write `precision: "
            f"{self.on_device}` to train all trials of this one again"
        )

    def line(self) -> str | None:
        """Return where the precision comes from, or None if the sweep names it."""
        if not self.is_auto:
            return None
        source = f"with which {self.folder} began" if self.began else f"chosen by this device ({self.device})"
        text = f"precision: auto is {self.value}, {source}; it is part of the trials' ids"
        if self.hardware is None:
            return text
        if self.priced == self.value:
            return f"{text}; on {self.hardware} it is {self.priced}, too"
        return (
            f"{text}. On {self.hardware} it is {self.priced}: the hours and the memory are for that, and a run there "
            "gives the trials other ids than a run here, whose trials are counted and listed"
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How a stack computes the batch of each of its trials."""

    tokens: int
    piece_tokens: int
    lanes: int
    micro_batch_tokens: int  # computed at once
    recompute: bool  # whether the backward pass computes each block again
    ranks: int = 1  # the processes that share a stack
    counts_first: bool = False  # whether a forward pass counts the loads of the whole batch first

    @property
    def work(self) -> float:
        """The FLOPs relative to one forward and one backward pass, which is twice a forward pass."""
        return 1 + (self.recompute + self.counts_first) / 3

    def line(self, reads: str) -> str | None:
        """Return in words what is out of the ordinary in a batch of what the models read, or None."""
        parts = []
        if self.piece_tokens < self.tokens:
            lanes = f" in {self.lanes} lanes" if self.lanes > 1 else ""
            parts.append(f"{self.tokens // self.piece_tokens} pieces of {self.piece_tokens:,} {reads}{lanes}")
            parts.append(f"{self.micro_batch_tokens:,} {reads} at once")
        if self.ranks > 1:
            each = self.lanes // self.ranks
            parts.append(f"{self.ranks} ranks with {each} lane{'s' if each > 1 else ''} each")
        if self.recompute:
            parts.append("blocks computed again in the backward pass (a third more FLOPs)")
        if self.counts_first:
            parts.append("a forward pass first counts the loads of the whole batch (a third more FLOPs)")
        return ", ".join(parts) or None


@dataclass(frozen=True, kw_only=True)
class ShapePlan:
    """The trials of one shape."""

    shape: Shape
    num_trials: int
    num_done: int
    num_stacks: int  # of the missing trials
    stack_size: int  # trials of the largest of these stacks; of a full stack if no trial is missing
    stack_bytes: int  # the memory that this stack needs, as estimated or as measured
    gpu_share: float  # the share of a GPU that this stack has, or the number of its GPUs; 0 on a CPU
    params_total: int
    params_active: int
    tokens: int  # of the missing trials, as is the next field
    flops: float
    trial_s: float  # worker seconds of one trial; NaN if nothing says it, as of a user's own trainer
    is_measured: bool  # whether they were measured on stored trials
    batch: Batch
    trial_kept_bytes: int = 0  # of the weights of one trial that stay in the results folder
    memory_parts: Mapping[str, int] = field(default_factory=dict)  # part -> bytes of the stack's tensors at their peak

    @property
    def worker_s(self) -> float:
        """Worker seconds of the missing trials."""
        left = self.num_trials - self.num_done
        return self.trial_s * left if left else 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep will run. Tokens, FLOPs, seconds, hours and price are those of the missing trials."""

    sweep: str
    shapes: tuple[ShapePlan, ...]
    workers: int
    rate_from: str  # where the rate of the time estimate comes from
    reads: str = "tokens"  # what the models read, of which `tokens` are so many
    device: Device = CPU
    fills_gpus: bool = False  # whether each GPU holds as many stacks as fit; each of `workers` then stands for a GPU
    hardware: str = "cpu"
    measured_over_rate: float | None = None  # median over shapes of measured time / estimated time
    at_most: bool = False  # an adaptive search may end with fewer trials
    search: str = "grid"
    budget: str = ""  # what every arm may have, in words
    price_per_hour: float | None = None  # of one GPU, or of one CPU worker
    cautions: tuple[str, ...] = ()  # what makes a result mean less than it seems, one line each
    precision: str = "float32"  # of the computation that time and memory are estimated for
    chosen: Precision | None = None  # where the precision comes from
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # subject of the sweep file -> what follows
    outlook: Outlook | None = None  # of the verdict; None if no HP is judged or all trials are done
    unfit: tuple[str, ...] = ()  # the shapes of which not even one trial fits into memory, one line each

    @property
    def num_trials(self) -> int:
        return sum(row.num_trials for row in self.shapes)

    @property
    def num_done(self) -> int:
        return sum(row.num_done for row in self.shapes)

    @property
    def num_left(self) -> int:
        return self.num_trials - self.num_done

    @property
    def num_stacks(self) -> int:
        return sum(row.num_stacks for row in self.shapes)

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.shapes)

    @property
    def flops(self) -> float:
        return sum(row.flops for row in self.shapes)

    @property
    def wall_s(self) -> float:
        """Seconds until the last trial ends. Workers share the stacks, but no stack is split."""
        if math.isnan(self.worker_hours):
            return math.nan
        longest = max((row.worker_s / row.num_stacks for row in self.shapes if row.num_stacks), default=0.0)
        busy = sum(row.worker_s * (row.gpu_share if self.fills_gpus else 1.0) for row in self.shapes)
        return max(longest, busy / self.workers)

    @property
    def worker_hours(self) -> float:
        return sum(row.worker_s for row in self.shapes) / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of whole GPUs: a stack with half of one counts half. 0 on a CPU."""
        return sum(row.worker_s * row.gpu_share for row in self.shapes if row.gpu_share) / 3600

    @property
    def price(self) -> float | None:
        """GPU-hours (on a CPU worker hours) times the price of one. None without a price."""
        hours = self.gpu_hours if self.device.cuda else self.worker_hours
        return None if self.price_per_hour is None else self.price_per_hour * hours

    @property
    def stack_bytes(self) -> int:
        """Memory of the largest stack."""
        return max((row.stack_bytes for row in self.shapes if row.num_stacks), default=0)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the weights that the missing trials leave in the results folder."""
        return sum(row.trial_kept_bytes * (row.num_trials - row.num_done) for row in self.shapes)

    @property
    def knows_models(self) -> bool:
        """Whether parameters, FLOPs and memory are known: not of a user's own trainer."""
        return not any(row.shape.own for row in self.shapes)

    def label(self, shape: Shape) -> str:
        """Return a shape's name, with its batch and steps if the shapes differ in them."""
        return shape.label(schedule=len({(row.shape.batch_tokens, row.shape.steps) for row in self.shapes}) > 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data. Units end the names. What is not known is None."""
        data = {
            **{name: getattr(self, name) for name in _NUMBERS},
            "device": asdict(self.device),
            "precision": self.precision,
            "precision_from": None if self.chosen is None else asdict(self.chosen),
            "rate_from": self.rate_from,
            "measured_over_rate": self.measured_over_rate,
            **self.notes,
            "outlook": None if self.outlook is None else {**asdict(self.outlook), "text": self.outlook.line()},
            "cautions": self.cautions,
            "unfit": self.unfit,
            "shapes": [{**asdict(row), "worker_s": row.worker_s, "shape": row.shape.dims()} for row in self.shapes],
        }
        out: dict[str, Any] = json_ready(data)
        return out


_NUMBERS = (
    *("sweep", "search", "budget", "at_most", "num_trials", "num_done", "num_left", "num_stacks", "tokens", "flops"),
    *("stack_bytes", "kept_bytes", "wall_s", "workers", "worker_hours", "gpu_hours", "price_per_hour", "price"),
    "hardware",
)


def data_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Return the training data of each shape that has its own, then that of all others; nothing if none has.

    E.g. `w32 d2 E16A4 h32 b256 t160: text:more.txt`.
    """
    own = own_data(spec)
    names = {point.shape: axis.label(point.shape) for axis in axes_of(spec) for point in axis.points}
    lines = [f"{names[shape]}: {data.source}" for shape, data in own.items() if shape in names]
    return (*lines, f"all other shapes: {spec.data.source}") if lines else ()
