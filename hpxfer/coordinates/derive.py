"""What the rows of a table imply for a network along a path, by the general scaling argument.

Each size is a power of the path's scale, and this module computes the exponents from the monomials of the rows alone:

    init             W_0 x                    forward * init_std * sqrt(fan-in) * |x|         random weights add up
    weight change    W_1 - W_0                Adam: LR                  SGD: LR * |gradient|
                                              Muon: LR * s / sqrt(max(in, out)), if the gradient has full rank
    decay            by weight decay          LR * weight decay
    effective        (W_t - W_0) x            forward * |weight change| * fan-in * |x|        an update aligns with x
    gradient         dL/dW = delta x^T        |delta| * |x|, and delta passes through W_0^T as a random vector does

A conditioned network starts a condition from the data, as it does the stream. Features that a block reads of the normed
stream are multiplied by one plus a scale, and shifted; what its branches give is multiplied by a gate. All three are
outputs of maps that read the condition, so that one size, that of the modulations, stands for them.

Under Muon the effective update is forward * LR * s * sqrt(in / out) * |x|, as a semi-orthogonal matrix keeps the length
of inputs that align with it. Of a matrix with in > out an interval is derived: it makes less of isotropic tokens, by up
to sqrt(out / in). Output matrices are exempt: what they read aligns with their updates, as slopes along the width show,
from -0.06 to +0.06, although no norm holds the size of what they read. The size of an update is an interval too: a
batch of few tokens bounds the rank of the gradient, and with it the size of the entries.

(arXiv 2203.03466, section J; MSSP, section 4; for Muon 2310.17813.) The argument needs sizes with one leading part.
Where two parts scale differently, or where features grow out of the range in which updates add up, nothing is derived,
and the reason is kept. The exponents hold before training and for the first update: later ones depend on all that has
moved before. This module knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.networks import (
    ATTENDED,
    CONDITION,
    GATES,
    LAST,
    LAST_MODULATIONS,
    LOSS,
    MODULATIONS,
    SCORES,
    STREAM,
    TIME,
    VALUES,
    Map,
    Network,
    hidden,
)
from hpxfer.coordinates.optimizer_rules import DECAY, GRADIENT_OVER_EPS, SPARSE, TIED, of_muon
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.sizes import SAME, ZERO, Size, grows, largest, led_by, power_of, product, sum_of
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
STACKED = "no power law is derived for the gradient that enters the blocks of a stack without a residual"
BELOW_EPS = "the gradient falls beside Adam's eps, so that the update lies between two powers"
DECAYS = "no gradient reaches this at first, and weight decay moves it"
MODULATED = "shifts and scales grow, so that they outgrow the normed stream and no power law is derived"
BLOCKS_LEAD = "the gradients that the blocks give the condition outgrow that of the readout, so no power law is derived"
FOLLOWS = "it follows from all that has moved before, of which the rows alone imply no power law"

# What else is part of what a map reads, beside the stream. Of most maps these are the modulations of a block.
_BESIDE = {LAST: LAST_MODULATIONS, TIME: TIME, CONDITION: CONDITION}
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
    decays = [_prediction(DECAY, role, start.decay(role)) for role in start.rows]
    if not start.blocks_read_alike():
        return tuple(decays)
    gradients = dict(start.gradients())
    update = _Update(start, {role: start.weight_change(role, size, optimizer) for role, size in gradients.items()})
    found = [_prediction("activation", role, size, last=0) for role, size in start.activations()]
    found += [_prediction("gradient", role, size, last=0) for role, size in gradients.items()]
    learned = [("weight change", *item) for item in update.changes.items()]
    learned += [("effective", *item) for item in update.effective()]
    learned += [("effective0", *item) for item in update.of_first_inputs()]
    found += [of_muon(_prediction(*each, first=1, last=1), facts) for each in learned]
    found += [
        _prediction("propagating", each.role, ZERO) for each in facts.network.maps if start.weights(each.role) == ZERO
    ]
    found += [_prediction("change", role, update.changes[role], first=1, last=1) for role in facts.network.starts]
    found += [
        _prediction(GRADIENT_OVER_EPS, role, start.over_eps(role, size), last=0)
        for role, size in gradients.items()
        if role not in facts.muon
    ]
    found += decays
    if facts.network.has("expert"):
        found.append(_prediction("aggregate init", "expert_out", start.expert_sum(), last=0))
        found.append(_prediction("aggregate effective", "expert_out", update.expert_sum(), first=1, last=1))
    return tuple(found)


def fades(choice: Parameterization, optimizer: Column, facts: PathFacts) -> bool:
    """Return whether the gated sum of the experts starts by a part that vanishes."""
    size = _Start(choice, {row.role: row for row in choice.rows(optimizer)}, facts).expert_sum()
    return not isinstance(size, str) and size < -SAME


def _prediction(quantity: str, role: str, size: Size, *, first: int = 0, last: int | None = None) -> Prediction:
    if isinstance(size, str):  # the reason holds for every later step too
        return Prediction(quantity=quantity, role=role, exponent=None, source=size, first=first)
    zero = size == ZERO
    exponent = None if zero else round(size, 9) + 0.0  # no -0
    return Prediction(quantity=quantity, role=role, exponent=exponent, source=SOURCE, zero=zero, first=first, last=last)


@dataclass(frozen=True)
class _Start:
    """The sizes in a network before training."""

    choice: Parameterization
    rows: Mapping[str, Row]
    facts: PathFacts

    @property
    def network(self) -> Network:
        return self.facts.network

    def symbol(self, name: str, power: float = 1.0) -> float:
        """Return the exponent of a ratio, to a power."""
        return power * self.facts.symbols[name]

    def factor(self, role: str, name: str) -> Size:
        """Return the exponent of a factor of a role, e.g. its `lr`."""
        if role not in self.rows:
            return f"the table has no row for {role}"
        if name == "init_std" and role in self.facts.zeros:
            return ZERO
        return self.facts.factor(self.rows[role], name)

    def weights(self, role: str) -> Size:
        """Return the weights of a role. A tied readout applies the embedding's matrix."""
        return self.factor("embedding" if role == "readout" and self.facts.tied_embeddings else role, "init_std")

    def forward(self, role: str) -> Size:
        """Return the forward multiplier on a role's output. That of the experts multiplies their sum instead."""
        return 0.0 if role == "expert_out" else self.factor(role, "forward")

    def fan_in(self, role: str) -> float:
        """Return the exponent of the number of inputs of a map."""
        return self.symbol(fan_in_dim(role)) + self.summed(role)

    def summed(self, role: str) -> float:
        """Return the exponent of the number of a role's outputs that add up."""
        return self.symbol("shared") if role == "shared_out" else 0.0

    def feature(self, name: str) -> Size:
        """Return what a map reads."""
        if name in (STREAM, LAST) and not self.network.normed:
            return self._embedded() if name == STREAM else self.stream()
        if name in (STREAM, LAST):
            return led_by(0.0, self.modulations(MODULATIONS if name == STREAM else LAST_MODULATIONS), why=MODULATED)
        return self._attended() if name == ATTENDED else self._hidden(name)

    def modulations(self, name: str) -> Size:
        """Return the shifts, scales and gates; of order one in a network without."""
        return next(map(self.output, self.network.into(name)), 0.0)

    def blocks_read_alike(self) -> bool:
        """Return whether what every block of a stack reads has the size of what the first one reads."""
        if self.network.normed or not self.network.stacked:
            return True
        return not isinstance(sum_of(PARTS, self._embedded(), self.stream()), str)

    def output(self, each: Map) -> Size:
        """Return what a map gives: W_0 x with the forward multiplier."""
        if each.role == "readout":
            return self._logits()
        at = product(self.forward(each.role), self.factor(each.role, "init_std"), self.fan_in(each.role) / 2)
        return product(at, self.feature(each.reads))

    def gates(self) -> Size:
        """Return the gate of an active expert."""
        logits = self._of("router")
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
        return product(self.factor("expert_out", "forward"), self.gates(), count, self._of("expert_out"))

    def stream(self) -> Size:
        """Return the stream: the embedding, and as many random branches as there are blocks."""
        branches = [self._branch(each) for each in self.network.into(STREAM)]
        if not self.network.residual:
            return sum_of(PARTS, *branches)
        blocks = product(self.symbol("depth", 0.5), self.modulations(MODULATIONS))
        return led_by(self._embedded(), *(product(blocks, branch) for branch in branches), why=BRANCHES_LEAD)

    def activations(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> output."""
        for role in self.network.starts:
            yield role, self.factor(role, "init_std")
        yield "stream", self.stream()
        for each in self.network.maps:
            yield each.role, self.output(each)
        if self.network.has("expert"):
            yield "gates", self.gates()
            shared = self._of("shared_out") if self.network.has("shared") else ZERO
            yield "moe", sum_of(PARTS, self.expert_sum(), shared)
        if self.network.has("dense"):
            yield "dense", self._of("dense_out")
        yield "final_norm", self.feature(LAST) if self.network.normed else 0.0

    def gradients(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> gradient of the loss by the weight."""
        delta = self._by_stream()
        by_branch = product(delta, self.modulations(MODULATIONS))
        read = {each.role: self._by_output(each, by_branch) for each in self.network.maps if each.reads == STREAM}
        # What the maps pass back to what they read. Random vectors of the active experts add up.
        several = self.symbol("active", 0.5)
        passed = [
            product(self._back(role, size), several if role.startswith("expert") else 0.0)
            for role, size in read.items()
        ]
        read |= self._by_modulations(delta, passed)
        for each in self.network.maps:
            if each.role != "readout" or not self.facts.tied_embeddings:
                by_output = read[each.role] if each.role in read else self._by_output(each, by_branch)
                yield each.role, product(by_output, self.feature(each.reads))
        if self.network.normed:
            yield "norm", sum_of(READERS, *passed)
            yield "final_norm", product(delta, self.stream())
        first = delta if self.network.residual else sum_of(READERS, *passed)
        for role in self.network.lookups:
            yield role, TIED if self.facts.tied_embeddings else first
        for role, into in self.network.condition:
            yield role, read["time_out"] if into == CONDITION else self._back("time_out", read["time_out"])
        if self.network.condition:
            yield "final_bias", read["final_modulation"]
        yield "hidden_bias", ZERO if delta == ZERO else read.get("modulation", BIASES)

    def _by_modulations(self, delta: Size, passed: Sequence[Size]) -> dict[str, Size]:
        """Return the gradients by what the maps of a condition put out. `passed` are those by what the maps read.

        That of the gate of attention leads the parts of a block, as it needs no other weights than those of attention.
        Each block has a part in the gradient by the condition, and the readout has another.
        """
        if not self.network.condition:
            return {}
        gates = {each.role: product(delta, self._branch(each)) for each in self.network.into(STREAM)}
        by_block = led_by(gates.pop("attn_out"), *gates.values(), *passed, why=READERS)
        last = product(delta, self.stream())
        blocks = product(self.symbol("depth"), self._back("modulation", by_block))
        condition = led_by(self._back("final_modulation", last), blocks, why=BLOCKS_LEAD)
        return {"modulation": by_block, "final_modulation": last, "time_out": condition}

    def over_eps(self, role: str, gradient: Size) -> Size:
        """Return the gradient in units of Adam's eps."""
        return product(gradient, power_of(self.factor(role, "eps"), -1))

    def decay(self, role: str) -> Size:
        """Return the share of a weight that weight decay takes in one step."""
        return product(self.factor(role, "lr"), self.factor(role, "weight_decay"))

    def weight_change(self, role: str, gradient: Size, optimizer: Column) -> Size:
        """Return W_1 - W_0. Adam's first step has the size of the LR, unless the gradient is zero or below its eps.

        That of Muon is semi-orthogonal, however small the gradient is.
        """
        lr = self.factor(role, "lr")
        if lr == ZERO:
            return ZERO
        if gradient == ZERO:
            return DECAYS if self.facts.decays else ZERO
        if matrix := self.facts.muon.get(role):
            return product(lr, matrix.scale, matrix.entries)
        if optimizer == "sgd":
            return product(lr, gradient)
        if not self.network.large_eps:
            return lr
        share = self.over_eps(role, gradient)
        return share if isinstance(share, str) else BELOW_EPS if share < -SAME else lr

    def _of(self, role: str) -> Size:
        """Return the output of the map of a role."""
        return next(self.output(each) for each in self.network.maps if each.role == role)

    def _branch(self, each: Map) -> Size:
        return self.expert_sum() if each.role == "expert_out" else self.output(each)

    def _hidden(self, name: str) -> Size:
        """Return what a nonlinearity makes of its input: the input of the output matrix of an FFN, or a condition."""
        starts = (self.factor(role, "init_std") for role, into in self.network.condition if into == name)
        beside = (size for size in starts if size != ZERO)
        for size in (*beside, *map(self.output, self.network.into(name))):
            if isinstance(size, str):
                return size
            if abs(size) > SAME:
                return NOT_HOMOGENEOUS
        return 0.0

    def _attended(self) -> Size:
        """Return the input of attn_out: an average of the values."""
        logits = product(*map(self.output, self.network.into(SCORES)))
        if isinstance(logits, str):
            return logits
        return SATURATED if grows(logits) else self._of("attn_v")

    def _embedded(self) -> Size:
        fixed = (0.0,) if self.network.fixed_start else ()
        return sum_of(TWO_STARTS, *fixed, *(self.factor(role, "init_std") for role in self.network.lookups))

    def _readout(self) -> Size:
        """Return the weights of the readout, with the multiplier."""
        return product(self.forward("readout"), self.weights("readout"))

    def _logits(self) -> Size:
        return product(self._readout(), self.symbol("width", 0.5), self.feature(LAST))

    def _back(self, role: str, delta: Size) -> Size:
        """Return W_0^T delta, without the forward multiplier."""
        outputs = 0.0 if role == "router" else self.symbol("width", 0.5)
        return product(self.factor(role, "init_std"), outputs, delta)

    def _by_stream(self) -> Size:
        """Return the gradient by the stream: through the readout, and over the stream's size if that is normed."""
        if grows(self._logits()):
            return LOGITS
        normed = product(self.feature(LAST), power_of(self.stream(), -1)) if self.network.normed else 0.0
        delta = product(self._readout(), normed)
        return STACKED if self.network.stacked and not self.network.residual and delta != ZERO else delta

    def _by_ffn(self, kind: str, delta: Size) -> Size:
        """Return the gradient by the output of an FFN; of a single expert, for the routed ones."""
        passed = product(self.factor(f"{kind}_out", "forward"), delta)
        return product(passed, self.gates()) if kind == "expert" else passed

    def _by_output(self, each: Map, delta: Size) -> Size:
        """Return the gradient by what a map puts out before its forward multiplier, given that by the stream."""
        if each.role == "attn_out":
            return product(self.factor("attn_out", "forward"), delta)
        if each.into == STREAM:
            return self._by_ffn(each.role.removesuffix("_out"), delta)
        if each.into in (VALUES, SCORES):
            value = self._back("attn_out", product(self.factor("attn_out", "forward"), delta))
            others = (other for other in self.network.into(SCORES) if other.role != each.role)
            return value if each.into == VALUES else product(value, self._of("attn_v"), *map(self.output, others))
        if each.into == GATES:
            return self._by_router(delta)
        if each.into == LOSS:
            return self.factor("readout", "forward")
        kind = each.into.removeprefix(hidden(""))
        passed = self._back(f"{kind}_out", self._by_ffn(kind, delta))
        return product(passed, power_of(self._hidden(each.into), 0))

    def _by_router(self, delta: Size) -> Size:
        """Return the gradient by the router's logits: the scalar product of an expert's output and delta."""
        if self.choice.table.tied_experts and delta != ZERO:
            return SINGLE_DRAW
        width = self.symbol("width", 0.5)
        return product(self.forward("router"), self._by_ffn("expert", delta), self._of("expert_out"), width)


@dataclass(frozen=True)
class _Update:
    """The sizes that the first update changes; `changes` is that of every role's weight."""

    start: _Start
    changes: Mapping[str, Size]

    def effective(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> (W_1 - W_0) x_1 of every map. Nothing is derived if its input changes by a growing part."""
        for each in self._trained():
            yield each.role, INPUT_MOVES if self._moves(each) else self._learned(each)

    def of_first_inputs(self) -> Iterator[tuple[str, Size]]:
        """Yield role -> (W_1 - W_0) x_0 of every map, where it is measured: in a network without norms."""
        if not self.start.network.normed:
            yield from ((each.role, self._learned(each)) for each in self._trained())

    def expert_sum(self) -> Size:
        """Return what the updates of the experts' output matrices add to the gated sum: equal signs add up."""
        (each,) = (each for each in self._trained() if each.role == "expert_out")
        return INPUT_MOVES if self._moves(each) else self._of_sum()

    def _trained(self) -> Iterator[Map]:
        yield from (each for each in self.start.network.maps if each.role in self.changes)

    def _moves(self, each: Map) -> bool:
        """Return whether what a map reads changes by a growing part of its size."""
        start = self.start
        beside = start.network.into(_BESIDE.get(each.reads, MODULATIONS))
        moved = [self.changes[role] for role, into in start.network.condition if into == each.reads]
        if any(map(grows, (*moved, *map(self._learned, beside)))) or any(map(self._moves, beside)):
            return True
        if each.reads in (TIME, CONDITION):
            return False
        whole = start.network.residual or start.network.stacked or each.reads == LAST
        return grows(self._of_stream() if whole else product(self._of_lookups(), power_of(start.feature(STREAM), -1)))

    def _learned(self, each: Map) -> Size:
        if self.start.facts.kappa_moves and (each.role == "router" or each.role.startswith("expert")):
            return SPARSE
        change, added = self.changes[each.role], self.start.fan_in(each.role)
        if matrix := self.start.facts.muon.get(each.role):
            added = matrix.gain - matrix.entries + self.start.summed(each.role)
        return product(self.start.forward(each.role), change, added, self.start.feature(each.reads))

    def _of_sum(self) -> Size:
        start = self.start
        (each,) = (each for each in self._trained() if each.role == "expert_out")
        return product(
            *(start.symbol("active"), start.factor("expert_out", "forward"), start.gates(), self._learned(each))
        )

    def _of_lookups(self) -> Size:
        return largest(*(self.changes[role] for role in self.start.network.lookups))

    def _of_stream(self) -> Size:
        """Return by how much of its size the stream changes at least, or why this is not known."""
        start, into = self.start, self.start.network.into(STREAM)
        branches = [self._of_sum() if each.role == "expert_out" else self._learned(each) for each in into]
        gate = start.modulations(MODULATIONS)
        branches = [product(gate, branch) for branch in branches]
        for each in start.network.into(MODULATIONS):
            branches += [product(self._learned(each), start._branch(branch)) for branch in into]
        if start.network.residual:
            depth = start.symbol("depth")
            branches = [self._of_lookups(), *(product(depth, branch) for branch in branches)]
        return product(largest(*branches), power_of(start.stream(), -1))
