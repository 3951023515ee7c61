"""The code of a user's own trainer: its commit, the packages around it, and its files on the node that trains."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host import read_bytes, reason, write_files
from hpxfer.spec import TrainerSpec, digest_of

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

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", folder or ".", *arguments]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True).stdout.strip()
        return None

    commit = git("rev-parse", "HEAD")
    # A status that takes too long does not hide the commit.
    changed = None if commit is None else bool(git("status", "--porcelain", "--untracked-files=no"))
    return {"commit": commit, "dirty": changed}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield how commit and packages of the code differ, e.g. `torch 2.12.0 -> 2.13.0`."""
    old, new = ({**code, **code.get("packages", {}), "packages": None} for code in (old, new))
    spelled = {None: "none", True: "with changes", False: "clean"}
    for name in dict.fromkeys([*old, *new]):
        one, other = old.get(name), new.get(name)
        if one != other:
            yield f"{name} {spelled.get(one, str(one)[:12])} -> {spelled.get(other, str(other)[:12])}"


def sent_files(trainer: TrainerSpec) -> dict[str, bytes]:
    """Return name -> content of a trainer's files that came here with a job. Nodes that lack them get them."""
    folder = Path(trainer.folder or ".")
    return {name: read_bytes(folder / name) for name in trainer.digests or {}} if (folder / SENT).exists() else {}


def require_files(trainer: TrainerSpec, sent: Mapping[str, bytes]) -> None:
    """Raise HpxferError if a file of the trainer is not on this node, or is another than the run began with.

    `sent` are files that came with a job: name -> content. Those that are not there are written first.
    """
    folder = Path(trainer.folder or ".")
    for name, digest in (trainer.digests or {}).items():
        path, content = folder / name, sent.get(name)
        if content is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: lambda file, content=content: file.write(content)})  # type: ignore[misc]
        try:
            found = digest_of(path.read_bytes())
        except OSError as error:
            found = reason(error)
        if found != digest:
            raise HpxferError(
                f"trainer.files: {name}: must be the file that the run began with ({digest[:12]}), got {found[:40]} in "
                f"{folder} on {socket.gethostname()}; give every node the same files, and run again after a change"
            )
