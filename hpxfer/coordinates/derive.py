"""What the rows of a table imply for the built-in GPT along a path, by the general scaling argument.

Each size is a power of the path's scale, and this module computes the exponents from the monomials of the rows alone:

    init             W_0 x                    forward * init_std * sqrt(fan-in) * |x|         random weights add up
    weight change    W_1 - W_0                Adam: LR                  SGD: LR * |gradient|
    effective        (W_t - W_0) x            forward * |weight change| * fan-in * |x|        an update aligns with x
    gradient         dL/dW = delta x^T        |delta| * |x|, and delta passes through W_0^T as a random vector does

(arXiv 2203.03466, section J; MSSP, section 4.) The argument needs sizes with one leading part. Where two parts scale
differently, or where features grow out of the range in which updates add up, nothing is derived, and the reason is
kept. The exponents hold before training and for the first update: later ones depend on all that has moved before. This
module knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.predict import exponent_of
from hpxfer.scaling.coverage import sums_to_one_over
from hpxfer.scaling.evaluate import Parameterization, ratios
from hpxfer.scaling.monomial import Monomial
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Optimizer, Row

SAME = 1e-6
# What is measured: features, changes and gradients.
QUANTITIES = (
    *("activation", "change", "effective", "propagating", "gradient", "weight change"),
    *("aggregate init", "aggregate effective", "aggregate propagating"),
)
PARTS_OF_MODEL = (*ROLES, "stream", "gates", "moe", "dense")
SOURCE = "the table's own rows"
NOT_HOMOGENEOUS = "the nonlinearity takes an input that grows or vanishes, so no power law is derived"
SATURATED = "the attention's logits grow, so its softmax saturates and no power law is derived"
INPUT_MOVES = "the features that this reads change by a growing part of their size, so updates no longer add up"
TWO_STARTS = "embeddings and positions start at different powers, so no power law is derived"
BRANCHES_LEAD = "the branches outgrow the embedding, so the stream is a sum of parts with different powers"
READERS = "the maps that read this scale differently, so no power law is derived"
PARTS = "routed and shared experts scale differently, so no power law is derived"
SPARSE = "the share of active experts changes, and with it how much an expert learns from each batch"
SINGLE_DRAW = "all experts start from one draw, so this is a single random number at first"
LOGITS = "the logits grow, so the gates or the loss saturate and no power law is derived"
GATE = "no power law is derived for this gate"
TIED = "the embedding and the readout are one tensor, whose gradient has two parts"
BIASES = "no rule is derived for biases"
FOLLOWS = "it follows from all that has moved before, of which the rows alone imply no power law"
DECAYS = "no gradient reaches this at first, and weight decay moves it"

ATTENTION = ("attn_q", "attn_k", "attn_v")
ZERO = -math.inf  # the exponent of an exact zero

# The reason for every quantity and step that `derive` says nothing of.
NOT_DERIVED = tuple(
    Prediction(quantity=quantity, role=role, exponent=None, source=FOLLOWS)
    for role in PARTS_OF_MODEL
    for quantity in QUANTITIES
)

# The exponent of a size, or the reason why none is derived.
Size = float | str


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """What the derivation reads of a path and of the model beside the rows. Exponents are of the path's scale."""

    symbols: Mapping[str, float]  # ratio of a monomial, and `shared`, the number of shared experts -> its exponent
    kappa_moves: bool
    moe: bool
    dense: bool
    shared: bool
    gated: bool  # the FFNs are SwiGLU
    gate_sums_over: str | None  # what the gates sum to one over: `active`, `all`, None or `unknown`
    tied_embeddings: bool
    decays: bool  # the weight decay is not 0


def path_facts(
    base: Shape,
    path: Sequence[Shape],
    scales: Sequence[float],
    *,
    gate: str,
    gated: bool,
    tied_embeddings: bool,
    decays: bool,
) -> PathFacts:
    """Return the facts of a path of shapes at `scales`."""
    at = [ratios(base, shape) for shape in path]
    symbols = {name: exponent_of([point[name] for point in at], scales) for name in at[0]}
    symbols["shared"] = exponent_of([max(shape.num_shared, 1) for shape in path], scales)
    kappa = [point["active"] / point["experts"] for point in at]
    return PathFacts(
        symbols=symbols,
        kappa_moves=max(kappa) > (1 + SAME) * min(kappa),
        moe=path[0].num_experts > 0,
        dense=path[0].dense_width > 0,
        shared=path[0].num_shared > 0,
        gate_sums_over=sums_to_one_over(gate),
        gated=gated,
        tied_embeddings=tied_embeddings,
        decays=decays,
    )


def derive(choice: Parameterization, optimizer: Optimizer, facts: PathFacts) -> tuple[Prediction, ...]:
    """Return what the rows of a parameterization imply along a path; without an exponent, the reason why."""
    model = _Model(choice, {row.role: row for row in choice.rows(optimizer)}, facts)
    start, gradients = dict(model.activations()), dict(model.gradients())
    found = [_prediction("activation", role, size, last=0) for role, size in start.items()]
    if facts.moe:
        found.append(_prediction("aggregate init", "expert_out", model.expert_sum(), last=0))
    found += [_prediction("gradient", role, size, last=0) for role, size in gradients.items()]
    changes = {role: model.weight_change(role, size, optimizer) for role, size in gradients.items()}
    found += [_prediction("weight change", role, size, first=1, last=1) for role, size in changes.items()]
    embedding, learned = model.embedding_change(changes), model.effective(changes)
    found.append(_prediction("change", "embedding", embedding, first=1, last=1))
    moved = model.stream_change(learned, embedding)
    if not isinstance(moved, str) and moved > SAME:
        learned = dict.fromkeys(learned, INPUT_MOVES)
    found += [_prediction("effective", role, size, first=1, last=1) for role, size in learned.items()]
    if facts.moe:
        found.append(_prediction("aggregate effective", "expert_out", model.aggregate(learned), first=1, last=1))
    return tuple(found)


def _prediction(quantity: str, role: str, size: Size, *, first: int = 0, last: int | None = None) -> Prediction:
    if isinstance(size, str):  # the reason holds for every later step too
        return Prediction(quantity=quantity, role=role, exponent=None, source=size, first=first)
    zero = size == ZERO
    exponent = None if zero else round(size, 9) + 0.0  # no -0
    return Prediction(quantity=quantity, role=role, exponent=exponent, source=SOURCE, zero=zero, first=first, last=last)


def _product(*sizes: Size) -> Size:
    """Return the exponent of a product, or the first reason why a factor has no exponent."""
    for size in sizes:
        if isinstance(size, str):
            return size
    return ZERO if ZERO in sizes else math.fsum(size for size in sizes if not isinstance(size, str))


def _sum(why: str, *sizes: Size) -> Size:
    """Return the exponent of a sum whose parts scale alike, or `why` there is none."""
    total = _product(*(0.0 if size == ZERO else size for size in sizes))
    if isinstance(total, str):
        return total
    parts = [size for size in sizes if not isinstance(size, str) and size != ZERO]
    if not parts:
        return ZERO
    return parts[0] if max(parts) - min(parts) < SAME else why


def _led(why: str, leader: Size, *others: Size) -> Size:
    """Return the exponent of a sum that the leader dominates, or `why` there is none."""
    for size in (leader, *others):
        if isinstance(size, str):
            return size
    return leader if all(float(size) <= float(leader) + SAME for size in others) else why


@dataclass(frozen=True)
class _Model:
    """The sizes in the built-in GPT. `delta` is the gradient of the loss by what a map puts out."""

    choice: Parameterization
    rows: Mapping[str, Row]
    facts: PathFacts

    def _power(self, monomial: Monomial) -> float:
        if not monomial.coefficient:
            return ZERO
        return math.fsum(power * self.facts.symbols[name] for name, power in monomial.exponents)

    def _factor(self, role: str, name: str) -> Size:
        if role not in self.rows:
            return f"the table has no row for {role}"
        return self._power(getattr(self.rows[role], name))

    def _fan_in(self, role: str) -> float:
        shared = self.facts.symbols["shared"] if role == "shared_out" else 0.0
        return self.facts.symbols[fan_in_dim(role)] + shared

    def _fan_out(self, role: str) -> float:
        """Return the exponent of the number of outputs that a gradient by an input sums over."""
        return 0.0 if role in ("router", "readout") else self.facts.symbols["width"]

    def _at_start(self, role: str, x: Size = 0.0) -> Size:
        """Return W_0 x with the forward multiplier; that of the experts is applied to their sum alone."""
        forward = 0.0 if role == "expert_out" else self._factor(role, "forward")
        return _product(forward, self._factor(role, "init_std"), self._fan_in(role) / 2, x)

    def _back(self, role: str, delta: Size) -> Size:
        """Return W_0^T delta, without the forward multiplier."""
        return _product(self._factor(role, "init_std"), self._fan_out(role) / 2, delta)

    def _hidden(self, kind: str) -> Size:
        """Return what the output matrix of an FFN reads."""
        sizes = [self._at_start(f"{kind}_in"), *([self._at_start(f"{kind}_gate")] if self.facts.gated else [])]
        for size in sizes:
            if isinstance(size, str):
                return size
        return 0.0 if all(abs(float(size)) < SAME for size in sizes) else NOT_HOMOGENEOUS

    def _attended(self) -> Size:
        """Return the average of the values, which attn_out reads."""
        logits = _product(self._at_start("attn_q"), self._at_start("attn_k"))
        if not isinstance(logits, str) and logits > SAME:
            return SATURATED
        return logits if isinstance(logits, str) else self._at_start("attn_v")

    def _gates(self) -> Size:
        """Return the gate of an active expert before training."""
        logits = self._at_start("router")
        if isinstance(logits, str):
            return logits
        if logits > SAME:
            return LOGITS
        if self.facts.kappa_moves:
            return SPARSE
        scale = self._power(self.choice.table.route_scale)
        match self.facts.gate_sums_over:
            case None:
                return 0.0
            case "all":
                return scale - self.facts.symbols["experts"]
            case "active":
                return scale - self.facts.symbols["active"]
            case _:
                return GATE

    def expert_sum(self) -> Size:
        """Return the gated sum of the experts before training; tied experts are equal and add up in step."""
        count = self.facts.symbols["active"] * (1.0 if self.choice.table.tied_experts else 0.5)
        single = self._at_start("expert_out", self._hidden("expert"))
        return _product(self._factor("expert_out", "forward"), self._gates(), count, single)

    def _embedded(self) -> Size:
        return _sum(TWO_STARTS, self._factor("embedding", "init_std"), self._factor("position", "init_std"))

    def _ffn(self) -> Size:
        """Return what the FFNs add to the stream before training."""
        routed = self.expert_sum() if self.facts.moe else ZERO
        shared = self._at_start("shared_out", self._hidden("shared")) if self.facts.shared else ZERO
        dense = self._at_start("dense_out", self._hidden("dense")) if self.facts.dense else ZERO
        return _sum(PARTS, routed, shared, dense)

    def _stream(self) -> Size:
        """Return the stream before training: the embedding, and as many random branches as there are blocks."""
        blocks = self.facts.symbols["depth"] / 2
        branches = (_product(blocks, part) for part in (self._at_start("attn_out", self._attended()), self._ffn()))
        return _led(BRANCHES_LEAD, self._embedded(), *branches)

    def _readout_start(self) -> Size:
        if not self.facts.tied_embeddings:
            return self._at_start("readout")
        own = (self._factor("readout", "forward"), self._factor("embedding", "init_std"))
        return _product(*own, self.facts.symbols["width"] / 2)

    def activations(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> output before training."""
        yield "embedding", self._embedded()
        for role in ATTENTION:
            yield role, self._at_start(role)
        yield "attn_out", self._at_start("attn_out", self._attended())
        if self.facts.moe:
            yield "router", self._at_start("router")
            yield "gates", self._gates()
            yield "moe", _sum(PARTS, self.expert_sum(), self._shared_start())
        for kind in self._ffns():
            yield f"{kind}_in", self._at_start(f"{kind}_in")
            yield f"{kind}_gate", self._at_start(f"{kind}_gate")
            yield f"{kind}_out", self._at_start(f"{kind}_out", self._hidden(kind))
        if self.facts.dense:
            yield "dense", self._at_start("dense_out", self._hidden("dense"))
        yield "stream", self._stream()
        yield "final_norm", 0.0
        yield "readout", self._readout_start()

    def _shared_start(self) -> Size:
        return self._at_start("shared_out", self._hidden("shared")) if self.facts.shared else ZERO

    def _ffns(self) -> Iterator[str]:
        """Yield the kinds of FFN that the model has."""
        there = {"expert": self.facts.moe, "shared": self.facts.shared, "dense": self.facts.dense}
        yield from (kind for kind, is_there in there.items() if is_there)

    def _delta_stream(self) -> Size:
        """Return the gradient by the stream: through the readout, and over the stream's size, as the norms divide."""
        logits, stream = self._readout_start(), self._stream()
        if isinstance(logits, str) or isinstance(stream, str):
            return _product(logits, stream)
        if logits > SAME:
            return LOGITS
        return _product(logits - self.facts.symbols["width"] / 2, -stream)

    def gradients(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> gradient of the loss by the weight before training."""
        delta, attended = self._delta_stream(), self._attended()
        read_attention = self._back("attn_out", _product(self._factor("attn_out", "forward"), delta))
        by = {
            "attn_v": read_attention,
            "attn_q": _product(read_attention, self._at_start("attn_v"), self._at_start("attn_k")),
            "attn_k": _product(read_attention, self._at_start("attn_v"), self._at_start("attn_q")),
        }
        yield from by.items()
        yield "attn_out", _product(self._factor("attn_out", "forward"), delta, attended)
        for kind in self._ffns():
            upstream = _product(self._factor(f"{kind}_out", "forward"), delta)
            if kind == "expert":
                upstream = SPARSE if self.facts.kappa_moves else _product(upstream, self._gates())
                by["router"] = self._by_router(delta)
            hidden = self._back(f"{kind}_out", upstream)
            hidden = self._hidden(kind) if isinstance(self._hidden(kind), str) else hidden
            for role in (f"{kind}_in", *([f"{kind}_gate"] if self.facts.gated else [])):
                by[role] = hidden
                yield role, hidden
            yield f"{kind}_out", _product(upstream, self._hidden(kind))
        if self.facts.moe:
            yield "router", by["router"]
        # What a map passes back to what it reads; the sum over experts adds as many random vectors as are active.
        active = self.facts.symbols["active"] / 2
        parts = [
            _product(self._back(role, size), active if role.startswith("expert") else 0.0) for role, size in by.items()
        ]
        yield "norm", _sum(READERS, *parts)
        outer = TIED if self.facts.tied_embeddings else delta
        yield "embedding", outer
        yield "position", outer
        yield "final_norm", _product(delta, self._stream())
        if not self.facts.tied_embeddings:
            yield "readout", self._factor("readout", "forward")
        yield "hidden_bias", BIASES

    def _by_router(self, delta: Size) -> Size:
        """Return the gradient by the router's logits: an expert's random output against the gradient by the stream."""
        if self.facts.kappa_moves:
            return SPARSE
        if self.choice.table.tied_experts:
            return SINGLE_DRAW
        single = _product(self._factor("expert_out", "forward"), self._at_start("expert_out", self._hidden("expert")))
        own = self._factor("router", "forward")
        return _product(own, delta, single, self.facts.symbols["width"] / 2, self._gates())

    def weight_change(self, role: str, gradient: Size, optimizer: Optimizer) -> Size:
        """Return W_1 - W_0. Adam's first step has the size of the LR, unless the gradient is an exact zero."""
        lr = self._factor(role, "lr")
        if lr == ZERO:
            return ZERO
        if gradient == ZERO:
            return DECAYS if self.facts.decays else ZERO
        if optimizer == "sgd":
            return _product(lr, gradient)
        return lr

    def effective(self, changes: Mapping[str, Size]) -> dict[str, Size]:
        """Return role -> (W_t - W_0) x_t, of the maps whose input keeps its size."""
        out: dict[str, Size] = {}
        reads: dict[str, Size] = {"attn_out": self._attended()}
        reads.update({f"{kind}_out": self._hidden(kind) for kind in self._ffns()})
        for role, change in changes.items():
            if role in ("norm", "final_norm", "embedding", "position", "hidden_bias"):
                continue
            forward = 0.0 if role == "expert_out" else self._factor(role, "forward")
            out[role] = _product(forward, change, self._fan_in(role), reads.get(role, 0.0))
            if self.facts.kappa_moves and role in ("router", "expert_in", "expert_gate", "expert_out"):
                out[role] = SPARSE
        return out

    def embedding_change(self, changes: Mapping[str, Size]) -> Size:
        """Return how far the embeddings, tokens and positions together, move in the first update."""
        return _sum(TWO_STARTS, changes["embedding"], changes["position"])

    def aggregate(self, learned: Mapping[str, Size]) -> Size:
        """Return what the updates of the experts' output matrices add to the gated sum: equal signs add up."""
        single = learned.get("expert_out", ZERO)
        return _product(self._factor("expert_out", "forward"), self._gates(), self.facts.symbols["active"], single)

    def stream_change(self, learned: Mapping[str, Size], embedding: Size) -> Size:
        """Return by how much of its size the stream changes at least, or why this is not known."""
        branches = [learned["attn_out"]]
        branches += [learned[f"{kind}_out"] for kind in self._ffns() if kind != "expert"]
        branches += [self.aggregate(learned)] if self.facts.moe else []
        parts = [embedding, *(_product(self.facts.symbols["depth"], part) for part in branches)]
        for part in parts:
            if isinstance(part, str):
                return part
        return _product(max(part for part in parts if not isinstance(part, str)), _inverse(self._stream()))


def _inverse(size: Size) -> Size:
    return size if isinstance(size, str) else -size
