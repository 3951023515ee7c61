"""TrainStep: one optimizer step of a stack, which never waits for the host. On CUDA its two halves are CUDA graphs.

    first half     forward and backward: losses, loads, scores, gradients
    second half    record the losses, end bad trials, update parameters and router biases, count the step

Where a batch has several pieces, the first half is replayed for every micro-batch.

A few steps read the gradients between the halves. A captured step belongs to its tensors, not to its trials: the next
stack of its shape, setting and size is written into them, and nothing is captured or compiled again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hpxfer.model.flat import Weights
from hpxfer.model.output import Output
from hpxfer.scaling.shape import Shape
from hpxfer.train.device import Setup
from hpxfer.train.log import balance_steps
from hpxfer.train.monitor import DivergenceMonitor
from hpxfer.train.pieces import Pieces
from hpxfer.train.ranks import ALONE, Ranks
from hpxfer.train.snapshot import Snapshot
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Stack

# Steps before a capture. What is made at first use (compiled code, workspaces, kernels) must exist by then.
WARM_UP_STEPS = 3

Key = tuple[Shape, Setting, tuple[int, int, bool], tuple[bool, ...], Setup]


class TrainStep:
    """The step of one stack, with its state and its monitor.

    Steps are counted from 0. The argument `step` chooses the batch and the router noise. The monitor counts by itself.
    """

    def __init__(self, stack: Stack, setup: Setup, *, reset: bool = True, ranks: Ranks = ALONE) -> None:
        began = time.monotonic()
        self.setup = setup
        if setup.compiled:
            torch.compiler.reset()  # a captured step needs no compiled code, and torch keeps at most 8 versions of it
        self.state = TrainState(
            stack,
            setup.device,
            backend=setup.backend,
            compiled=setup.compiled,
            reset=reset and not setup.captured,
            ranks=ranks,
        )
        self.monitor = DivergenceMonitor(stack.setting, self.state.optimizer.alive, setup.backend)
        self._balance_at = balance_steps(stack.setting.steps)
        self._replays: tuple[Callable[[], None], Callable[[], None]] | None = None
        if setup.captured:
            self._capture()  # leaves the state without meaning
            self._reset(reset)
        self.build_s = time.monotonic() - began  # on CUDA with compiling and capturing

    @property
    def key(self) -> Key:
        """What stacks must share to use one captured step."""
        return _key(self.state.stack, self.setup)

    def set_trials(self, stack: Stack, *, reset: bool = True) -> None:
        """Make this the step of another stack of the same key. If `reset`, go to its first step."""
        self.state.set_trials(stack)
        self._reset(reset)

    def snapshot(self) -> Snapshot:
        """Return the tensors that the next steps depend on: this step's own, but for the moments of several ranks."""
        state, monitor = self.state, self.monitor
        return Snapshot(
            layout=state.layout,
            parameters=state.flat,
            moments=state.moments(),
            powers=state.optimizer.powers,
            alive=monitor.alive,
            ended=monitor.ended,
            limit=monitor.limit,
            step=monitor.step,
            router_bias=state.router_bias,
            last_load=state.last_load,
        )

    def resume(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        """Continue from those trials of a snapshot that `rows` names. They are the trials of this stack."""
        self.state.resume(snapshot, rows)
        self.monitor.resume(snapshot, rows)

    def gradients(self, step: int) -> tuple[Output, Weights]:
        """Return the output on the batch of a step, and the gradients of every trial's mean loss."""
        if self._replays is None or self.state.pieces is not None:
            return self.state.forward_backward(step, with_entropies=step in self._balance_at)
        self._load(step)
        self._replays[0]()
        return self._first

    def update(self, output: Output, grads: Weights) -> None:
        """Record the losses, end bad trials and update the others. `grads` is used up."""
        if self._replays is None or self.state.ranks.world > 1:
            self._update(output, grads)
        else:
            self._replays[1]()

    def _update(self, output: Output, grads: Weights) -> None:
        self.monitor.record(output.losses_KT.detach())
        self.state.update(output, grads, self.monitor.factor())
        self.monitor.advance()

    def _reset(self, reset: bool) -> None:
        if reset:
            self.state.reset()
            self.monitor.reset()

    def _load(self, step: int) -> None:
        """Write the batch and the noise of a step into the tensors of the captured step."""
        inputs, targets = self.state.batch(step)
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        if self._noise is not None:
            noise = self.state.noise(step)
            assert noise is not None
            self._noise.copy_(noise)

    def _gradients_of_buffers(self) -> tuple[Output, Weights]:
        return self.state.gradients(self._inputs, self._targets, self._noise)

    def _capture(self) -> None:
        """Capture both halves, after WARM_UP_STEPS steps on zero parameters."""
        self.state.zero()
        self._inputs, self._targets = self.state.batch(0)
        self._noise: Tensor | None = self.state.noise(0)
        with torch.no_grad():  # not compiled: what the model makes on first use is made outside the compiler
            self.state.warm_up(self._inputs, self._targets)
        graphs = GraphCapture(self.setup.device)
        with warnings.catch_warnings():
            if self.setup.compiled:  # the compiler warns of how it reads tensors, and advises to use TF32
                warnings.simplefilter("ignore")
            graphs.warm_up(self._warm_up_step, WARM_UP_STEPS)
        pieces = self.state.pieces
        if pieces is None:
            self._first, first = graphs.capture(self._gradients_of_buffers)
        else:
            first = self._capture_pieces(pieces, graphs)
            self._first = self.state.forward_backward(0)  # the tensors that each step writes
        if self.state.ranks.world > 1:  # what ranks send each other is not captured
            self._replays = first, first
            return
        _, second = graphs.capture(lambda: self._update(*self._first))
        self._replays = first, second

    def _capture_pieces(self, pieces: Pieces, graphs: GraphCapture) -> Callable[[], None]:
        """Capture the forward and backward pass of a micro-batch, and the counting of its loads."""
        counted = graphs.capture(pieces.micro_loads)[1] if pieces.counts_first else pieces.micro_loads
        output, again = graphs.capture(pieces.micro)

        def run() -> Output:
            again()
            return output

        pieces.replay(run, counted)
        return again

    def _warm_up_step(self) -> None:
        self.monitor.reset()
        first = self._gradients_of_buffers() if self.state.pieces is None else self.state.forward_backward(0)
        self._update(*first)


def _key(stack: Stack, setup: Setup) -> Key:
    """Return what a captured step depends on.

    With a bias on the routers, a random order, a further loss, momentum, or a factor on the embedding, the graph is
    another.
    """
    ties = {trial.setting.ties for trial in stack.trials}
    has_bias = "fixed_bias" in ties or any(trial.structure().router_bias_std for trial in stack.trials)
    numbers = (trial.resolved().get("embedding") for trial in stack.trials)
    scaled = any(embedding is not None and embedding.forward != 1.0 for embedding in numbers)
    hps = (any(getattr(trial.hps, name) for trial in stack.trials) for name in ("aux_weight", "z_weight", "momentum"))
    size = len(stack.trials), stack.pieces, stack.recompute
    return stack.shape, stack.setting, size, (has_bias, "random" in ties, scaled, *hps), setup


class StepCache:
    """The captured step of a process's last stack, for the next stack of the same key. Other steps are not cached."""

    def __init__(self) -> None:
        self._step: TrainStep | None = None

    def step_for(
        self,
        stack: Stack,
        setup: Setup,
        *,
        reset: bool = True,
        ranks: Ranks = ALONE,
        make: Callable[..., TrainStep] = TrainStep,
    ) -> TrainStep:
        """Return a step for the stack: the cached one with its trials, or a new one. If `reset`, at its first step."""
        cached, self._step = self._step, None
        if cached is not None and cached.key == _key(stack, setup):
            cached.set_trials(stack, reset=reset)
            self._step = cached
            return cached
        del cached  # frees its memory before the new step takes some
        made = make(stack, setup, reset=reset, ranks=ranks)
        if setup.captured:
            self._step = made
        return made

    def clear(self) -> None:
        """Forget the cached step, e.g. after an error that left it in an unknown state."""
        self._step = None


T = TypeVar("T")


class GraphCapture:
    """Captures pieces of work that run one after the other, in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object], times: int) -> None:
        """Run work `times` times on its own stream. What is made at first use must exist before a capture."""
        current = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(times):
                work()
        current.wait_stream(side)

    def capture(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Return what `work` returned, and a function that computes it again in place, from the same inputs.

        The work is only recorded here. Call the function to do it.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = work()
        return out, graph.replay
