"""The section `resources` of a sweep file, key by key. The text below a field documents its key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hpxfer.spec.fields import Count, Matching, Registered, Section, Seq

Recompute = Literal["auto", "none", "blocks"]


def _auto(value: Any) -> Any:
    """Read `auto` as the default."""
    return None if value == "auto" else value


def _whole(value: float) -> float:
    """Refuse what is neither a share nor a whole number."""
    if value > 1 and value != int(value):
        raise ValueError("a share of a GPU up to 1, or a whole number of GPUs")
    return value


LEAST_SHARE = 1e-4  # of a CPU or a GPU. Ray counts both in ten-thousandths
MOST_GPUS = 4096
_Gpus = Annotated[float, Field(ge=LEAST_SHARE, le=MOST_GPUS), AfterValidator(_whole)]
_InSchema = (
    Annotated[float, Field(ge=LEAST_SHARE, le=1)] | Annotated[int, Field(ge=2, le=MOST_GPUS)] | Literal["auto"] | None
)
_GpuType = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        "at most 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
    ),
]
GpusOrAuto = Annotated[_Gpus | None, BeforeValidator(_auto, json_schema_input_type=_InSchema)]


class ResourcesSpec(Section):
    """Where and how wide to run. Never part of a trial's identity."""

    executor: Annotated[str, Registered("executor")] = "ray"
    """What runs the stacks: Ray, or processes of this machine without Ray."""
    workers: Count | None = None
    """The worker processes. The default is as many as there is room for: one per core, or one per GPU share."""
    stack_size: Count | None = None
    """The trials per stack. The planner chooses by default. A size that does not fit into memory is cut."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where a worker trains."""
    kernels: Literal["auto", "torch", "triton"] = "auto"
    """The kernels. auto is triton on CUDA and torch elsewhere. On CUDA, torch is a debugging aid: slow, never measured,
    and only with `determinism: fast`."""
    cpus_per_stack: Annotated[float, Field(ge=LEAST_SHARE, le=4096)] = 1.0
    """The CPUs that Ray sets aside per stack, or per rank of a stack of several ranks. Of your own trainer: per node of
    a trial."""
    gpus_per_stack: GpusOrAuto = None
    """The share of a GPU per stack, or a whole number of GPUs. auto is the smallest of 1/8, 1/4, 1/2 and 1 that holds
    the stack's memory and tokens per step.

    Of several GPUs each has a process of its own, a rank, and as many of the `training.accumulation_lanes` as the
    others. On CPUs there are as many ranks. The number changes no bit."""
    gpus_per_trial: Annotated[float, Field(ge=LEAST_SHARE, le=MOST_GPUS), AfterValidator(_whole)] | None = None
    """The GPUs of a trial of your own trainer: a share of one, or a whole number. None trains on CPUs."""
    gpus_per_node: Count | None = None
    """The GPUs of a trial on each node, if it has several nodes. They are there at once or not at all."""
    nodes_per_trial: Count | None = None
    """The nodes of a trial of your own trainer. The default is gpus_per_trial / gpus_per_node, or one."""
    micro_batch_tokens: Count | None = None
    """The most tokens of a trial that are computed at once: a multiple of accumulation_tokens. The planner chooses by
    default. It changes memory and speed, and no bit."""
    micro_batch_samples: Count | None = None
    """The most samples of a trial that are computed at once: a multiple of accumulation_samples."""
    recompute: Recompute = "auto"
    """What the backward pass computes again, and the forward pass does not keep: nothing, or the inside of each block.
    It changes memory and speed, and no bit. auto computes blocks again where a larger stack then fits, or any."""
    rank_timeout_s: Annotated[float, Field(gt=0, le=1e6)] = 900.0
    """How long a rank waits for the others of its stack. Then the stack counts as lost, and is trained again."""
    gpu_type: _GpuType | None = None
    """Ray's name of the accelerator, such as `H100`."""
    loggers: Seq[Annotated[str, Registered("logger")]] = ()
    """Where curves are shown while trials train: tensorboard, wandb and mlflow. Each is an extra of its name, such as
    `pip install 'hpxfer[tensorboard]'`."""
    checkpoint_s: Annotated[float, Field(ge=0, le=1e6)] = 120.0
    """The seconds between two checkpoints of a stack. 0 writes none."""
    keep: Literal["none", "last"] = "none"
    """Which weights stay in the results folder, for `hpxfer weights`: those of every trial after its
    `last` step, or none."""
    curves: Literal["all", "none"] = "all"
    """Whether the results folder gets the curves of trials. `none` stores HPs and final numbers alone, about 120 bytes
    per trial. Reports then have no figures over training. Loggers show curves as ever."""

    @property
    def micro_batch(self) -> int | None:
        """The most tokens or samples of a trial that are computed at once. None leaves it to the planner."""
        return self.micro_batch_tokens or self.micro_batch_samples

    @property
    def ranks(self) -> int:
        """The workers of a stack: the processes that train it together, or of a user's own trainer the nodes."""
        return self.nodes if self.nodes > 1 else max(1, int(self.gpus_per_stack or 1))

    @property
    def nodes(self) -> int:
        """The nodes of a trial of a user's own trainer."""
        of_gpus = int((self.gpus_per_trial or 0) // self.gpus_per_node) if self.gpus_per_node else 1
        return self.nodes_per_trial or max(1, of_gpus)

    @property
    def gpus_on_node(self) -> float:
        """The GPUs that a trial of a user's own trainer has on each of its nodes."""
        return (self.gpus_per_trial or 0.0) / self.nodes

    @property
    def gpu_share(self) -> float | None:
        """The share of a GPU that a stack has, or each of its ranks. None leaves it to the planner."""
        asked = self.gpus_per_stack or self.gpus_per_trial
        return None if asked is None else min(1.0, asked)
