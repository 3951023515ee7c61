"""Weights & Biases: one run for each trial, in the group of the sweep.

wandb's own variables say where runs go: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_BASE_URL. Its files are in
`wandb/` of the results folder, unless WANDB_DIR names another. A trial that goes on in another run of the sweep takes
the place of its unfinished run: both have the same id.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import WHERE, Final, LoggedTrial, LoggerKind, OpenTrial, Place, StepValues, library

NAME = "wandb"
PROJECT = "hpxfer"
# Each open run has a socket in this process. Many systems let a process open 1024 files.
MOST_OPEN = 128
_KEY = "key"
_FAILED = ("failed", "interrupted")


class Wandb:
    """Starts a run of wandb for each trial."""

    def __init__(self, place: Place) -> None:
        self._place, self._wandb = place, library("wandb", NAME)
        self._folder = place.folder / NAME

    def open(self, trial: LoggedTrial) -> OpenTrial:
        """See `Logger.open`. wandb itself overwrites a run of the same id; unsent files of it are removed here."""
        folder = Path(os.environ.get("WANDB_DIR") or self._folder)
        run_id = hashlib.blake2b(f"{self._key()} {trial.id}".encode(), digest_size=8).hexdigest()
        with self._place.writing():
            folder.mkdir(parents=True, exist_ok=True)
            for old in (folder / NAME).glob(f"*run-*-{run_id}"):  # in which wandb kept the run
                shutil.rmtree(old, ignore_errors=True)
        run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=self._place.sweep,
            name=trial.name,
            id=run_id,
            config=dict(trial.config),
            dir=str(folder),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        return _Run(run)

    def _key(self) -> str:
        """Return the text that tells these results from others. wandb never gives the id of a deleted run again, so
        new results have new ids, though their trials have the same.
        """
        path = self._folder / _KEY
        if not path.is_file():
            with self._place.writing():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(secrets.token_hex(8), encoding="ascii")
        return path.read_text(encoding="ascii")


class _Run:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, points: StepValues) -> None:
        for step, values in points.items():
            self._run.log(dict(values), step=step, commit=True)

    def close(self, final: Final) -> None:
        self._run.summary.update({**final.values, "status": final.status})
        self._run.finish(exit_code=1 if final.status in _FAILED else 0)


def _require() -> None:
    wandb = library("wandb", NAME)
    try:
        settings = wandb.setup().settings
    except Exception as error:  # such as a variable with an illegal value
        why = " ".join(str(error).split())
        raise HpxferError(f"{WHERE}: wandb cannot start: {why}") from None
    if settings.mode not in ("online", "shared") or settings.api_key or settings.identity_token_file:
        return
    if library("requests.utils", NAME).get_netrc_auth(settings.base_url) is None:
        raise HpxferError(
            f"{WHERE}: wandb must have an account to write to, got none for {settings.base_url}; run `wandb login` or "
            "set WANDB_API_KEY; or set WANDB_MODE=offline, and send the runs later with `wandb sync`"
        )


WANDB = LoggerKind(name=NAME, require=_require, make=Wandb, most_open=MOST_OPEN)
