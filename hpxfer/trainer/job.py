"""Job: one trial as a command, and the environment and the files that the command gets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import write_files

# The variables of the worker that a command gets. Anything else must be declared in the sweep file.
ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE"),
    *("CUDA_*", "NVIDIA_*", "HIP_*", "ROCR_*", "NCCL_*", "GLOO_*", "OMP_*", "MKL_*", "SLURM_*"),
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|APIKEY|(^|_)(KEY|JWT|AUTH)($|_)", re.IGNORECASE)
_ALLOWED = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in ENVIRONMENT))
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
CONFIG, REPORTS, CHECKPOINTS, ERROR = "config.json", "reports.jsonl", "ckpt", "error.json"
ENDED = "ended.json"  # in the folder of an attempt: how it ended; whoever took its ending writes it
CONTRACT = 1  # of config.json and of the lines


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """After how many seconds a trial counts as hanging."""

    start_s: float | None = 1800.0  # from the start to the first line
    silence_s: float | None = None  # between lines; None: max(900, 20 x the median gap)
    wall_s: float | None = None  # the whole attempt; None: no limit


@dataclass(frozen=True, kw_only=True)
class Job:
    """One trial as a command on this node. `config` is what config.json gets beside the fields of the attempt."""

    argv: tuple[str, ...]  # filled; no shell reads it
    folder: Path  # of the trial; it may hold earlier attempts
    trial_id: str
    steps: int
    config: Mapping[str, Any]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)  # declared ones, on top of ENVIRONMENT
    timeouts: Timeouts = field(default_factory=Timeouts)
    nan_exit: tuple[str, ...] = ()  # regular expressions: a failed command whose stderr matches has diverged
    guess_loss: float = 0.0  # of a model without knowledge, for the rule of the blow-up; 0: unknown
    grace_s: float = 60.0  # between SIGTERM and SIGKILL when the trial is to stop
    attempt: int | None = None  # None: the next free number; all nodes of a trial must have the same
    node_rank: int = 0
    nodes: int = 1
    speaks: bool = True  # False on the nodes whose reports nobody reads: their exit code counts alone

    def __post_init__(self) -> None:
        check_id(self.trial_id)
        if not self.argv or not all(isinstance(each, str) and "\0" not in each for each in self.argv):
            raise HpxferError(f"command: must be a list of texts without zero bytes, got {shown(self.argv)}")
        for pattern in self.nan_exit:
            try:
                re.compile(pattern)
            except re.error as error:
                raise HpxferError(f"nan_exit: must be regular expressions, got {shown(pattern)}: {error}") from None

    @property
    def run_dir(self) -> Path:
        """The absolute path of the trial's folder."""
        return Path(os.path.abspath(self.folder))


def check_id(trial_id: str) -> None:
    """Raise HpxferError unless the id may be the name of a folder."""
    if not isinstance(trial_id, str) or not _ID.fullmatch(trial_id):
        raise HpxferError(f"trial id: must be letters, digits, '.', '_' and '-', got {shown(trial_id)}")


def environment(declared: Mapping[str, str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command: the variables of ENVIRONMENT that hold no secret, and what is declared."""
    source = os.environ if given is None else given
    kept = {name: value for name, value in source.items() if _ALLOWED.fullmatch(name) and not _SECRET.search(name)}
    return {**kept, **declared}


def attempt_numbers(folder: Path) -> list[int]:
    """Return the numbers of the attempts whose folders exist, in their order."""
    names = [path.name.partition("attempt-")[2] for path in folder.glob("attempt-*")]
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)


def next_attempt(folder: Path) -> int:
    """Return the number of the next attempt, from 1 on."""
    return max(attempt_numbers(folder), default=0) + 1


def attempt_folder(folder: Path, attempt: int) -> Path:
    """Return the folder of an attempt, which may not exist yet."""
    return folder / f"attempt-{attempt}"


def write_config(folder: Path, data: Mapping[str, Any]) -> Path:
    """Write config.json, readable by its owner alone, complete or not at all. Return its path.

    Raises HpxferError for a value that JSON cannot hold. Numbers that are not finite are refused as well.
    """
    path = folder / CONFIG
    try:
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise HpxferError(f"{path}: must hold plain data (texts, finite numbers, lists, mappings): {error}") from None
    folder.mkdir(parents=True, exist_ok=True)

    def write(file: IO[bytes]) -> None:
        os.fchmod(file.fileno(), 0o600)
        file.write(text.encode())

    write_files({path: write})
    return path
