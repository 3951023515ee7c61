"""Setting: what fixes a trial's numbers beside its shape, HPs, seed and parameterization, and how a sweep gives it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.evaluate import BaseInit, Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import OWN
from hpxfer.spec import (
    AUTO,
    MLP,
    Balance,
    GPTModel,
    Loss,
    MLPModel,
    ModelBase,
    Norm,
    QKNorm,
    SweepSpec,
    TrainerSpec,
    UserModel,
    base_values,
    own_data,
    planned_at,
    schedule_at,
    ties_at,
)
from hpxfer.trial.identity import canonical, digest_of

_INIT = BaseInit()
_BALANCE = Balance()
_MLP = MLP()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What, beside shape, HPs, seed and parameterization, fixes a trial's numbers.

    All trials of a sweep share it, but for the batch and the steps, which are those of the trial's shape.

    A default is what an identity leaves out. It must never change, because every stored id relies on it: give a new
    option the default that stands for what was trained before it existed, and keep it. The sweep file may have another.
    """

    family: str
    context: int
    gate: str = "sigmoid"
    balance: Balance = _BALANCE
    mlp: MLP = _MLP
    top_groups: int = 0
    route_scale: float = 1.0
    learned_router_bias: bool = False
    shared_expert_gate: bool = False
    ffn: str = "gelu"  # experts, shared experts and dense FFNs alike
    moe_every: int = 1
    dense_first: int = 0
    attention_scale: str = "1/d_head"
    qkv_biases: bool = False
    attention_gate: bool = False
    positions: str = "learned"
    rope_theta: float = 10_000.0
    rope_share: float = 1.0
    tied_embeddings: bool = True
    norm: Norm = "layernorm"
    norm_eps: float = 1e-5
    qk_norm: QKNorm = "none"
    qk_norm_kind: Norm = "rmsnorm"
    norm_gains: bool = True
    biases: bool = False
    init: BaseInit = _INIT
    init_draw: str = "generator"
    data_source: str  # where this machine finds the data; the digest stands for it in the id
    data_digest: str
    tokenizer: str
    vocab_size: int
    batch_tokens: int
    steps: int
    optimizer: str = "adamw"
    decay: str = "constant"
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.0
    final_window_steps: int
    validation_tokens: int
    gradient_clip: float | None = None
    precision: str = "float32"
    ties: str = "index"
    accumulation_tokens: int | None = None  # or samples, of a piece; None: the batch is one piece
    accumulation_lanes: int = 1
    validation_source: str | None = None  # where this machine finds it; None: the end of the data
    validation_digest: str | None = None
    epochs: int = 1  # a limit
    document_eos: int | None = None  # the id after which attention and positions start again; None: they do not
    num_inputs: int = 0  # features of a sample; 0: the data are tokens
    num_targets: int = 0  # real targets of a sample; 0: its target is a class
    only_classes: tuple[int, ...] = ()  # the classes of the source that are read; none: all
    trainer: str = ""  # of a user's own trainer: what decides its numbers, as canonical JSON, see `trainer_identity`
    options: str = ""  # of a plug-in's family: the keys that only it has, as canonical JSON, see `own`

    def __post_init__(self) -> None:
        if self.precision == AUTO:
            raise HpxferError(
                "precision: must be float32 or bfloat16 before trials are made, got auto; `hpxfer run` and "
                "`hpxfer.run` decide it from the device that will train"
            )

    @property
    def own(self) -> dict[str, Any]:
        """The keys of the section `model` that only the family of a plug-in has."""
        return dict(json.loads(self.options or "{}"))

    @property
    def loss(self) -> Loss:
        """What the loss of a token or a sample is."""
        loss: Loss = self.own.get("loss", self.mlp.loss)
        return loss

    @property
    def column(self) -> Column:
        """The optimizer's column in a table."""
        column: Column = rows_of("optimizer").get(self.optimizer).column
        return column

    @property
    def piece_tokens(self) -> int:
        """The tokens of a piece of the batch. The gradient of a batch is defined as the sum of its pieces' gradients:
        in order within a lane, then the lanes in order.
        """
        return self.accumulation_tokens or self.batch_tokens

    @property
    def num_pieces(self) -> int:
        return self.batch_tokens // self.piece_tokens

    @property
    def pieces_per_lane(self) -> int:
        return self.num_pieces // self.accumulation_lanes

    @property
    def of_stack(self) -> Setting:
        """This setting without what may differ in a stack."""
        return self if self.ties == "index" else replace(self, ties="index")


@dataclass(frozen=True, kw_only=True)
class DataRef:
    """The data as a trial's identity sees it."""

    digest: str
    tokenizer: str
    vocab_size: int
    validation_digest: str | None = None  # of data of its own
    others: tuple[tuple[str, str], ...] = ()  # (source, digest) of the points with data of their own
    num_inputs: int = 0  # features of a sample; 0: the data are tokens
    num_targets: int = 0  # real targets of a sample; 0: its target is a class

    @property
    def digests(self) -> str:
        """All digests in words."""
        found = (self.digest, self.validation_digest, *(digest for _, digest in self.others))
        return " and ".join(digest for digest in found if digest is not None)


def setting_of(
    spec: SweepSpec, data: DataRef, shape: Shape | None = None, choice: Parameterization | None = None
) -> Setting:
    """Return the setting of a checked sweep's trials under `choice` at `shape`, by default the base shape.

    Without `choice`, ties are as they are under a table that says nothing about them. A field that is not derived has
    the value of the key of its name in the sweep file.
    """
    at = shape or spec.base_shape
    phases = planned_at(spec, at)
    planned = phases.schedule
    own = own_data(spec).get(at)
    decays = rows_of("schedule").get(planned.decay).decay is not None
    gates, gate, mlp = registry("gate"), spec.model.gate, spec.model.mlp
    sums_to_one = gate in gates and gates.get(gate).sums_to_one_over is not None
    piece = spec.training.piece
    derived = {
        "init": spec.model.base_init(data.num_inputs or None),
        "context": spec.model.context or 1,
        "mlp": _MLP if mlp is None else mlp.setting(sums_to_one),
        "options": _options(spec.model),
        "tied_embeddings": spec.model.tied_embeddings,
        "validation_tokens": spec.training.validation,
        "top_groups": spec.model.top_groups or 0,
        "balance": spec.model.balance,
        "ties": ties_at(spec, choice, at),
        "data_source": own.source if own else spec.data.source,
        "data_digest": dict(data.others).get(own.source, data.digest) if own else data.digest,
        "tokenizer": data.tokenizer,
        "vocab_size": data.vocab_size,
        "num_inputs": data.num_inputs,
        "num_targets": data.num_targets,
        "only_classes": spec.data.only or (),
        "trainer": trainer_text(spec, choice),
        "validation_source": spec.data.validation,
        "validation_digest": data.validation_digest,
        "epochs": spec.data.epochs,
        "document_eos": spec.data.eos_id if spec.data.documents == "masked" else None,
        "batch_tokens": at.batch_tokens,
        "steps": at.steps,
        # A whole batch in one piece has one identity, however the file says it.
        "accumulation_tokens": piece if piece is not None and piece < at.batch_tokens else None,
        **vars(schedule_at(spec, at, phases)),
        "final_fraction": planned.final_fraction if decays else 0.0,
    }
    keys: dict[str, Any] = {**vars(spec), **vars(planned), **vars(spec.training), **dict(spec.model), **derived}
    # What a family has no key for is at its default.
    return Setting(**{field.name: keys[field.name] for field in fields(Setting) if field.name in keys})


def _options(model: ModelBase) -> str:
    if isinstance(model, GPTModel | MLPModel | UserModel):
        return ""
    given = model.model_dump(mode="json", exclude_none=True)  # as a stored sweep has them
    own = {name: value for name, value in given.items() if name not in GPTModel.model_fields}
    return canonical(own) if own else ""


def trainer_text(spec: SweepSpec, choice: Parameterization | None) -> str:
    """Return the identity of a user's own trainer in an arm as canonical JSON, empty without such a trainer."""
    return "" if spec.trainer is None else canonical(trainer_identity(spec.trainer, choice))


def trainer_identity(trainer: TrainerSpec, choice: Parameterization | None) -> dict[str, Any]:
    """Return what decides the numbers of a user's own trainer: its entry, its code and its args.

    Time-outs, environment, folder and resources stay out.
    """
    arm = (trainer.arms or {}).get(choice.name.removeprefix(OWN)) if choice is not None and choice.is_own else None
    args = {**trainer.args, **(arm.args if arm is not None else {})}
    code = {"version": trainer.version, "files": trainer.digests, "args": args, "nan_exit": list(trainer.nan_exit)}
    out: dict[str, Any] = {**trainer.entry, **{name: value for name, value in code.items() if value}}
    loss = trainer.loss.model_dump(exclude_defaults=True)
    return {**out, "loss": loss} if loss else out


def trainer_code(trainer: TrainerSpec) -> str:
    """Return a hash of what decides the numbers of a user's own trainer in all of its arms."""
    arms = {name: arm.args for name, arm in (trainer.arms or {}).items()}
    return digest_of(canonical({"trainer": trainer_identity(trainer, None), "arms": arms}))


def base_hps(spec: SweepSpec) -> HPs:
    """Return the HPs that every line of the grid runs through."""
    values = base_values(spec)
    return HPs(lr=values["lr"] if "lr" in values else spec.grid["lr"].numbers()[0]).with_values(values)
