"""Step: one optimizer step of a stack, without a look at the host. On CUDA its two halves are CUDA graphs.

    first half     forward and backward: losses, loads, entropies, gradients
    second half    losses logged, bad trials ended, optimizer and balancing rule, the step counter

Between the halves a few steps look at the gradients. A captured step belongs to its tensors, not to its trials: the
next stack of its shape, setting and size is written into them, and nothing is captured or compiled again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hpxfer.model.flat import Weights
from hpxfer.model.gpt import Output
from hpxfer.scaling.shape import Shape
from hpxfer.stack import Stack
from hpxfer.train.device import Setup
from hpxfer.train.graphs import Recorder
from hpxfer.train.snapshot import Snapshot
from hpxfer.train.state import State
from hpxfer.train.watch import Watch
from hpxfer.trial import Setting

# Steps before a capture: what is made at first use (compiled code, workspaces, kernels) must be there by then.
WARM_UP_STEPS = 3

Key = tuple[Shape, Setting, int, bool, Setup]


class Step:
    """The step of one stack, its state and its watch.

    `step` numbers count from 0; only the batch follows them, all else the watch's own counter.
    """

    def __init__(self, stack: Stack, setup: Setup, *, start: bool = True) -> None:
        began = time.monotonic()
        self.setup = setup
        if setup.compiled:
            torch.compiler.reset()  # a captured step needs its compiled code no more; torch keeps 8 and then gives up
        self.state = State(
            stack, setup.device, backend=setup.backend, compiled=setup.compiled, start=start and not setup.captured
        )
        self.watch = Watch(stack.setting, self.state.optimizer.alive, setup.backend)
        self._replays: tuple[Callable[[], None], Callable[[], None]] | None = None
        if setup.captured:
            self._capture()  # of this the state has no meaning left
            self._restart(start)
        self.made_s = time.monotonic() - began  # on CUDA with compiling and capturing

    @property
    def key(self) -> Key:
        """What stacks must share to use one captured step: noise or none is another graph."""
        state = self.state
        return state.stack.shape, state.setting, state.num_trials, state.has_noise, self.setup

    def take(self, stack: Stack, *, start: bool = True) -> None:
        """Make this the step of another stack of the same key, at its first step if `start`."""
        self.state.take(stack)
        self._restart(start)

    def snapshot(self) -> Snapshot:
        """Return where the stack stands; the tensors are this step's own."""
        state, watch = self.state, self.watch
        return Snapshot(
            layout=state.layout,
            parameters=state.flat,
            moments=state.optimizer.moments,
            powers=state.optimizer.powers,
            alive=watch.alive,
            ended=watch.ended,
            limit=watch.limit,
            step=watch.step,
            router_bias=state.router_bias,
        )

    def go_on(self, other: Snapshot, kept: Sequence[int]) -> None:
        """Take over parameters, optimizer and watch of the trials of `other` that are kept; they are this stack's."""
        self.state.follow(other, kept)
        self.watch.follow(other, kept)

    def gradients(self, step: int, *, probe: bool = False) -> tuple[Output, Weights]:
        """Return the output on the batch of a step, and the gradients of every trial's mean loss.

        Without `probe` the output may lack the entropies.
        """
        if self._replays is None:
            return self.state.forward_backward(step, probe=probe)
        self._load(step)
        self._replays[0]()
        return self._first

    def update(self, output: Output, grads: Weights) -> None:
        """Log the losses, end bad trials and update the others; `grads` is used up."""
        if self._replays is None:
            self._update(output, grads)
        else:
            self._replays[1]()

    def _update(self, output: Output, grads: Weights) -> None:
        self.watch.note(output.losses_KT.detach())
        self.state.update(output, grads, self.watch.factor())
        self.watch.advance()

    def _restart(self, start: bool) -> None:
        if start:
            self.state.start()
            self.watch.start()

    def _load(self, step: int) -> None:
        inputs, targets = self.state.batch(step)
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        if self._noise is not None:
            noise = self.state.noise(step)
            assert noise is not None
            self._noise.copy_(noise)

    def _gradients_of_buffers(self) -> tuple[Output, Weights]:
        return self.state.gradients(self._inputs, self._targets, self._noise, probe=True)

    def _capture(self) -> None:
        """Capture both halves, after some steps on zero parameters."""
        self.state.zero()
        self._inputs, self._targets = self.state.batch(0)
        self._noise: Tensor | None = self.state.noise(0)
        with torch.no_grad():  # not compiled: what the model makes on first use is made outside the compiler
            self.state.forward(self._inputs, self._targets, 0)
        recorder = Recorder(self.setup.device)
        with warnings.catch_warnings():
            if self.setup.compiled:  # the compiler's remarks on how it looks at tensors, and its advice to use TF32
                warnings.simplefilter("ignore")
            recorder.warm_up(self._once, WARM_UP_STEPS)
        self._first, first = recorder.capture(self._gradients_of_buffers)
        _, second = recorder.capture(lambda: self._update(*self._first))
        self._replays = first, second

    def _once(self) -> None:
        self.watch.start()
        self._update(*self._gradients_of_buffers())


class Kept:
    """The captured step of a process's last stack, for the next one of its key. What is not captured is not kept."""

    def __init__(self) -> None:
        self._step: Step | None = None

    def step_for(self, stack: Stack, setup: Setup, *, start: bool = True, make: Callable[..., Step] = Step) -> Step:
        """Return a step for the stack, at its start if `start`: the kept one filled anew, or a new one."""
        kept, self._step = self._step, None
        has_noise = any(trial.structure().router_bias_std for trial in stack.trials)
        key = (stack.shape, stack.setting, len(stack.trials), has_noise, setup)
        if kept is not None and kept.key == key:
            kept.take(stack, start=start)
            self._step = kept
            return kept
        del kept  # before the new one takes its memory
        made = make(stack, setup, start=start)
        if setup.captured:
            self._step = made
        return made

    def clear(self) -> None:
        """Let go of what is kept, e.g. after an error left it in an unknown state."""
        self._step = None
