"""Job: one trial as a command: its config.json, its placeholders, its environment and its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import Formatter
from typing import IO, Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host import write_files
from hpxfer.recipe import Recipe
from hpxfer.scaling.hps import SCALARS
from hpxfer.scaling.shape import Shape
from hpxfer.spec import TimeoutsSpec, TrainerSpec
from hpxfer.trial import Trial


def config_of(
    trial: Trial, trainer: TrainerSpec, *, sweep: str, gpus: int, nodes: int, multipliers: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the part of config.json that the trial decides.

    `gpus` are those of one node. `multipliers` are those that the sweep names.
    """
    setting, choice = trial.setting, trial.parameterization
    own = choice is not None and choice.is_own
    return {
        "sweep": sweep,
        "arm": None if choice is None else choice.label(),
        "shape": trial.shape.own_dims,
        "base_shape": trial.base.own_dims,
        "dims": _dims(trial.shape),
        "hps": {**{name: trial.hps.get(name) for name in multipliers}, **_hps(trial)},
        "args": json.loads(setting.trainer).get("args", {}),
        "seed": trial.seed,
        "steps": setting.steps,
        "batch_tokens": setting.batch_tokens,
        "final_window_steps": setting.final_window_steps,
        "data": setting.data_source.partition(":")[2],
        "schedule": {
            name: getattr(setting, name) for name in ("decay", "warmup_steps", "decay_steps", "final_fraction")
        },
        "optimizer": setting.optimizer,
        "betas": [trial.globals().beta1, trial.globals().beta2],
        "roles": None if own else {role: asdict(numbers) for role, numbers in trial.resolved().items()},
        "recipe": None if own else recipe_of(trial),
        "gpus": gpus,
        "nodes": nodes,
        "function": trainer.function,
        "code_dir": trainer.folder,
    }


def _hps(trial: Trial) -> dict[str, float]:
    """Return HP -> its base value, with multipliers that are not 1 by dotted name."""
    return {**{name: trial.hps.get(name) for name in SCALARS}, **dict(trial.hps.multipliers)}


def _dims(shape: Shape) -> dict[str, int]:
    """Return the dimensions that tables know, by their names in a Shape."""
    return {name: int(value) for name, value in shape.dims().items() if name != "own" and value}


def recipe_of(trial: Trial) -> dict[str, Any] | None:
    """Return the text of the trial's recipe and the dimensions that it is read at.

    It is None if `model.dims` names too few dimensions of the shape for a recipe. Roles are known all the same.
    """
    choice, setting = trial.parameterization, trial.setting
    try:
        recipe = Recipe.from_hps(
            "sp" if choice is None else choice.name,
            _dims(trial.base),
            _hps(trial),
            optimizer=setting.optimizer,
            conventions=None if choice is None else dict(choice.conventions),
            init=setting.init,
            gate=setting.gate,
            attention_scale=setting.attention_scale,
        )
        recipe.multipliers(_dims(trial.shape))
    except HpxferError:
        return None
    return {"text": recipe.dump(), "shape": _dims(trial.shape)}


def placeholders(trial: Trial, config: Mapping[str, Any], **values: object) -> dict[str, object]:
    """Return name -> value of every placeholder of a command. `values` are those of the run, such as `gpus`."""
    kinds = {"shape": "shape", "hp": "hps", "arg": "args"}
    of_config = {f"{kind}.{name}": value for kind, key in kinds.items() for name, value in config[key].items()}
    return {**of_config, "seed": trial.seed, "steps": trial.setting.steps, **values}


# The names that may stand in braces within the elements of a command, beside `hp.NAME`, `shape.NAME` and `arg.NAME`. A
# literal brace is doubled, as in Python.
PLAIN = (
    *("config_json", "gpus", "nodes", "node_rank", "rdzv_endpoint", "rdzv_id", "rdzv_is_host", "run_dir"),
    *("seed", "steps"),
)


def check(argv: Sequence[str], shape_keys: Iterable[str], hp_keys: Iterable[str], arg_keys: Iterable[str] = ()) -> None:
    """Raise HpxferError, with a line per mistake, unless each placeholder of a command is known."""
    keys = {"shape": shape_keys, "hp": hp_keys, "arg": arg_keys}
    legal, broken = [*PLAIN, *(f"{kind}.{key}" for kind, of in keys.items() for key in of)], []
    for at, element in enumerate(argv):
        try:
            parts = [part for part in Formatter().parse(element) if part[1] is not None]
        except ValueError:
            broken.append(f"trainer.command[{at}]: a literal brace must be doubled, got {shown(element)}")
            continue
        names = [f"{name}{f'!{how}' if how else ''}{f':{spec}' if spec else ''}" for _, name, spec, how in parts]
        broken += [
            f"trainer.command[{at}]: must use known names in braces, got {shown(f'{{{name}}}')}; {nearest(name, legal)}"
            for name in names
            if name not in legal
        ]
    if broken:
        raise HpxferError("\n".join(broken))


def fill(argv: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command with values in place of names, e.g. {"hp.lr": 0.01}. A number reads back equal."""

    def spelled(name: str) -> str:
        return repr(float(value)) if isinstance(value := values[name], float) else str(value)

    return tuple(
        "".join(text + ("" if name is None else spelled(name)) for text, name, _, _ in Formatter().parse(element))
        for element in argv
    )


# The variables of the worker that a command gets. Anything else must be declared in the sweep file.
ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE"),
    *("CUDA_*", "NVIDIA_*", "HIP_*", "ROCR_*", "NCCL_*", "GLOO_*", "OMP_*", "MKL_*", "SLURM_*"),
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|APIKEY|(^|_)(KEY|JWT|AUTH)($|_)", re.IGNORECASE)
_ALLOWED = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in ENVIRONMENT))
CONFIG, REPORTS, CHECKPOINTS, ERROR = "config.json", "reports.jsonl", "ckpt", "error.json"
ENDED = "ended.json"  # in the folder of an attempt: how it ended; whoever took its ending writes it
CONTRACT = 1  # of config.json and of the lines


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
    timeouts: TimeoutsSpec = field(default_factory=TimeoutsSpec)
    nan_exit: tuple[str, ...] = ()  # regular expressions: a failed command whose stderr matches has diverged
    grace_s: float = 60.0  # between SIGTERM and SIGKILL when the trial is to stop
    attempt: int | None = None  # None: the next free number; all nodes of a trial must have the same
    node_rank: int = 0
    nodes: int = 1
    speaks: bool = True  # False on the nodes whose reports nobody reads: their exit code counts alone

    @property
    def run_dir(self) -> Path:
        """The absolute path of the trial's folder."""
        return Path(os.path.abspath(self.folder))

    def reports(self, attempt: int) -> Path:
        """Return the report file of an attempt."""
        return attempt_folder(self.run_dir, attempt) / REPORTS


def environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: the variables of ENVIRONMENT that hold no secret, and what is declared."""
    kept = {name: value for name, value in os.environ.items() if _ALLOWED.fullmatch(name) and not _SECRET.search(name)}
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
    """Write config.json, readable by its owner alone. Return its path.

    Raises HpxferError for a value that JSON cannot hold, or a number that is not finite.
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
