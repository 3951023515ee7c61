"""Ray Tune's side of the Tune executor: a searcher that hands it stacks, ASHA per arm, and a callback for events."""

from __future__ import annotations

import math
import os
import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError, first_line
from hpxfer.executors.executor import Stopping
from hpxfer.executors.worker import STOP, guarded, keep_memory
from hpxfer.trial.events import Ended, Event, Progress
from hpxfer.trial.stack import Stack

# Tune reads these when it is imported. It then writes no logs of its own, leaves Ctrl-C to this process, and accepts
# results without a loss.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

# ruff: isort: split
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

STEP, LOSS, EVENT = "step", "loss_nats", "event"
_POLL_S = 0.1
Message = tuple[str, "Event | Stopped | Lost"]  # the id of a stack, and its event or its end


@dataclass(frozen=True)
class Stopped:
    """ASHA stopped the trial."""


@dataclass(frozen=True)
class Lost:
    """The worker of the trial is gone."""

    why: str


_CHANNELS: weakref.WeakValueDictionary[str, TuneChannel] = weakref.WeakValueDictionary()


class TuneChannel:
    """The channel between this process's main thread and Tune: stacks go one way, messages the other.

    Tune pickles and copies whatever it is given, to be able to restart. A copy of a channel is the channel itself.
    """

    def __init__(self) -> None:
        self._key = uuid.uuid4().hex
        _CHANNELS[self._key] = self
        # the flag says whether this is the last try of the stack
        self.stacks: queue.SimpleQueue[tuple[Stack, bool]] = queue.SimpleQueue()
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self._ended: list[BaseException | None] = []

    def __reduce__(self) -> tuple[Callable[[str], TuneChannel], tuple[str]]:
        return _channel, (self._key,)

    def run(self, fit: Callable[[], Any]) -> None:
        """Run Tune to its end. If it was asked to stop, nobody waits for it any longer."""
        try:
            fit()
            self._ended.append(None)
        except BaseException as error:
            self._ended.append(error)

    def next_message(self) -> Message | None:
        """Return the next message, or None if there is none yet. Raise HpxferError if Tune ended too early."""
        ended = bool(self._ended)
        try:
            return self.messages.get(timeout=_POLL_S)
        except queue.Empty:
            if ended:
                why = "it ended by itself" if self._ended[0] is None else first_line(self._ended[0])
                raise HpxferError(
                    f"Ray Tune ended too early: {why}; the finished trials are stored, run again to train the rest"
                ) from None
            return None


def _channel(key: str) -> TuneChannel:
    """Return the channel of this process with that key."""
    return _CHANNELS[key]


class StackSearcher(Searcher):
    """Hands Tune the next stack of the channel. None means that there is none yet."""

    def __init__(self, channel: TuneChannel) -> None:
        super().__init__()
        self._channel = channel

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        if self._channel.stopped.is_set():
            return Searcher.FINISHED
        try:
            stack, cut = self._channel.stacks.get_nowait()
        except queue.Empty:
            return None
        return {"stack": stack, "cut": cut}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        return

    def save(self, checkpoint_path: str) -> None:
        return

    def restore(self, checkpoint_path: str) -> None:
        return


class PerArm(FIFOScheduler):
    """Runs ASHA for each arm separately."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stopping = stopping
        self._arms: dict[Any, Any] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True

    def _asha(self, trial: Any) -> Any:
        stack: Stack = trial.config["stack"]
        arm = self._stopping.arm(stack.trials[0])
        if arm not in self._arms:
            self._arms[arm] = ASHAScheduler(
                time_attr=STEP,
                metric=LOSS,
                mode="min",
                max_t=stack.setting.steps,
                grace_period=min(self._stopping.grace_steps, stack.setting.steps),
                reduction_factor=self._stopping.reduction_factor,
                stop_last_trials=False,
            )
        return self._arms[arm]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._asha(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision: str = self._asha(trial).on_trial_result(tune_controller, trial, result)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        return  # its last report is counted already

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        return


class Stop(tune.Stopper):
    """Ends all trials once the driver has left."""

    def __init__(self, channel: TuneChannel) -> None:
        self._channel = channel

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._channel.stopped.is_set()


class ResultCallback(tune.Callback):
    """Sends the driver the events of workers, and the ends of trials that Tune ended without results."""

    def __init__(self, channel: TuneChannel) -> None:
        self._channel = channel

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        if (event := result.get(EVENT)) is not None:
            self._channel.messages.put((trial.config["stack"].id, event))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        # The driver ignores this if it has the stack's results already.
        self._channel.messages.put((trial.config["stack"].id, Stopped()))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        error = trial.get_error()
        why = "Ray ended its process" if error is None else first_line(error)
        self._channel.messages.put((trial.config["stack"].id, Lost(why)))


class Runner(tune.Trainable):
    """A stack as Tune's trainable: each step is one event. One process serves stack after stack."""

    def setup(self, config: dict[str, Any], train: Any = None) -> None:
        keep_memory()
        self._train = train
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._events: Iterator[Event] = guarded(self._train, config["stack"], cut=config["cut"])
        self._trains = False  # whether the stack has begun and not ended

    def step(self) -> dict[str, Any]:
        event = next(self._events)
        self._trains = not isinstance(event, Ended)
        if isinstance(event, Ended):
            return {EVENT: event, "done": True}
        out: dict[str, Any] = {EVENT: event, "done": False}
        if isinstance(event, Progress) and event.step is not None and len(event.losses) == 1:
            loss = event.losses[0]
            out |= {STEP: event.step, LOSS: loss} if math.isfinite(loss) else {}
        return out

    def cleanup(self) -> None:
        """Let a training that Tune ends write a checkpoint: its driver may have been interrupted."""
        STOP.is_set = True
        if self._trains:
            for _ in self._events:
                pass
