"""What the rows of a table imply for the built-in GPT along a path, by the general scaling argument.

Each size is a power of the path's scale, and this module computes the exponents from the monomials of the rows alone:

    init             W_0 x                    forward * init_std * sqrt(fan-in) * |x|         random weights add up
    weight change    W_1 - W_0                Adam: LR                  SGD: LR * |gradient|
    decay            by weight decay          LR * weight decay
    effective        (W_t - W_0) x            forward * |weight change| * fan-in * |x|        an update aligns with x
    gradient         dL/dW = delta x^T        |delta| * |x|, and delta passes through W_0^T as a random vector does

(arXiv 2203.03466, section J; MSSP, section 4.) The argument needs sizes with one leading part. Where two parts scale
differently, or where features grow out of the range in which updates add up, nothing is derived, and the reason is
kept. The exponents hold before training and for the first update: later ones depend on all that has moved before. This
module knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.optimizer_rules import DECAY, SPARSE, TIED
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.sizes import SAME, ZERO, Size, grows, largest, led_by, power_of, product, sum_of
from hpxfer.scaling.claims import GRADIENT_OVER_EPS
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.table import Column, Row

SOURCE = "the table's own rows"
# Reasons why nothing is derived.
NOT_HOMOGENEOUS = "the nonlinearity takes an input that grows or vanishes, so no power law is derived"
SATURATED = "the attention's logits grow, so its softmax saturates and no power law is derived"
INPUT_MOVES = "the features that this reads change by a growing part of their size, so updates no longer add up"
TWO_STARTS = "embeddings and positions scale differently, so no power law is derived"
BRANCHES_LEAD = "the branches outgrow the embedding, so the stream is a sum of parts with different powers"
READERS = "the maps that read this scale differently, so no power law is derived"
PARTS = "routed and shared experts scale differently, so no power law is derived"
SINGLE_DRAW = "all experts start from one draw, so this is a single random number at first"
LOGITS = "the logits grow, so the gates or the loss saturate and no power law is derived"
GATE = "no power law is derived for this gate"
BIASES = "no rule is derived for biases"
DECAYS = "no gradient reaches this at first, and weight decay moves it"
FOLLOWS = "it follows from all that has moved before, of which the rows alone imply no power law"

LOOKUPS = ("embedding", "position")
ATTENTION = ("attn_q", "attn_k", "attn_v")
# Roles that multiply nothing: what they learn shows in the size of their update alone.
NO_MAPS = ("norm", "final_norm", "embedding", "position", "hidden_bias")
# The reason for every quantity and step of which `derive` predicts nothing.
NOT_DERIVED = tuple(
    Prediction(quantity=quantity, role=role, exponent=None, source=FOLLOWS)
    for role in (*ROLES, "stream", "gates", "moe", "dense")
    for quantity in (
        *("activation", "change", "effective", "propagating", "gradient", "weight change"),
        *("aggregate init", "aggregate effective", "aggregate propagating", GRADIENT_OVER_EPS, DECAY),
    )
)


def derive(choice: Parameterization, optimizer: Column, facts: PathFacts) -> tuple[Prediction, ...]:
    """Return what the rows of a parameterization imply along a path. Without an exponent, `source` has the reason."""
    start = _Start(choice, {row.role: row for row in choice.rows(optimizer)}, facts)
    gradients = dict(start.gradients())
    update = _Update(start, {role: start.weight_change(role, size, optimizer) for role, size in gradients.items()})
    found = [_prediction("activation", role, size, last=0) for role, size in start.activations()]
    found += [_prediction("gradient", role, size, last=0) for role, size in gradients.items()]
    found += [_prediction("weight change", role, size, first=1, last=1) for role, size in update.changes.items()]
    found += [_prediction("effective", role, size, first=1, last=1) for role, size in update.effective()]
    found += [_prediction("change", role, update.changes[role], first=1, last=1) for role in LOOKUPS]
    found += [
        _prediction(GRADIENT_OVER_EPS, role, start.over_eps(role, size), last=0) for role, size in gradients.items()
    ]
    found += [_prediction(DECAY, role, start.decay(role)) for role in start.rows]
    if facts.moe:
        found.append(_prediction("aggregate init", "expert_out", start.expert_sum(), last=0))
        found.append(_prediction("aggregate effective", "expert_out", update.expert_sum(), first=1, last=1))
    return tuple(found)


def _prediction(quantity: str, role: str, size: Size, *, first: int = 0, last: int | None = None) -> Prediction:
    if isinstance(size, str):  # the reason holds for every later step too
        return Prediction(quantity=quantity, role=role, exponent=None, source=size, first=first)
    zero = size == ZERO
    exponent = None if zero else round(size, 9) + 0.0  # no -0
    return Prediction(quantity=quantity, role=role, exponent=exponent, source=SOURCE, zero=zero, first=first, last=last)


@dataclass(frozen=True)
class _Start:
    """The sizes in the built-in GPT before training."""

    choice: Parameterization
    rows: Mapping[str, Row]
    facts: PathFacts

    def symbol(self, name: str, power: float = 1.0) -> float:
        """Return the exponent of a ratio, to a power."""
        return power * self.facts.symbols[name]

    def factor(self, role: str, name: str) -> Size:
        """Return the exponent of a factor of a role, e.g. its `lr`."""
        if role not in self.rows:
            return f"the table has no row for {role}"
        return self.facts.exponent(self.rows[role].monomials()[name])

    def forward(self, role: str) -> Size:
        """Return the forward multiplier on a role's output. That of the experts multiplies their sum instead."""
        return 0.0 if role == "expert_out" else self.factor(role, "forward")

    def fan_in(self, role: str) -> float:
        """Return the exponent of the number of inputs of a map."""
        return self.symbol(fan_in_dim(role)) + (self.symbol("shared") if role == "shared_out" else 0.0)

    def hidden(self, kind: str) -> Size:
        """Return the input of the output matrix of an FFN: what the nonlinearity makes of its input."""
        read = [f"{kind}_in", *([f"{kind}_gate"] if self.facts.gated else [])]
        for size in map(self._map, read):
            if isinstance(size, str):
                return size
            if abs(size) > SAME:
                return NOT_HOMOGENEOUS
        return 0.0

    def attended(self) -> Size:
        """Return the input of attn_out: an average of the values."""
        logits = product(self._map("attn_q"), self._map("attn_k"))
        if isinstance(logits, str):
            return logits
        return SATURATED if grows(logits) else self._map("attn_v")

    def gates(self) -> Size:
        """Return the gate of an active expert."""
        logits = self._map("router")
        if isinstance(logits, str):
            return logits
        if grows(logits) or self.facts.kappa_moves:
            return LOGITS if grows(logits) else SPARSE
        match self.facts.gate_sums_over:
            case None:
                return 0.0
            case "all":
                return self.facts.exponent(self.choice.table.route_scale) - self.symbol("experts")
            case "active":
                return self.facts.exponent(self.choice.table.route_scale) - self.symbol("active")
            case _:
                return GATE

    def expert_sum(self) -> Size:
        """Return the gated sum of the experts. Tied experts are equal, so that their outputs add up in step."""
        count = self.symbol("active", 1.0 if self.choice.table.tied_experts else 0.5)
        return product(self.factor("expert_out", "forward"), self.gates(), count, self._ffn_output("expert"))

    def stream(self) -> Size:
        """Return the stream: the embedding, and as many random branches as there are blocks."""
        ffns = (self.expert_sum() if kind == "expert" else self._ffn_output(kind) for kind in self.facts.ffns())
        branches = (self._map("attn_out", self.attended()), *ffns)
        blocks = self.symbol("depth", 0.5)
        return led_by(self._embedded(), *(product(blocks, branch) for branch in branches), why=BRANCHES_LEAD)

    def activations(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> output."""
        for role in LOOKUPS:
            yield role, self.factor(role, "init_std")
        yield "stream", self.stream()
        for role in ATTENTION:
            yield role, self._map(role)
        yield "attn_out", self._map("attn_out", self.attended())
        for kind in self.facts.ffns():
            yield f"{kind}_in", self._map(f"{kind}_in")
            yield f"{kind}_gate", self._map(f"{kind}_gate")
            yield f"{kind}_out", self._ffn_output(kind)
        if self.facts.moe:
            yield "router", self._map("router")
            yield "gates", self.gates()
            yield "moe", sum_of(PARTS, self.expert_sum(), self._ffn_output("shared") if self.facts.shared else ZERO)
        if self.facts.dense:
            yield "dense", self._ffn_output("dense")
        yield "final_norm", 0.0
        yield "readout", self._logits()

    def gradients(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> gradient of the loss by the weight."""
        delta = self._by_stream()
        read = dict(self._by_inputs(delta))
        yield from read.items()
        yield "attn_out", product(self.factor("attn_out", "forward"), delta, self.attended())
        for kind in self.facts.ffns():
            yield f"{kind}_out", product(self._by_ffn(kind, delta), self.hidden(kind))
        # What the maps pass back to the normed stream. Random vectors of the active experts add up.
        several = self.symbol("active", 0.5)
        passed = (
            product(self._back(role, size), several if role.startswith("expert") else 0.0)
            for role, size in read.items()
        )
        yield "norm", sum_of(READERS, *passed)
        yield "final_norm", product(delta, self.stream())
        yield "embedding", TIED if self.facts.tied_embeddings else delta
        yield "position", TIED if self.facts.tied_embeddings else delta
        if not self.facts.tied_embeddings:
            yield "readout", self.factor("readout", "forward")
        yield "hidden_bias", BIASES

    def over_eps(self, role: str, gradient: Size) -> Size:
        """Return the gradient in units of Adam's eps."""
        return product(gradient, power_of(self.factor(role, "eps"), -1))

    def decay(self, role: str) -> Size:
        """Return the share of a weight that weight decay takes in one step."""
        return product(self.factor(role, "lr"), self.factor(role, "weight_decay"))

    def weight_change(self, role: str, gradient: Size, optimizer: Column) -> Size:
        """Return W_1 - W_0. Adam's first step has the size of the LR, unless the gradient is an exact zero."""
        lr = self.factor(role, "lr")
        if lr == ZERO:
            return ZERO
        if gradient == ZERO:
            return DECAYS if self.facts.decays else ZERO
        return product(lr, gradient) if optimizer == "sgd" else lr

    def _map(self, role: str, x: Size = 0.0) -> Size:
        """Return W_0 x with the forward multiplier."""
        return product(self.forward(role), self.factor(role, "init_std"), self.fan_in(role) / 2, x)

    def _ffn_output(self, kind: str) -> Size:
        return self._map(f"{kind}_out", self.hidden(kind))

    def _embedded(self) -> Size:
        return sum_of(TWO_STARTS, self.factor("embedding", "init_std"), self.factor("position", "init_std"))

    def _logits(self) -> Size:
        """Return the logits. A tied readout applies the embedding's matrix with a multiplier of its own."""
        start = self.factor("embedding" if self.facts.tied_embeddings else "readout", "init_std")
        return product(self.forward("readout"), start, self.symbol("width", 0.5))

    def _back(self, role: str, delta: Size) -> Size:
        """Return W_0^T delta, without the forward multiplier."""
        outputs = 0.0 if role == "router" else self.symbol("width", 0.5)
        return product(self.factor(role, "init_std"), outputs, delta)

    def _by_stream(self) -> Size:
        """Return the gradient by the stream: that by the logits through the readout, divided by the stream's size."""
        logits = self._logits()
        if grows(logits):
            return LOGITS
        return product(logits, -self.symbol("width", 0.5), power_of(self.stream(), -1))

    def _by_ffn(self, kind: str, delta: Size) -> Size:
        """Return the gradient by the output of an FFN; of a single expert, for the routed ones."""
        passed = product(self.factor(f"{kind}_out", "forward"), delta)
        return product(passed, self.gates()) if kind == "expert" else passed

    def _by_inputs(self, delta: Size) -> Iterator[tuple[str, Size]]:
        """Yield role -> gradient, of the maps that read the normed stream. It is that by their output, as |x| is 1."""
        value = self._back("attn_out", product(self.factor("attn_out", "forward"), delta))
        yield "attn_v", value
        yield "attn_q", product(value, self._map("attn_v"), self._map("attn_k"))
        yield "attn_k", product(value, self._map("attn_v"), self._map("attn_q"))
        for kind in self.facts.ffns():
            hidden = product(self._back(f"{kind}_out", self._by_ffn(kind, delta)), power_of(self.hidden(kind), 0))
            yield f"{kind}_in", hidden
            if self.facts.gated:
                yield f"{kind}_gate", hidden
        if self.facts.moe:
            yield "router", self._by_router(delta)

    def _by_router(self, delta: Size) -> Size:
        """Return the gradient by the router's logits: the scalar product of an expert's output and delta."""
        if self.choice.table.tied_experts:
            return SINGLE_DRAW
        width = self.symbol("width", 0.5)
        return product(self.forward("router"), self._by_ffn("expert", delta), self._ffn_output("expert"), width)


@dataclass(frozen=True)
class _Update:
    """The sizes that the first update changes; `changes` is that of every role's weight."""

    start: _Start
    changes: Mapping[str, Size]

    def effective(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> (W_1 - W_0) x, of every map. Nothing is derived if its input changes by a growing part."""
        moves = grows(self._of_stream())
        for role in self.changes:
            if role not in NO_MAPS:
                yield role, INPUT_MOVES if moves else self._learned(role)

    def expert_sum(self) -> Size:
        """Return what the updates of the experts' output matrices add to the gated sum: equal signs add up."""
        return INPUT_MOVES if grows(self._of_stream()) else self._of_sum()

    def _learned(self, role: str) -> Size:
        facts, start = self.start.facts, self.start
        if facts.kappa_moves and (role == "router" or role.startswith("expert")):
            return SPARSE
        x: Size = 0.0
        if role == "attn_out":
            x = start.attended()
        elif role.endswith("_out"):
            x = start.hidden(role.removesuffix("_out"))
        return product(start.forward(role), self.changes[role], start.fan_in(role), x)

    def _of_sum(self) -> Size:
        start = self.start
        each = product(start.factor("expert_out", "forward"), start.gates(), self._learned("expert_out"))
        return product(start.symbol("active"), each)

    def _of_stream(self) -> Size:
        """Return by how much of its size the stream changes at least, or why this is not known."""
        branches = [self._learned("attn_out")]
        branches += [
            self._of_sum() if kind == "expert" else self._learned(f"{kind}_out") for kind in self.start.facts.ffns()
        ]
        depth = self.start.symbol("depth")
        change = largest(*(self.changes[role] for role in LOOKUPS), *(product(depth, branch) for branch in branches))
        return product(change, power_of(self.start.stream(), -1))
