"""The code of a user's own trainer: its commit, the packages around it, and its files that came with a job."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.host.files import read_bytes
from hpxfer.spec.own import TrainerSpec

# In the folder of a trainer that came here with a job: what git says of it where it came from.
SENT = ".hpxfer-code.json"
# What trainers are made of. Other packages are found in the logs of a trial.
_PACKAGES = (
    *("torch", "numpy", "transformers", "accelerate", "datasets", "deepspeed", "flash-attn", "triton"),
    *("megatron-core", "torchtitan", "ai2-olmo-core", "transformer-engine", "jax", "flax", "lightning"),
)
_GIT_S = 10.0


def code_of(trainer: TrainerSpec) -> dict[str, Any]:
    """Return what is known of the code on this machine, beside its identity: commit and packages."""
    packages = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {**commit_of(trainer.folder), "python": sys.version.split()[0], "packages": packages}


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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield how commit and packages of the code differ, e.g. `torch 2.12.0 -> 2.13.0`."""
    old, new = ({**code, **code.get("packages", {}), "packages": None} for code in (old, new))
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
