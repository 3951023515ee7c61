"""The code of a user's own trainer: what is known of it beside its identity, and how it differs from earlier code.

Its identity is `trainer.version` and the contents of `trainer.files`. Commit and packages are provenance. An identity
that is guessed from them changes with every comment, and yet misses what a change of data does.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_bytes
from hpxfer.spec import SweepSpec
from hpxfer.spec.own import TrainerSpec
from hpxfer.store import Store
from hpxfer.store.sweep_file import stored_sweep

# In the folder of a trainer that came here with a job: what git says of it where it came from.
SENT = ".hpxfer-code.json"
# What trainers are made of. Other packages are found in the logs of a trial.
_PACKAGES = (
    *("torch", "numpy", "transformers", "accelerate", "datasets", "deepspeed", "flash-attn", "triton"),
    *("megatron-core", "torchtitan", "ai2-olmo-core", "transformer-engine", "jax", "flax", "lightning"),
)
_GIT_S = 10.0


def code_of(spec: SweepSpec) -> dict[str, Any]:
    """Return what is known of the user's code on this machine, beside its identity: commit and packages."""
    packages = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    folder = None if spec.trainer is None else spec.trainer.folder
    return {**commit_of(folder), "python": sys.version.split()[0], "packages": packages}


def commit_of(folder: str | None) -> dict[str, Any]:
    """Return the commit of a folder, and whether files that git knows have changes. None of both: there is no git."""
    with suppress(OSError, ValueError, TypeError):
        sent = json.loads((Path(folder or ".") / SENT).read_text(encoding="utf-8"))
        return {"commit": sent["commit"], "dirty": sent["dirty"]}
    commit = _git(folder, "rev-parse", "HEAD")
    changed = None if commit is None else bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return {"commit": commit, "dirty": changed}


def sent_files(trainer: TrainerSpec) -> dict[str, bytes]:
    """Return name -> content of a trainer's files that came here with a job. Nodes that lack them get them."""
    folder = Path(trainer.folder or ".")
    if not (folder / SENT).is_file():
        return {}
    return {name: read_bytes(folder / name) for name in trainer.digests or {}}


def code_cautions(spec: SweepSpec, store: Store) -> Iterator[str]:
    """Yield how the code differs from that of the last stored trials: its identity, or else what is around it."""
    if spec.trainer is None or not _last(store):
        return
    stored = stored_sweep(store.folder)
    differ = [] if stored is None or stored.trainer is None else list(_of_identity(stored.trainer, spec.trainer))
    for change in differ:
        yield (
            f"{change} since it trained what {store.folder} holds; a run trains all trials again that this code has "
            "not trained, and keeps the old rows"
        )
    if not differ and (text := drift(spec, store)) is not None:
        yield text


def drift(spec: SweepSpec, store: Store) -> str | None:
    """Return how the code differs from that of the last stored trial, though its identity is the same. None: not."""
    last = _last(store) if spec.trainer is not None else None
    differ = list(_differences(_flat(last), _flat(code_of(spec)))) if last else []
    if not differ:
        return None
    return (
        f"trainer: what is around its identity has changed since the last stored trial: {'; '.join(differ)}; raise "
        "trainer.version if that moves numbers"
    )


def require_same_code(spec: SweepSpec, store: Store) -> None:
    """Raise HpxferError if the code has drifted, see `drift`. A new version, or new contents of files, are no drift."""
    stored = stored_sweep(store.folder)
    if spec.trainer is None or (
        stored is not None and stored.trainer is not None and any(_of_identity(stored.trainer, spec.trainer))
    ):
        return
    if (text := drift(spec, store)) is not None:
        raise HpxferError(f"--strict-code: {text}; or leave the option out")


def _of_identity(old: TrainerSpec, new: TrainerSpec) -> Iterator[str]:
    """Yield which parts of the identity of the code have changed."""
    if old.version != new.version:
        yield f"trainer.version: changed from {old.version or 'none'} to {new.version or 'none'}"
    before, now = old.digests or {}, new.digests or {}
    kinds = {
        "changed": [name for name in now if before.get(name, now[name]) != now[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    if any(kinds.values()):
        yield "trainer.files: " + "; ".join(f"{what}: {_listed(names)}" for what, names in kinds.items() if names)


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _last(store: Store) -> dict[str, Any] | None:
    """Return the code of the trial that was stored last."""
    rows = store.read_trials(["provenance", "finished_at"]).to_pandas().dropna()
    if rows.empty:
        return None
    found: dict[str, Any] = json.loads(rows.sort_values("finished_at")["provenance"].iloc[-1])
    return found


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
