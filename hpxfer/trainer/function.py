"""Function: call the user's `train(trial)` in this process, from a config.json."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import read_text, reason
from hpxfer.trainer.ending import BAD_INPUT
from hpxfer.trainer.job import CONTRACT
from hpxfer.trainer.user_trial import UserTrial


def main(arguments: list[str]) -> int:
    """Train the trial of a config.json: `python -m hpxfer.trainer CONFIG`. Return the exit code.

    It is 78 for a mistake in what the user gave, which is printed without a traceback. Any other exception goes on.
    """
    try:
        if len(arguments) != 1:
            raise HpxferError(f"python -m hpxfer.trainer: must get the path of a config.json, got {shown(arguments)}")
        run(_config(Path(arguments[0])))
    except HpxferError as error:
        _record(error, BAD_INPUT)
        print(error, file=sys.stderr)  # noqa: T201
        return BAD_INPUT
    except Exception as error:
        _record(error, 1)
        raise
    return 0


def _config(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise HpxferError(f"{path}: must be JSON, got: {error}") from None
    if not isinstance(data, dict) or data.get("contract") != CONTRACT:
        got = shown(data.get("contract") if isinstance(data, dict) else data)
        raise HpxferError(f"{path}: contract: must be {CONTRACT}, got {got}; hpxfer writes this file")
    return data


def run(config: Mapping[str, Any]) -> None:
    """Call the function of a config, report what it yields, and write the result line from what it returns."""
    if folder := config.get("code_dir"):
        sys.path.insert(0, str(folder))
    train, trial = _function(str(config.get("function"))), UserTrial.of(config)
    returned = train(trial)
    if isinstance(returned, Iterator):
        returned = _report_all(trial, returned)
    if returned is None:
        return
    if not isinstance(returned, Mapping) or not all(isinstance(name, str) for name in returned):
        rule = 'must return None or numbers by name, e.g. {"validation": 3.2}'
        raise HpxferError(f"{config.get('function')}: {rule}, got {shown(returned)}")
    trial.result(returned)


def _function(entry: str) -> Callable[[UserTrial], Any]:
    """Return the function of an entry `pkg.mod:train`. Raise HpxferError if there is none."""
    module, _, name = entry.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the user's module imports
        where = ", ".join(sys.path[:3])
        raise HpxferError(f"trainer.function: there is no module {error.name!r} in {where}, ...") from None
    function: Any = getattr(found, name, None)
    if not callable(function):
        legal = [each for each in dir(found) if not each.startswith("_") and callable(getattr(found, each))]
        raise HpxferError(f"trainer.function: must be a function of {module}, got {name}; {nearest(name, legal)}")
    return function  # type: ignore[no-any-return]


def _report_all(trial: UserTrial, reports: Iterator[Any]) -> Any:
    """Report the dictionaries that a generator yields. Return what it returns."""
    while True:
        try:
            line = next(reports)
        except StopIteration as end:
            return end.value
        if not isinstance(line, Mapping) or not {"step", "loss"} <= set(line):
            raise HpxferError(f'train: must yield {{"step": ..., "loss": ...}} and other numbers, got {shown(line)}')
        trial.report(**line)


def _record(error: BaseException, code: int) -> None:
    """Write the error where torchrun looks for it, in torch's format; torchrun hands it on to the supervisor's side."""
    extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra, "errorCode": code}
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
