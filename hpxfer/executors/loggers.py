"""Ray's own loggers, TensorBoard and Weights & Biases, for sweeps that name them in `resources.loggers`.

The loggers see each trial as if it were a trial of Ray Tune: its HPs as the config, the points of its curves as
results, its final losses as the last result. The driver calls them after it has stored a trial's results, so they show
what is stored. Training does not wait for them. If one fails, training goes on without it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.executors.ray_session import session  # before ray itself: it sets Ray's environment

# ruff: isort: split
from ray.air.integrations.wandb import WandbLoggerCallback
from ray.tune.logger import LoggerCallback, TBXLoggerCallback

from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

TENSORBOARD = "tensorboard"
_FINAL = ("final_window_loss_nats", "validation_loss_nats", "last_finite_loss_nats", "diverged_step")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _TuneTrial:
    """A trial with the attributes of Tune's trials that the loggers read. Tune's own writes below Ray's temporary
    folder.
    """

    trial_id: str
    experiment_dir_name: str  # wandb's group
    evaluated_params: dict[str, Any]
    local_path: str

    @property
    def config(self) -> dict[str, Any]:
        return self.evaluated_params

    def init_local_path(self) -> None:
        Path(self.local_path).mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return self.trial_id[:12]

    def __hash__(self) -> int:
        return hash(self.trial_id)


@contextmanager
def logging_to(
    names: Sequence[str], folder: Path, *, sweep: str, address: str | None = None
) -> Iterator[Callable[[Stack, Event], None]]:
    """Yield the function that takes the events of a run and shows results to the named loggers. Files go below
    `folder`.

    wandb works through actors: for it, the cluster at `address` is joined, or Ray is started, as long as the context is
    open. Raises HpxferError if a logger is not installed or has no account to write to.
    """
    with ExitStack() as open_things:
        if "wandb" in names:
            open_things.enter_context(session(address, 0))
        callbacks = {name: _callback(name, sweep) for name in names}

        def take(stack: Stack, event: Event) -> None:
            if isinstance(event, Ended):
                trials = {trial.id: trial for trial in stack.trials}
                for result in event.results:
                    tune_trial = _tune_trial(trials[result.trial_id], folder / TENSORBOARD, sweep)
                    _guarded(callbacks, partial(_log_result, tune_trial=tune_trial, result=result))

        yield take
        _guarded(callbacks, lambda callback: callback.on_experiment_end([]))


def _callback(name: str, sweep: str) -> LoggerCallback:
    try:
        made: Any = (
            TBXLoggerCallback if name == TENSORBOARD else partial(WandbLoggerCallback, project=f"hpxfer-{sweep}")
        )
        callback: LoggerCallback = made()
        callback.setup()
    except ImportError as error:
        raise HpxferError(f"resources.loggers: {name} is not installed: {error}; `pip install tensorboardX`") from None
    except (RuntimeError, ValueError) as error:  # wandb is not installed, or has no key
        raise HpxferError(
            f"resources.loggers: {name}: {error}; `pip install 'hpxfer[wandb]'`, then `wandb login`, or set "
            f"WANDB_MODE=offline"
        ) from None
    return callback


def _guarded(callbacks: dict[str, LoggerCallback], act: Callable[[LoggerCallback], None]) -> None:
    """Call `action` with each logger. A logger that fails is left out from then on."""
    for name in list(callbacks):
        try:
            act(callbacks[name])
        except Exception as error:  # no failure of a display may end the training
            _log.warning("resources.loggers: %s failed and is left out from here on: %s", name, error)
            del callbacks[name]


def _log_result(callback: LoggerCallback, tune_trial: Any, result: TrialResult) -> None:
    points: dict[int, dict[str, Any]] = {}
    for curve in result.curves:
        name = "/".join(str(part) for part in (curve.metric, curve.role, curve.layer) if part is not None)
        for step, value in zip(curve.steps, curve.values, strict=True):
            points.setdefault(step, {})[name] = value
    last = max(points, default=0)
    points.setdefault(last, {}).update(
        {name: value for name in _FINAL if (value := getattr(result, name)) is not None}, status=result.status
    )
    callback.log_trial_start(tune_trial)
    for step in sorted(points):
        callback.log_trial_result(step, tune_trial, {"training_iteration": step, **points[step]})
    callback.log_trial_end(tune_trial, failed=result.status == "failed")


def _tune_trial(trial: Trial, folder: Path, sweep: str) -> _TuneTrial:
    hps = {name: value for name, value in asdict(trial.hps).items() if name != "multipliers"}
    config = {
        **hps,
        **dict(trial.hps.multipliers),
        "parameterization": trial.parameterization.name if trial.parameterization else "base",
        **{f"shape/{name}": value for name, value in asdict(trial.shape).items() if value is not None},
        "seed": trial.seed,
        "steps": trial.setting.steps,
        "batch_tokens": trial.setting.batch_tokens,
    }
    return _TuneTrial(
        trial_id=trial.id,
        experiment_dir_name=sweep,
        evaluated_params={name: value for name, value in config.items() if not _is_nan(value)},
        local_path=str(folder / trial.id),
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
