"""What Why Routers Freeze says of routers: a list of claims, each a slope of log RMS on log width.

The ids P1 to P17 count the paper's statements in their order. The model is the paper's (Def. 1): four linear experts of
one matrix, no residual, four samples of two classes, absolute sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpxfer.coordinates.measure import Bound
from hpxfer.coordinates.mlp.own import Gate, Options, Training, own_trials
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.spec.model_section import RouterBias
from hpxfer.trial import Trial

EXPERTS = 4
ZERO_STARTS = (("readout.init_mult", 0.0), ("router.init_mult", 0.0))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model that is trained at every width."""

    table: str
    optimizer: Column = "sgd"
    gate: Gate = "softmax"
    active: int = EXPERTS
    bias: RouterBias = "none"
    lr_exponent: float | None = None  # of sp
    lr: float = 1.0
    eps: float = 0.1
    steps: int = 20
    zero: bool = False  # router and readout start at zero

    def label(self) -> str:
        """Return the run in a few words."""
        law = "" if self.lr_exponent is None else f", LR x width^{0 - self.lr_exponent:g}"
        routing = "soft" if self.active == EXPERTS else f"top {self.active}"
        eps = f", eps {self.eps:g}" if self.optimizer == "adam" else ""
        more = (", fixed bias" if self.bias == "fixed" else "") + (", zero router and readout" if self.zero else "")
        return f"{self.table}{law}, {self.optimizer}{eps}, {self.gate}, {routing}{more}"

    @property
    def options(self) -> Options:
        """The paper's model."""
        return Options(expert_matrices=1, gate=self.gate, num_active=self.active, router_bias=self.bias)

    def trials(self, width: int, seeds: int) -> list[Trial]:
        """Return the trials at a width, one per seed."""
        given = {} if self.lr_exponent is None else {"lr_exponent": self.lr_exponent}
        shape = Shape(width=width, depth=1, num_experts=EXPERTS, num_active=self.active, expert_width=width)
        trials = own_trials(
            parameterization(self.table, given),
            self.optimizer,
            shape,
            self.options,
            Training(lr=self.lr, eps=self.eps),
            seeds=range(seeds),
            steps=self.steps,
        )
        if not self.zero:
            return trials
        kept = tuple((name, value) for name, value in trials[0].hps.multipliers if name != "readout.init_mult")
        return [
            replace(
                trial,
                hps=replace(trial.hps, multipliers=tuple(sorted((*kept, *ZERO_STARTS)))),
                setting=replace(trial.setting, ties="random" if self.active < EXPERTS else "index"),
            )
            for trial in trials
        ]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A slope that the paper states or that follows from it. `exponent` None: only that the size falls to zero."""

    id: str
    says: str
    run: Run
    quantity: str
    step: int
    exponent: float | None
    role: str = "router"
    bound: Bound = "equal"


SP_SGD = Run(table="sp", lr_exponent=-0.5, lr=0.3, steps=2)
SP_ADAM = Run(table="sp", lr_exponent=0.0, optimizer="adam", lr=0.05, eps=1e-8, steps=2)
LAZY_SGD, LAZY_ADAM = replace(SP_SGD, lr_exponent=1.0, lr=2.0), replace(SP_ADAM, lr_exponent=1.0, lr=0.5)
MUP = Run(table="mup-moe", lr=2.0)
MUP_ADAM = Run(table="mup-moe", optimizer="adam", lr=0.1, eps=0.1)
SIGMOID, TOP = replace(MUP, gate="sigmoid"), replace(MUP, active=2)


def claims() -> Iterator[Claim]:
    """Yield the claims in the paper's order."""
    for run, effective in ((SP_SGD, 1.5), (replace(SP_SGD, gate="sigmoid"), 1.5), (SP_ADAM, 1.0)):
        yield Claim(
            id="P1", says="h1 moves by order 1", run=run, role="embedding", quantity="change", step=1, exponent=0
        )
        says = "router, propagating: width^1/2"
        yield Claim(id="P1", says=says, run=run, quantity="propagating", step=1, exponent=0.5)
        says = f"router, effective: width^{effective:g}"
        yield Claim(id="P1", says=says, run=run, quantity="effective", step=1, exponent=effective)
        yield Claim(id="P1", says="logits diverge", run=run, quantity="change", step=1, exponent=effective)
    for run in (SP_SGD, replace(SP_SGD, gate="sigmoid"), SP_ADAM):
        says = "gates saturate: g(1-g) to zero"
        yield Claim(id="P2", says=says, run=run, quantity="gate_slack", step=1, exponent=None)
        says = "the gradient by the logits vanishes"
        yield Claim(id="P3", says=says, run=run, quantity="dL/dpsi", step=1, exponent=None)
    for run, effective in ((replace(SP_SGD, active=2), 1.5), (replace(SP_ADAM, active=2), 1.0)):
        yield Claim(id="P4", says="the same with 2 of 4", run=run, quantity="propagating", step=1, exponent=0.5)
        yield Claim(id="P4", says="the same with 2 of 4", run=run, quantity="change", step=1, exponent=effective)
    # Under SGD f would move so far in the first step that the loss saturates, and nothing moves after it.
    zero = replace(SP_ADAM, zero=True, steps=20)
    says = "a zero router diverges too"
    yield Claim(id="P5", says=says, run=zero, quantity="change", step=20, exponent=0.5, bound="at least")
    for run, h1 in ((LAZY_SGD, -1.5), (LAZY_ADAM, -1.0)):
        yield Claim(
            id="P6", says="stable is lazy: h1", run=run, role="embedding", quantity="change", step=1, exponent=h1
        )
        yield Claim(id="P6", says="stable is lazy: logits", run=run, quantity="change", step=1, exponent=0)
    yield Claim(id="P7", says="logits start at zero", run=MUP, quantity="logits", step=0, exponent=-0.5)
    yield Claim(id="P7", says="f starts at zero", run=MUP, role="readout", quantity="activation", step=0, exponent=-0.5)
    for run in (MUP, SIGMOID):
        says = "differences of the logits' changes vanish"
        yield Claim(id="P8", says=says, run=run, quantity="spread of the change", step=20, exponent=-0.5)
    yield Claim(id="P9", says="a softmax router freezes", run=MUP, quantity="change", step=20, exponent=-0.5)
    yield Claim(id="P10", says="gradient by the logits", run=MUP, quantity="dL/dpsi", step=20, exponent=-0.5)
    zero = replace(MUP, zero=True)
    yield Claim(id="P11", says="entries of a zero router", run=zero, quantity="weight change", step=20, exponent=-1.5)
    yield Claim(id="P11", says="logits of a zero router", run=zero, quantity="change", step=20, exponent=-0.5)
    yield Claim(id="P12", says="a sigmoid router learns", run=SIGMOID, quantity="change", step=20, exponent=0)
    yield Claim(id="P12", says="but not in one step", run=SIGMOID, quantity="change", step=1, exponent=-0.5)
    yield Claim(id="P13", says="Adam with large eps freezes", run=MUP_ADAM, quantity="change", step=20, exponent=-0.5)
    tiny = replace(MUP_ADAM, eps=1e-8, lr=0.02)
    yield Claim(id="P13a", says="Adam with eps 1e-8 does not", run=tiny, quantity="change", step=20, exponent=0)
    for run in (replace(MUP, bias="fixed"), replace(TOP, bias="fixed")):
        yield Claim(id="P14", says="a bias lets it learn", run=run, quantity="change", step=20, exponent=0)
    for run in (TOP, replace(TOP, gate="sigmoid")):
        yield Claim(id="P17", says="top-K lets it learn", run=run, quantity="change", step=20, exponent=0)
        says = "and tells experts apart"
        yield Claim(id="P17", says=says, run=run, quantity="spread of the change", step=20, exponent=0)
