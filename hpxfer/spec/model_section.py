"""The section `model` of a sweep file, of which each family has a class. The text below a field documents its key.

A family has only its own keys, so a key of another family is an unknown key. Its row in `hpxfer.model.families` names
the class of its section.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from hpxfer.scaling.evaluate import BaseInit
from hpxfer.scaling.shape import MAX_DEPTH, Shape, heads_of
from hpxfer.spec import presets
from hpxfer.spec.fields import WHOLE, Count, CountOrNone, NotNegative, OfFamily, Positive, Registered, Section
from hpxfer.spec.own import OwnDims, own_shape

BiasRule = Literal["proportional", "sign", "none"]
BalanceLoss = Literal["none", "switch", "sequence", "transformers"]
LoadOf = Literal["batch", "last_step", "piece"]
Activation = Literal["linear", "relu", "gelu", "tanh"]
Aggregation = Literal["1/K", "1/M", "none"]
RouterBias = Literal["none", "fixed", "schedule", "learned", "learned_sgd"]
SampleLoss = Literal["cross_entropy", "squared_error"]
Loss = Literal["cross_entropy", "squared_error", "velocity"]

LEARNED: tuple[RouterBias, ...] = ("learned", "learned_sgd")
TOP = 5  # classes, of the top-5 error


@dataclass(frozen=True, kw_only=True)
class MLP:
    """What a trial's setting says of the model. A default is what an identity leaves out, so it must never change."""

    input_activation: Activation = "gelu"
    activation: Activation = "gelu"
    expert_matrices: int = 2
    residual: bool = False
    aggregation: Aggregation = "1/K"
    inverse_temperature: float = 1.0
    router_bias: RouterBias = "none"
    router_bias_std: float = 1.0
    tied_experts: bool = False
    loss: SampleLoss = "cross_entropy"

    @property
    def learned_bias_std(self) -> float | None:
        """The std at which a router's bias starts that the optimizer trains; None without such a bias."""
        return self.router_bias_std if self.router_bias in LEARNED else None


def num_outputs(loss: SampleLoss, classes: int, targets: int) -> int:
    """Return the outputs of a model: real targets, one for two classes under a squared error, or one per class."""
    if targets:
        return targets
    return 1 if loss == "squared_error" and classes == 2 else classes


def guess_loss(loss: Loss, classes: int) -> float:
    """Return the loss of a model that has learned nothing: ln C, or the squared error of outputs that are all zero.

    The squared error of a class is 1. That of real targets is 1 where these have mean square 1. Where samples have it,
    their velocity from noise has mean square 2.
    """
    return math.log(classes) if loss == "cross_entropy" else 2.0 if loss == "velocity" else 1.0


def has_top5(classes: int) -> bool:
    """Return whether a top-5 error says anything: with at most 5 classes it is always zero."""
    return classes > TOP


Norm = Literal["layernorm", "rmsnorm"]
QKNorm = Literal["none", "head", "all"]
Ties = Literal["index", "random", "fixed_bias"]
Ratio = Annotated[float, Field(gt=0, le=1e6)]  # a hidden size in units of the width
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH), WHOLE]


def _ties(value: Any) -> Any:
    """Refuse what is no value of `ties`, with one message for both of its forms."""
    given = value.values() if isinstance(value, dict) else [value]
    if value is None or (given and all(one in get_args(Ties) for one in given)):
        return value
    raise ValueError(f"{', '.join(get_args(Ties))}, or a mapping of tables to one of them")


TiesOfTables = Annotated[Ties | dict[str, Ties], BeforeValidator(_ties, json_schema_input_type=Ties | dict[str, Ties])]


class MLPShape(Section):
    """The base shape, at which the HPs are tuned. A hidden size is a ratio to the width or a width."""

    width: Count
    """The model's width, n_embd."""
    depth: Depth
    """The number of blocks."""
    num_experts: Count | None = None
    """Routed experts per MoE layer. Leave all keys of experts out for a dense model of the family `gpt`."""
    num_active: Count | None = None
    """Routed experts per token. kappa is num_active / num_experts."""
    expert_ratio: Ratio | None = None
    """The hidden size of an expert, in units of the width. Give this or expert_width."""
    expert_width: Count | None = None
    """The hidden size of an expert."""

    def shape(self) -> Shape:
        """Return the shape without batch and steps. `checks` refuses what the file leaves out or gives twice."""
        given = vars(self)

        def size(kind: str) -> int:
            return given.get(f"{kind}_width") or round((given.get(f"{kind}_ratio") or 0.0) * self.width)

        head_dim = given.get("head_dim") or 0
        return Shape(
            width=self.width,
            depth=self.depth,
            num_experts=self.num_experts or 0,
            num_active=self.num_active or 0,
            expert_width=size("expert"),
            head_dim=head_dim,
            **heads_of(self.width, head_dim, given.get("num_heads"), given.get("kv_heads")),
            num_shared=given.get("num_shared", 0),
            shared_width=size("shared"),
            num_groups=given.get("num_groups", 1),
            dense_width=size("dense"),
        )


class ShapeSpec(MLPShape):
    """The base shape, at which the HPs are tuned.

    Without num_experts, num_active and an expert size the model is dense. A hidden size is given once: as a ratio to
    the width or as a width.
    """

    head_dim: Count
    """The size of an attention head. The width is a multiple of it."""
    num_heads: Count | None = None
    """Attention heads. The default is width / head_dim. heads * head_dim may differ from the width."""
    kv_heads: Count | None = None
    """Heads of keys and values. Each serves a group of num_heads / kv_heads heads. The default is num_heads."""
    num_shared: CountOrNone = 0
    """Shared experts per MoE layer. Every token uses them."""
    shared_ratio: Ratio | None = None
    """The hidden size of one shared expert, in units of the width. Goes with num_shared."""
    shared_width: Count | None = None
    """The hidden size of one shared expert. Goes with num_shared."""
    num_groups: Count = 1
    """The groups that the experts are split into. The router chooses within each group."""
    dense_ratio: Ratio | None = None
    """The hidden size of a dense FFN, in units of the width. Given exactly where some block has a dense FFN."""
    dense_width: Count | None = None
    """The hidden size of a dense FFN. Given exactly where some block has a dense FFN."""


class FFNShape(MLPShape):
    """The base shape of a family without attention whose blocks have a dense FFN, or experts, or either."""

    dense_ratio: Ratio | None = None
    """The hidden size of a dense FFN, in units of the width. Given exactly where some block has a dense FFN."""
    dense_width: Count | None = None
    """The hidden size of a dense FFN. Given exactly where some block has a dense FFN."""


class Balance(Section):
    """How the experts are kept equally busy. The numbers are HPs: router_bias_lr, aux_weight and z_weight."""

    bias: BiasRule = "proportional"
    """The rule that moves a bias by which experts are chosen: by router_bias_lr times kappa minus the load, or times
    the sign of that."""
    aux: BalanceLoss = "none"
    """The loss that is added with the weight aux_weight. `switch` (arXiv 2101.03961) and `sequence`, the same of every
    sequence by itself, are 1 at perfect balance. `transformers` is that library's: num_active at balance, with all
    layers counted together."""
    load: LoadOf = "batch"
    """Whose loads the loss takes: those of the `batch`, of the `last_step`, or of each `piece` of the batch."""

    @property
    def is_of_batch(self) -> bool:
        """Whether the loss reads the loads of the whole batch, which no piece of it knows."""
        return self.load == "batch" and self.aux in ("switch", "transformers")

    def text(self, spell: Callable[[str], str]) -> str:
        """Return in words what balances the experts. `spell` spells the value of an HP."""
        found = []
        if self.bias != "none":
            found.append(f"a bias by the {self.bias} rule, router_bias_lr {spell('router_bias_lr')}")
        if self.aux != "none":
            loads = "" if self.aux == "sequence" else f" over the loads of the {self.load.replace('_', ' ')}"
            found.append(f"the {self.aux} loss{loads}, aux_weight {spell('aux_weight')}")
        return " and ".join(found) or "nothing balances the experts"


AttentionScale = Literal["1/d_head", "1/sqrt(d_head)"]


class MLPSpec(Section):
    """The options of the family `mlp`: an input layer, `depth` MoE blocks and a readout."""

    input_activation: Activation = "gelu"
    """The function of the input layer's features. The router and the experts read what it gives."""
    activation: Activation = "gelu"
    """The function of an expert: of its hidden features or, of an expert with one matrix, of its outputs."""
    expert_matrices: Literal[1, 2] = 2
    """The matrices of an expert. An expert with one matrix has the width as its expert_width."""
    residual: bool = False
    """Whether a block adds its output to its input."""
    aggregation: Aggregation | None = None
    """The factor of the sum over the active experts. K are the active experts, M all of them. The default is 1/K, and
    none for a gate whose weights sum to one."""
    inverse_temperature: Positive = 1.0
    """The factor of the logits in front of the gate, after the router's bias."""
    router_bias: RouterBias = "none"
    """What is added to the router's logits. `fixed`: a random bias that is never trained. `schedule`: another one at
    every step (Why Routers Freeze, Algorithm 1). `learned`: a random bias that the optimizer trains. `learned_sgd`: one
    that plain SGD trains whatever the optimizer is. All have the same draws at every width."""
    router_bias_std: NotNegative = 1.0
    """The std of that bias. Goes with router_bias."""
    tied_experts: bool = False
    """Whether all experts of a block start from the same draw under every table, as they do under mssp-iii."""
    loss: SampleLoss = "cross_entropy"
    """The training loss of a sample: cross entropy in nats, or the sum over the outputs of the squared error. Targets
    of the squared error are 1 and 0 by class, and 1 and -1 of one output with two classes."""

    def setting(self, gate_sums_to_one: bool) -> MLP:
        return MLP(**{**vars(self), "aggregation": self.aggregation or ("none" if gate_sums_to_one else "1/K")})


# What code that serves all families reads of one that has no such key.
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("own", "dims", "mlp", "like", "context", "top_groups", "ties")),
    **dict.fromkeys(("learned_router_bias", "biases", "qkv_biases"), False),
    "balance": Balance(),
    "attention_scale": "1/d_head",
    "positions": "learned",
    "norm_gains": True,
    "ffn": "gelu",
    "route_scale": 1.0,
    "moe_every": 1,
    "dense_first": 0,
    "tied_embeddings": True,
    "loss": "cross_entropy",
}


class ModelBase(Section):
    """What every family reads."""

    family: str
    """The architecture."""
    gate: Annotated[str, Registered("gate")] = "sigmoid"
    """How router logits become the weights of the active experts."""

    _absent: ClassVar[dict[str, Any]] = _ABSENT

    def __getattr__(self, name: str) -> Any:
        if name not in self._absent:
            return super().__getattr__(name)  # type: ignore[misc]
        return (self.__pydantic_extra__ or {}).get(name, self._absent[name])

    def shape(self, batch: int, steps: int) -> Shape:
        """Return the base shape with its batch and steps."""
        raise NotImplementedError

    def base_init(self, inputs: int | None = None) -> BaseInit:
        """Return how the base model starts. `inputs` are the features of a sample."""
        raise NotImplementedError


class TrainedModel(ModelBase):
    """What a family of the built-in trainer reads. The section of a plug-in's family derives from it.

    A key of its own is part of the trials' identity. One of the name of a key of the family `gpt`, such as `context`,
    means the same.
    """

    _absent: ClassVar[dict[str, Any]] = {**_ABSENT, "tied_embeddings": False}

    base: MLPShape
    """The base shape."""
    balance: Balance = Balance()
    """How the experts are kept equally busy."""
    ties: TiesOfTables | None = None
    """Which of equal experts a router chooses: the lowest `index`; the first in a `random` order that the seed draws
    for every token and layer; or, with `fixed_bias`, the one of largest bias, after a random bias of std 0.02 that is
    never trained was added to the logits. One value, or one per table, such as `{mssp-i: random}`. The default is
    random under a table whose routers start at zero, and index under the others."""
    init: Literal["fan_in", "constant"] = "fan_in"
    """The init std of matrices at the base: 1/sqrt(fan-in), or the constant matrix_std."""
    matrix_std: Positive = 0.02
    """The init std of matrices at the base where init is `constant`."""
    init_draw: Literal["generator", "counter"] = "generator"
    """How the seed draws the initial parameters. `generator` draws them with torch's generator, on one thread of the
    CPU. `counter` computes them side by side where the trials train, with the same bits on a CPU and a GPU. Choose it
    where a GPU would wait for billions of numbers. It draws other numbers, and is part of the trials' ids."""

    def shape(self, batch: int, steps: int) -> Shape:
        return replace(self.base.shape(), batch_tokens=batch, steps=steps)

    def base_init(self, inputs: int | None = None) -> BaseInit:
        """Return how the base model starts.

        The fan-in of a layer that reads samples is no dimension of the shape, and `init_scale` multiplies all layers.
        """
        matrix_std = self.matrix_std if self.init == "constant" else BaseInit.matrix_std
        if inputs is None:
            return BaseInit(matrices=self.init, matrix_std=matrix_std)
        std = self.matrix_std if self.init == "constant" else inputs**-0.5
        return BaseInit(matrices=self.init, matrix_std=matrix_std, embedding_std=std, scale_of="all")

    @classmethod
    def base_class(cls) -> type[MLPShape]:
        """Return the class of the section `base`."""
        found = cls.model_fields["base"].annotation
        assert isinstance(found, type), "base must be annotated with a class"
        return found


class TransformerModel(TrainedModel):
    """What every family of transformers reads. Each block has attention and a MoE layer or a dense FFN."""

    base: ShapeSpec
    """The base shape."""
    route_scale: Positive = 1.0
    """A further factor on the weights of the routed experts."""
    top_groups: Count | None = None
    """The groups of experts that a token may use: those whose two best experts have the largest sum of score and bias.
    By default a token uses as many experts of each group."""
    learned_router_bias: bool = False
    """Whether the optimizer trains a bias that is added to the router's logits."""
    shared_expert_gate: bool = False
    """Whether each shared expert is multiplied by the sigmoid of a learned map of its input."""
    ffn: Literal["gelu", "relu", "swiglu"] = "gelu"
    """The form of experts, shared experts and dense FFNs alike."""
    moe_every: Count = 1
    """Above the first dense_first blocks every moe_every-th block has experts. The others have a dense FFN."""
    dense_first: CountOrNone = 0
    """The number of blocks at the bottom that have a dense FFN."""
    attention_scale: AttentionScale = "1/d_head"
    """The factor of the attention logits."""
    attention_gate: bool = False
    """Whether the output of attention is multiplied, feature by feature, by the sigmoid of a learned map of its input.
    """
    norm: Norm = "layernorm"
    """The norm before each branch and before the readout."""
    norm_eps: Positive = 1e-5
    """What every norm adds to the variance, or to the mean square, before the root."""
    qk_norm: QKNorm = "none"
    """Whether queries and keys are normed: each `head` by itself, or `all` heads at once."""
    qk_norm_kind: Norm = "rmsnorm"
    """The norm of queries and keys. Goes with qk_norm."""
    init_scale_of: Literal["matrices", "all"] = "matrices"
    """What `init_scale` multiplies: the init std of the matrices whose fan-in grows with a shape, or of `all`: of
    embeddings, positions and inputs too."""


class GPTModel(TransformerModel):
    """A decoder-only transformer with a norm before each branch. Each block has attention and a MoE layer or a dense
    FFN. An option that the source paper leaves at nanoGPT's value defaults to that value."""

    family: Literal["gpt"]
    """The architecture: a decoder-only transformer."""
    like: Annotated[str, AfterValidator(presets.known)] | None = None
    """A model that people pre-train: nanogpt, mixtral, qwen3-moe, olmoe or glm4-moe. It sets the options below as that
    model has them, where the file does not give them. `hpxfer plan` prints what it sets."""
    context: Count
    """Tokens per sequence."""
    qkv_biases: bool = False
    """Whether queries, keys and values have biases, where the other hidden matrices have none."""
    positions: Literal["learned", "rope", "none"] = "learned"
    """How attention knows positions: a learned embedding, rotated queries and keys (RoPE), or not at all."""
    rope_theta: Positive = 10_000.0
    """The base of the rotation's wavelengths. Goes with positions `rope`."""
    rope_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the features of each head that is rotated. Goes with positions `rope`."""
    tied_embeddings: bool = True
    """Whether the readout shares the matrix of the embedding."""
    norm_gains: bool = True
    """Whether a norm has a trained gain."""
    biases: bool = False
    """Whether the hidden matrices and layer norms have biases."""
    embedding_std: NotNegative = 0.02
    """The init std of the token embedding at the base."""
    position_std: NotNegative = 0.02
    """The init std of the position embedding at the base."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, given: Any) -> Any:
        return presets.resolved(given)

    def base_init(self, inputs: int | None = None) -> BaseInit:
        return replace(
            super().base_init(),
            embedding_std=self.embedding_std,
            position_std=self.position_std,
            scale_of=self.init_scale_of,
        )


class MLPModel(TrainedModel):
    """A mixture of MLPs that classifies samples, such as images."""

    family: Literal["mlp"]
    """The architecture: a mixture of MLPs."""
    balance: Balance = Balance(bias="none")
    """How the experts are kept equally busy."""
    tied_embeddings: Literal[False] = False
    """A sample has no embedding."""
    mlp: MLPSpec = MLPSpec()
    """The options of the family."""

    @property
    def loss(self) -> SampleLoss:
        """The training loss of a sample."""
        return self.mlp.loss


class UserModel(ModelBase):
    """Whatever your own `trainer` trains. It may say more for the recipe alone: gate and attention_scale."""

    family: Literal["user"]
    """The architecture, which is that of your own trainer."""
    own: OwnDims
    """The base shape in the words of your own trainer, such as `{d_model: 256, n_layer: 4}`."""
    dims: dict[str, CountOrNone | str] | None = None
    """What parameterizations read of that shape, by the names of `base`: `{width: d_model, depth: n_layer}`. A value is
    a key of `own`, or a number that no shape changes."""
    attention_scale: AttentionScale = "1/d_head"
    """The factor of the attention logits."""

    def shape(self, batch: int, steps: int) -> Shape:
        return own_shape(self.own, self.dims, batch=batch, steps=steps)

    def base_init(self, inputs: int | None = None) -> BaseInit:
        return BaseInit()


class _StoredShape(ShapeSpec):
    head_dim: CountOrNone = 0
    """0 where the family has no heads."""


class StoredModel(TrainedModel):
    """The model of a stored sweep, of a plug-in's family that is not loaded. Its keys are as that class wrote them."""

    model_config = ConfigDict(extra="allow")

    base: _StoredShape
    """The base shape."""


ModelSpec = Annotated[ModelBase, OfFamily(StoredModel)]
