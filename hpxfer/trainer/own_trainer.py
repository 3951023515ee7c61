"""A trainer of the user's own: what it refuses, how its code differs from that of earlier trials, and how it trains.

Its identity is `trainer.version` and the contents of `trainer.files`. Commit and packages are provenance. An identity
that is guessed from them changes with every comment, and yet misses what a change of data does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import SCALARS
from hpxfer.spec import DEV, SweepSpec, TrainerSpec
from hpxfer.store import Store, stored_sweep
from hpxfer.trainer.job import check
from hpxfer.trainer.own_code import code_of, differences, sent_files
from hpxfer.trainer.train_user import TrainUser

RUNS = "runs"  # the folders of trials, in the results folder
_MOST_NAMES = 8


@dataclass(frozen=True)
class OwnTrainer:
    """See `hpxfer.driver.who_trains.Trainer`."""

    spec: SweepSpec
    trainer: TrainerSpec
    writes_checkpoints = True

    def require_sweep(self, *, reuses: bool) -> None:
        """Refuse a command with a placeholder that some trial does not fill, and to reuse trials of code under work."""
        if self.trainer.command is not None:
            arms = [{*self.trainer.args, *arm.args} for arm in (self.trainer.arms or {}).values()]
            args = sorted(set.intersection(*arms or [set(self.trainer.args)]))
            check(self.trainer.command, list(self.spec.model.own or ()), [*SCALARS, *self._multipliers()], args)
        if reuses and self.trainer.version == DEV:
            raise HpxferError(
                f"--reuse: must not be given with trainer.version: {DEV}, whose code changes under one name; give the "
                "version a name of its own, or leave --reuse out"
            )

    def require_device(self, device: object, address: str | None) -> None:
        """Its own program says so."""

    def on_cuda(self, device: object) -> bool:
        """Return whether it asks for GPUs, whatever the machine has."""
        return bool(self.spec.resources.gpus_per_trial)

    def cautions(self, store: Store, device: object, vocab_size: int, address: str | None) -> Iterator[str]:
        """Yield how the code differs from that of the last stored trials: its identity, or else what is around it."""
        last = _last_code(store)
        changes = list(self._changes(store)) if last else []
        for change in changes:
            yield (
                f"{change} since it trained what {store.folder} holds; a run trains all trials again that this code "
                "has not trained, and keeps the old rows"
            )
        if last and not changes:
            yield from self._drift(last)

    def require_same_code(self, store: Store) -> None:
        """Raise HpxferError if the code has drifted. A new version, or new contents of files, are no drift."""
        if (last := _last_code(store)) and not any(self._changes(store)):
            for text in self._drift(last):
                raise HpxferError(f"--strict-code: {text}; or leave the option out")

    def training(self, folder: Path, **_: object) -> TrainUser:
        """Return what trains its trials. Its program knows no object storage, so trials have folders on this disk."""
        resources = self.spec.resources
        return TrainUser(
            trainer=self.trainer,
            sweep=self.spec.name,
            runs=str(folder / RUNS),
            multipliers=self._multipliers(),
            judged=self.spec.judge.loss,
            node_gpus=resources.gpus_on_node,
            nodes=resources.nodes,
            curves=resources.curves == "all",
            provenance=json.dumps(code_of(self.trainer)),
            sent=sent_files(self.trainer),
        )

    def _multipliers(self) -> tuple[str, ...]:
        """Return the multipliers that the sweep names, in order. Each of its trials has a value of each."""
        arms = (name for arm in self.spec.parameterizations for name in arm.given())
        return tuple(sorted({*self.spec.grid, *self.spec.hps.multipliers, *arms} - set(SCALARS)))

    def _changes(self, store: Store) -> Iterator[str]:
        """Yield which parts of the identity of the code have changed since the stored sweep."""
        stored = stored_sweep(store.folder)
        if stored is None or (old := stored.trainer) is None:
            return
        if old.version != self.trainer.version:
            yield f"trainer.version: changed from {old.version or 'none'} to {self.trainer.version or 'none'}"
        before, now = old.digests or {}, self.trainer.digests or {}
        kinds = {
            "changed": [name for name in now if before.get(name, now[name]) != now[name]],
            "new": [name for name in now if name not in before],
            "gone": [name for name in before if name not in now],
        }
        if found := [f"{what}: {_listed(names)}" for what, names in kinds.items() if names]:
            yield f"trainer.files: {'; '.join(found)}"

    def _drift(self, last: dict[str, Any]) -> Iterator[str]:
        """Yield how commit and packages differ from those of the last stored trial, if they do."""
        if differ := "; ".join(differences(last, code_of(self.trainer))):
            yield (
                f"trainer: what is around its identity has changed since the last stored trial: {differ}; raise "
                "trainer.version if that moves numbers"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _last_code(store: Store) -> dict[str, Any]:
    """Return the code of the trial that was stored last; nothing if there is none."""
    rows = store.read_trials(["provenance", "finished_at"]).to_pandas().dropna()
    found: dict[str, Any] = {} if rows.empty else json.loads(rows.sort_values("finished_at")["provenance"].iloc[-1])
    return found
