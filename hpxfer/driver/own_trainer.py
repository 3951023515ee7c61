"""A user's own trainer in a run: who trains its trials, where their folders lie, and what its code was."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.driver.prepared import RESULTS, PreparedSweep
from hpxfer.driver.user_command import scanned_multipliers
from hpxfer.errors import HpxferError
from hpxfer.executors.train_user import TrainUser
from hpxfer.spec import SweepSpec
from hpxfer.store import Store

RUNS = "runs"
# What trainers are made of. Other packages are found in the logs of a trial.
_PACKAGES = (
    *("torch", "numpy", "transformers", "accelerate", "datasets", "deepspeed", "flash-attn", "triton"),
    *("megatron-core", "torchtitan", "ai2-olmo-core", "transformer-engine", "jax", "flax", "lightning"),
)
_GIT_S = 10.0


def train_user(prepared: PreparedSweep) -> TrainUser:
    """Return what trains the trials of a sweep with a trainer of the user's own."""
    spec, resources = prepared.spec, prepared.spec.resources
    assert spec.trainer is not None
    remote = prepared.location.is_remote
    # A folder of a trial is written by programs that know no object storage.
    root = Path(RESULTS, spec.name).absolute() if remote else prepared.folder.absolute()
    return TrainUser(
        trainer=spec.trainer,
        sweep=spec.name,
        runs=str(root / RUNS),
        multipliers=scanned_multipliers(spec),
        judged=spec.judge.loss,
        gpus_on_node=resources.gpus_on_node,
        nodes=resources.nodes,
        curves=resources.curves == "all",
        provenance=json.dumps(code_of(spec)),
    )


def code_of(spec: SweepSpec) -> dict[str, Any]:
    """Return what is known of the user's code on this machine, beside its identity: commit and packages."""
    folder = None if spec.trainer is None else spec.trainer.folder
    commit = _git(folder, "rev-parse", "HEAD")
    changed = None if commit is None else bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    packages = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {"commit": commit, "dirty": changed, "python": sys.version.split()[0], "packages": packages}


def drift(spec: SweepSpec, store: Store) -> str | None:
    """Return how the code differs from that of the trials in the folder, though its identity is the same. None: not."""
    if spec.trainer is None:
        return None
    rows = store.read_trials(["provenance", "finished_at"]).to_pandas().dropna()
    if rows.empty:
        return None
    stored = json.loads(rows.sort_values("finished_at")["provenance"].iloc[-1])
    differ = list(_differences(_flat(stored), _flat(code_of(spec))))
    if not differ:
        return None
    return (
        f"trainer: the code around trainer.files has changed since the last stored trial: {'; '.join(differ)}; raise "
        "trainer.version if it moves numbers"
    )


def require_same_code(spec: SweepSpec, store: Store) -> None:
    """Raise HpxferError if the code has drifted, see `drift`."""
    if (text := drift(spec, store)) is not None:
        raise HpxferError(f"--strict-code: {text}")


def _flat(code: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in code.items() if name != "packages"}, **code.get("packages", {})}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield f"{name} {_spelled(old.get(name))} -> {_spelled(new.get(name))}"


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "with changes" if value else "clean"
    return "none" if value is None else str(value)[:12]


def _git(folder: str | None, *arguments: str) -> str | None:
    """Return what git says of a folder. None if there is no git, or no repository."""
    try:
        command = ["git", "-C", folder or ".", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
